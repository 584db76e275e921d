"""The folder of a fleet: ``fleet.json``, and ``members/<host>-<uuid>/``, each an ordinary run.

Only the coordinator writes. It holds the lock of the folder.
"""

from __future__ import annotations

import os
import re
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field

from rooflab.errors import RunError, UsageError
from rooflab.files import lock, write_atomic
from rooflab.runs.manifest import CleanText, read_object, told
from rooflab.runs.store import FLEET, MANIFEST, MEMBERS, is_fleet
from rooflab.runs.store import load as load_run

SCHEMA: Final = 1

RUNNING: Final = "running"
DONE: Final = "done"
REFUSED: Final = "refused"
LOST: Final = "lost"
INTERRUPTED: Final = "interrupted"


class MemberRecord(BaseModel):
    """A process on a device of a host. ``reason`` says why it is not done.

    ``repeat`` counts the processes of the first phase; ``phase`` is empty in it, else ``together``
    or ``with-DEVICE``. Those of one ``company`` measure at the same time.
    """

    name: str
    host: str
    device: str
    repeat: int = 1
    phase: str = ""
    company: str = Field("", exclude=True)
    title: str = ""
    rooflab: str = ""
    status: str = RUNNING
    reason: str = ""

    @property
    def first(self) -> bool:
        """Whether it is the first process on its device."""
        return self.repeat == 1 and not self.phase

    @property
    def place(self) -> tuple[str, str, int, str]:
        """What tells it from others before its device is known."""
        return self.host, self.device, self.repeat, self.phase

    def but(self, **changes: object) -> Self:
        """The same with changes."""
        return self.model_copy(update=changes)

    def named(self, uuid: str) -> Self:
        """With the name of its folder: ``HOST-UUID``, ``HOST-UUID.2``, ``HOST-UUID.together``."""
        number = f".{self.repeat}" if self.repeat > 1 else ""
        later = f".{self.phase}" if self.phase else ""
        return self.but(name=slug(self.host, uuid) + number + later)


def slug(*parts: str) -> str:
    """A name of a folder; different parts may give the same one."""
    words = (re.sub(r"[^A-Za-z0-9._]+", "-", part).strip("-.") for part in parts)
    return "-".join(word[:60] for word in words if word) or "member"


class Record(BaseModel):
    """The content of fleet.json; ``configs`` are settings by kind of device.

    Of a program of several processes ``ranks`` is their number, and ``key`` what is the same in all
    ranks of its launch; of other fleets they are 0 and empty.
    """

    model_config = ConfigDict(populate_by_name=True)

    schema_version: int = Field(default=SCHEMA, alias="schema")
    created: datetime
    finished: datetime | None = None
    command: list[CleanText] = []
    launch: str
    hosts: list[str]
    device: CleanText
    phases: list[str] = ["together"]
    repeats: int = 1
    configs: dict[str, dict[str, Any]] = {}
    files: list[str] = []
    ranks: int = Field(0, ge=0, le=10**6)
    key: str = ""
    members: dict[str, MemberRecord] = {}

    def write(self, folder: Path) -> None:
        """Replace fleet.json; raises ``RunError``."""
        text = self.model_dump_json(by_alias=True, indent=2) + "\n"
        try:
            write_atomic(folder / FLEET, text.encode())
        except OSError as error:
            raise RunError(f"cannot write {folder / FLEET}: {error.strerror}") from error


def load(path: Path) -> Record:
    """Read fleet.json; raises ``UsageError`` if it is not there and ``RunError`` if it is wrong."""
    file = path / FLEET
    if not is_fleet(path):
        raise UsageError(
            f"{str(path)[:200]} is not the folder of a fleet (it has no {FLEET}); see: ls results/"
        )
    content = read_object(file, "a fleet")
    with told(file, "a fleet"):
        record = Record.model_validate(content)
    if record.schema_version < 1:
        raise RunError(f"{file}: not a fleet (it has no schema number)")
    if record.schema_version > SCHEMA:
        raise RunError(
            f"{file} was written by a newer rooflab (schema {str(record.schema_version)[:20]}); "
            "read it with that one"
        )
    return record


class Folder:
    """A fleet's folder, locked. Its methods may be called by several threads.

    Raises ``UsageError`` if it is in use.
    """

    def __init__(self, path: Path, record: Record) -> None:
        self.path, self.record = path, record
        self._change = Lock()
        with ExitStack() as stack:
            try:
                self._lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, self._lock)
                lock(self._lock, path)
            except OSError as error:
                raise UsageError(f"{path}: {error.strerror}") from error
            stack.pop_all()
        self.write()

    def member(self, name: str) -> Path:
        """The run folder of a member."""
        return self.path / MEMBERS / name

    def complete(self, wanted: MemberRecord) -> MemberRecord | None:
        """The member at a place if it has all of its rows, however it ended."""
        for member in self.record.members.values():
            manifest = self.member(member.name) / MANIFEST
            if member.place == wanted.place and member.status != REFUSED and manifest.is_file():
                run = load_run(manifest.parent)
                whole = len(run.measurements) == run.manifest.points
                return member if whole and run.manifest.finished else None
        return None

    def set(self, member: MemberRecord) -> None:
        """Store what is known of a member; what was known before it had a name is dropped."""
        with self._change:
            for name, other in list(self.record.members.items()):
                if other.place == member.place and not self.member(name).exists():
                    del self.record.members[name]
            self.record.members[member.name] = member
            self.write()

    def configure(self, kind: str, config: dict[str, Any]) -> None:
        """Store the settings of a kind of devices."""
        with self._change:
            self.record.configs[kind] = config
            self.write()

    def write(self) -> None:
        """Replace fleet.json; raises ``RunError``.

        Without settings, which a user's class of devices has when the first one is open, there is
        nothing to continue, and no file.
        """
        if self.record.configs:
            self.record.write(self.path)

    def close(self) -> None:
        """Release the lock; a folder of which nobody took part is removed."""
        statuses = {member.status for member in self.record.members.values()}
        nobody = statuses <= {REFUSED} or not self.record.configs
        if nobody and not (self.path / MEMBERS).exists():
            with suppress(OSError):
                (self.path / FLEET).unlink(missing_ok=True)
                self.path.rmdir()
        with suppress(OSError):
            os.close(self._lock)
