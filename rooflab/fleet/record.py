"""fleet.json: how a fleet was measured, and how each of its processes ended."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rooflab.errors import RunError, UsageError
from rooflab.runs.manifest import cleaned
from rooflab.runs.store import FLEET

SCHEMA: Final = 1
MAX_BYTES: Final = 2**24

RUNNING: Final = "running"
DONE: Final = "done"
REFUSED: Final = "refused"
LOST: Final = "lost"
INTERRUPTED: Final = "interrupted"


class MemberRecord(BaseModel):
    """One member. ``reason`` says why it is not done."""

    name: str
    host: str
    device: str
    repeat: int = 1
    phase: str = ""
    title: str = ""
    rooflab: str = ""
    status: str = RUNNING
    reason: str = ""

    @property
    def first(self) -> bool:
        """Whether it is the first process on its device."""
        return self.repeat == 1 and not self.phase


class Record(BaseModel):
    """The content of fleet.json."""

    model_config = ConfigDict(populate_by_name=True)

    schema_version: int = Field(default=SCHEMA, alias="schema")
    created: datetime
    finished: datetime | None = None
    command: list[str] = []
    launch: str
    hosts: list[str]
    device: str
    phases: list[str] = ["together"]
    repeats: int = 1
    configs: dict[str, dict[str, Any]] = {}
    """Settings by kind of device."""
    files: list[str] = []
    members: dict[str, MemberRecord] = {}


def load(path: Path) -> Record:
    """Read fleet.json; raises ``UsageError`` if it is not there and ``RunError`` if it is wrong."""
    file = path / FLEET
    try:
        if file.stat().st_size > MAX_BYTES:
            raise RunError(f"{file}: not a fleet (it is too large)")
        text = file.read_bytes()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{str(path)[:200]} is not the folder of a fleet (it has no {FLEET}); see: ls results/"
        ) from error
    try:
        record = Record.model_validate(cleaned(json.loads(text)))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise RunError(f"{file}: {where[:80]}: {first['msg'][:200]}") from error
    except (ValueError, RecursionError) as error:
        raise RunError(f"{file}: not a fleet ({str(error)[:200]})") from error
    if record.schema_version < 1:
        raise RunError(f"{file}: not a fleet (it has no schema number)")
    if record.schema_version > SCHEMA:
        raise RunError(
            f"{file} was written by a newer rooflab (schema {str(record.schema_version)[:20]}); "
            "read it with that one"
        )
    return record
