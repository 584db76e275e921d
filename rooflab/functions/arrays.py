"""Arrays of every library, and containers of them. No library is imported here.

An array's library is known by its type, so a library that the caller has not imported costs
nothing. ``leaves`` and ``changed`` go through tuples, lists, dictionaries and dataclasses.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from math import prod
from numbers import Number
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

if TYPE_CHECKING:
    import numpy

NUMBERS: Final = (int, float, complex, Number)

NUDGED: Final = 16
"""Neighbouring elements that are changed so that an input is another one."""


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

    def copy(self, array: Any) -> Any:
        """The same numbers elsewhere, in the same order of axes."""
        return array.copy(order="K")

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
        flat = target.reshape(-1)
        at = int(chance * max(1, flat.shape[0] - NUDGED))
        flat[at : at + NUDGED] *= 0.8 + 0.19 * chance
        return True

    def numbers(self, array: Any) -> Any:
        """All of its elements in float64, flat; of complex ones both parts.

        Those in memory, whatever a class of its own says of them; NaN where a mask is.
        """
        kind = getattr(self.module, self.kind)
        flat = self.module.ravel(array if type(array) is kind else array.view(kind))
        if "complex" in self.dtype(array):
            return flat.astype("complex128").view("float64")
        numbers = flat.astype("float64")
        mask = getattr(array, "mask", None)
        if mask is not None and self.name == "numpy":
            numbers[self.module.broadcast_to(mask, array.shape).reshape(-1)] = float("nan")
        return numbers

    def to_host(self, array: Any) -> numpy.ndarray[Any, Any]:
        """``numbers`` in host memory."""
        import numpy

        host: numpy.ndarray[Any, Any] = ArrayLibrary(numpy).numbers(numpy.asarray(array))
        return host

    def wait(self, array: Any) -> None:
        """Until its numbers are there."""


class CuPy(ArrayLibrary):
    """Arrays on a GPU."""

    name = "cupy"

    def device(self, array: Any) -> str:
        """The GPU."""
        return f"cuda:{array.device.id}"

    def to_host(self, array: Any) -> numpy.ndarray[Any, Any]:
        """Copied."""
        return super().to_host(array.get())


class Torch(ArrayLibrary):
    """Tensors of PyTorch; copies need gradients if the tensor does."""

    name = "torch"
    kind = "Tensor"

    def device(self, array: Any) -> str:
        """A GPU, the CPU, or another device under its own name."""
        return "cpu" if array.device.type == "cpu" else f"{array.device.type}:{array.device.index}"

    def dtype(self, array: Any) -> str:
        """Without the library's name."""
        return str(array.dtype).removeprefix("torch.")

    def item_bytes(self, array: Any) -> int:
        """The size of an element."""
        return int(array.element_size())

    def copy(self, array: Any) -> Any:
        """A leaf of its own for autograd."""
        return array.detach().clone().requires_grad_(array.requires_grad)

    def rolled(self, array: Any, shift: int) -> Any:
        """The same numbers at other places."""
        return array.detach().roll(shift)

    def scaled(self, array: Any, factor: float) -> Any:
        """In its type."""
        return (array.detach() * factor).to(array.dtype)

    def nudge(self, target: Any, chance: float) -> bool:
        """Unseen by autograd."""
        return super().nudge(target.detach(), chance)

    def warped(self, array: Any, power: float) -> Any:
        """In its type."""
        sizes = array.detach().abs()
        return (array.detach() / (sizes + (sizes == 0)) * sizes**power).to(array.dtype)

    def put(self, target: Any, source: Any) -> Any:
        """Unseen by autograd."""
        target.detach().copy_(source)
        return target

    def numbers(self, array: Any) -> Any:
        """All of its elements in float64, flat; of complex ones both parts."""
        real = self.module.view_as_real(array.detach()) if array.is_complex() else array.detach()
        return real.double().reshape(-1)

    def to_host(self, array: Any) -> numpy.ndarray[Any, Any]:
        """Copied."""
        return cast("numpy.ndarray[Any, Any]", self.numbers(array).cpu().numpy())


