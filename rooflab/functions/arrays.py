"""Arrays of every library, and containers of them. No library is imported here.

An array's library is known by its type, so a library that the caller has not imported costs
nothing. ``leaves`` and ``changed`` go through tuples, lists, dictionaries and dataclasses.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from math import prod
from numbers import Number
from typing import Any, ClassVar, Final

NUMBERS: Final = (int, float, complex, Number)

NUDGED: Final = 16
"""Neighbouring elements that are changed so that an input is another one."""

PIECE: Final = 2**22
"""Elements that are compared at a time: in float64 they need memory too."""


class ArrayLibrary:
    """What differs between libraries. As it stands here: NumPy, and what is like it."""

    name: ClassVar[str] = "numpy"
    kind: ClassVar[str] = "ndarray"
    waits: ClassVar[bool] = False
    """Whether a call returns before it has started its work, on a stream of the library's own."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def owns(self, value: Any) -> bool:
        """Whether this is one of the library's arrays."""
        return isinstance(value, getattr(self.module, self.kind))

    def device(self, array: Any) -> str:
        """Where it is: ``cpu``, or as in ``cuda:0``."""
        return "cpu"

    def dtype(self, array: Any) -> str:
        """The name of its type, such as ``bfloat16``."""
        return str(array.dtype)

    def item_bytes(self, array: Any) -> int:
        """The size of an element."""
        return int(array.dtype.itemsize)

    def memory_bytes(self, array: Any) -> int:
        """From its first byte in memory to its last one, with the gaps of a view."""
        return sum(_reach(array))

    def parts(self, array: Any) -> list[Any]:
        """The arrays that hold its numbers: itself, unless it is sparse."""
        return [array]

    def copy(self, array: Any) -> Any:
        """The same numbers elsewhere, at the same distances: a view with gaps stays one."""
        if type(array) is not getattr(self.module, self.kind):
            return array.copy(order="K")
        made = self.module.empty_like(array)
        if made.strides != array.strides and array.size:
            made = self._spread(array, *_reach(array))
        made[...] = array
        return made

    def _spread(self, array: Any, before: int, after: int) -> Any:
        memory = self.module.empty(before + after, "uint8")
        return self.module.ndarray(array.shape, array.dtype, memory, before, array.strides)

    def floating(self, array: Any) -> bool:
        """Whether its elements are floating-point numbers, real or complex."""
        return "float" in self.dtype(array) or "complex" in self.dtype(array)

    def rolled(self, array: Any, shift: int) -> Any:
        """The same numbers at other places."""
        return self.module.roll(array, shift)

    def scaled(self, array: Any, factor: float) -> Any:
        """Its numbers times ``factor``, in its type."""
        return (array * factor).astype(array.dtype)

    def warped(self, array: Any, power: float) -> Any:
        """The sizes of its numbers to this power: their order stays."""
        sizes = abs(array)
        return (array / (sizes + (sizes == 0)) * sizes**power).astype(array.dtype)

    def put(self, target: Any, source: Any) -> Any:
        """``target`` with the numbers of ``source``; another array if it cannot be changed."""
        target[...] = source
        return target

    def nudge(self, target: Any, chance: float) -> bool:
        """Make a few numbers of ``target`` smaller; False if it cannot be."""
        counts = [NUDGED if size == max(target.shape) else 1 for size in target.shape]
        starts = [
            int(chance * max(1, size - count + 1))
            for size, count in zip(target.shape, counts, strict=True)
        ]
        at = tuple(slice(one, one + count) for one, count in zip(starts, counts, strict=True))
        target[at] = self.scaled(target[at], 0.8 + 0.19 * chance)
        return True

    def flat(self, array: Any) -> Any:
        """All of its elements in one row; of complex ones both parts.

        Those in memory, whatever a class of its own says of them; NaN where a mask is.
        """
        kind = getattr(self.module, self.kind)
        flat = self.module.ravel(array if type(array) is kind else array.view(kind))
        if "complex" in self.dtype(array):
            return flat.view(flat.real.dtype)
        mask = getattr(array, "mask", None)
        if mask is not None and self.name == "numpy":
            flat = flat.astype("float64")
            flat[self.module.broadcast_to(mask, array.shape).reshape(-1)] = float("nan")
        return flat

    def numbers(self, flat: Any, *, host: bool) -> Any:
        """In float64; in host memory if they are to be compared with those of another device."""
        return flat.astype("float64")

    def pieces(self, array: Any, *, host: bool = False) -> Iterator[Any]:
        """All of its elements in float64, PIECE at a time."""
        flat = self.flat(array)
        for start in range(0, int(flat.shape[0]), PIECE):
            yield self.numbers(flat[start : start + PIECE], host=host)

    def wait(self, array: Any) -> None:
        """Until its numbers are there."""


