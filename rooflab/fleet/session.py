"""A sweep on many devices, from its options to its folder.

Phases, each device alone, all together, each pair of a host, show what neighbours cost: power,
heat, the links that they share.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import combinations, zip_longest
from pathlib import Path
from typing import Any

from rooflab.config import SweepConfig, of_run
from rooflab.devices.registry import ALL, is_builtin
from rooflab.devices.registry import kinds as known
from rooflab.errors import RooflabError, UsageError
from rooflab.fleet.coordinate import ConfigOf, Coordinator, Watcher
from rooflab.fleet.launch import ALONE, LOCAL, TOGETHER, UNNAMED, Local, MemberLost, Prefix, Setup
from rooflab.fleet.record import DONE, Folder, MemberRecord, Record, load, slug
from rooflab.model.grouping import grouped
from rooflab.runs.store import create_folder


@contextmanager
def reach(
    launch: str | None,
    on: str | None,
    python: str,
    devices: Sequence[str],
    hosts: Sequence[str] = (),
    **options: Any,
) -> Iterator[Setup]:
    """The fleet, as long as its hosts are reached; ``options`` are those of ``Setup``.

    ``launch`` is a command such as ``ssh {host}``, ``on`` the address of a Ray cluster, ``python``
    the one on the hosts. Without ``launch`` and ``on`` this machine is the only host. Without
    ``hosts`` those of a cluster are all that have ``devices``, and a command without a host's name
    is started once. Raises ``UsageError`` if the words do not fit each other.
    """
    if launch is not None and on is not None:
        raise UsageError("--launch and --on are two ways to reach hosts: give one")
    options |= {"devices": tuple(devices)}
    if on is not None:
        from rooflab.fleet.ray import Ray

        with Ray(on) as ray:
            found = tuple(hosts) or ray.hosts(devices or (ALL,))
            yield Setup(launcher=ray, hosts=found, listed=not hosts, **options)
    elif launch:
        yield Setup(launcher=Prefix(launch, python), hosts=tuple(hosts) or UNNAMED, **options)
    elif hosts:
        raise UsageError("--hosts needs --launch, such as: --launch 'ssh {host}', or --on")
    else:
        yield Setup(launcher=Local(), hosts=(platform.node(),), **options)


def start(
    fleet: Setup,
    settings: ConfigOf,
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
    devices = expanded(fleet)
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
    folder = Folder(create_folder(out, "fleet", datetime.now(UTC)), record)
    return _run(folder, fleet, devices, settings, watcher)


def resume(path: Path, fleet: Setup, files: Sequence[str], watcher: Watcher) -> Path:
    """Measure what is left of a fleet's folder, with its own settings.

    Without ``devices`` they are those of the fleet. ``files`` are the kernel files that may be
    loaded. Hosts that a cluster lists and the fleet lacks join it. Raises ``UsageError`` if code or
    a host was not named: the folder may come from somebody else.
    """
    folder = Folder(path, load(path))
    try:
        fleet = _continued(folder.record, fleet, files)
        devices = expanded(fleet)
    except BaseException:
        folder.close()
        raise

    def settings(kind: str) -> SweepConfig:
        if kind not in folder.record.configs:
            raise UsageError(f"{path} has no settings for devices of kind {kind}: start anew")
        return of_run(folder.record.configs[kind])

    return _run(folder, fleet, devices, settings, watcher)


def _continued(record: Record, fleet: Setup, files: Sequence[str]) -> Setup:
    """The fleet with its own devices; raises ``UsageError`` if it cannot be continued so."""
    if record.ranks:
        raise UsageError("these are the ranks of a program, which is not continued: profile it")
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
    words = {"cuda" if device == ALL else device.partition(":")[0] for device in devices}
    return words & set(known())


def expanded(fleet: Setup) -> list[MemberRecord]:
    """Every device of every host; ``all`` becomes the GPUs that a host has.

    Raises ``RooflabError`` if a host does not answer or has no GPU.
    """
    for what, names in (("host", fleet.hosts), ("device", fleet.devices)):
        if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            raise UsageError(f"{what} {twice[0][:80]} is listed twice")
    return [
        MemberRecord(name="", host=host, device=one)
        for host in fleet.hosts
        for device in fleet.devices
        for one in (_gpus(fleet, host) if device == ALL else [device])
    ]


def _gpus(fleet: Setup, host: str) -> list[str]:
    try:
        if found := fleet.launcher.gpus(host):
            return found
    except MemberLost as error:
        raise RooflabError(f"{host} does not answer: {error}") from error
    raise RooflabError(f"{host} has no usable GPU (type there: rooflab doctor)")


def _run(
    folder: Folder,
    fleet: Setup,
    devices: Sequence[MemberRecord],
    settings: ConfigOf,
    watcher: Watcher,
) -> Path:
    coordinator = Coordinator(folder, fleet, settings, watcher)
    record = folder.record
    planned = list(_left(folder, batches(record.phases, record.repeats, devices)))
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


MemberBatch = list[MemberRecord]
"""Members that are started at the same time."""


def _left(folder: Folder, planned: Iterator[MemberBatch]) -> Iterator[MemberBatch]:
    """The batches in which somebody has something to measure: all of a batch measure together."""
    for batch in planned:
        complete = [member for one in batch if (member := folder.complete(one))]
        if len(complete) < len(batch):
            yield batch
        else:
            for member in complete:
                folder.set(member.but(status=DONE, reason=""))


def batches(
    phases: Sequence[str], repeats: int, devices: Sequence[MemberRecord]
) -> Iterator[MemberBatch]:
    """The batches in order.

    The first phase has ``repeats`` processes on each device, the others one. Hosts do not wait for
    each other.
    """
    hosts = grouped(devices, lambda member: member.host)
    for number in range(1, repeats + 1):
        for batch in _phase(phases[0], hosts):
            yield [one.but(repeat=number, phase="") for one in batch]
    for phase in phases[1:]:
        yield from _phase(phase, hosts)


def _phase(phase: str, hosts: Mapping[str, MemberBatch]) -> list[MemberBatch]:
    if phase == TOGETHER:
        everyone = (member for host in hosts.values() for member in host)
        return [[member.but(phase=TOGETHER, company=TOGETHER) for member in everyone]]
    rounds = (
        [[one] for one in host] if phase == ALONE else list(map(_pair, combinations(host, 2)))
        for host in hosts.values()
    )
    return [
        [one for group in groups for one in group] for groups in zip_longest(*rounds, fillvalue=())
    ]


def _pair(two: tuple[MemberRecord, MemberRecord]) -> MemberBatch:
    first, second = two
    company = f"{first.host} {first.device} {second.device}"
    return [
        one.but(phase=f"with-{slug(other.device)}", company=company)
        for one, other in ((first, second), (second, first))
    ]