class Jax(ArrayLibrary):
    """Arrays of JAX, which cannot be changed, and whose work is started by other threads."""

    name = "jax"
    kind = "Array"
    waits = True

    def device(self, array: Any) -> str:
        """The GPU or the CPU."""
        (device, *_) = array.devices()
        return "cpu" if device.platform == "cpu" else f"cuda:{device.id}"

    def copy(self, array: Any) -> Any:
        """The same numbers elsewhere."""
        return self._numpy.array(array, copy=True)

    def rolled(self, array: Any, shift: int) -> Any:
        """The same numbers at other places."""
        return self._numpy.roll(array, shift)

    def put(self, target: Any, source: Any) -> Any:
        """Another array."""
        return self.copy(source)

    def numbers(self, array: Any) -> Any:
        """In host memory: JAX has no float64 unless it is asked for."""
        return self.to_host(array)

    def nudge(self, target: Any, chance: float) -> bool:
        """It cannot be changed."""
        return False

    def wait(self, array: Any) -> None:
        """Until it is computed."""
        array.block_until_ready()

    @property
    def _numpy(self) -> Any:
        return sys.modules["jax.numpy"]


class Numba(ArrayLibrary):
    """Device arrays of numba.cuda."""

    name = "numba"
    kind = "DeviceNDArray"

    def device(self, array: Any) -> str:
        """The GPU of its context."""
        return f"cuda:{sys.modules['numba.cuda'].get_current_device().id}"

    def copy(self, array: Any) -> Any:
        """The same numbers elsewhere."""
        return sys.modules["numba.cuda"].to_device(array.copy_to_host())

    def rolled(self, array: Any, shift: int) -> Any:
        """In host memory."""
        import numpy

        return numpy.roll(array.copy_to_host(), shift)

    def scaled(self, array: Any, factor: float) -> Any:
        """In host memory."""
        host = array.copy_to_host()
        return (host * factor).astype(host.dtype)

    def warped(self, array: Any, power: float) -> Any:
        """In host memory."""
        import numpy

        return ArrayLibrary(numpy).warped(array.copy_to_host(), power)

    def put(self, target: Any, source: Any) -> Any:
        """Copied to the GPU."""
        target.copy_to_device(source)
        return target

    def nudge(self, target: Any, chance: float) -> bool:
        """It would be copied."""
        return False

    def numbers(self, array: Any) -> Any:
        """In host memory."""
        return self.to_host(array)

    def to_host(self, array: Any) -> numpy.ndarray[Any, Any]:
        """Copied."""
        return super().to_host(array.copy_to_host())


_BY_MODULE: Final = {
    "torch": Torch,
    "cupy": CuPy,
    "jax": Jax,
    "numba.cuda.cudadrv.devicearray": Numba,
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


def _inside(value: Any) -> Iterator[Any]:
    if library(value) is not None:
        yield value
    elif is_module(value):
        yield from value.parameters()
        yield from value.buffers()
    elif isinstance(value, dict):
        for key in sorted(dict.keys(value), key=str):  # of a class of its own too
            yield from _inside(dict.__getitem__(value, key))
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _inside(one)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _inside(getattr(value, field.name))
    else:
        yield value


def is_module(value: Any) -> bool:
    """Whether this is a module of PyTorch, with parameters."""
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "nn") and isinstance(value, torch.nn.Module)


def changed(value: Any, change: Callable[[Any], Any], memo: dict[int, Any] | None = None) -> Any:
    """The same container with other arrays; what is the same array stays the same array.

    Modules and everything that is no container are the same objects.
    """
    memo = {} if memo is None else memo
    if library(value) is not None:
        if id(value) not in memo:
            memo[id(value)] = change(value)
        return memo[id(value)]
    if isinstance(value, dict):
        made = {key: changed(one, change, memo) for key, one in value.items()}
        return made if type(value) is dict else type(value)(made)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(changed(one, change, memo) for one in value))
    if isinstance(value, (list, tuple)):
        return type(value)(changed(one, change, memo) for one in value)
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if field.init]
        return replace(value, **{n: changed(getattr(value, n), change, memo) for n in names})
    return value
