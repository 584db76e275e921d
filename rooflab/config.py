"""What to sweep and how to time it: TOML files and command-line options, validated in one place."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from rooflab.errors import UsageError
from rooflab.files import configs_dir
from rooflab.kernels.base import is_file
from rooflab.model.precision import PRECISIONS, precision_name
from rooflab.model.problem import MAX_EXTENT, Problem, Value
from rooflab.workloads import DEFAULT, build, find, near

ALL: Final = "all"
"""Means all precisions, or all values of a setting."""

MOST_SECONDS: Final = 1e9
MOST_PERCENT: Final = 50.0
"""Limits of ``max_time_s`` and ``precision_percent``."""

_MAX_SIZES: Final = 1000
_MAX_STEPS: Final = 100_000
"""Most sizes of a range, and most steps: those that round to the same size count too."""

_MAX_POINTS: Final = 100_000
_LONGEST: Final = 80
"""Most characters of a size or shape."""

# Sizes and shapes --------------------------------------------------------------------------------


def parse_sizes(given: Any) -> list[int]:
    """Sizes from ``512``, ``256,512``, ``256:8192:x2`` (times 2) or ``256:1024:+256`` (steps).

    Numbers may be powers such as ``2^20``. The last size is included if a step reaches it. Raises
    ``UsageError`` for anything else.
    """
    items = given if isinstance(given, list) else [given]
    if not all(isinstance(item, (int, str)) for item in items):
        raise UsageError(_unreadable(given))
    parts = [part for item in items for part in _text(item).split(",")]
    return [size for part in parts for size in _parse_part(part.strip())]


def _text(item: int | str) -> str:
    return str(item) if not isinstance(item, int) or abs(item) < 10**_LONGEST else "too large"


def _unreadable(part: Any) -> str:
    return (
        f"cannot read sizes {str(part)[:40]!r}: write 512, or 256,512, or first:last:step such as "
        "256:8192:x2 (times 2) or 256:1024:+256"
    )


def _number(text: str) -> int:
    return 2 ** min(int(text[2:]), 64) if text.startswith("2^") else int(text)


def _parse_part(part: str) -> list[int]:
    number = r"(-?\d+|2\^\d+)"
    found = re.fullmatch(rf"{number}(?::{number}(?::([x+]?)(\d+(?:\.\d+)?))?)?", part, re.ASCII)
    if not found or len(part) > _LONGEST:
        raise UsageError(_unreadable(part))
    first = _number(found[1])
    last = _number(found[2]) if found[2] else first
    kind = found[3] or ("+" if found[4] else "x")
    step = float(found[4] or 2)
    if found[4] and not found[3] and step < first:  # probably a factor
        raise UsageError(f"sizes {part!r}: write the step as x{found[4]} or +{found[4]}")
    for end in (first, last):
        if not 1 <= end <= MAX_EXTENT:
            raise UsageError(f"size {str(end)[:40]} is out of range: give 1 to {MAX_EXTENT}")
    if last < first:
        raise UsageError(f"sizes {part!r} run backwards: write {last}:{first}")
    if (kind == "x" and step <= 1) or (kind == "+" and (step < 1 or step % 1)):
        raise UsageError(f"sizes {part!r} do not increase: use a step such as x2 or +256")
    sizes: dict[int, None] = {}
    size = float(first)
    for _ in range(_MAX_STEPS):
        if round(size) > last:
            return list(sizes)
        sizes[round(size)] = None
        if len(sizes) > _MAX_SIZES:
            break
        size = size * step if kind == "x" else size + step
    raise UsageError(f"sizes {part!r} are more than {_MAX_SIZES}: use a larger step")


def parse_shape(text: str, workload: str) -> dict[str, int]:
    """``MxNxK`` as extents of ``workload``; the last ones may be omitted if they have a default."""
    extents = [p for p in find(workload).parameters().values() if p.kind == "extent"]
    needed = [p for p in extents if p.default is None]
    least = max((extents.index(p) + 1 for p in needed), default=1)
    parts = re.split("[x×]", text.strip().lower()) if len(text) <= _LONGEST else []
    if not least <= len(parts) <= len(extents) or not all(
        re.fullmatch(r"\d+|2\^\d+", part, re.ASCII) for part in parts
    ):
        shape = "x".join(p.title for p in extents[:least])
        shape += "".join(f"[x{p.title}]" for p in extents[least:])
        example = "x".join(["64"] * least)
        raise UsageError(
            f"cannot read shape {text[:40]!r} of {workload}: write {shape}, such as {example}"
        )
    found = {p.name: _number(part) for p, part in zip(extents, parts, strict=False)}
    for parameter in extents:
        if parameter.name in found:
            parameter.check(found[parameter.name])
    return found


def listed(value: Any) -> Any:
    """A text or a list of texts as one list, split at commas: ``"nn,nt"`` is two texts.

    Any other value is returned unchanged.
    """
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str) for item in values):
        return value
    return [part.strip() for item in values for part in item.split(",")]


def listed_kernels(value: Any) -> Any:
    """As ``listed``, but the name of a file that is there may have commas."""
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str) for item in values):
        return value
    return [name for item in values for name in ([item] if _is_there(item) else listed(item))]


def _is_there(name: str) -> bool:
    with suppress(OSError, ValueError):
        return is_file(name) and Path(name).is_file()
    return False


Names = Annotated[list[str], BeforeValidator(listed), Field(min_length=1)]

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


class Selection(_Strict):
    """The sweep of one workload: all combinations of the values in ``parameters``, at each size."""

    workload: str = DEFAULT
    kernels: Annotated[list[str], BeforeValidator(listed_kernels), Field(min_length=1)] = ["*"]
    sizes: Annotated[list[int], BeforeValidator(parse_sizes)] = []
    shapes: Annotated[list[str], BeforeValidator(listed)] = []
    precisions: Names = [ALL]
    parameters: dict[str, list[Value]] = {}

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


class SweepConfig(_Strict):
    """A resolved sweep: file, device section and options, merged."""

    workloads: list[Selection] = []
    seed: int = Field(default=0, ge=0, lt=2**63)
    fill: Literal["uniform", "normal", "zeros", "ints"] = "uniform"
    cache: Literal["cold", "warm"] = "cold"
    counters: bool = False
    compiler: Literal["auto", "nvcc", "nvrtc"] = "auto"
    variant: Annotated[list[str], BeforeValidator(listed)] = []
    retune: bool = False
    threads: int | None = Field(default=None, ge=1, le=4096)
    max_time_s: float | None = Field(default=None, gt=0, le=MOST_SECONDS)
    timing: Timing = Timing()


COMMON: Final = tuple(name for name in SweepConfig.model_fields if name != "workloads")
"""Keys of a whole sweep."""

SELECTION: Final = ("kernels", "sizes", "shapes", "precisions")
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
        return SweepConfig.model_validate(content)
    except ValidationError as error:
        wrong = _in_words(dict(error.errors()[0]))
        raise UsageError(f"its settings are from another version of rooflab: {wrong}") from error
    except (UsageError, KeyError, TypeError, ValueError) as error:
        raise UsageError("its settings are from another version of rooflab") from error


def limited(config: SweepConfig, max_time_s: float) -> SweepConfig:
    """The same with another limit of time. Raises ``UsageError`` if it is none."""
    try:
        return SweepConfig.model_validate(config.model_dump() | {"max_time_s": max_time_s})
    except ValidationError as error:
        raise UsageError(_in_words(dict(error.errors()[0]))) from error


# Files -------------------------------------------------------------------------------------------


def shipped() -> list[str]:
    """Names that ``--config`` takes without a path."""
    return sorted(path.stem for path in configs_dir().glob("*.toml") if path.stem != "devices")


def kernel_files(name: str, device_kinds: Container[str]) -> list[str]:
    """The kernel files that a configuration names for devices of these kinds.

    Their workloads must be known before it is loaded.
    """

    def named(table: Any) -> Iterator[str]:
        for key, value in table.items() if isinstance(table, dict) else ():
            if key in ("cuda", "cpu") and key not in device_kinds:
                continue
            if key == "kernels":
                names = listed_kernels(value)
                yield from names if isinstance(names, list) else ()
            else:
                yield from named(value)

    found = dict.fromkeys(named(_read(_path(name))))
    return [kernel for kernel in found if isinstance(kernel, str) and is_file(kernel)]


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
    kinds = sorted({"cuda", "cpu", device_kind})
    sections = {kind: content.pop(kind, {}) for kind in kinds}
    for kind, section in sections.items():
        if not isinstance(section, dict):
            raise UsageError(f"{path}: {kind} must be a section: [{kind}]")
    mistakes = _resolve(_merge(content, sections[device_kind]), None, {})[1]
    for kind, section in sections.items():
        wrong = _resolve(_merge(content, section), None, {})[1]
        mistakes += [f"[{kind}] {line}" for line in wrong if line not in mistakes]
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
        config = SweepConfig.model_validate({**common, "workloads": selections})
    except ValidationError as error:
        mistakes += [_in_words(dict(detail)) for detail in error.errors()]
        return None, list(dict.fromkeys(mistakes))
    return config, mistakes


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
            known = [*SELECTION, *COMMON, *parameters, "cuda", "cpu"]
            there = next((one for one in Timing.model_fields if key in (one, one[4:])), "")
            hint = f"write {there} under [timing]" if there else near(key, known)
            mistakes.append(f"unknown key {key[:40]!r}, {hint}")
    return content, mistakes


_STREAMS: Final = Problem.declared("stream")


def _unknown_options(workload: str, options: Mapping[str, Any]) -> list[str]:
    """Messages about options that are not parameters of the workload."""
    kind = find(workload)
    known = {**kind.parameters(), **kind.placements()}
    why = {
        p.name: "has no batch, so that it cannot be streamed" for p in Problem.declared("stream")
    }
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
    count = 0
    for selection in config.workloads:
        combined = 1
        for values in selection.parameters.values():
            combined *= len(values)
        count += combined * (len(selection.sizes) + len(selection.shapes))
    if count > _MAX_POINTS:
        raise UsageError(f"{count} problems are too many: a sweep can have {_MAX_POINTS}")
    return count


def override(timing: Timing, **given: Sequence[Any] | float | int | None) -> Timing:
    """``timing`` with the given values that are not None, validated again."""
    values = {key: value for key, value in given.items() if value is not None}
    return Timing.model_validate({**timing.model_dump(), **values})
