"""Messages between the coordinator and a member: one JSON object per line.

Coordinator             member
``Open``            →
                    ←   ``Hello``, or ``Devices`` if it was asked for them
``Work``            →
                    ←   ``Written``, ``Row``, ``Rows``, ``Note``, ``Heartbeat``, in any order
                    ←   ``Finished``, or ``Refusal`` at any time

A member is not trusted: its lines are validated, and its text is cleaned where a run is written.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from rooflab.model.timeline import What

MAX_LINE: Final = 64 * 2**20
"""Bytes of the longest line that is read."""


class Open(BaseModel):
    """Open this device and say hello; ``all`` asks for the list of GPUs instead.

    ``path`` has folders in which a member on this host finds modules.
    """

    device: str
    path: list[str] = []


class Work(BaseModel):
    """Measure the plan of ``config``.

    ``files`` are kernel files on the member's host. With ``hold`` the member keeps its device busy
    after ``Finished``, until it is ended. With ``manifest`` a run is continued that has
    ``rows``, lines of its table.
    """

    config: dict[str, Any]
    files: list[str] = []
    command: list[str] = []
    folder: str
    hold: bool = False
    manifest: dict[str, Any] | None = None
    rows: list[str] = []


class Hello(BaseModel):
    """The member has opened its device. ``uuid`` is the device's, or its id if it has none."""

    type: Literal["hello"] = "hello"
    rooflab: str
    host: str
    device: str
    kind: str
    name: str
    uuid: str


class Devices(BaseModel):
    """The GPUs of the member's host."""

    type: Literal["devices"] = "devices"
    rooflab: str
    ids: list[str]


class Written(BaseModel):
    """The manifest, from now on. The first one says that the plan is made."""

    type: Literal["manifest"] = "manifest"
    manifest: dict[str, Any]


class Row(BaseModel):
    """A row: its line in the table, its samples by round, and its timeline."""

    type: Literal["row"] = "row"
    line: str
    rounds: list[list[float]] = []
    spans: list[tuple[int, int, What, float, float]] = []


class Rows(BaseModel):
    """All rows again, after some were completed with counters."""

    type: Literal["rows"] = "rows"
    lines: list[str]


class Note(BaseModel):
    """A message for the user."""

    type: Literal["note"] = "note"
    text: str


class Heartbeat(BaseModel):
    """What is being done."""

    type: Literal["step"] = "step"
    text: str


class Finished(BaseModel):
    """Everything is measured."""

    type: Literal["done"] = "done"


class Refusal(BaseModel):
    """The member cannot go on."""

    type: Literal["refused"] = "refused"
    reason: str


Message = Hello | Devices | Written | Row | Rows | Note | Heartbeat | Finished | Refusal

_MESSAGE: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="type")])


def encode(message: BaseModel) -> bytes:
    """A message as a line."""
    return message.model_dump_json().encode() + b"\n"


def decode(line: bytes) -> Message | None:
    """The message of a line, None for anything else: what a login prints, for example."""
    try:
        return _MESSAGE.validate_json(line)
    except ValidationError:
        return None
