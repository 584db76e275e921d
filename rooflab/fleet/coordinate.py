"""The coordinator: starts members, receives their rows, and writes them.

A thread follows each member. A member that dies, hangs or is refused costs its own rows; the others
go on. A row is on disk before the next message of its member is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

from pydantic import ValidationError

from rooflab.config import SweepConfig
from rooflab.devices.open import ALL
from rooflab.errors import RooflabError, RunError
from rooflab.fleet.folder import Folder
from rooflab.fleet.launch import Launcher, Link, MemberLost
from rooflab.fleet.messages import (
    Devices,
    Done,
    Hello,
    Note,
    Open,
    Refused,
    Row,
    Rows,
    Step,
    Work,
    Written,
)
from rooflab.fleet.phases import Companion, Company, Target
from rooflab.fleet.record import DONE, INTERRUPTED, LOST, REFUSED, MemberRecord
from rooflab.model.measurement import Measurement
from rooflab.model.timeline import Span
from rooflab.runs import table
from rooflab.runs.manifest import MANIFEST, Manifest, cleaned, load_manifest
from rooflab.runs.store import MEASUREMENTS, RunWriter
from rooflab.version import __version__
from rooflab.worker.process import START_S


class Watcher:
    """Receives what happens to the members, from several threads; here it does nothing."""

    def opened(self, folder: Path, count: int) -> None:
        """The fleet's folder exists; so many members will be started."""

    def joined(self, target: Target, member: MemberRecord, points: int) -> None:
        """The member has opened its device; ``points`` rows are left."""

    def heard(self, target: Target, text: str) -> None:
        """What the member does now."""

    def noted(self, target: Target, text: str) -> None:
        """A message for the user."""

    def measured(self, target: Target, row: Measurement) -> None:
        """A row is on disk."""

    def left(self, target: Target, member: MemberRecord) -> None:
        """The member has ended; its status says how."""


class RefusedMember(Exception):  # noqa: N818  an event
    """The member cannot take part; the text says why."""


def expand(launcher: Launcher, hosts: Sequence[str], devices: Sequence[str]) -> list[Target]:
    """Every device of every host; ``all`` becomes the GPUs that a host has.

    Raises ``RooflabError`` if a host does not answer or has no GPU.
    """
    targets = []
    for host in hosts:
        for device in devices:
            found = _gpus(launcher, host) if device == ALL else [device]
            targets += [Target(host, one) for one in found]
    return targets


def _gpus(launcher: Launcher, host: str) -> list[str]:
    try:
        link = launcher.start(host)
        try:
            link.send(Open(device=ALL, path=list(launcher.path)))
            reply = link.receive(START_S)
        finally:
            link.close()
    except MemberLost as error:
        raise RooflabError(f"{host} does not answer: {error}") from error
    if not isinstance(reply, Devices) or not reply.ids:
        raise RooflabError(f"{host} has no usable GPU (type there: rooflab doctor)")
    return reply.ids


