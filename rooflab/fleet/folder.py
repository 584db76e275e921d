"""The folder of a fleet: ``fleet.json``, and ``members/<host>-<uuid>/``, each an ordinary run.

Only the coordinator writes. It holds the lock of the folder.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any, Self

from rooflab.errors import RunError, UsageError
from rooflab.files import write_atomic
from rooflab.fleet.record import REFUSED, MemberRecord, Record, load
from rooflab.fleet.runs import MEMBERS
from rooflab.runs.store import FLEET, create_folder


class Folder:
    """A fleet's folder, locked. Its methods may be called by several threads."""

    def __init__(self, path: Path, record: Record) -> None:
        self.path, self.record = path, record
        self._change = Lock()
        self._lock = _locked(path)
        self.write()

    @classmethod
    def create(cls, parent: Path, record: Record) -> Self:
        """A new folder in ``parent``; raises ``UsageError`` if it cannot be created."""
        return cls(create_folder(parent, "fleet", datetime.now(UTC)), record)

    @classmethod
    def open(cls, path: Path) -> Self:
        """An existing one; raises ``UsageError`` if it is none or in use."""
        return cls(path, load(path))

    def member(self, name: str) -> Path:
        """The run folder of a member."""
        return self.path / MEMBERS / name

    def set(self, member: MemberRecord) -> None:
        """Store what is known of a member; what was known before it had a name is dropped."""
        with self._change:
            target = (member.host, member.device, member.repeat, member.phase)
            for name, other in list(self.record.members.items()):
                known = (other.host, other.device, other.repeat, other.phase)
                if known == target and not self.member(name).exists():
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
        if not self.record.configs:
            return
        text = self.record.model_dump_json(by_alias=True, indent=2) + "\n"
        try:
            write_atomic(self.path / FLEET, text.encode())
        except OSError as error:
            raise RunError(f"cannot write {self.path / FLEET}: {error.strerror}") from error

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


def slug(*parts: str) -> str:
    """A name of a folder; different parts may give the same one."""
    words = (re.sub(r"[^A-Za-z0-9._]+", "-", part).strip("-.") for part in parts)
    return "-".join(word[:60] for word in words if word) or "member"


def _locked(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    try:
        import fcntl
    except ImportError:  # Windows has no such lock
        return descriptor
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise UsageError(
            f"{path} is in use by another rooflab: wait for it, or sweep into another folder"
        ) from None
    return descriptor