class _CuPy(ArrayLibrary):
    """Arrays on a GPU."""

    name = "cupy"

    def device(self, array: Any) -> str:
        return f"cuda:{array.device.id}"

    def _spread(self, array: Any, before: int, after: int) -> Any:
        memory = self.module.empty(before + after, "uint8").data + before
        return self.module.ndarray(array.shape, array.dtype, memory, array.strides)

    def numbers(self, flat: Any, *, host: bool) -> Any:
        return super().numbers(flat.get() if host else flat, host=host)


class _Torch(ArrayLibrary):
    """Tensors of PyTorch; copies need gradients if the tensor does."""

    name = "torch"
    kind = "Tensor"

    def device(self, array: Any) -> str:
        return "cpu" if array.device.type == "cpu" else f"{array.device.type}:{array.device.index}"

    def dtype(self, array: Any) -> str:
        return str(array.dtype).removeprefix("torch.")

    def item_bytes(self, array: Any) -> int:
        return int(array.element_size())

    def memory_bytes(self, array: Any) -> int:
        """From its first byte in memory to its last one; of a sparse one all parts."""
        if self._strided(array):
            return self._span(array) * self.item_bytes(array)
        return sum(map(self.memory_bytes, self.parts(array)))

    def parts(self, array: Any) -> list[Any]:
        """The values and indices of a sparse tensor."""
        if self._strided(array):
            return [array]
        if array.layout is self.module.sparse_coo:
            return [array._values(), array._indices()]
        rows = array.layout in (self.module.sparse_csr, self.module.sparse_bsr)
        first, second = ("crow", "col") if rows else ("ccol", "row")
        found = [getattr(array, f"{name}_indices")() for name in (first, second)]
        return [array.values(), *found]

    def _strided(self, array: Any) -> bool:
        return bool(array.layout is self.module.strided)

    def _span(self, array: Any) -> int:
        sides = zip(array.shape, array.stride(), strict=True)
        return 1 + sum((size - 1) * step for size, step in sides) if array.numel() else 0

    def copy(self, array: Any) -> Any:
        """A leaf of its own for autograd; a view with gaps stays one."""
        made = array.detach().clone()
        if self._strided(array) and made.stride() != array.stride() and array.numel():
            whole = array.detach().as_strided([self._span(array)], [1], array.storage_offset())
            made = whole.clone().as_strided(array.shape, array.stride())
        return made.requires_grad_(array.requires_grad)

    def rolled(self, array: Any, shift: int) -> Any:
        return array.detach().roll(shift)

    def scaled(self, array: Any, factor: float) -> Any:
        return (self._wide(array) * factor).to(array.dtype)

    def _wide(self, array: Any) -> Any:
        """FP8 has no arithmetic."""
        return array.detach().float() if self.item_bytes(array) == 1 else array.detach()

    def nudge(self, target: Any, chance: float) -> bool:
        """Unseen by autograd."""
        return super().nudge(target.detach(), chance)

    def warped(self, array: Any, power: float) -> Any:
        wide = self._wide(array)
        sizes = wide.abs()
        return (wide / (sizes + (sizes == 0)) * sizes**power).to(array.dtype)

    def put(self, target: Any, source: Any) -> Any:
        """Unseen by autograd."""
        target.detach().copy_(source)
        return target

    def flat(self, array: Any) -> Any:
        """All of its elements in one row; of complex ones both parts."""
        dense = array.detach() if self._strided(array) else array.detach().to_dense()
        real = self.module.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
        return real.reshape(-1)

    def numbers(self, flat: Any, *, host: bool) -> Any:
        return flat.double().cpu().numpy() if host else flat.double()


class _Jax(ArrayLibrary):
    """Arrays of JAX, which cannot be changed, and whose work is started by other threads."""

    name = "jax"
    kind = "Array"
    waits = True

    def device(self, array: Any) -> str:
        (device, *_) = array.devices()
        return "cpu" if device.platform == "cpu" else f"cuda:{device.id}"

    def copy(self, array: Any) -> Any:
        return self._numpy.array(array, copy=True)

    def rolled(self, array: Any, shift: int) -> Any:
        return self._numpy.roll(array, shift)

    def put(self, target: Any, source: Any) -> Any:
        return self.copy(source)

    def memory_bytes(self, array: Any) -> int:
        return size_bytes(array)

    def flat(self, array: Any) -> Any:
        """In host memory: JAX has no float64 unless it is asked for."""
        on_host = _numpy()
        return on_host.flat(on_host.module.asarray(array))

    def nudge(self, target: Any, chance: float) -> bool:
        return False

    def wait(self, array: Any) -> None:
        array.block_until_ready()

    @property
    def _numpy(self) -> Any:
        return sys.modules["jax.numpy"]


