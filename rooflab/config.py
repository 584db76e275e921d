"""What to sweep and how to time it: TOML files and command-line options, validated in one place."""

from __future__ import annotations

import tomllib
from collections.abc import Container, Iterator, Mapping
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Final, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from rooflab.devices.registry import kinds
from rooflab.errors import UsageError
from rooflab.files import configs_dir
from rooflab.kernels.base import is_file
from rooflab.model.precision import PRECISIONS, precision_name
from rooflab.model.problem import Problem, Value
from rooflab.options import (
    ALL,
    MOST_PERCENT,
    OfSweep,
    OfWorkload,
    listed,
    listed_kernels,
    parse_shape,
)
from rooflab.workloads import DEFAULT, build, find, near

_MAX_POINTS: Final = 100_000

# Models ------------------------------------------------------------------------------------------


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Timing(_Strict):
    """How long and how often a kernel is timed on one problem. docs/measurement.md has the reasons.

    Per run: ``device_warmup_s`` limits the warm-up of the device; ``contexts`` processes are
    started on a GPU, and the one with the shortest empty launch measures; ``timeout_s`` is the
    longest time without a heartbeat. Per kernel and problem: a launch of ``slow_s`` or longer is
    timed in ``slow_rounds`` rounds of one launch; launches below ``batch_us`` are timed in batches
    (0: never); energy is counted for ``energy_s``, which is a part of the warm-up (0: not at all).
    At a power limit a kernel runs for ``own_clock_s`` before each of its rounds, which then last
    for ``round_s`` with however many samples; and after its rounds it is timed in bursts, each
    after ``burst_rest_s`` of rest (0: not).
    """

    device_warmup_s: float = Field(default=3.0, ge=0, le=600)
    warmup_s: float = Field(default=0.2, ge=0, le=60)
    warmup_launches: int = Field(default=3, ge=0, le=10_000)
    own_clock_s: float = Field(default=0.2, ge=0, le=60)
    burst_rest_s: float = Field(default=0.1, ge=0, le=60)
    round_s: float = Field(default=0.025, gt=0, le=10)
    round_samples: int = Field(default=32, ge=1, le=1000)
    min_rounds: int = Field(default=8, ge=3, le=1000)
    max_rounds: int = Field(default=40, ge=3, le=1000)
    max_s: float = Field(default=1.0, gt=0, le=1e6)
    precision_percent: float = Field(default=0.5, gt=0, le=MOST_PERCENT)
    slow_s: float = Field(default=0.1, gt=0, le=1e6)
    slow_rounds: int = Field(default=3, ge=3, le=100)
    batch_us: float = Field(default=500.0, ge=0, le=1e6)
    energy_s: float = Field(default=0.35, ge=0, le=60)
    contexts: int = Field(default=6, ge=1, le=32)
    timeout_s: float = Field(default=120.0, gt=0, le=1e6)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.max_rounds < self.min_rounds:
            raise UsageError(
                f"max_rounds = {self.max_rounds} is below min_rounds = {self.min_rounds}: "
                "raise one or lower the other"
            )
        if self.timeout_s <= self.slow_s:
            raise UsageError(
                f"timeout_s = {self.timeout_s:g} must be above slow_s = {self.slow_s:g}, otherwise "
                "slow kernels would be killed: raise timeout_s"
            )
        return self


