"""Every option of a sweep, once: the command line, the Python interface and files are made from it.

``OfWorkload`` and ``OfSweep`` declare the options in the order of ``rooflab sweep --help``. A field
of them is a key of a TOML file, an argument of ``rooflab.sweep`` and an option of the command line;
a class variable is no key, because it names a file or sets other keys. ``config.Selection`` and
``config.SweepConfig`` are the same fields, validated. pydantic is not imported here, so that
``rooflab --help`` starts at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    TypedDict,
    get_args,
    get_origin,
    get_type_hints,
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


# Options -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option. Its name, type and default are those of the field that it is written at."""

    help: str
    flags: tuple[str, ...] = ()
    """On the command line; without any it is ``--name``."""
    metavar: str | None = None
    typed: Any = None
    """The type on the command line, if it is another than in a configuration."""
    positional: bool = False
    bounds: Mapping[str, Any] = field(default_factory=dict)
    """As pydantic's ``Field`` has them: ``ge``, ``gt``, ``le``, ``lt``, ``min_length``."""
    parse: Callable[[Any], Any] | None = None
    """Makes what users write the value of a configuration."""
    sets: Callable[[Any], Mapping[str, Any]] | None = None
    """Makes what users write other keys, for which this option stands."""

    name: str = ""
    type: Any = None
    default: Any = None
    key: bool = True
    """Whether a configuration has it."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """How pydantic validates a field with this option."""
        from pydantic import BeforeValidator, Field

        kind = Annotated[source, BeforeValidator(self.parse)] if self.parse else source
        return handler(Annotated[kind, Field(**self.bounds)] if self.bounds else kind)


def declared() -> dict[str, Option]:
    """Every option by name, in the order of the help."""
    return {one.name: one for group in (OfWorkload, OfSweep) for one in _declared(group)}


def _declared(group: type) -> Iterator[Option]:
    for name, hint in get_type_hints(group, include_extras=True).items():
        key = get_origin(hint) is not ClassVar
        kind, option = get_args(hint if key else get_args(hint)[0])
        some = [one for one in get_args(kind) if one is not NoneType]
        kind = some[0] if NoneType in get_args(kind) else kind
        typed = option.typed or (str if get_origin(kind) is Literal else kind)
        flags = option.flags or (f"--{name.replace('_', '-')}",)
        default = getattr(group, name)
        yield replace(
            option, name=name, type=kind, default=default, key=key, typed=typed, flags=flags
        )


def settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a configuration, and parameters of the workload, that these options set."""
    known = declared()
    found: dict[str, Any] = {name: value for name, value in given.items() if name not in known}
    for name, one in known.items():
        if name in given:
            sets = one.sets
            for key, value in (sets(given[name]) if sets else {name: given[name]}).items():
                both = isinstance(value, dict) and isinstance(found.get(key), dict)
                found[key] = {**found[key], **value} if both else value
    return found


def _parameters(given: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Parameters from ``alpha=2,beta=0.5``; a name may be given more than once."""
    if isinstance(given, Mapping):
        return dict(given)
    found: dict[str, list[str]] = {}
    for part in (part for word in given for part in word.split(",")):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            example = f"{part.strip()[:20] or 'beta'}=1" if not equals else "beta=1"
            raise UsageError(f"--set {part[:40]!r}: write NAME=VALUE, such as --set {example}")
        found.setdefault(name.strip(), []).append(value.strip())
    return found


def _rounds(given: int) -> dict[str, Any]:
    rounds = {"min_rounds": given, "max_rounds": given, "slow_rounds": min(given, 100)}
    return {"timing": rounds}


class OfWorkload(BaseModel):
    """The options of which each workload of a file may have its own."""

    workload: Annotated[
        str,
        Option(
            help="List: rooflab workloads. Default: gemm.", metavar="[WORKLOAD]", positional=True
        ),
    ] = DEFAULT
    kernels: Annotated[
        list[str],
        Option(
            help="Name, glob, .cu or .py file; several with commas.",
            flags=("--kernel", "-k"),
            bounds={"min_length": 1},
            parse=listed_kernels,
        ),
    ] = ["*"]
    sizes: Annotated[
        list[int],
        Option(
            help="Sizes: 512, or 256,512, or 256:8192:x2, or 2^20.", typed=str, parse=parse_sizes
        ),
    ] = []
    shapes: Annotated[
        list[str],
        Option(
            help="All extents, as MxNxK; several with commas.", flags=("--shape",), parse=listed
        ),
    ] = []
    precisions: Annotated[
        list[str],
        Option(
            help=f"{', '.join(PRECISIONS)} or all.",
            flags=("--precision", "-p"),
            bounds={"min_length": 1},
            parse=listed,
        ),
    ] = [ALL]
    parameters: Annotated[
        dict[str, list[Value]],
        Option(
            help="Any other workload parameter.",
            flags=("--set",),
            metavar="NAME=VALUE,…",
            typed=list[str],
            sets=_parameters,
        ),
    ] = {}


class OfSweep(BaseModel):
    """The options of a whole sweep."""

    threads: Annotated[
        int | None,
        Option(
            help="CPU threads; all: one per physical core, the default. A run for each value.",
            metavar="NUMBER|all",
            typed=list[str],
            bounds={"ge": 1, "le": 4096},
        ),
    ] = None
    config: ClassVar[
        Annotated[str, Option(help="quick, default, full, memory, llm, cutlass, or a TOML file.")]
    ] = "default"
    seed: Annotated[
        int,
        Option(help="Seed of the inputs and of the kernels' order.", bounds={"ge": 0, "lt": 2**63}),
    ] = 0
    fill: Annotated[
        Literal["uniform", "normal", "zeros", "ints"],
        Option(help="Inputs: uniform, normal, zeros or ints."),
    ] = "uniform"
    cache: Annotated[
        Literal["cold", "warm"], Option(help="cold: operands are not in the cache; or warm.")
    ] = "cold"
    compiler: Annotated[
        Literal["auto", "nvcc", "nvrtc"],
        Option(help="Of .cu files: nvcc, nvrtc, or auto: nvcc for your files."),
    ] = "auto"
    variant: Annotated[
        list[str],
        Option(help="Only these variants of kernels that have some: name or glob.", parse=listed),
    ] = []
    retune: Annotated[bool, Option(help="Search the fastest variants again.")] = False
    counters: Annotated[
        bool, Option(help="Count FLOPs and bytes after timing (GPU; extra cupti).")
    ] = False
    rounds: ClassVar[
        Annotated[
            int | None,
            Option(
                help="Exact number of rounds of each point.",
                bounds={"ge": 3, "le": 1000},
                sets=_rounds,
            ),
        ]
    ] = None
    precision_percent: ClassVar[
        Annotated[
            float | None,
            Option(
                help="A point is done when its 95 % interval is within ± this many percent.",
                bounds={"gt": 0, "le": MOST_PERCENT},
                sets=lambda given: {"timing": {"precision_percent": given}},
            ),
        ]
    ] = None
    max_time_s: Annotated[
        float | None,
        Option(
            help="Approximate limit for all points together, in seconds.",
            flags=("--max-time",),
            bounds={"gt": 0, "le": MOST_SECONDS},
        ),
    ] = None


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
