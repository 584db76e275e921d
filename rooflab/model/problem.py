"""A problem: parameters, operands, FLOPs, bytes per link, reference and tolerance. Pure.

A workload is a subclass of ``Problem`` in one file; an instance is one point that can be measured.
Everything else in rooflab is generic and uses only this interface.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache, cached_property, partial
from itertools import pairwise
from math import isfinite, prod
from typing import Any, ClassVar, Final, Literal, Protocol, Self, get_args

from rooflab.errors import UsageError
from rooflab.model.precision import PRECISIONS, DataType, Precision

Role = Literal["in", "out", "inout"]
Place = Literal["device", "pinned", "pageable"]
ROLES: Final = get_args(Role)
PLACES: Final = get_args(Place)
ParameterKind = Literal["extent", "setting", "stream", "spread"]
Value = int | float | str

MAX_EXTENT: Final = 2**31
"""Largest accepted extent; larger values are treated as typos."""

LEAST: Final = 1e-30
MOST: Final = 1e30
"""Sizes of a factor with which FP32 computes: sums of its products are no larger than 1e38."""

PIECE_ELEMENTS: Final = 2**23
"""Verification compares at most this many elements at a time, to bound its memory."""

CHUNK_BYTES: Final = 16 * 10**6
"""Operands of a chunk by default: copies of this size reach the link's rate."""

MOST_STREAMS: Final = 32
MOST_GPUS: Final = 72
"""GPUs of the largest NVLink domain."""

NOWHERE: Final = "none"
"""The value of ``host`` for operands in device memory."""

PROGRAM: Final = "program"
"""The workload of the rows of a program's run, whose problems are the launches of a kernel."""

IN_SIZE: Final = ("chunk", "streams", "graph", "gpus", "split")
"""Parameters of placement that ``Problem.size`` shows."""

DRAM: Final = "dram"
H2D: Final = "h2d"
D2H: Final = "d2h"
PEER: Final = "peer"

SFU: Final = "sfu"
"""The special-function unit: exponentials, reciprocals and roots."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One array. Its role gives its traffic, its place the links that it crosses.

    ``within`` are the least and the largest number that an input may have, such as those of an
    index; None if any will do. With a ``step`` the numbers of a row, along the last axis, differ:
    they are multiples of it from the least number on, in a random order. ``constant`` inputs are
    the same in every launch, so that kernels may convert them before; ``numbers`` are what these
    hold, by default anything. No launch needs the ``idle`` elements.
    """

    name: str
    shape: tuple[int, ...]
    type: DataType
    role: Role = "in"
    place: Place = "device"
    within: tuple[float, float] | None = None
    constant: bool = False
    numbers: tuple[int, ...] = ()
    idle: int = 0
    step: float = 0.0

    def __post_init__(self) -> None:
        for value, known in ((self.role, ROLES), (self.place, PLACES)):
            if value not in known:
                raise UsageError(
                    f"operand {self.name!r}: {value!r} is not one of {', '.join(known)}"
                )

    @property
    def title(self) -> str:
        """``C`` for ``c``; longer names unchanged."""
        return self.name.upper() if len(self.name) == 1 else self.name

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return self.elements * self.type.bytes

    @property
    def read(self) -> bool:
        """Whether a launch reads it."""
        return self.role != "out"

    @property
    def written(self) -> bool:
        """Whether a launch writes it."""
        return self.role != "in"

    @property
    def traffic(self) -> dict[str, int]:
        """Compulsory bytes per link: each element read once, written once, or both.

        An operand in host memory also moves twice through the device's memory in each direction:
        the copy writes it and the kernel reads it, or the kernel writes it and the copy reads it.
        """
        size = self.bytes - self.idle * self.type.bytes
        if self.place == "device":
            return {DRAM: size * (self.read + self.written)}
        links = {DRAM: 2 * size * (self.read + self.written)}
        suffix = "_pageable" if self.place == "pageable" else ""
        links |= {H2D + suffix: size} if self.read else {}
        return links | ({D2H + suffix: size} if self.written else {})