class Selection(OfWorkload, _Strict):
    """The sweep of one workload: all combinations of the values in ``parameters``, at each size."""

    @field_validator("shapes")
    @classmethod
    def _shapes(cls, values: list[str], info: ValidationInfo) -> list[str]:
        workload = info.data.get("workload", DEFAULT)
        return ["x".join(map(str, parse_shape(value, workload).values())) for value in values]

    @field_validator("precisions")
    @classmethod
    def _precisions(cls, values: list[str]) -> list[str]:
        names = [precision_name(value) for value in values]
        for name in names:
            if name not in (*PRECISIONS, ALL):
                raise UsageError(f"unknown precision {name[:40]!r}: {near(name, PRECISIONS)}")
        return names

    @field_validator("parameters", mode="before")
    @classmethod
    def _parameters(cls, given: Any, info: ValidationInfo) -> dict[str, list[Value]]:
        kind = find(info.data.get("workload", DEFAULT))
        known = {**kind.parameters(), **kind.placements()}
        found: dict[str, list[Value]] = {}
        for name, values in dict(given).items():
            choices = known[name].choices
            listed_values = listed(values) if isinstance(values, (str, list)) else [values]
            if choices and listed_values == [ALL]:
                listed_values = list(choices)
            if not listed_values:
                raise UsageError(f"{name} has no value: give one or more")
            found[name] = [known[name].parse(value) for value in listed_values]
        return found

    @model_validator(mode="after")
    def _set_once(self) -> Self:
        taken = dict.fromkeys(find(self.workload).sizes, "sizes") if self.sizes else {}
        for shape in self.shapes:
            taken |= dict.fromkeys(parse_shape(shape, self.workload), "shapes")
        for name in self.parameters:
            if name in taken:
                raise UsageError(f"{name} is set by {taken[name]} too: leave one of the two out")
        return self

    def problems(self) -> Iterator[dict[str, Value]]:
        """The parameters of every problem, each once.

        For each combination of the other parameters: first the sizes, then the shapes.
        """
        kind = find(self.workload)
        shapes = [dict.fromkeys(kind.sizes, size) for size in self.sizes]
        shapes += [parse_shape(shape, self.workload) for shape in self.shapes]
        seen: set[tuple[tuple[str, Value], ...]] = set()
        for values in product(*self.parameters.values()):
            others = dict(zip(self.parameters, values, strict=True))
            for extents in shapes:
                chosen: dict[str, Value] = {**others, **extents}
                key = tuple(sorted(chosen.items()))
                if key not in seen:
                    seen.add(key)
                    yield chosen

    def build(self, precision: str) -> list[Problem]:
        """Every problem in one precision, in the order of ``problems``."""
        found = [build(self.workload, precision, chosen) for chosen in self.problems()]
        # In the memory of one device, problems that differ in their placement are the same.
        return list({problem.key: problem for problem in found}.values())


class SweepConfig(OfSweep, _Strict):
    """A resolved sweep: file, device section and options, merged."""

    workloads: list[Selection] = []
    timing: Timing = Timing()


COMMON: Final = tuple(name for name in SweepConfig.model_fields if name != "workloads")
"""Keys of a whole sweep."""

SELECTION: Final = tuple(n for n in Selection.model_fields if n not in ("workload", "parameters"))
"""Keys of one workload, in addition to its parameters."""


BEFORE: Final = {"own_clock_s": 0.0, "burst_rest_s": 0.0}
"""What runs did that have no such key."""


def of_run(content: Mapping[str, Any]) -> SweepConfig:
    """The configuration in the record of a run or a fleet that any version began.

    Raises ``UsageError`` if it is not valid here.
    """
    timing = content.get("timing")
    if isinstance(timing, Mapping):
        content = {**content, "timing": {**BEFORE, **timing}}
    try:
        return _validated(content)
    except (KeyError, TypeError, ValueError) as error:
        why = f": {error}" if isinstance(error, UsageError) else ""
        raise UsageError(f"its settings are from another version of rooflab{why}") from error


def limited(config: SweepConfig, max_time_s: float) -> SweepConfig:
    """The same with another limit of time. Raises ``UsageError`` if it is none."""
    return _validated(config.model_dump() | {"max_time_s": max_time_s})


def _validated(content: Mapping[str, Any]) -> SweepConfig:
    try:
        return SweepConfig.model_validate(content)
    except ValidationError as error:
        raise UsageError(_in_words(dict(error.errors()[0]))) from error


# Files -------------------------------------------------------------------------------------------


def shipped() -> list[str]:
    """Names that ``--config`` takes without a path."""
    names = (path.stem for path in configs_dir().glob("*.toml"))
    return sorted(name for name in names if name != "architectures")