class _Numba(ArrayLibrary):
    """Device arrays of numba.cuda."""

    name = "numba"
    kind = "DeviceNDArray"

    def device(self, array: Any) -> str:
        return f"cuda:{sys.modules['numba.cuda'].get_current_device().id}"

    def copy(self, array: Any) -> Any:
        return sys.modules["numba.cuda"].to_device(array.copy_to_host())

    def rolled(self, array: Any, shift: int) -> Any:
        return _numpy().rolled(array.copy_to_host(), shift)

    def scaled(self, array: Any, factor: float) -> Any:
        return _numpy().scaled(array.copy_to_host(), factor)

    def warped(self, array: Any, power: float) -> Any:
        return _numpy().warped(array.copy_to_host(), power)

    def put(self, target: Any, source: Any) -> Any:
        target.copy_to_device(source)
        return target

    def nudge(self, target: Any, chance: float) -> bool:
        return False

    def flat(self, array: Any) -> Any:
        return _numpy().flat(array.copy_to_host())


def _numpy() -> ArrayLibrary:
    import numpy

    return ArrayLibrary(numpy)


_BY_MODULE: Final = {
    "torch": _Torch,
    "cupy": _CuPy,
    "jax": _Jax,
    "numba.cuda.cudadrv.devicearray": _Numba,
    "numpy": ArrayLibrary,
}


def library(value: Any) -> ArrayLibrary | None:
    """The library of an array, None if this is no array."""
    for name, kind in _BY_MODULE.items():
        module = sys.modules.get(name)
        if module is not None and hasattr(module, kind.kind):
            found = kind(module)
            if found.owns(value):
                return found
    return None


def of(array: Any) -> ArrayLibrary:
    """The library of what is an array."""
    found = library(array)
    assert found is not None
    return found


def described(array: Any) -> str:
    """Type and shape: ``bfloat16[4096x4096]``."""
    return f"{of(array).dtype(array)}[{'x'.join(map(str, array.shape))}]"


def size_bytes(array: Any) -> int:
    """The bytes of all elements."""
    return int(prod(array.shape)) * of(array).item_bytes(array)


def _reach(array: Any) -> tuple[int, int]:
    """How many bytes of its memory are before its first element, and from there on."""
    if not array.size:
        return 0, 0
    steps = [(size - 1) * step for size, step in zip(array.shape, array.strides, strict=True)]
    after = sum(step for step in steps if step > 0) + int(array.dtype.itemsize)
    return -sum(step for step in steps if step < 0), after


# Containers --------------------------------------------------------------------------------------


def leaves(value: Any) -> list[Any]:
    """All arrays in it, each once."""
    found: dict[int, Any] = {}
    for one in _inside(value):
        if library(one) is not None:
            found.setdefault(id(one), one)
    return list(found.values())


def values(value: Any) -> list[Any]:
    """All arrays in it, and its numbers as arrays without axes."""
    import numpy

    found = [one for one in _inside(value) if library(one) or isinstance(one, NUMBERS)]
    return [one if library(one) else numpy.asarray(one) for one in found]


def _inside(value: Any, above: tuple[int, ...] = ()) -> Iterator[Any]:
    inner: list[Any] = []
    if library(value) is not None:
        yield value
    elif is_module(value):
        inner = [*value.parameters(), *value.buffers()]
    elif isinstance(value, dict):
        keys = sorted(dict.keys(value), key=str)
        inner = [dict.__getitem__(value, key) for key in keys]  # of a class of its own too
    elif isinstance(value, (list, tuple)):
        inner = list(value)
    elif is_dataclass(value) and not isinstance(value, type):
        inner = [getattr(value, field.name, None) for field in fields(value)]
    else:
        yield value
    for one in inner:
        if id(one) not in above:  # it may refer to what it is in
            yield from _inside(one, (*above, id(value)))


def is_module(value: Any) -> bool:
    """Whether this is a module of PyTorch, with parameters."""
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "nn") and isinstance(value, torch.nn.Module)


def changed(
    value: Any,
    change: Callable[[Any], Any],
    memo: dict[int, Any] | None = None,
    *,
    modules: bool = False,
) -> Any:
    """The same container with other arrays; what is the same array stays the same array.

    Modules, unless they are copied with their parameters, and everything that is no container are
    the same objects.
    """
    memo = {} if memo is None else memo

    def inner(one: Any) -> Any:
        return changed(one, change, memo, modules=modules)

    if library(value) is not None:
        if id(value) not in memo:
            memo[id(value)] = change(value)
        return memo[id(value)]
    if modules and is_module(value):
        return copy.deepcopy(value, memo)
    made: Any
    if isinstance(value, dict):
        made = copy.copy(value)  # a defaultdict keeps its factory
        for key in dict.keys(value):
            dict.__setitem__(made, key, inner(dict.__getitem__(value, key)))
        return made
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(inner, value))
    if isinstance(value, (list, tuple)):
        return type(value)(map(inner, value))
    if is_dataclass(value) and not isinstance(value, type):
        made = copy.copy(value)
        for name in (field.name for field in fields(value) if hasattr(value, field.name)):
            object.__setattr__(made, name, inner(getattr(value, name)))
        return made
    return value