def in_and_out(precision: Precision, **shapes: tuple[int, ...]) -> tuple[Operand, ...]:
    """Inputs of these shapes and, last, the output, in the types of ``precision``."""
    *given, result = shapes
    inputs = (Operand(name, shapes[name], precision.input) for name in given)
    return (*inputs, Operand(result, shapes[result], precision.output, "out"))


# Parameters --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a workload. ``default`` is None for an extent that must be given."""

    name: str
    kind: ParameterKind
    default: Value | None
    description: str
    choices: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """``M`` for ``m``; longer names unchanged."""
        return self.name.upper() if len(self.name) == 1 else self.name

    def check(self, value: Any) -> None:
        """Raise ``UsageError`` unless ``value`` is allowed."""
        if self.kind == "extent":
            if not isinstance(value, int) or not 1 <= value <= MAX_EXTENT:
                raise UsageError(
                    f"{self.title} = {str(value)[:40]} is out of range: "
                    f"give a whole number from 1 to {MAX_EXTENT}"
                )
        elif self.choices and value not in self.choices:
            raise UsageError(
                f"unknown {self.name} {str(value)[:40]!r}: choose from {', '.join(self.choices)}"
            )
        elif isinstance(value, float) and not isfinite(value):
            raise UsageError(f"{self.name} = {value} is not a finite number")
        elif isinstance(value, float) and value and not LEAST <= abs(value) <= MOST:
            raise UsageError(
                f"{self.name} = {value:g} is out of range: give 0, or {LEAST:g} to {MOST:g}"
            )

    def parse(self, text: Any) -> Value:
        """The value of a user's text; raises ``UsageError`` if it is not valid."""
        wanted: type[Value] = int if self.default is None else type(self.default)
        try:
            # Python converts at most 4,300 digits; longer numbers are typos.
            value: Value = wanted(str(text).strip()[:400])
        except ValueError:
            what = "a whole number" if wanted is int else "a number"
            raise UsageError(f"{self.name} = {str(text)[:40]!r} is not {what}") from None
        self.check(value)
        return value


def extent(description: str, default: int | None = None) -> Any:
    """Declare an extent, a positive whole number, as a field of a ``Problem``."""
    return setting(MISSING if default is None else default, description, kind="extent")


def setting(
    default: Any, description: str, choices: Sequence[str] = (), *, kind: ParameterKind = "setting"
) -> Any:
    """Declare any other parameter: a number or, with ``choices``, one of several words."""
    metadata = {"kind": kind, "description": description, "choices": tuple(choices)}
    return field(default=default, metadata=metadata)


streaming = partial(setting, kind="stream")
"""Declare how operands in host memory are streamed through the device."""

spreading = partial(setting, kind="spread")
"""Declare how a problem is divided among the GPUs of a host."""


# Records -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProblemRecord:
    """A problem in rows, messages and files: plain values, no behaviour.

    ``size`` gives the extents in the notation of ``--sizes`` and ``--shape``, ``about`` the
    settings that a reader needs. ``key`` is the identity of a problem in sweeps, ``--resume``,
    ``compare`` and exports.
    """

    workload: str
    precision: str
    size: str
    extents: Mapping[str, int]
    settings: Mapping[str, Value]
    about: str = ""

    @property
    def streamed(self) -> bool:
        """Whether the operands were in host memory."""
        return "host" in self.settings

    @property
    def gpus(self) -> int:
        """The number of GPUs that share the problem."""
        count = self.parameters.get("gpus", 1)
        return count if isinstance(count, int) else 1

    @property
    def resident(self) -> bool:
        """Whether all operands were in the memory of one device."""
        return not self.streamed and self.gpus == 1

    @property
    def chunk_share(self) -> float:
        """The part of a streamed problem in one chunk."""
        parts = self.extents.get("batch") or self.extents.get("rows") or 1
        return min(1.0, float(self.settings.get("chunk", parts)) / parts)

    @property
    def parameters(self) -> dict[str, Value]:
        """Extents and settings together."""
        return {**self.extents, **self.settings}

    @property
    def key(self) -> tuple[Value, ...]:
        """Workload, precision, and name and value of each parameter, in order of names."""
        pairs = sorted(self.parameters.items())
        return (self.workload, self.precision, *(part for pair in pairs for part in pair))


