"""The manifest: everything about a run that is not a measurement. Reads every older schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from rooflab.errors import RunError
from rooflab.model.facts import Fact
from rooflab.model.problem import Problem
from rooflab.model.roofline import Ceiling, MissingCeiling, Roofline
from rooflab.runs.text import clean, cleaned
from rooflab.workloads import DEFAULT, find

SCHEMA: Final = 4
MAX_BYTES: Final = 64 * 2**20

POSSIBLE: Final = {"compute": (1.0, 1e21), "bandwidth": (1.0, 1e21), "launch": (1e-12, 1e3)}
"""Ranges of a real device's ceilings by kind, in FLOP/s, byte/s and seconds."""


CleanText = Annotated[str, AfterValidator(clean)]
"""Text that files can hold: a command line may have bytes that are no UTF-8."""


class DeviceRecord(BaseModel):
    """The device of a run."""

    id: str
    kind: str
    name: str
    facts: dict[str, Fact]

    def fact(self, name: str) -> str | int | float | None:
        """The value of one fact, None if it is missing."""
        fact = self.facts.get(name)
        return fact.value if fact else None


class KernelRecord(BaseModel):
    """One kernel of a run. ``compiled`` lists registers, shared memory and spills per build.

    ``sha256`` is the hash of the source and of the headers that it includes from its folder and
    from kernels/include. ``compiler`` is its name and version, empty for older runs.
    """

    backend: str
    title: str
    source: str = ""
    sha256: str = ""
    compiler: str = ""
    compiled: list[dict[str, Any]] = []


class WorkloadRecord(BaseModel):
    """What reading a run needs of its workload: the parameters, with types and meanings."""

    title: str = ""
    formula: str = ""
    work: str = ""
    extents: dict[str, str] = {}
    settings: dict[str, Literal["int", "float", "str"]] = {}
    streaming: dict[str, Literal["int", "float", "str"]] = {}
    descriptions: dict[str, str] = {}
    defaults: dict[str, Any] = {}

    @classmethod
    def of(cls, kind: type[Problem]) -> WorkloadRecord:
        """The record of a workload."""
        parameters = kind.parameters().values()
        settings = [p for p in parameters if p.kind == "setting"]
        return cls.model_validate(
            {
                "title": kind.title,
                "formula": kind.formula,
                "work": kind.work,
                "extents": {p.name: p.description for p in parameters if p.kind == "extent"},
                "settings": {p.name: type(p.default).__name__ for p in settings},
                "streaming": {p.name: type(p.default).__name__ for p in kind.placements().values()},
                "descriptions": {p.name: p.description for p in settings},
                "defaults": {p.name: p.default for p in parameters if p.default is not None},
            }
        )


class Manifest(BaseModel):
    """Everything about a run that is not a measurement.

    ``contexts`` holds, per worker, the time of an empty launch in each candidate process, µs; the
    process with the shortest measured. ``entropy`` has decided what was checked and when, in each
    part of the run. ``points`` is the number of rows of the complete sweep, 0 if
    unknown. ``warm_up`` is the result of the warm-up, ``wall_s`` the run's wall time by part.
    """

    model_config = ConfigDict(populate_by_name=True)

    schema_version: int = Field(default=SCHEMA, alias="schema")
    created: datetime
    finished: datetime | None = None
    command: list[CleanText]
    versions: dict[str, str]
    host: dict[str, str]
    device: DeviceRecord
    roofline: Roofline
    config: dict[str, Any]
    kernels: dict[str, KernelRecord]
    """By ``workload/name``."""
    workloads: dict[str, WorkloadRecord] = {}
    warm_up: dict[str, Any] = {}
    contexts: list[list[float]] = []
    entropy: list[int] = []
    wall_s: dict[str, float] = {}
    points: int = 0
    program: dict[str, Any] = {}
    """Of a program: what its steps took, how it was recorded, and what is missing."""

    @property
    def own_clock(self) -> bool:
        """Whether kernels at a power limit ran at their own clock before each round."""
        return bool(self.config.get("timing", {}).get("own_clock_s"))

    def kernel(self, workload: str, name: str) -> KernelRecord | None:
        """The record of a kernel, None if there is none."""
        return self.kernels.get(f"{workload}/{name}")


def load_manifest(path: Path) -> Manifest:
    """Read and check a manifest of any schema up to SCHEMA; raises ``RunError``."""
    content = read_object(path, "a rooflab manifest")
    schema = content.get("schema")
    if type(schema) is not int or schema < 1:
        raise RunError(f"{path}: not a rooflab manifest (it has no schema number)")
    if schema > SCHEMA:
        raise RunError(
            f"{path} was written by a newer rooflab (schema {str(schema)[:20]}, this one reads up "
            f"to {SCHEMA}); read it with that one"
        )
    with told(path, "a rooflab manifest"):
        manifest = Manifest.model_validate(_upgraded(content, schema))
    manifest.roofline = _possible(manifest.roofline)
    return manifest


def read_object(path: Path, what: str) -> dict[str, Any]:
    """The cleaned content of a JSON file, which is ``what``; raises ``RunError``."""
    try:
        with path.open("rb") as file:  # a device or a pipe does not say how much it has
            read = file.read(MAX_BYTES + 1)
        if len(read) > MAX_BYTES:
            raise RunError(f"{path}: not {what} (it is too large)")
        with told(path, what):
            content = json.loads(read.decode("utf-8-sig"), parse_constant=_no_number)
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}") from error
    if not isinstance(content, dict):
        raise RunError(f"{path}: not {what} (it is not a JSON object)")
    found: dict[str, Any] = cleaned(content)
    return found


@contextmanager
def told(path: Path, what: str) -> Iterator[None]:
    """Turn errors of wrong content into a ``RunError`` that says where it is."""
    try:
        yield
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise RunError(f"{path}: {place[:80]}: {first['msg'][:200]}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise RunError(f"{path}: not {what} ({str(error)[:200]})") from error


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a number in JSON")


def _upgraded(content: dict[str, Any], schema: int) -> Mapping[str, Any]:
    """``content`` in schema 3 with all settings. Runs of older schemas are all of GEMM."""
    config = content.get("config")
    timing = config.get("timing") if isinstance(config, dict) else None
    if isinstance(config, dict) and isinstance(timing, dict):
        if schema < 3 and "settle_s" in timing:
            timing = {("device_warmup_s" if k == "settle_s" else k): v for k, v in timing.items()}
        content = {
            **content,
            "config": {**config, "timing": {"own_clock_s": 0.0, "burst_rest_s": 0.0, **timing}},
        }
    if schema >= 3:
        return content
    kernels = content.get("kernels")
    named = kernels.items() if isinstance(kernels, dict) else ()
    return {
        **{key: value for key, value in content.items() if key != "settled"},
        "kernels": {f"{DEFAULT}/{name}": record for name, record in named},
        "workloads": {DEFAULT: WorkloadRecord.of(find(DEFAULT))},
        "warm_up": content.get("settled", {}),
    }


def _possible(roofline: Roofline) -> Roofline:
    """``roofline`` with impossible ceilings moved to ``missing``, with that reason."""
    limits = [(ceiling, *POSSIBLE[ceiling.kind]) for ceiling in roofline.ceilings]
    good = [ceiling for ceiling, low, high in limits if low <= ceiling.value <= high]
    bad = [c for c in roofline.ceilings if c not in good]
    missing = [MissingCeiling(c.kind, c.key, f"{c.value:g} is not a possible value") for c in bad]
    kept: tuple[Ceiling, ...] = tuple(good)
    return Roofline(kept, (*roofline.missing, *missing), roofline.memory, roofline.prefer)
