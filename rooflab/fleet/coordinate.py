"""The coordinator: starts members, receives their rows, and writes them.

A thread follows each member. A member that dies, hangs or is refused costs its own rows; the others
go on. A row is on disk before the next message of its member is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import Condition, Lock
from typing import Any

from pydantic import ValidationError

from rooflab.config import SweepConfig
from rooflab.errors import RunError
from rooflab.fleet import messages
from rooflab.fleet.launch import Link, MemberLost, Setup
from rooflab.fleet.record import DONE, INTERRUPTED, LOST, REFUSED, Folder, MemberRecord
from rooflab.model.measurement import Measurement
from rooflab.model.timeline import Span
from rooflab.runs import table
from rooflab.runs.manifest import Manifest, load_manifest
from rooflab.runs.store import MANIFEST, MEASUREMENTS, RunWriter
from rooflab.runs.text import cleaned
from rooflab.version import __version__
from rooflab.worker.process import START_S

ConfigOf = Callable[[str], SweepConfig]
"""The configuration for a kind of device, such as ``cuda``; raises ``UsageError``."""


class Watcher:
    """Receives what happens to the members, from several threads; here it does nothing."""

    def opened(self, folder: Path, count: int) -> None:
        """The fleet's folder exists; so many members will be started."""

    def joined(self, member: MemberRecord, points: int) -> None:
        """The member has opened its device; ``points`` rows are left."""

    def heard(self, member: MemberRecord, text: str) -> None:
        """What the member does now."""

    def noted(self, member: MemberRecord, text: str) -> None:
        """A message for the user."""

    def measured(self, member: MemberRecord, row: Measurement) -> None:
        """A row is on disk."""

    def left(self, member: MemberRecord) -> None:
        """The member has ended; its status says how."""


class RefusedMember(Exception):  # noqa: N818  an event
    """The member cannot take part; the text says why."""


class Company:
    """Members that meet twice: they begin together, and stay until all have finished."""

    def __init__(self, size: int) -> None:
        self._missing = [size, size]
        self._change = Condition()

    def come(self, *meetings: int) -> None:
        """One less is expected at the meetings 0 and 1, or at one of them."""
        with self._change:
            for meeting in meetings:
                self._missing[meeting] -= 1
            self._change.notify_all()

    def meet(self, meeting: int) -> None:
        """Come, and wait for all who are expected."""
        self.come(meeting)
        with self._change:
            self._change.wait_for(lambda: self._missing[meeting] <= 0)


class Coordinator:
    """Follows the members of one fleet."""

    def __init__(self, folder: Folder, fleet: Setup, settings: ConfigOf, watcher: Watcher) -> None:
        self.folder, self.fleet, self.watcher = folder, fleet, watcher
        self._settings = settings
        self._links: set[Link] = set()
        self._names: set[str] = set()
        self._change = Lock()
        self._stopped = False

    def run(self, batch: Sequence[MemberRecord]) -> None:
        """Follow all members to their ends; ``KeyboardInterrupt`` ends them and is raised again."""
        sizes = Counter(member.company or id(member) for member in batch)
        companies = {key: Company(size) for key, size in sizes.items()}
        with ThreadPoolExecutor(len(batch)) as pool:
            futures = [
                pool.submit(self._follow, one, companies[one.company or id(one)]) for one in batch
            ]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                self._stop()
                raise
        self.folder.record.finished = datetime.now(UTC)
        self.folder.write()

    def _stop(self) -> None:
        """End all members; those that have not begun do not begin."""
        with self._change:
            self._stopped = True
            for link in self._links:
                link.kill()

    def _follow(self, member: MemberRecord, company: Company) -> None:
        following = _Following(self, member.named(member.device), company)
        status, reason = DONE, ""
        try:
            following.run()
        except RefusedMember as error:
            status, reason = REFUSED, str(error)
        except (MemberLost, RunError) as error:
            status, reason = INTERRUPTED if self._stopped else LOST, str(error)
        ended = following.member.but(status=status, reason=reason)
        self.folder.set(ended)
        self.watcher.left(ended)

    @contextmanager
    def started(self, member: MemberRecord) -> Iterator[Link]:
        """A member, from its start to its end."""
        with self._change:
            if self._stopped:
                raise MemberLost("not started")
            link = self.fleet.launcher.start(member.host, member.device)
            self._links.add(link)
        try:
            yield link
        finally:
            with self._change:
                self._links.discard(link)
            link.close()

    def claim(self, name: str) -> None:
        """Raise ``RefusedMember`` if another member of this sweep is the same device."""
        with self._change:
            if name in self._names:
                raise RefusedMember("this device is listed twice")
            self._names.add(name)

    def configure(self, kind: str) -> SweepConfig:
        """The configuration for a kind of device, from now on in the fleet's record."""
        with self._change:
            config = self._settings(kind)
        self.folder.configure(kind, config.model_dump(mode="json"))
        return config


