"""What to sweep and how to time it: TOML files and command-line options, validated in one place."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    ValidationError,
    field_validator,
    model_validator,
)

from rooflab.errors import UsageError
from rooflab.problem import LAYOUTS, MAX_EXTENT, PRECISIONS, Problem
from rooflab.resources import configs_dir

ALL: Final = "all"
"""In place of precisions: every one that the kernel has."""

_MAX_SIZES: Final = 1000


def parse_sizes(text: str | int | Sequence[str | int]) -> list[int]:
    """Sizes from ``512``, ``256,512``, ``256:8192:x2`` (times 2) or ``256:1024:+256`` (steps).

    Ends are included where the steps meet them. Raises ``UsageError`` on anything else.
    """
    if not isinstance(text, str):
        items = [text] if isinstance(text, int) else text
        return [size for item in items for size in _parse_part(str(item))]
    return [size for part in text.split(",") for size in _parse_part(part.strip())]


def _parse_part(part: str) -> list[int]:
    found = re.fullmatch(r"(-?\d+)(?::(-?\d+)(?::([x+]?)(\d+(?:\.\d+)?))?)?", part)
    if not found:
        raise UsageError(
            f"cannot read sizes {part!r}: write 512, or 256,512, or first:last:step such as "
            "256:8192:x2 (times 2) or 256:1024:+256"
        )
    first = int(found[1])
    last = int(found[2] or first)
    kind = found[3] or ("+" if found[4] else "x")
    step = float(found[4] or 2)
    for end in (first, last):
        if not 1 <= end <= MAX_EXTENT:
            raise UsageError(f"size {end} is out of range: give 1 to {MAX_EXTENT}")
    if last < first:
        raise UsageError(f"sizes {part!r} run backwards: write {last}:{first}")
    if (kind == "x" and step <= 1) or (kind == "+" and (step < 1 or step % 1)):
        raise UsageError(f"sizes {part!r} never arrive: use a step such as x2 or +256")
    sizes: list[int] = []
    size = float(first)
    while round(size) <= last:
        if not sizes or round(size) > sizes[-1]:
            sizes.append(round(size))
        size = size * step if kind == "x" else size + step
        if len(sizes) > _MAX_SIZES:
            raise UsageError(f"sizes {part!r} are more than {_MAX_SIZES}: use a larger step")
    return sizes


def parse_shape(text: str) -> tuple[int, int, int]:
    """``MxNxK`` as three extents; raises ``UsageError`` on anything else."""
    found = re.fullmatch(r"\s*(-?\d+)[xX×](-?\d+)[xX×](-?\d+)\s*", str(text))
    if not found:
        raise UsageError(f"cannot read shape {text!r}: write MxNxK, such as 4096x4096x1024")
    m, n, k = (int(extent) for extent in found.groups())
    Problem(m, n, k)  # validates the extents
    return m, n, k


def _known(what: str, given: str, known: Sequence[str]) -> str:
    if given in known:
        return given
    near = difflib.get_close_matches(given, known, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"choose from {', '.join(known)}"
    raise UsageError(f"unknown {what} {given!r}: {hint}")


def listed(value: Any) -> Any:
    """One value or several, each perhaps of several with commas: ``"nn,nt"``. Paths are whole."""
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
        return values
    return [part.strip() for one in values for part in ([one] if is_path(one) else one.split(","))]


def is_path(kernel: str) -> bool:
    """Whether what stands for a kernel is a file of the user's, not a name."""
    return kernel.endswith(".cu") or os.sep in kernel


