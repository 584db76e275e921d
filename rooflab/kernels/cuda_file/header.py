"""The header of a .cu file: the TOML table in its leading comment, checked."""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (  # noqa: TID253  imported late itself
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from rooflab.errors import UsageError
from rooflab.files import kernels_dir
from rooflab.kernels.cuda_file import expression, tensor_maps
from rooflab.model.precision import PRECISIONS, Precision
from rooflab.model.problem import Operand, Problem
from rooflab.workloads import DEFAULT, catalogue, find

PositiveCount = Annotated[int, Field(strict=True, gt=0)]
Macro = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")]


def _function(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*(::\w+)*(<[\w:<>,* ()-]*>)?", text, re.ASCII):
        raise ValueError("it is not the name of a function, such as mine or ns::mine<float, 4>")
    return text


Name = Annotated[str, AfterValidator(_function)]
"""A function as C++ calls it."""


def _arithmetic(value: int | str) -> int | str:
    expression.names(value)
    return value


Amount = Annotated[Annotated[int, Field(strict=True, ge=0)] | str, AfterValidator(_arithmetic)]
"""A whole number, or arithmetic with macros, extents and ``BUILT_IN`` names."""


def _size(value: int | str) -> int | str:
    if not isinstance(value, str) or "sizeof" not in value:
        return _arithmetic(value)
    if not re.fullmatch(r"[\w:<>,()*/%+ -]+", value, re.ASCII):
        raise ValueError(f"{value[:60]!r} is not an expression such as sizeof(Shared) + 1024")
    return value


Size = Annotated[Annotated[int, Field(strict=True, ge=0)] | str, AfterValidator(_size)]
"""An amount, or an expression of C++ with ``sizeof``, whose value the compiler finds."""

BUILT_IN: Final = ("input_bytes", "output_bytes", "multiprocessors")
"""Names that arithmetic in a header may use beside macros and extents."""

MAX_THREADS: Final = 1024
"""Most threads in a block (CUDA C++ Programming Guide, "Compute Capabilities")."""

MAX_CLUSTER: Final = 8
"""Most blocks in a cluster that every device with clusters supports."""

MAX_VARIANTS: Final = 64
MAX_FILE_BYTES: Final = 2**20


class Configuration(BaseModel):
    """One variant: macros in capitals, and parameters chosen at run time.

    Rows show ``name``, by default the macros. ``precisions`` limits the variant, by default to all;
    ``access_bytes`` is the size of accesses: rows of operands must be multiples of it.
    For files with ``launch = "plan"``: ``splits`` divides K among blocks, ``swizzle`` is the number
    of rows of tiles that are computed together, ``raster`` the direction.
    """

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[Macro, int | str]

    name: str = ""
    precisions: list[str] = Field([])
    access_bytes: int = Field(0, strict=True, ge=0)
    splits: PositiveCount = 1
    swizzle: PositiveCount = 1
    raster: Literal["auto", "m", "n"] = "auto"

    @property
    def macros(self) -> dict[str, int | str]:
        """The macros for compiling the file."""
        return self.__pydantic_extra__ or {}

    @property
    def title(self) -> str:
        """The name in rows."""
        return self.name or ",".join(f"{name}={value}" for name, value in self.macros.items())


class Map(BaseModel):
    """A TMA descriptor of ``operand``, for boxes in the order of its shape, contiguous extent last.

    What L2 lacks it fetches in pieces of ``promotion`` bytes. The descriptor takes the place of
    the operand's pointer, or with ``pointer`` the place after it. With ``padded`` it is that of a
    copy if the operand has rows that TMA cannot address. With ``rows`` all dimensions but the last
    are one: rows that follow each other.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    operand: str
    box: list[Amount] = Field(min_length=1, max_length=tensor_maps.MAX_RANK)
    swizzle: Literal[0, 32, 64, 128] = 0
    promotion: Literal[0, 64, 128, 256] = 128
    pointer: bool = Field(False, strict=True)
    padded: bool = Field(False, strict=True)
    rows: bool = Field(False, strict=True)

    def view(self, operand: Operand) -> Operand:
        """``operand`` as the descriptor has it."""
        if not self.rows:
            return operand
        return replace(operand, shape=(math.prod(operand.shape[:-1]), operand.shape[-1]))


_OPTION: Final = re.compile(
    r"--?(use_fast_math|maxrregcount=\d+|(ftz|prec-div|prec-sqrt|fmad)=(true|false)|restrict"
    r"|extra-device-vectorization|lineinfo|ptxas-options=[-\w=,]+|D\w+(=[-\w.]*)?)",
    re.ASCII,
)
"""Options that NVRTC and nvcc share and that run no other program."""


OF_A_GRID: Final = (
    *("entry", "block", "tile", "blocks", "blocks_per_sm", "blocks_per_tile", "flat", "cluster"),
    *("tensor_maps", "early_launch", "launch", "shared_bytes"),
)
"""Keys of kernels that rooflab launches itself."""

STREAM: Final = "stream"
"""The argument of a launcher that is no parameter or operand of its workload."""


class Header(BaseModel):
    """The table, with an example of each key. CONTRIBUTING.md explains the keys.

    A key that is the plural of one of the workload's choices, such as ``layouts``, limits it.
    """

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, list[str]]

    precisions: list[str] = Field(min_length=1, examples=['precisions = ["fp32"]'])
    workload: str = Field(DEFAULT, examples=['workload = "gemm"'])
    entry: Name = Field("", examples=['entry = "mine"'])
    launcher: Name = Field("", examples=['launcher = "run"'])
    arguments: list[str] = Field(
        [], examples=['arguments = ["m", "n", "k", "a", "b", "c", "stream"]']
    )
    libraries: list[str] = Field([], examples=['libraries = ["libmine.so"]'])
    block: list[Amount] = Field([], max_length=3, examples=["block = [32, 32]"])
    tile: list[Amount] = Field([], max_length=3, examples=["tile = [32, 32]"])
    blocks: Amount = Field(0, examples=["blocks = 128"])
    blocks_per_sm: Amount = Field(0, examples=["blocks_per_sm = 8"])
    blocks_per_tile: Amount = Field(1, examples=["blocks_per_tile = 2"])
    flat: bool = Field(False, strict=True, examples=["flat = true"])
    cluster: list[Amount] = Field([], max_length=3, examples=["cluster = [2]"])
    tensor_maps: list[Map] = Field(
        [],
        max_length=8,
        examples=['tensor_maps = [{ operand = "a", box = [128, 64], swizzle = 128 }]'],
    )
    early_launch: Amount = Field(0, examples=["early_launch = 1"])
    launch: Literal["grid", "plan"] = Field("grid", examples=['launch = "grid"'])
    title: str = Field("", examples=['title = "Mine"'])
    teaches: str = Field("", examples=['teaches = "what this file shows"'])
    rung: float = Field(float("inf"), strict=True, examples=["rung = 4"])
    shared_bytes: Size = Field(0, examples=["shared_bytes = 65536"])
    batched: bool = Field(False, strict=True, examples=["batched = true"])
    compute_capability: str = Field(
        "", pattern=r"^(\d+\.\d)?$", examples=['compute_capability = "9.0"']
    )
    min_compute_capability: str = Field(
        "5.0", pattern=r"^\d+\.\d$", examples=['min_compute_capability = "9.0"']
    )
    variants: list[Configuration] = Field(
        [], max_length=MAX_VARIANTS, examples=["variants = [{ STAGES = 3 }]"]
    )
    constraints: dict[str, PositiveCount] = Field({}, examples=["constraints = { K = 8 }"])
    limits: dict[str, PositiveCount] = Field({}, examples=["limits = { columns = 32768 }"])
    access_bytes: int = Field(0, strict=True, ge=0, examples=["access_bytes = 16"])
    k_major: list[str] = Field([], examples=['k_major = ["tf32"]'])
    options: list[str] = Field([], examples=['options = ["-use_fast_math"]'])
    needs: list[Literal["cutlass"]] = Field([], examples=['needs = ["cutlass"]'])

    @property
    def choices(self) -> dict[str, tuple[str, ...]]:
        """Settings of the workload by name, with the values that the kernel supports."""
        extra = self.__pydantic_extra__ or {}
        return {name.removesuffix("s"): tuple(values) for name, values in extra.items()}

    @property
    def shared_expression(self) -> str:
        """The shared memory as an expression of C++, empty if it is arithmetic."""
        size = self.shared_bytes
        return size if isinstance(size, str) and "sizeof" in size else ""

    @property
    def all_variants(self) -> list[Configuration]:
        """The variants; if there are none, one without parameters."""
        return self.variants or [Configuration()]

    @model_validator(mode="after")
    def _fits_its_workload(self) -> Self:
        if mistakes := list(dict.fromkeys(self._mistakes())):
            raise ValueError("; ".join(mistakes))
        return self

    def _mistakes(self) -> Iterator[str]:
        kind = find(self.workload)
        parameters = kind.parameters()
        precisions = [*self.precisions, *self.k_major]
        precisions += [name for variant in self.variants for name in variant.precisions]
        yield from _unknown("precisions", precisions, tuple(PRECISIONS))
        known = {name for name, parameter in parameters.items() if parameter.choices}
        for key, values in (self.__pydantic_extra__ or {}).items():
            setting = key.removesuffix("s")
            if setting not in known or key == setting:
                plurals = [f"{name}s" for name in sorted(known)]
                yield _unknown_key(key, [*type(self).model_fields, *plurals])
            elif not values:
                yield f"{key} is empty, name some of {', '.join(parameters[setting].choices)}"
            else:
                yield from _unknown(key, values, parameters[setting].choices)
        extents = [name for name, parameter in parameters.items() if parameter.kind == "extent"]
        for table in ("constraints", "limits"):
            given = [name.lower() for name in getattr(self, table)]
            yield from _unknown(table, given, tuple(extents))
        if self.launcher:
            yield from self._launcher_mistakes(kind)
        else:
            yield from self._own_launch_mistakes()
            if self.launch == "grid":
                yield from self._grid_mistakes(kind, extents)
        names = [variant.title for variant in self.variants]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            yield f"two variants are called {', '.join(twice)}"

    def _launcher_mistakes(self, kind: type[Problem]) -> Iterator[str]:
        for key in OF_A_GRID:
            if key in self.model_fields_set:
                yield f"{key!r} is for kernels without a launcher, which does that itself"
        problem = kind.smallest(PRECISIONS["fp32"])
        operands = [operand.name for operand in problem.operands]
        usual = problem.argument_names
        numbers = [name for name, p in kind.parameters().items() if not p.choices]
        known = tuple(dict.fromkeys((*usual, *numbers, STREAM)))
        yield from _unknown("arguments", self.arguments, known)
        if missing := [name for name in operands if name not in (self.arguments or usual)]:
            yield f"arguments: {', '.join(missing)} is not among them"

    def _own_launch_mistakes(self) -> Iterator[str]:
        for key in ("arguments", "libraries"):
            if getattr(self, key):
                yield f"{key!r} is for files with host code: write {example('launcher')}"
        for text in self.options:
            if not _OPTION.fullmatch(text):
                yield (
                    f"options: {text[:40]} is not an option for a kernel: use -use_fast_math, "
                    "-maxrregcount=N, -fmad=false, -ftz, -prec-div, -prec-sqrt, -restrict, "
                    "-lineinfo, -DNAME=VALUE, --ptxas-options=… (any, in a file with a launcher)"
                )

    def _grid_mistakes(self, kind: type[Problem], extents: list[str]) -> Iterator[str]:
        needed = ("entry", "block") if self.blocks else ("entry", "block", "tile")
        for key in [key for key in needed if not getattr(self, key)]:
            yield f"{key!r} is missing, write {example(key)}"
        others = {"tile", "blocks_per_sm", "blocks_per_tile", "flat"} & self.model_fields_set
        if self.blocks and others:
            yield f"blocks is the whole grid: leave out {', '.join(sorted(others))}"
        for key in ("block", "tile", "cluster", "blocks_per_tile"):
            given = getattr(self, key)
            if given == 0 or (isinstance(given, list) and 0 in given):
                yield f"{key}: 0 is not possible, write {example(key)}"
        threads = math.prod(amount for amount in self.block if isinstance(amount, int))
        if threads > MAX_THREADS:
            yield f"block: {threads} threads are more than the {MAX_THREADS} of a block"
        blocks = math.prod(amount for amount in self.cluster if isinstance(amount, int))
        if blocks > MAX_CLUSTER:
            yield f"cluster: {blocks} blocks are more than the {MAX_CLUSTER} of a cluster"
        smallest = kind.smallest(PRECISIONS["fp32"])
        named = {*kind.parameters(), *(operand.name for operand in smallest.operands)}
        arguments = [name for name in kind.arguments if name not in named]
        macros = whole_numbers(smallest.macros)
        usable = {*extents, *arguments, *BUILT_IN, *macros}
        other = [self.blocks, self.blocks_per_sm, self.blocks_per_tile, self.early_launch]
        other += [] if self.shared_expression else [self.shared_bytes]
        boxes = [extent for one in self.tensor_maps for extent in one.box]
        for variant in self.all_variants:
            values = usable | whole_numbers(variant.macros).keys()
            for amount in (*self.block, *self.tile, *self.cluster, *boxes, *other):
                if unknown := expression.names(amount) - values:
                    yield (
                        f"{amount!r} uses {', '.join(sorted(unknown))}, which is not an extent of "
                        f"{self.workload}, a macro of it or of each variant, or "
                        f"{', '.join(BUILT_IN)}"
                    )
        yield from self._tile_mistakes(kind)
        if self.tensor_maps:
            yield from self._map_mistakes(kind)

    def _tile_mistakes(self, kind: type[Problem]) -> Iterator[str]:
        """A batch may be left out of the tile, and with ``batched`` other extents too."""
        needed = [p.name for p in kind.parameters().values() if p.default is None]
        extents: dict[str, Any] = {name: 1 if name == "batch" else 2 for name in needed}
        try:
            tiled = kind(precision=PRECISIONS["fp32"], **extents).grid_extents
        except UsageError:  # a workload may have no problem of this size
            return
        least = 1 if self.batched else len([extent for extent in tiled if extent > 1])
        if self.tile and not least <= len(self.tile) <= len(tiled):
            count = least if len(self.tile) < least else len(tiled)
            yield (
                f"tile: {self.workload} has {count} extent{'s' * (count > 1)} to tile, this has "
                f"{len(self.tile)}: write tile = {[32] * count}"
            )

    def _map_mistakes(self, kind: type[Problem]) -> Iterator[str]:
        for name in [name for name in self.precisions if name in PRECISIONS]:
            precision = PRECISIONS[name]
            problem = kind.smallest(precision)
            operands = {one.name: one for one in problem.operands}
            yield from _unknown("tensor_maps", (m.operand for m in self.tensor_maps), (*operands,))
            for one in self.tensor_maps:
                for variant in self.all_variants if one.operand in operands else ():
                    operand = one.view(operands[one.operand])
                    mistake = _box_mistake(one, operand, variant, precision)
                    if not mistake and "batch" in problem.extents:
                        mistake = _batch_mistake(one, len(operand.shape))
                    if mistake:
                        yield f"tensor_maps: {mistake} (got {one.box})"


def whole_numbers(macros: Mapping[str, object]) -> dict[str, int]:
    """The values that arithmetic can use."""
    return {name: value for name, value in macros.items() if type(value) is int}


def _box_mistake(one: Map, operand: Operand, config: Configuration, precision: Precision) -> str:
    """What is wrong with a box that has the same extents for all problems."""
    rank = len(operand.shape)
    if len(one.box) > rank:
        return f"{operand.name} has {rank} dimensions, its box {len(one.box)}"
    values = whole_numbers(config.macros)
    values |= {"input_bytes": precision.input.bytes, "output_bytes": precision.output.bytes}
    if any(expression.names(extent) - values.keys() for extent in one.box):
        return ""
    try:
        box = [expression.evaluate(extent, values) for extent in one.box]
    except ValueError as error:
        return str(error)
    return tensor_maps.box_mistake(box, one.swizzle, operand.type)


def _batch_mistake(one: Map, rank: int) -> str:
    """A box over several matrices is hardly ever meant: mostly it is another view of one."""
    if len(one.box) < rank or rank < 3 or one.box[0] == 1 or isinstance(one.box[0], str):
        return ""
    return (
        f"the first dimension of {one.operand} is the batch, of which a box takes 1: write box = "
        f"{one.box[1:]} and copy wider tiles in parts, or encode another view of the matrix in "
        f"host code of your own, {example('launcher')}"
    )


def _unknown(key: str, values: Iterable[str], known: tuple[str, ...]) -> Iterator[str]:
    """A mistake for each of ``values`` that is not among the ``known``."""
    for value in values:
        if value not in known:
            yield f"{key}: {value[:40]} is not one of {', '.join(known)}"


def _unknown_key(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key[:40], known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    return f"{key[:40]!r} is not a key, {hint}"


def example(key: str) -> str:
    """An example line for ``key``."""
    return str((Header.model_fields[key].examples or [key])[0])


NEEDED: Final = ("entry", "precisions", "block", "tile")
"""Keys that an ordinary kernel must have."""


def read_header(path: Path) -> Header:
    """The header of a file; raises ``UsageError`` with all its errors."""
    comment, line = _leading_comment(path)
    needed = ", ".join(map(example, NEEDED))
    try:
        table = tomllib.loads("\n" * line + comment)  # so that TOML's line numbers are the file's
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise UsageError(
            f"{path}: the leading comment is not a TOML table: {str(error)[:200]}; write lines "
            f"such as {needed}"
        ) from error
    try:
        return Header.model_validate(table)
    except ValidationError as error:
        mistakes = dict.fromkeys(_mistake(dict(details)) for details in error.errors())
        raise UsageError(f"{path}: header: {'; '.join(list(mistakes)[:5])}") from error
    except UsageError as error:
        raise UsageError(f"{path}: header: {error}") from error


def _leading_comment(path: Path) -> tuple[str, int]:
    """The text of the first block comment, and the number of lines before it."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES)
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UsageError(f"kernel file {str(path)[:200]} cannot be read: {reason}") from error
    comment = re.match(r"\s*/\*(.*?)\*/", text, re.DOTALL)
    if not comment:
        raise UsageError(
            f"{path} has no header: begin it with a block comment that holds a TOML table, as in "
            f"{kernels_dir() / 'gemm' / '01_naive.cu'}; "
            f"needed are {', '.join(map(example, NEEDED))}"
        )
    return comment[1], text.count("\n", 0, comment.start(1))


def _mistake(error: dict[str, Any]) -> str:
    """A message for one of pydantic's errors, in terms of the header's keys."""
    reason = str(error["msg"]).removeprefix("Value error, ")
    if not error["loc"]:
        return reason
    key = str(error["loc"][0])
    if error["type"] == "missing" and len(error["loc"]) == 1:
        return f"{key!r} is missing, write {example(key)}"
    parameters = (p for kind in catalogue().values() for p in kind.parameters().values())
    choices = {f"{p.name}s": p.choices for p in parameters if p.choices}
    if key in choices:
        return f'{key}: {reason}, write {key} = ["{choices[key][0]}"]'
    if key not in Header.model_fields:
        return _unknown_key(key, list(Header.model_fields))
    return f"{key}: {reason} (got {str(error['input'])[:60]!r}), write {example(key)}"