class _Following:
    """The conversation with one member, and its folder."""

    def __init__(self, coordinator: Coordinator, member: MemberRecord, company: Company) -> None:
        self._coordinator, self._folder = coordinator, coordinator.folder
        self._fleet, self._watcher = coordinator.fleet, coordinator.watcher
        self.member = member
        self._company = company
        self._stack = ExitStack()
        self._writer: RunWriter | None = None
        self._keys: set[tuple[object, ...]] = set()

    def run(self) -> None:
        """Raises ``MemberLost``, ``RefusedMember`` or ``RunError``."""
        ahead = [0, 1]
        with self._stack as stack:
            stack.callback(lambda: self._company.come(*ahead))
            link = stack.enter_context(self._coordinator.started(self.member))
            config = self._coordinator.configure(self._greet(link))
            self._folder.set(self.member)
            self._company.meet(ahead.pop(0))
            link.send(self._work(config))
            silence = config.timing.timeout_s + START_S
            while self._handle(link.receive(silence)):
                pass
            self._company.meet(ahead.pop(0))  # until then the member keeps its device busy

    def _greet(self, link: Link) -> str:
        """Learn which device it is, and give the member its name; returns the kind of device."""
        launcher = self._fleet.launcher
        device = launcher.seen(self.member.device)
        link.send(messages.Open(device=device, path=list(launcher.path)))
        reply = link.receive(START_S)
        if isinstance(reply, messages.Refusal):
            raise RefusedMember(reply.reason)
        if not isinstance(reply, messages.Hello):
            raise MemberLost("it did not say hello")
        hello = messages.Hello.model_validate(cleaned(reply.model_dump()))
        named = self.member.named(hello.uuid)
        self._coordinator.claim(named.name)
        self.member = named.but(title=hello.name, rooflab=hello.rooflab)
        if hello.rooflab != __version__ and not self._fleet.mixed:
            raise RefusedMember(
                f"it has rooflab {hello.rooflab}, this one is {__version__}: "
                "install the same, or add --mixed"
            )
        return hello.kind

    def _work(self, config: SweepConfig) -> messages.Work:
        """What to measure; a run that exists is continued."""
        folder, record = self._folder.member(self.member.name), self._folder.record
        work = messages.Work(
            config=config.model_dump(mode="json"),
            files=record.files,
            command=record.command,
            folder=str(folder),
            hold=bool(self.member.company),
        )
        if (folder / MANIFEST).is_file():
            manifest = load_manifest(folder / MANIFEST)
            rows, _ = table.load_rows(folder / MEASUREMENTS, manifest)
            columns = table.header(manifest.workloads)
            work.manifest = manifest.model_dump(mode="json", by_alias=True)
            work.rows = [table.line(columns, row) for row in rows]
        return work

    def _handle(self, message: messages.Message) -> bool:
        """Act on a message; False after the last one."""
        match message:
            case messages.Written():
                self._write_manifest(message.manifest)
            case messages.Row():
                self._append(message)
            case messages.Rows():
                self._replace(message)
            case messages.Note():
                self._watcher.noted(self.member, message.text)
            case messages.Heartbeat():
                self._watcher.heard(self.member, message.text)
            case messages.Refusal():
                raise RefusedMember(message.reason)
        return not isinstance(message, messages.Finished)

    def _write_manifest(self, content: dict[str, Any]) -> None:
        try:
            manifest = Manifest.model_validate(cleaned(content))
        except ValidationError as error:
            raise RunError("the member sent a manifest that is none") from error
        if self._writer is not None:
            self._writer.manifest = manifest
            self._writer.write_manifest()
            return
        folder = self._folder.member(self.member.name)
        new = not (folder / MANIFEST).is_file()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot write {folder}: {error.strerror}") from error
        self._writer = self._stack.enter_context(RunWriter(folder, manifest if new else None))
        self._keys = {row.key for row in self._writer.rows}
        self._watcher.joined(self.member, manifest.points - len(self._keys))

    def _append(self, message: messages.Row) -> None:
        writer, (row,) = self._parsed([message.line])
        if row.key not in self._keys:
            writer.append(row, message.rounds, [Span(*values) for values in message.spans])
            self._keys.add(row.key)
            self._watcher.measured(self.member, row)

    def _replace(self, message: messages.Rows) -> None:
        """Take the rows with counters, if they are the same rows."""
        writer, rows = self._parsed(message.lines)
        if {row.key for row in rows} == self._keys:
            writer.replace(rows)

    def _parsed(self, lines: Sequence[str]) -> tuple[RunWriter, list[Measurement]]:
        """The run, and rows for it."""
        if self._writer is None:
            raise RunError("the member sent a row before its manifest")
        manifest = self._writer.manifest
        columns = table.header(manifest.workloads)
        return self._writer, [table.parse(columns, line, manifest) for line in lines]