Names = Annotated[list[str], BeforeValidator(listed), Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Timing(_Strict):
    """How long and how often a kernel is timed on one problem. docs/measurement.md says why."""

    settle_s: float = Field(default=30.0, ge=0, le=600)
    """Once per run: at most so long until clock and power stand still."""
    warmup_s: float = Field(default=0.2, ge=0, le=60)
    warmup_launches: int = Field(default=10, ge=0, le=10_000)
    round_s: float = Field(default=0.05, gt=0, le=10)
    round_samples: int = Field(default=32, ge=1, le=1000)
    min_rounds: int = Field(default=10, ge=2, le=1000)
    max_rounds: int = Field(default=40, ge=2, le=1000)
    max_s: float = Field(default=15.0, gt=0)
    precision_percent: float = Field(default=0.5, gt=0, le=50)
    slow_s: float = Field(default=0.1, gt=0)
    """Launches at least so long get ``slow_rounds`` rounds of one."""
    slow_rounds: int = Field(default=3, ge=2, le=100)
    batch_us: float = Field(default=500.0, ge=0)
    """Shorter launches are timed several at once, for at least so long; 0 times each alone."""
    energy_s: float = Field(default=1.0, ge=0, le=60)
    """Length of the window in which energy is counted; 0 leaves it out."""
    contexts: int = Field(default=6, ge=1, le=32)
    """Processes started on a GPU, of which the one with the shortest empty launch measures."""
    timeout_s: float = Field(default=120.0, gt=0)
    """A kernel that gives no sign of life for so long is killed."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.max_rounds < self.min_rounds:
            raise UsageError(
                f"max_rounds = {self.max_rounds} is below min_rounds = {self.min_rounds}: "
                "raise the one or lower the other"
            )
        if self.timeout_s <= self.slow_s:
            raise UsageError(
                f"timeout_s = {self.timeout_s:g} would kill what slow_s = {self.slow_s:g} calls "
                "merely slow: raise timeout_s"
            )
        return self


class SweepConfig(_Strict):
    """A resolved sweep: what remains when file, device section and options are merged."""

    kernels: Names = ["*"]
    sizes: Annotated[list[int], BeforeValidator(parse_sizes)] = []
    shapes: Annotated[list[str], BeforeValidator(listed)] = []
    precisions: Names = [ALL]
    layouts: Names = ["nn"]
    batch: int = Field(default=1, ge=1, le=MAX_EXTENT)
    alpha: FiniteFloat = 1.0
    beta: FiniteFloat = 0.0
    seed: int = Field(default=0, ge=0)
    fill: Literal["uniform", "normal", "zeros", "ints"] = "uniform"
    cache: Literal["cold", "warm"] = "cold"
    timing: Timing = Timing()

    @field_validator("shapes")
    @classmethod
    def _shapes(cls, values: list[str]) -> list[str]:
        return ["x".join(map(str, parse_shape(value))) for value in values]

    @field_validator("precisions")
    @classmethod
    def _precisions(cls, values: list[str]) -> list[str]:
        return [_known("precision", value, [*PRECISIONS, ALL]) for value in values]

    @field_validator("layouts")
    @classmethod
    def _layouts(cls, values: list[str]) -> list[str]:
        if values == [ALL]:
            return list(LAYOUTS)
        return [_known("layout", value, [*LAYOUTS, ALL]) for value in values]

    def extents(self) -> list[tuple[int, int, int]]:
        """(M, N, K) of every problem: squares first, then shapes, each once."""
        squares = [(size, size, size) for size in self.sizes]
        return list(dict.fromkeys([*squares, *map(parse_shape, self.shapes)]))


def of_run(content: Mapping[str, Any]) -> SweepConfig:
    """The configuration in a run's manifest; raises ``UsageError`` where this rooflab differs."""
    if complaints := _complaints(content):
        raise UsageError(f"its settings are not this rooflab's: {'; '.join(complaints)}")
    return SweepConfig.model_validate(content)


def shipped() -> list[str]:
    """Names that ``--config`` takes without a path."""
    return sorted(path.stem for path in configs_dir().glob("*.toml") if path.stem != "devices")


def load(name: str, device_kind: str, options: Mapping[str, Any]) -> SweepConfig:
    """Merge a configuration file, its section for ``device_kind`` and command-line options.

    ``name`` is one of ``shipped()`` or the path of a TOML file. Options win over the section
    (``[cuda]``, ``[cpu]``), which wins over the rest of the file; sizes and shapes given as options
    replace both of the file's. Raises ``UsageError`` that lists everything wrong at once.
    """
    path = configs_dir() / f"{name}.toml"
    if name not in shipped():
        path = Path(name)
        if not path.is_file():
            raise UsageError(
                f"no configuration {name!r}: name a TOML file or one of {', '.join(shipped())}"
            )
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error

    kinds = {"cuda", "cpu", device_kind}
    sections = {kind: content.pop(kind, {}) for kind in sorted(kinds)}
    problems = [
        f"[{kind}] {line}"
        for kind, section in sections.items()
        if kind != device_kind
        for line in _complaints(section)
    ]
    section = sections[device_kind]
    if not isinstance(section, dict):
        raise UsageError(f"{path}: {device_kind} must be a section: [{device_kind}]")
    timing = {**content.get("timing", {}), **section.get("timing", {})}
    from_file = {**content, **section, **({"timing": timing} if timing else {})}
    problems = [*_complaints(from_file), *problems]
    if problems:
        raise UsageError(f"{path}: {'; '.join(problems)}")

    if "sizes" in options or "shapes" in options:
        from_file = {k: v for k, v in from_file.items() if k not in ("sizes", "shapes")}
    complaints = _complaints({**from_file, **options})
    if complaints:
        raise UsageError("; ".join(complaints))
    config = SweepConfig.model_validate({**from_file, **options})
    if not config.extents():
        raise UsageError(f"{path} names no sizes: add --sizes 256:8192:x2 or --shape MxNxK")
    return config


def _complaints(content: Any) -> list[str]:
    """Everything that pydantic has to say against ``content``, in words."""
    if not isinstance(content, dict):
        return ["must be a section"]
    try:
        SweepConfig.model_validate(content)
    except ValidationError as error:
        return [_in_words(detail) for detail in error.errors()]
    return []


def _in_words(detail: Any) -> str:
    place = ".".join(str(part) for part in detail["loc"])
    if isinstance(detail.get("ctx", {}).get("error"), UsageError):
        return str(detail["ctx"]["error"])
    if detail["type"] != "extra_forbidden":
        return (
            f"{place}: {detail['msg'].removeprefix('Value error, ')} (given: {detail['input']!r})"
        )
    model = Timing if len(detail["loc"]) > 1 else SweepConfig
    known = [*model.model_fields, *(("cuda", "cpu") if model is SweepConfig else ())]
    near = difflib.get_close_matches(str(detail["loc"][-1]), known, n=1)
    return f"unknown key {place!r}" + (f", did you mean {near[0]!r}?" if near else "")