def kernel_files(name: str, device_kinds: Container[str]) -> list[str]:
    """The kernel files that a configuration names for devices of these kinds.

    Their workloads must be known before it is loaded.
    """

    def named(table: Any) -> Iterator[str]:
        for key, value in table.items() if isinstance(table, dict) else ():
            if key in kinds() and key not in device_kinds:
                continue
            if key == "kernels":
                names = listed_kernels(value)
                yield from names if isinstance(names, list) else ()
            else:
                yield from named(value)

    names = [kernel for kernel in named(_read(_path(name))) if isinstance(kernel, str)]
    return [kernel for kernel in dict.fromkeys(names) if is_file(kernel)]


def load(
    name: str, workload: str | None, device_kind: str, options: Mapping[str, Any]
) -> SweepConfig:
    """Merge a configuration file, its section for ``device_kind`` and command-line options.

    ``name`` is one of ``shipped()`` or the path of a TOML file. Without a ``workload`` the file's
    workload is swept, or all its tables ``[workloads.NAME]``. Options override the sections
    (``[cuda]``, ``[cpu]``), which override the rest of the file; sizes or shapes given as options
    replace the file's sizes and shapes. Raises ``UsageError`` with up to five errors at once.
    """
    path = _path(name)
    content = _read(path)
    sections = {kind: content.pop(kind, {}) for kind in sorted({*kinds(), device_kind})}
    for kind, section in sections.items():
        if not isinstance(section, dict):
            raise UsageError(f"{path}: {kind} must be a section: [{kind}]")
    mistakes: list[str] = []
    for kind in sorted(sections, key=lambda kind: kind != device_kind):
        wrong = _resolve(_merge(content, sections[kind]), None, {})[1]
        where = "" if kind == device_kind else f"[{kind}] "
        mistakes += [f"{where}{line}" for line in wrong if line not in mistakes]
    if mistakes:
        raise UsageError(f"{path}: {'; '.join(mistakes[:5])}")
    config, wrong = _resolve(_merge(content, sections[device_kind]), workload, options)
    if wrong or config is None:
        raise UsageError("; ".join(wrong[:5]))
    for selection in config.workloads:
        if not selection.sizes and not selection.shapes:
            raise UsageError(
                f"{path} has no sizes for {selection.workload}: add --sizes 1024:8192:x2 or --shape"
            )
    return config


