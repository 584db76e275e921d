"""A sweep on many devices, from its options to its folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from rooflab.config import SweepConfig, of_run
from rooflab.devices.open import ALL, is_builtin
from rooflab.devices.open import kinds as known
from rooflab.errors import UsageError
from rooflab.fleet.coordinate import Coordinator, Watcher, expand
from rooflab.fleet.folder import Folder
from rooflab.fleet.launch import LOCAL, UNNAMED, Launcher
from rooflab.fleet.phases import ALONE, PHASES, PROCESSES_ALONE, TOGETHER, Target, batches
from rooflab.fleet.record import DONE, REFUSED, MemberRecord, Record
from rooflab.runs.manifest import MANIFEST
from rooflab.runs.store import load

Settings = Callable[[str], SweepConfig]
"""The configuration for a kind of device, such as ``cuda``; raises ``UsageError``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Which devices, and how to reach them.

    ``devices`` are those of each host; ``all`` is every GPU. With ``listed`` nobody named the
    hosts: they are those of a cluster, where nodes come and go. With ``mixed`` members may have
    another version of rooflab. ``phases`` are some of ``PHASES``, in order. ``repeats`` is the
    number of processes that measure on each device in the first phase, one after the other:
    their spread is the noise. If it is None, there is one, or PROCESSES_ALONE before other
    phases.
    """

    launcher: Launcher
    hosts: tuple[str, ...]
    devices: tuple[str, ...]
    listed: bool = False
    phases: tuple[str, ...] = (TOGETHER,)
    repeats: int | None = None
    mixed: bool = False
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        """Raise ``UsageError`` for unknown phases."""
        wrong = [phase for phase in self.phases if phase not in PHASES]
        if wrong or not self.phases or len(set(self.phases)) < len(self.phases):
            raise UsageError(
                f"--phases {','.join(self.phases)[:40]!r}: give each once of {', '.join(PHASES)}"
            )

    @property
    def processes(self) -> int:
        """Processes on each device in the first phase."""
        several = self.phases[0] == ALONE and len(self.phases) > 1
        return self.repeats or (PROCESSES_ALONE if several else 1)


def start(
    fleet: Setup,
    settings: Settings,
    out: Path,
    watcher: Watcher,
    *,
    files: Sequence[str] = (),
    command: Sequence[str] = (),
) -> Path:
    """Measure on every device into a new folder in ``out``; returns the folder.

    Raises ``UsageError`` for wrong options or if all members are refused, and ``RooflabError`` if a
    host does not answer when it is asked for its GPUs. What happens to a member later costs only
    its own rows.
    """
    # A wrong option is told before anything is started.
    configs = {kind: settings(kind).model_dump(mode="json") for kind in kinds(fleet.devices)}
    targets = _targets(fleet)
    record = Record(
        created=datetime.now(UTC),
        command=list(command),
        launch=fleet.launcher.title,
        hosts=list(fleet.hosts),
        device=",".join(fleet.devices),
        phases=list(fleet.phases),
        repeats=fleet.processes,
        configs=configs,
        files=list(files),
    )
    return _run(Folder.create(out, record), fleet, targets, settings, watcher)


def resume(path: Path, fleet: Setup, files: Sequence[str], watcher: Watcher) -> Path:
    """Measure what is left of a fleet's folder, with its own settings.

    Without ``devices`` they are those of the fleet. ``files`` are the kernel files that may be
    loaded. Hosts that a cluster lists and the fleet lacks join it. Raises ``UsageError`` if code or
    a host was not named: the folder may come from somebody else.
    """
    folder = Folder.open(path)
    try:
        fleet = _continued(folder.record, fleet, files)
        targets = _targets(fleet)
    except BaseException:
        folder.close()
        raise

    def settings(kind: str) -> SweepConfig:
        if kind not in folder.record.configs:
            raise UsageError(f"{path} has no settings for devices of kind {kind}: start anew")
        return of_run(folder.record.configs[kind])

    return _run(folder, fleet, targets, settings, watcher)


def _continued(record: Record, fleet: Setup, files: Sequence[str]) -> Setup:
    """The fleet with its own devices; raises ``UsageError`` if it cannot be continued so."""
    if unnamed := sorted(set(record.files) - set(files)):
        again = " ".join(f"--kernel {name}" for name in unnamed)
        raise UsageError(f"this fleet has kernel files; if you trust them, add: {again}")
    strange = sorted(set(fleet.hosts) - set(record.hosts))
    if strange and not fleet.listed:
        named = ",".join(record.hosts)
        raise UsageError(
            f"name the hosts of this fleet, and how to reach them: --hosts {named} --launch "
            "'ssh {host}', or --on for a Ray cluster"
            if fleet.hosts == UNNAMED or fleet.launcher.title == LOCAL
            else f"{strange[0][:80]} is not a host of this fleet: --hosts {named}"
        )
    devices = fleet.devices or tuple(record.device.split(","))
    if not fleet.devices and not all(one == ALL or is_builtin(one) for one in devices):
        raise UsageError(
            f"this fleet used a device class, {record.device[:80]}: if you trust it, add --device "
            "with that name"
        )
    record.hosts += strange
    return replace(fleet, devices=devices)


def kinds(devices: Sequence[str]) -> set[str]:
    """The kinds of the devices that are not of a user's class."""
    words = {device.partition(":")[0] for device in devices}
    return {{ALL: "cuda"}.get(word, word) for word in words & {ALL, *known()}}


def _targets(fleet: Setup) -> list[Target]:
    for what, names in (("host", fleet.hosts), ("device", fleet.devices)):
        if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            raise UsageError(f"{what} {twice[0][:80]} is listed twice")
    return expand(fleet.launcher, fleet.hosts, fleet.devices)


def _run(
    folder: Folder, fleet: Setup, targets: Sequence[Target], settings: Settings, watcher: Watcher
) -> Path:
    coordinator = Coordinator(
        folder, fleet.launcher, settings, watcher, mixed=fleet.mixed, timeout_s=fleet.timeout_s
    )
    record = folder.record
    planned = list(_left(folder, batches(record.phases, record.repeats, targets)))
    watcher.opened(folder.path, sum(map(len, planned)))
    try:
        for batch in planned:
            coordinator.run(batch)
    finally:
        folder.close()
    if not folder.path.exists():
        reason = next(iter(folder.record.members.values())).reason
        raise UsageError(f"no device took part: {reason}")
    return folder.path


def _left(folder: Folder, planned: Iterable[list[Target]]) -> Iterator[list[Target]]:
    """The batches in which somebody has something to measure: all of a batch measure together."""
    for batch in planned:
        complete = [member for target in batch if (member := _complete(folder, target))]
        if len(complete) < len(batch):
            yield batch
            continue
        for member in complete:
            folder.set(member.model_copy(update={"status": DONE, "reason": ""}))


def _complete(folder: Folder, target: Target) -> MemberRecord | None:
    """The member of a target if it has all of its rows, however it ended."""
    for member in folder.record.members.values():
        at = (member.host, member.device, member.repeat, member.phase)
        if at != (target.host, target.device, target.repeat, target.phase):
            continue
        path = folder.member(member.name)
        if member.status == REFUSED or not (path / MANIFEST).is_file():
            return None
        run = load(path)
        whole = len(run.measurements) == run.manifest.points
        return member if whole and run.manifest.finished else None
    return None
