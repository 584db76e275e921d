"""Every option of a sweep, once: the command line, the Python interface and files are made from it.

``OfWorkload`` and ``OfSweep`` declare the options in the order of ``rooflab sweep --help``. A field
is a key of a TOML file, an argument of ``rooflab.sweep`` and an option of the command line.
``config.Selection`` and ``config.SweepConfig`` are the same fields, validated: for a type checker
the classes here are models too, but pydantic is not imported, so that ``--help`` starts at once.
"""

# Not ``from __future__ import annotations``: options read their annotations when they are declared.
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    TypedDict,
    get_args,
    get_origin,
)

from rooflab.errors import UsageError
from rooflab.kernels.base import is_file
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import MAX_EXTENT, Value
from rooflab.workloads import DEFAULT, find

if TYPE_CHECKING:
    from pydantic import BaseModel, GetCoreSchemaHandler
    from pydantic_core import CoreSchema
else:
    BaseModel = object

ALL: Final = "all"
"""Means all precisions, or all values of a setting."""

MOST_SECONDS: Final = 1e9
MOST_PERCENT: Final = 50.0
"""Limits of ``max_time_s`` and ``precision_percent``."""

_MAX_SIZES: Final = 1000
_MAX_STEPS: Final = 100_000
"""Most sizes of a range, and most steps: those that round to the same size count too."""

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


def listed(value: Any, whole: Callable[[str], bool] = lambda text: False) -> Any:
    """A text or a list of texts as one list, split at commas: ``"nn,nt"`` is two texts.

    What is ``whole`` is not split. Any other value is returned unchanged.
    """
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str) for item in values):
        return value
    parts = ([item] if whole(item) else map(str.strip, item.split(",")) for item in values)
    return [part for some in parts for part in some]


def listed_kernels(value: Any) -> Any:
    """As ``listed``, but the name of a file that is there may have commas."""
    return listed(value, _is_there)


def _is_there(name: str) -> bool:
    with suppress(OSError, ValueError):
        return is_file(name) and Path(name).is_file()
    return False


# Options -----------------------------------------------------------------------------------------


class Option:
    """What is said of one option where it is declared: as the default of a field.

    On the command line it has ``flags``, by default ``--name``, and the type ``typed``, if that is
    another than the field's. ``parse`` makes what users write its value; ``sets`` makes it the keys
    of a configuration for which it stands. ``bounds`` are those of pydantic's ``Field``. As a class
    variable it is an option, but no key.
    """

    def __init__(
        self,
        default: Any,
        text: str,
        *flags: str,
        metavar: str | None = None,
        typed: Any = None,
        parse: Callable[[Any], Any] | None = None,
        sets: Callable[[Any], dict[str, Any]] | None = None,
        **bounds: Any,
    ) -> None:
        self.default, self.text, self.flags, self.metavar = default, text, flags, metavar
        self.typed, self.parse, self.sets, self.bounds = typed, parse, sets, bounds

    def __set_name__(self, owner: type, name: str) -> None:
        """Leave the default in the class, and this in the annotation, where pydantic finds it."""
        hint: Any = owner.__annotations__[name]
        self.name, self.key = name, get_origin(hint) is not ClassVar
        if self.key:
            owner.__annotations__[name] = Annotated[hint, self]
        hint = hint if self.key else get_args(hint)[0]
        self.type = get_args(hint)[0] if NoneType in get_args(hint) else hint
        self.typed = self.typed or (str if get_origin(self.type) is Literal else self.type)
        self.unset = None if self.key else self.default  # a file may have a key
        self.flags = self.flags or (f"--{name.replace('_', '-')}",)
        setattr(owner, name, self.default)
        OPTIONS[name] = self

    def __get_pydantic_core_schema__(
        self, source: Any, handler: "GetCoreSchemaHandler"
    ) -> "CoreSchema":
        """How pydantic validates it."""
        from pydantic import BeforeValidator, Field

        kind = Annotated[source, BeforeValidator(self.parse)] if self.parse else source
        return handler(Annotated[kind, Field(**self.bounds)] if self.bounds else kind)


option: Callable[..., Any] = Option
"""For type checkers, which see a default of any type."""

OPTIONS: Final[dict[str, Option]] = {}
"""Every option by name, in the order of the help."""


class Chosen(NamedTuple):
    """What was given for a sweep: as ``config.load`` takes it."""

    workload: str | None
    config: str
    options: dict[str, Any]


def chosen(workload: str | None, given: Mapping[str, Any]) -> Chosen:
    """The sweep that options by their names describe; other names are the workload's parameters."""
    found = {name: value for name, value in given.items() if name not in OPTIONS}
    for name, one in OPTIONS.items():
        if name in given and name != "config":
            keys = one.sets(given[name]) if one.sets else {name: given[name]}
            if "timing" in keys:
                keys["timing"] = {**found.get("timing", {}), **keys["timing"]}
            found |= keys
    return Chosen(workload, str(given.get("config", OfSweep.config)), found)