class Coordinator:
    """Follows the members of one fleet. ``settings`` has the configuration of a kind of device.

    ``timeout_s`` is the longest silence of a member. With ``mixed`` members may have another
    version of rooflab.
    """

    def __init__(
        self,
        folder: Folder,
        launcher: Launcher,
        settings: Callable[[str], SweepConfig],
        watcher: Watcher,
        *,
        mixed: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        self._folder, self._launcher, self._settings = folder, launcher, settings
        self._watcher, self._mixed, self._timeout_s = watcher, mixed, timeout_s
        self._links: set[Link] = set()
        self._names: set[str] = set()
        self._change = Lock()
        self._stopped = False

    def run(self, targets: Sequence[Target]) -> None:
        """Follow all members to their ends; ``KeyboardInterrupt`` ends them and is raised again.

        Those of one company begin together and keep their devices busy until all are done.
        """
        sizes = Counter(target.company or id(target) for target in targets)
        companies = {key: Company(size) for key, size in sizes.items()}
        with ThreadPoolExecutor(len(targets)) as pool:
            futures = [
                pool.submit(self._follow, target, companies[target.company or id(target)].member())
                for target in targets
            ]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                self._stop()
                raise
        self._folder.record.finished = datetime.now(UTC)
        self._folder.write()

    def _stop(self) -> None:
        """End all members; those that have not begun do not begin."""
        with self._change:
            self._stopped = True
            for link in self._links:
                link.kill()

    def _follow(self, target: Target, companion: Companion) -> None:
        """One member, from its start to its end."""
        member = MemberRecord(
            name=target.name(target.device),
            host=target.host,
            device=target.device,
            repeat=target.repeat,
            phase=target.phase,
        )
        following = _Following(self, target, member, companion)
        try:
            following.run()
            status, reason = DONE, ""
        except RefusedMember as error:
            status, reason = REFUSED, str(error)
        except (MemberLost, RunError) as error:
            status, reason = INTERRUPTED if self._stopped else LOST, str(error)
        ended = following.member.model_copy(update={"status": status, "reason": reason})
        self._folder.set(ended)
        self._watcher.left(target, ended)

    def _claim(self, name: str) -> None:
        """Raise ``RefusedMember`` if another target of this sweep is the same device."""
        with self._change:
            if name in self._names:
                raise RefusedMember("this device is listed twice")
            self._names.add(name)

    def _configure(self, kind: str) -> SweepConfig:
        with self._change:
            config = self._settings(kind)
        self._folder.configure(kind, config.model_dump(mode="json"))
        return config


class _Following:
    """The conversation with one member, and its folder."""

    def __init__(
        self, fleet: Coordinator, target: Target, member: MemberRecord, companion: Companion
    ) -> None:
        self._fleet, self._target, self.member = fleet, target, member
        self._companion = companion
        self._writer: RunWriter | None = None
        self._keys: set[tuple[object, ...]] = set()

    def run(self) -> None:
        """Raises ``MemberLost``, ``RefusedMember`` or ``RunError``."""
        fleet = self._fleet
        with ExitStack() as stack:
            stack.callback(self._companion.leave)
            link = self._start(stack)
            hello = self._greet(link)
            config = fleet._configure(hello.kind)
            fleet._folder.set(self.member)
            self._companion.meet()
            self._ask(link, config)
            silence = fleet._timeout_s or config.timing.timeout_s + START_S
            while self._handle(link.receive(silence), stack):
                pass
            self._companion.meet()  # until then the member keeps its device busy

    def _start(self, stack: ExitStack) -> Link:
        fleet = self._fleet
        with fleet._change:
            if fleet._stopped:
                raise MemberLost("not started")
            link = fleet._launcher.start(self._target.host)
            fleet._links.add(link)
        stack.callback(self._end, link)
        return link

    def _end(self, link: Link) -> None:
        with self._fleet._change:
            self._fleet._links.discard(link)
        link.close()

    def _greet(self, link: Link) -> Hello:
        """Learn which device it is, and give the member its name."""
        device = self._target.device
        link.send(Open(device=device, path=list(self._fleet._launcher.path)))
        reply = link.receive(START_S)
        if isinstance(reply, Refused):
            raise RefusedMember(reply.reason)
        if not isinstance(reply, Hello):
            raise MemberLost("it did not say hello")
        hello = Hello.model_validate(cleaned(reply.model_dump()))
        name = self._target.name(hello.uuid)
        self._fleet._claim(name)
        self.member = self.member.model_copy(
            update={"name": name, "title": hello.name, "rooflab": hello.rooflab}
        )
        if hello.rooflab != __version__ and not self._fleet._mixed:
            raise RefusedMember(
                f"it has rooflab {hello.rooflab}, this one is {__version__}: "
                "install the same, or add --mixed"
            )
        return hello

    def _ask(self, link: Link, config: SweepConfig) -> None:
        """Send the work; a run that exists is continued."""
        folder, record = self._fleet._folder.member(self.member.name), self._fleet._folder.record
        manifest, rows = None, []
        if (folder / MANIFEST).is_file():
            manifest = load_manifest(folder / MANIFEST)
            known, _ = table.load_rows(folder / MEASUREMENTS, manifest)
            columns = table.header(manifest.workloads)
            rows = [table.line(columns, row) for row in known]
        link.send(
            Work(
                config=config.model_dump(mode="json"),
                files=record.files,
                command=record.command,
                folder=str(folder),
                hold=bool(self._target.company),
                manifest=manifest.model_dump(mode="json", by_alias=True) if manifest else None,
                rows=rows,
            )
        )

    def _handle(self, message: Any, stack: ExitStack) -> bool:
        """Act on a message; False after the last one."""
        watcher, target = self._fleet._watcher, self._target
        if isinstance(message, Written):
            self._write_manifest(message.manifest, stack)
        elif isinstance(message, Row):
            self._append(message)
        elif isinstance(message, Rows):
            self._replace(message)
        elif isinstance(message, Note):
            watcher.noted(target, message.text)
        elif isinstance(message, Step):
            watcher.heard(target, message.text)
        elif isinstance(message, Refused):
            raise RefusedMember(message.reason)
        return not isinstance(message, Done)

    def _write_manifest(self, content: dict[str, Any], stack: ExitStack) -> None:
        try:
            manifest = Manifest.model_validate(cleaned(content))
        except ValidationError as error:
            raise RunError("the member sent a manifest that is none") from error
        if self._writer is not None:
            self._writer.manifest = manifest
            self._writer.write_manifest()
            return
        folder = self._fleet._folder.member(self.member.name)
        new = not (folder / MANIFEST).is_file()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot write {folder}: {error.strerror}") from error
        self._writer = stack.enter_context(RunWriter(folder, manifest if new else None))
        self._keys = {row.key for row in self._writer.rows}
        left = manifest.points - len(self._keys)
        self._fleet._watcher.joined(self._target, self.member, left)

    def _append(self, message: Row) -> None:
        writer = self._begun()
        row = table.parse(table.header(writer.manifest.workloads), message.line, writer.manifest)
        if row.key in self._keys:
            return
        spans = [Span(*values) for values in message.spans]
        writer.append(row, message.rounds, spans)
        self._keys.add(row.key)
        self._fleet._watcher.measured(self._target, row)

    def _replace(self, message: Rows) -> None:
        """Take the rows with counters, if they are the same rows."""
        writer = self._begun()
        columns = table.header(writer.manifest.workloads)
        rows = [table.parse(columns, line, writer.manifest) for line in message.lines]
        if {row.key for row in rows} == self._keys:
            writer.replace(rows)

    def _begun(self) -> RunWriter:
        if self._writer is None:
            raise RunError("the member sent a row before its manifest")
        return self._writer