def describe(
    settings: Mapping[str, Value], defaults: Mapping[str, Value | None], workload: str = ""
) -> str:
    """Settings as text: all words, and numbers that differ from their default.

    Those that ``size`` shows are left out, which are all of a program's.
    """
    if workload == PROGRAM:
        return ""
    parts = [
        f"{name} {value if isinstance(value, str) else format(value, 'g')}"
        for name, value in settings.items()
        if name not in IN_SIZE and (isinstance(value, str) or value != defaults.get(name))
    ]
    return ", ".join(parts)


# Verification ------------------------------------------------------------------------------------

Index = tuple[Any, ...]
"""A part of an array: a slice per axis; one axis may have an array of positions."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a problem that is verified at once: an index per operand, by default all of it.

    Of an output it may have nothing, an empty slice: then that one is not compared here.
    """

    select: Mapping[str, Index] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hard:
    """Inputs that a shortcut does not survive, and the piece whose outputs they decide.

    ``values`` holds, by operand, a part of it and the numbers that are put there: one, or as many
    as the part has.
    """

    title: str
    values: Mapping[str, tuple[Index, Any]]
    piece: Piece


class Turns(random.Random):
    """Random numbers for hard inputs that come in turns; ``left`` are titles without a place."""

    left: Sequence[str] = ()