def _path(name: str) -> Path:
    if name in shipped():
        return configs_dir() / f"{name}.toml"
    try:
        if Path(name).is_file():
            return Path(name)
    except (OSError, ValueError):
        pass
    raise UsageError(
        f"no configuration {name[:80]!r}: name a TOML file or one of {', '.join(shipped())}"
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: it is not UTF-8 text") from error
    except RecursionError as error:
        raise UsageError(f"{path}: it is nested too deeply") from error
    except ValueError as error:  # invalid TOML, or Python's limit on digits
        raise UsageError(f"{path}: {str(error)[:200]}") from error


def _merge(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` updated with ``more``; tables in both are merged."""
    merged = dict(base)
    for key, value in more.items():
        old = merged.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        merged[key] = _merge(old, value) if both else value  # type: ignore[arg-type]
    return merged


def _resolve(
    content: Mapping[str, Any], workload: str | None, options: Mapping[str, Any]
) -> tuple[SweepConfig | None, list[str]]:
    """The configuration, or None, and messages about all errors."""
    tables = content.get("workloads", {})
    own = content.get("workload")
    if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
        return None, ["workloads must hold sections: [workloads.gemm]"]
    if own is not None and not isinstance(own, str):
        return None, [f"workload = {str(own)[:40]!r} must be a name"]
    names = [workload] if workload else [own] if own else list(tables) or [DEFAULT]
    mistakes: list[str] = []
    for name in {*tables, *names}:
        try:
            find(name)
        except UsageError as error:
            mistakes.append(str(error))
    if mistakes:
        return None, mistakes
    top = {k: v for k, v in content.items() if k not in (*COMMON, "workloads", "workload")}
    common = {k: v for k, v in _merge(content, options).items() if k in COMMON}
    chosen = {k: v for k, v in options.items() if k not in COMMON}
    mistakes += [line for name in names for line in _unknown_options(name, chosen)]
    if mistakes:
        return None, mistakes
    selections = []
    for name in names:
        table = _merge(top, tables.get(name, {}))
        if "sizes" in chosen or "shapes" in chosen:
            table = {k: v for k, v in table.items() if k not in ("sizes", "shapes")}
        selection, wrong = _selection(name, _merge(table, chosen))
        selections.append(selection)
        mistakes += wrong
    for name in tables.keys() - names:
        mistakes += [f"workloads.{name}: {line}" for line in _selection(name, tables[name])[1]]
    try:
        return validated({**common, "workloads": selections}), mistakes
    except UsageError as error:
        return None, [*mistakes, str(error)]


def validated(content: Mapping[str, Any]) -> SweepConfig:
    """The configuration with this content; raises ``UsageError`` with up to five errors at once."""
    try:
        return SweepConfig.model_validate(content)
    except ValidationError as error:
        found = dict.fromkeys(_in_words(dict(detail)) for detail in error.errors())
        raise UsageError("; ".join([*found][:5])) from None


def _selection(workload: str, table: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The content of a ``Selection``, and messages about unknown keys.

    A parameter may be given by its name or its plural, because it may have several values.
    """
    kind = find(workload)
    parameters = {**kind.parameters(), **kind.placements()}
    content: dict[str, Any] = {"workload": workload, "parameters": {}}
    mistakes: list[str] = []
    for key, value in table.items():
        if key in SELECTION:
            content[key] = value
        elif name := _parameter(key, parameters):
            content["parameters"][name] = value
        else:
            known = [*SELECTION, *COMMON, *parameters, *kinds()]
            there = next((one for one in Timing.model_fields if key in (one, one[4:])), "")
            hint = f"write {there} under [timing]" if there else near(key, known)
            mistakes.append(f"unknown key {key[:40]!r}, {hint}")
    return content, mistakes


def _unknown_options(workload: str, options: Mapping[str, Any]) -> list[str]:
    """Messages about options that are not parameters of the workload."""
    kind = find(workload)
    known = {**kind.parameters(), **kind.placements()}
    why = {p.name: "has no batch, so it cannot be streamed" for p in Problem.declared("stream")}
    why |= dict.fromkeys(("gpus", "split"), "cannot be divided among GPUs")
    return [
        f"{workload} {why[name]}: leave out --{name}"
        if name in why
        else f"{workload} has no parameter {name[:40]!r}: {near(name, known)}"
        for name in options
        if name not in SELECTION and not _parameter(name, known)
    ]


def _parameter(key: str, known: Container[str]) -> str:
    """The parameter called ``key`` or its singular, empty if there is none."""
    return next((name for name in (key, key.removesuffix("s")) if name in known), "")


def _in_words(detail: Mapping[str, Any]) -> str:
    """A message for one of pydantic's errors."""
    place = ".".join(str(part) for part in detail["loc"] if not isinstance(part, int))
    place = place.removeprefix("workloads.")
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, UsageError):
        return str(cause)
    if detail["type"] == "model_type":
        return f"{place} must be a section: [{place}]"
    if detail["type"] == "extra_forbidden":
        return f"unknown key {place[:60]!r}, {near(str(detail['loc'][-1]), Timing.model_fields)}"
    reason = str(detail["msg"]).removeprefix("Value error, ")
    return f"{place}: {reason} (given: {str(detail['input'])[:60]!r})"


def points(config: SweepConfig) -> int:
    """The number of problems; raises ``UsageError`` above _MAX_POINTS."""
    count = sum(
        prod(map(len, one.parameters.values())) * (len(one.sizes) + len(one.shapes))
        for one in config.workloads
    )
    if count > _MAX_POINTS:
        raise UsageError(f"{count} problems are too many: a sweep can have {_MAX_POINTS}")
    return count