def _parameters(given: Any) -> dict[str, Any]:
    """Parameters from a mapping, or from ``alpha=2,beta=0.5``, where a name may come again."""
    if isinstance(given, Mapping):
        return dict(given)
    if not isinstance(given, list) or not all(isinstance(word, str) for word in given):
        raise UsageError(f"parameters = {str(given)[:40]!r}: give a dict of names and values")
    found: dict[str, list[str]] = {}
    for part in (part for word in given for part in word.split(",")):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            example = f"{part.strip()[:20] or 'beta'}=1" if not equals else "beta=1"
            raise UsageError(f"--set {part[:40]!r}: write NAME=VALUE, such as --set {example}")
        found.setdefault(name.strip(), []).append(value.strip())
    return found


def _rounds(count: Any) -> dict[str, Any]:
    slow = min(count, 100) if isinstance(count, int) else count
    return {"timing": {"min_rounds": count, "max_rounds": count, "slow_rounds": slow}}


class OfWorkload(BaseModel):
    """The options of which each workload of a file may have its own."""

    workload: str = DEFAULT
    kernels: list[str] = option(
        ["*"],
        "Name, glob, .cu or .py file; several with commas.",
        *("--kernel", "-k"),
        parse=listed_kernels,
        min_length=1,
    )
    sizes: list[int] = option(
        [], "Sizes: 512, or 256,512, or 256:8192:x2, or 2^20.", typed=str, parse=parse_sizes
    )
    shapes: list[str] = option(
        [], "All extents, as MxNxK; several with commas.", "--shape", parse=listed
    )
    precisions: list[str] = option(
        [ALL],
        f"{', '.join(PRECISIONS)} or all.",
        *("--precision", "-p"),
        parse=listed,
        min_length=1,
    )
    parameters: dict[str, list[Value]] = option(
        {},
        "Any other workload parameter.",
        "--set",
        metavar="NAME=VALUE,…",
        typed=list[str],
        sets=_parameters,
    )


class OfSweep(BaseModel):
    """The options of a whole sweep."""

    threads: int | None = option(
        None,
        "CPU threads, a run for each value; default: all, one per physical core.",
        metavar="NUMBER|all",
        typed=list[str],
        ge=1,
        le=4096,
    )
    config: ClassVar[str] = option(
        "default", "quick, default, full, memory, llm, layers, cutlass, or a TOML file."
    )
    seed: int = option(0, "Seed of the inputs and of the kernels' order.", ge=0, lt=2**63)
    fill: Literal["uniform", "normal", "zeros", "ints"] = option(
        "uniform", "Inputs: uniform, normal, zeros or ints."
    )
    cache: Literal["cold", "warm"] = option("cold", "cold (operands are not in the cache) or warm.")
    compiler: Literal["auto", "nvcc", "nvrtc"] = option(
        "auto", "Compiler of .cu files: nvcc, nvrtc or auto (nvcc for your files)."
    )
    variant: list[str] = option(
        [], "Of kernels with variants, only these: name or glob.", parse=listed
    )
    retune: bool = option(False, "Search the fastest variants again.")
    counters: bool = option(False, "Count FLOPs and bytes after timing (GPU; extra cupti).")
    rounds: ClassVar[int | None] = option(
        None, "Exact number of rounds of each point.", sets=_rounds, ge=3, le=1000
    )
    precision_percent: ClassVar[float | None] = option(
        None,
        "A point is done when its 95 % interval is within ± this many percent.",
        sets=lambda percent: {"timing": {"precision_percent": percent}},
        gt=0,
        le=MOST_PERCENT,
    )
    max_time_s: float | None = option(
        None,
        "Approximate limit for all points together, in seconds.",
        "--max-time",
        gt=0,
        le=MOST_SECONDS,
    )


class Options(TypedDict, total=False):
    """The same for type checkers: what ``rooflab.sweep`` and ``rooflab.fleet_sweep`` accept."""

    kernels: Sequence[str | Path] | str | None
    sizes: Sequence[int | str] | int | str | None
    shapes: Sequence[str] | str | None
    precisions: Sequence[str] | str | None
    parameters: Mapping[str, Any] | None
    threads: int | str | None
    config: str | Path
    seed: int | None
    fill: str | None
    cache: str | None
    compiler: str | None
    variant: Sequence[str] | str | None
    retune: bool | None
    counters: bool | None
    rounds: int | None
    precision_percent: float | None
    max_time_s: float | None
    timing: Mapping[str, Any] | None