def scattered(
    draw: random.Random, total: int, titles: Sequence[str], most: int = 8
) -> dict[str, list[int]]:
    """Up to ``most`` of ``total`` places for each title; if there are too few, for some titles.

    With ``Turns`` the others are next.
    """
    if isinstance(draw, Turns):
        titles = draw.left or titles
    each = min(most, max(1, total // len(titles)))
    chosen = draw.sample(titles, min(len(titles), total))
    if isinstance(draw, Turns):
        draw.left = [title for title in titles if title not in chosen]
    places = draw.sample(range(total), each * len(chosen))
    return {title: sorted(places[i * each : (i + 1) * each]) for i, title in enumerate(chosen)}


class Inputs(Protocol):
    """The inputs of a piece, decoded when they are used: FP64, or INT64 for integers."""

    def __getitem__(self, name: str) -> Any:
        """All of one input within the piece."""

    def part(self, name: str, index: Index) -> Any:
        """A part of it, so that a reference can limit its memory."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one operand within the piece; of an output, of what is compared."""


def boxes(shape: Sequence[int], most: int = PIECE_ELEMENTS) -> Iterator[Index]:
    """Slices that cut ``shape`` into boxes of at most ``most`` elements, in order."""
    if not shape:
        yield ()
        return
    inner = prod(shape[1:])
    step = max(1, most // inner)
    for start in range(0, shape[0], step):
        rows = slice(start, min(start + step, shape[0]))
        for rest in boxes(shape[1:], most) if inner > most else [(slice(None),) * (len(shape) - 1)]:
            yield (rows, *rest)


# Several GPUs ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Block:
    """A part of an operand: first and last index, exclusive, along each axis.

    ``owner`` is the number of the GPU that has it before a launch, or after it if it is written.
    """

    owner: int
    bounds: tuple[tuple[int, int], ...]

    @property
    def index(self) -> tuple[slice, ...]:
        """Where it is in the whole operand."""
        return tuple(slice(*ends) for ends in self.bounds)

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(end - start for start, end in self.bounds)


@dataclass(frozen=True, slots=True)
class Task:
    """A part of a problem that GPU number ``gpu`` computes, and the block of each operand in it."""

    gpu: int
    problem: Problem
    blocks: Mapping[str, Block]


def parts(total: int, count: int) -> list[tuple[int, int]]:
    """``total`` in ``count`` parts that differ by one at most: first and last index, exclusive."""
    edges = [total * i // count for i in range(count + 1)]
    return list(pairwise(edges))


# Problems ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Problem(ABC):
    """One point of a workload: its parameters (the fields) and its precision.

    Construction raises ``UsageError`` for a parameter out of range. A subclass defines:

    ``workload``   its name, the argument of ``rooflab sweep``
    ``title``      one line for people
    ``formula``    the computation
    ``work``       the FLOPs as a formula
    ``sizes``      the extents that ``--sizes`` sets, all to the same number

    and ``operands``, ``flops``, ``tolerance`` and ``reference``. ``--shape`` sets all extents in
    the order of their declaration; those with a default may be left out.
    """

    workload: ClassVar[str]
    title: ClassVar[str]
    formula: ClassVar[str]
    work: ClassVar[str]
    sizes: ClassVar[tuple[str, ...]]
    arguments: ClassVar[tuple[str, ...]] = ()
    """Arguments of a CUDA kernel: names of operands and of attributes. Empty: all extents, all
    numeric settings, all operands."""
    index_type: ClassVar[Literal["int32", "int64"]] = "int64"
    """The type of whole-number arguments: ``int`` or ``long long``."""

    collective: ClassVar[bool] = False
    """Whether one launch of a kernel runs on all GPUs of the problem."""

    summed: ClassVar[tuple[str, ...]] = ()
    """Outputs that are sums over the pieces: the reference of a piece has its part of them."""

    stream_extent: ClassVar[str] = "batch"
    """The extent of independent parts, streamed in chunks. A workload may have none."""

    precision: Precision = PRECISIONS["fp32"]

    host: str = streaming(NOWHERE, "where operands are", (NOWHERE, "pinned", "pageable"))
    chunk: int = streaming(0, "parts of the batch in a chunk; 0: about 16 MB")
    streams: int = streaming(1, "chunks in flight; from two on, copies overlap")
    graph: str = streaming("off", "the whole pipeline as one CUDA graph", ("off", "on"))

    def __post_init__(self) -> None:
        for parameter in {**self.parameters(), **self.placements()}.values():
            parameter.check(getattr(self, parameter.name))
        if self.host == NOWHERE:
            self._reset("stream")
        else:
            FromHost(self).complete()
        if not 1 <= self.gpus <= MOST_GPUS:
            raise UsageError(f"gpus = {self.gpus} is out of range: give 1 to {MOST_GPUS}")
        if self.gpus == 1:
            self._reset("spread")
        elif self.host != NOWHERE:
            raise UsageError("--host and --gpus cannot be combined: leave out one of them")

    def _reset(self, kind: str) -> None:
        for parameter in self.declared(kind):
            object.__setattr__(self, parameter.name, parameter.default)

    # Defined by a subclass.

    @property
    @abstractmethod
    def operands(self) -> tuple[Operand, ...]:
        """Every array, in the order of a kernel's arguments."""

    @property
    @abstractmethod
    def flops(self) -> int:
        """Floating-point operations (for integers: operations) that the formula needs."""

    @property
    @abstractmethod
    def tolerance(self) -> float:
        """Largest relative error, ‖out - ref‖ / ‖ref‖, of correct arithmetic."""

    @abstractmethod
    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """Every output in FP64 (INT64 for integers) on the array module ``arrays``."""

    # A subclass may override these.

    @property
    def tasks(self) -> tuple[Task, ...]:
        """What each GPU computes, in the order of its start; of a problem that can be spread."""
        raise NotImplementedError

    @property
    def result_bytes(self) -> int:
        """Of a collective, the size of the result on each GPU."""
        return 0

    @property
    def bus_bytes(self) -> int:
        """Of a collective, bytes over a link as NCCL's tests count them for the bus bandwidth."""
        return 0

    @property
    def moves(self) -> bool:
        """Whether outputs are inputs, bit by bit: ``reference`` then also works on bits."""
        return False

    @property
    def units(self) -> Mapping[str, int]:
        """Operations that units other than those of ``flops`` must do, such as ``SFU``."""
        return {}

    def tolerance_of(self, operand: Operand) -> float:
        """The tolerance of one output, where several have different ones."""
        return self.tolerance

    def magnitude(self, rms: Mapping[str, float]) -> float:
        """Expected size of an output element, from the root mean square of each input.

        The size of a reference is at least this, in case it cancels. 0 if nothing cancels.
        """
        return 0.0

    def magnitude_of(self, operand: Operand, rms: Mapping[str, float]) -> float:
        """The same for one output, where several have different ones."""
        return self.magnitude(rms)

    def pieces(self, draw: random.Random) -> Iterator[Piece]:
        """The pieces to compare; ``draw`` chooses samples if not everything can be compared."""
        yield Piece()

    def hard(self, arrays: Any, draw: random.Random) -> Iterable[Hard]:
        """Parts with inputs that overflow, vanish or cancel; none if the workload has no such."""
        return ()

    @property
    def sketched(self) -> str:
        """The output of which ``pieces`` are only samples, empty if they are everything."""
        return ""

    def sketch(self, arrays: Any, inputs: Inputs, weights: Any) -> Any:
        """The output called ``sketched`` times ``weights``, computed without that output.

        ``weights`` has a row for each element along the output's last axis (Freivalds,
        "Probabilistic Machines Can Use Less Running Time", 1977).
        """
        raise NotImplementedError

    @property
    def grid_extents(self) -> tuple[int, ...]:
        """The extents that the blocks of a CUDA kernel tile, x last."""
        return next(operand for operand in self.operands if operand.written).shape

    @property
    def macros(self) -> dict[str, int | str]:
        """Macros of a CUDA kernel, beside its precision."""
        return {
            f"ROOFLAB_{name.upper()}_{str(value).upper()}": 1
            for name, value in self.settings.items()
            if isinstance(value, str)
        }

    # Derived.

    @classmethod
    @cache
    def declared(cls, *kinds: str) -> tuple[Parameter, ...]:
        """The parameters of these kinds that this class declares, by kind."""
        found = [
            Parameter(
                f.name,
                f.metadata["kind"],
                None if f.default is MISSING else f.default,
                f.metadata["description"],
                f.metadata.get("choices", ()),
            )
            for f in fields(cls)
            if f.metadata.get("kind") in kinds
        ]
        return tuple(sorted(found, key=lambda p: p.kind))

    @classmethod
    def parameters(cls) -> dict[str, Parameter]:
        """The workload's parameters by name: extents, then settings."""
        return {p.name: p for p in cls.declared("extent", "setting")}

    @classmethod
    def smallest(cls, precision: Precision, **settings: Value) -> Self:
        """The problem with the least extents: their defaults, else 1."""
        extents: dict[str, Any] = {p.name: p.default or 1 for p in cls.declared("extent")}
        return cls(precision=precision, **extents, **settings)  # type: ignore[arg-type]

    @classmethod
    def placements(cls) -> dict[str, Parameter]:
        """The parameters that say where operands are.

        Those of streaming if the workload can be streamed, those of spreading if it can be spread.
        """
        streams = cls.declared("stream") if cls.stream_extent in cls.parameters() else []
        return {p.name: p for p in (*streams, *cls.declared("spread"))}

    @property
    def gpus(self) -> int:
        """The number of GPUs that share the problem; some workloads have it as a parameter."""
        return 1

    @property
    def placement(self) -> OnDevice:
        """Where its operands are."""
        if self.host != NOWHERE:
            return FromHost(self)
        return OnGpus(self) if self.gpus > 1 else OnDevice(self)

    @property
    def argument_names(self) -> tuple[str, ...]:
        """The arguments of a CUDA kernel, in their order."""
        numbers = (name for name, value in self.settings.items() if not isinstance(value, str))
        return self.arguments or (*self.extents, *numbers, *(one.name for one in self.operands))

    @property
    def extents(self) -> dict[str, int]:
        """Extents by name, in the order of ``--shape``."""
        return {p.name: getattr(self, p.name) for p in self.declared("extent")}

    @property
    def settings(self) -> dict[str, Value]:
        """The other parameters by name."""
        return {p.name: getattr(self, p.name) for p in self.declared("setting")}

    @property
    def size(self) -> str:
        """The extents in the notation of ``--sizes`` if possible, else of ``--shape``.

        Of a streamed problem also chunk, streams and graph: ``1000x256x256/64x2``. Of a problem on
        several GPUs also their number and the split: ``8192@2rows``.
        """
        return self._extents_text + self.placement.suffix

    @property
    def _extents_text(self) -> str:
        values, parameters = self.extents, self.parameters()
        alike = {values[name] for name in self.sizes}
        others = [name for name in values if name not in self.sizes]
        if len(alike) == 1 and all(values[name] == parameters[name].default for name in others):
            return str(alike.pop())
        given = list(values)
        least = 2 if self.sizes else 1  # a single number would mean ``--sizes``
        while len(given) > least and values[given[-1]] == parameters[given[-1]].default:
            given.pop()
        return "x".join(str(values[name]) for name in given)

    @cached_property
    def record(self) -> ProblemRecord:
        """Its plain values."""
        defaults = {p.name: p.default for p in self.parameters().values()}
        settings = {**self.settings, **self.placement.parameters}
        return ProblemRecord(
            self.workload,
            self.precision.name,
            self.size,
            self.extents,
            settings,
            describe(settings, defaults, self.workload),
        )

    @property
    def key(self) -> tuple[Value, ...]:
        """Its identity: see ``ProblemRecord.key``."""
        return self.record.key

    @property
    def traffic(self) -> dict[str, int]:
        """Compulsory bytes per link; of a problem on several GPUs, those of the busiest one."""
        return self.placement.traffic

    @property
    def bytes(self) -> int:
        """Compulsory bytes of device memory; on several GPUs, of the busiest one."""
        return self.traffic.get(DRAM, 0)

    @property
    def host_bytes(self) -> int | None:
        """Compulsory bytes of the host link, both directions together; None if not streamed."""
        return None if self.host == NOWHERE else self.link_bytes

    @property
    def peer_bytes(self) -> int | None:
        """Compulsory bytes that one of several GPUs receives; None on one GPU."""
        return None if self.gpus == 1 else self.link_bytes

    @property
    def assumed(self) -> bool:
        """Whether the traffic is only assumed, so that it sets no limit to what is possible."""
        return False

    @property
    def link_bytes(self) -> int:
        """Compulsory bytes of the slowest link: between GPUs, to the host, or to device memory."""
        return self.placement.link_bytes

    @property
    def flops_each(self) -> int:
        """FLOPs of the device that has the most of them."""
        return self.placement.flops_each

    @property
    def operand_bytes(self) -> int:
        """Total bytes of all operands."""
        return sum(operand.bytes for operand in self.operands)

    @property
    def intensity(self) -> float:
        """Arithmetic intensity: FLOP per compulsory byte of the slowest link."""
        return self.flops / self.link_bytes if self.link_bytes else 0.0


# Placement ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OnDevice:
    """All operands of a problem in the memory of one device; the base of other placements.

    A placement says what traffic a problem causes, what a kernel is launched on, and how its size
    is told apart.
    """

    problem: Problem

    kind: ClassVar[str] = ""
    """The kind of parameters that it has."""

    @property
    def parameters(self) -> dict[str, Value]:
        """Its parameters by name."""
        return {p.name: getattr(self.problem, p.name) for p in self.problem.declared(self.kind)}

    @property
    def suffix(self) -> str:
        """What ``Problem.size`` shows of it."""
        return ""

    @property
    def launched(self) -> list[Problem]:
        """The problems that a kernel is launched on."""
        return [self.problem]

    @property
    def traffic(self) -> dict[str, int]:
        """Compulsory bytes per link."""
        return _total(self.problem.operands)

    @property
    def link_bytes(self) -> int:
        """Those of the slowest link that the placement uses."""
        return self.problem.bytes

    @property
    def flops_each(self) -> int:
        """FLOPs of the device that has the most of them."""
        return self.problem.flops


@dataclass(frozen=True, slots=True)
class FromHost(OnDevice):
    """Operands in host memory, which move through the device in chunks."""

    kind = "stream"

    def complete(self) -> None:
        """Choose the chunk if it is not given; raise ``UsageError`` for wrong parameters."""
        problem, name = self.problem, self.problem.stream_extent
        if "host" not in problem.placements():
            raise UsageError(f"{problem.workload} has no batch: it cannot be streamed (--host)")
        if not 1 <= problem.streams <= MOST_STREAMS:
            raise UsageError(
                f"streams = {problem.streams} is out of range: give 1 to {MOST_STREAMS}"
            )
        parts = problem.extents[name]
        if not 0 <= problem.chunk <= parts:
            raise UsageError(
                f"chunk = {problem.chunk} is out of range: {name} = {parts}, give 1 to {parts}"
            )
        if problem.chunk == 0:
            per_part = max(1, problem.operand_bytes // parts)
            object.__setattr__(problem, "chunk", min(parts, max(1, CHUNK_BYTES // per_part)))

    @property
    def suffix(self) -> str:
        """Chunk, streams, and whether it is a graph."""
        problem = self.problem
        return f"/{problem.chunk}x{problem.streams}" + "g" * (problem.graph == "on")

    def part(self, count: int) -> Problem:
        """The same problem with ``count`` parts, in device memory."""
        changes: dict[str, Any] = {"host": NOWHERE, self.problem.stream_extent: count}
        return replace(self.problem, **changes)

    @property
    def chunks(self) -> list[int]:
        """The parts in each chunk: equal but for the last."""
        chunk = self.problem.chunk
        whole, rest = divmod(self.problem.extents[self.problem.stream_extent], chunk)
        return [chunk] * whole + ([rest] if rest else [])

    @property
    def launched(self) -> list[Problem]:
        """A chunk, and the last one if it is shorter."""
        return [self.part(count) for count in sorted(set(self.chunks))]

    @property
    def traffic(self) -> dict[str, int]:
        """The host link's, too."""
        place: Any = self.problem.host
        return _total(replace(operand, place=place) for operand in self.problem.operands)

    @property
    def link_bytes(self) -> int:
        """Those of the host link."""
        return sum(count for link, count in self.problem.traffic.items() if link != DRAM)

    @property
    def kernel_bytes(self) -> int:
        """Compulsory traffic of device memory by the kernels, without copies from the host."""
        return _total(self.problem.operands)[DRAM]


@dataclass(frozen=True, slots=True)
class OnGpus(OnDevice):
    """A problem that several GPUs of a host share."""

    kind = "spread"

    @property
    def suffix(self) -> str:
        """Their number and the split, unless that is an extent."""
        return "@" * bool(self.parameters) + "".join(map(str, self.parameters.values()))

    @property
    def whole(self) -> Problem:
        """The same problem on one device; a collective is always on all."""
        changes: dict[str, Any] = {"gpus": 1} if self.parameters else {}
        return replace(self.problem, **changes)

    @property
    def launched(self) -> list[Problem]:
        """The problem of each task; a collective is launched on all GPUs at once."""
        if self.problem.collective:
            return [self.problem]
        return [task.problem for task in self.problem.tasks]

    @property
    def traffic(self) -> dict[str, int]:
        """That of the busiest GPU.

        What a GPU receives it also writes to its memory, and the sender reads it from its own.
        """
        operands = {operand.name: operand for operand in self.problem.operands}
        received, touched = [0] * self.problem.gpus, [0] * self.problem.gpus
        blocks = {(t.gpu, n, block) for t in self.problem.tasks for n, block in t.blocks.items()}
        for gpu, name, block in blocks:
            operand = operands[name]
            size = block.elements * operand.type.bytes
            touched[gpu] += size * (operand.read + operand.written)
            if block.owner != gpu:
                received[gpu] += size
                touched[gpu] += size
                touched[block.owner] += size
        return {DRAM: max(touched), PEER: max(received)}

    @property
    def link_bytes(self) -> int:
        """What one GPU receives."""
        return self.problem.traffic[PEER]

    @property
    def flops_each(self) -> int:
        """Those of the tasks of one GPU."""
        each = [0] * self.problem.gpus
        for task in self.problem.tasks:
            each[task.gpu] += task.problem.flops
        return max(each)


def _total(operands: Iterable[Operand]) -> dict[str, int]:
    """Bytes per link of all these."""
    total: dict[str, int] = {}
    for operand in operands:
        for link, count in operand.traffic.items():
            total[link] = total.get(link, 0) + count
    return total
