"""Every operation that PyTorch dispatches, with its work, while the program runs."""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from rooflab.devices.records import Needs
from rooflab.programs.labels import CallLabel
from rooflab.programs.operations import modelled
from rooflab.programs.rules.base import Operation
from rooflab.programs.tensors import Tensor, tensors


@dataclass
class OperationWatch(AbstractContextManager["OperationWatch"]):
    """Calls ``begin`` and ``end`` with a number around every operation: forward, backward, steps.

    ``calls`` has what each number was, and the ranges of ``record_function`` around it; the first
    is 1. Operations of the thread that enters, and of autograd's threads, are watched. Their
    results are those without a watch. Operations that PyTorch composes of others, such as
    ``linear`` in inference mode, are watched as those. With ``modules``, hooks that are removed at
    the end find the module of each operation, which is the last of its ranges: a path such as
    ``layers.0.attn.q``, in the outermost module that was called, which itself has the name of its
    class. The operations of a backward pass have that of the forward operation they belong to.

    Under a watch autograd adds gradients out of place, as under any mode of dispatch, and what
    ``torch.compile`` made runs as it was before it was compiled.

    Without PyTorch nothing happens: it must have been imported before. ``compiles``: whether what
    the program has compiled, or compiles meanwhile, has to run as it was before.
    """

    begin: Callable[[int], object]
    end: Callable[[int], object]
    modules: bool = False
    compiles: bool = True
    calls: dict[int, CallLabel] = field(default_factory=dict)
    _numbers: count[int] = field(default_factory=lambda: count(1), repr=False)
    _inside: ExitStack = field(default_factory=ExitStack, repr=False)
    _paths: Paths | None = field(default=None, repr=False)
    _mode: Any = field(default=None, repr=False)
    _paused: bool = field(default=False, repr=False)
    _composing: threading.local = field(default_factory=threading.local, repr=False)
    _ranges: Ranges = field(default_factory=lambda: Ranges(), repr=False)

    def __enter__(self) -> OperationWatch:
        """Begin to watch."""
        torch = sys.modules.get("torch")
        if torch is not None:
            if self.compiles and hasattr(torch.compiler, "set_stance"):
                # What is called under a mode would never be compiled again, in the same process.
                self._inside.enter_context(torch.compiler.set_stance("force_eager"))
            if self.modules:
                self._paths = self._inside.enter_context(Paths(torch))
            self._mode = self._inside.enter_context(_mode(self))
        return self

    def __exit__(self, *error: object) -> None:
        """Stop, and remove all hooks."""
        self._inside.close()
        self._paths = self._mode = None

    def left(self) -> bool:
        """Stop, and return True, unless this thread is inside of an operation or a later mode."""
        top = _top_mode() if self._mode else None
        if top is self._mode and not getattr(self._composing, "depth", 0):
            self.__exit__()
        return self._mode is None

    @contextmanager
    def composing(self) -> Iterator[None]:
        """Inside of an operation that calls others under the mode."""
        here, depth = self._composing, getattr(self._composing, "depth", 0)
        here.depth = depth + 1
        try:
            yield
        finally:
            here.depth = depth

    def pause(self) -> None:
        """Number no more operations: they only run."""
        self._paused = True

    def call(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The result of an operation, which gets a number."""
        if self._paused:
            return function(*args, **kwargs)
        number = next(self._numbers)
        name = str(getattr(getattr(function, "_schema", None), "name", function))
        path = self._paths.current() if self._paths else ""
        phase = (*self._ranges.around(name, args), *filter(None, [path]))
        self.calls[number] = CallLabel(name, phase)
        given = _described(function, args, kwargs)  # before it changes them
        self.begin(number)
        try:
            result = function(*args, **kwargs)
        finally:
            self.end(number)
        self.calls[number] = CallLabel(name, phase, _work(name, given, result))
        return result


def _top_mode() -> Any:
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    return _get_current_dispatch_mode()


def _mode(watch: OperationWatch) -> Any:
    """What PyTorch asks to call each operation."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    plain = torch.Tensor.__torch_dispatch__

    def dispatch(self: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(one.__torch_dispatch__ is not plain for one in types):
            return NotImplemented  # a subclass calls others, with what it consists of
        kwargs = kwargs or {}
        if not _composed(function):
            return watch.call(function, args, kwargs)
        with watch.composing(), self:
            return function.decompose(*args, **kwargs)

    members = {"__torch_dispatch__": dispatch, "supports_higher_order_operators": True}
    return type("Mode", (TorchDispatchMode,), members)()


@cache
def _composed(function: Any) -> bool:
    """Whether an operation has no kernel of its own, so that others do what it does.

    It is seen as itself in inference mode, and others with a kernel may be composed as well.
    """
    if not hasattr(function, "_schema"):
        return False  # of higher order: its arguments are functions
    has = sys.modules["torch"]._C._dispatch_has_kernel_for_dispatch_key
    own = any(has(function.name(), key) for key in ("CPU", "CUDA"))
    return bool(not own and has(function.name(), "CompositeImplicitAutograd"))


# Arguments ---------------------------------------------------------------------------------------


def _described(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any] | None:
    """The arguments in the order of the schema, without their data; None for strange ones."""
    with suppress(Exception):
        more = function._schema.arguments[len(args) :]
        values = [*args, *(kwargs.get(one.name, one.default_value) for one in more)]
        return [_plain(one) for one in values]
    return None


def _work(name: str, given: list[Any] | None, result: Any) -> Needs | None:
    """None if it cannot be told, whatever the reason: the program goes on."""
    with suppress(Exception):
        if given is not None:
            results = tensors([_plain(result)]) if result is not None else []
            return modelled(Operation(name, given, results))
    return None


def _plain(value: Any) -> Any:
    """The same without PyTorch's objects.

    Raises if it is no ordinary tensor, such as a sparse or nested one.
    """
    torch = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_nested:
            raise ValueError("no ordinary tensor")
        shape, strides = tuple(value.shape), tuple(value.stride())
        if not all(type(one) is int for one in shape + strides):
            raise ValueError("sizes are symbols")  # that a compiler must not be asked for
        return Tensor(shape, str(value.dtype).removeprefix("torch."), strides)
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return value if isinstance(value, (bool, int, float, complex, str)) else None


# Ranges ------------------------------------------------------------------------------------------


class Ranges:
    """The ranges of ``record_function`` that are open: PyTorch dispatches their begin and end.

    A backward pass runs in threads of autograd, while the thread that called it waits in its range.
    """

    def __init__(self) -> None:
        self._entered = threading.get_ident()
        self._open: dict[int, list[str]] = {}

    def around(self, operation: str, args: Sequence[Any]) -> tuple[str, ...]:
        """Those around an operation, which may be the begin or end of one itself."""
        thread = threading.get_ident()
        inside = self._open.setdefault(thread, [])
        if operation.startswith("profiler::_record_function_enter") and args:
            inside.append(str(args[0]))
        elif operation.startswith("profiler::_record_function_exit") and inside:
            inside.pop()
        outer = self._open.get(self._entered, []) if thread != self._entered else []
        return (*outer, *inside)


# Modules -----------------------------------------------------------------------------------------


@dataclass
class _Thread:
    """The modules that a thread is in, and from which node of autograd on it was in which."""

    inside: list[str] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    def turn(self, node: int) -> None:
        """From this node on it is where it is now."""
        if self.nodes and self.nodes[-1] == node:
            self.nodes.pop()
            self.paths.pop()
        self.nodes.append(node)
        self.paths.append(self.inside[-1] if self.inside else "")

    def at(self, node: int) -> str | None:
        """Where it was when it made this node; None if it made none so early."""
        index = bisect_right(self.nodes, node)
        return self.paths[index - 1] if index else None


class Paths(AbstractContextManager["Paths"]):
    """The module that runs, by hooks; in a backward pass the one that ran forward.

    Autograd numbers the nodes of its graph in each thread in the order of the forward pass, so the
    numbers at which modules begin and end say which nodes are whose. If nodes of several threads
    have the same number and were made in different modules, the module is not known.
    """

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self.threads: dict[int, _Thread] = {}
        self.handles: list[Any] = []

    def __enter__(self) -> Paths:
        """Add the hooks."""
        module = self.torch.nn.modules.module
        self.handles = [
            module.register_module_forward_pre_hook(self._enters),
            module.register_module_forward_hook(self._leaves, always_call=True),
        ]
        return self

    def __exit__(self, *error: object) -> None:
        """Remove them."""
        for one in self.handles:
            one.remove()

    def current(self) -> str:
        """The module of what is dispatched now in this thread."""
        here = self._here()
        if here.inside:
            return here.inside[-1]
        node = self._node()
        if node is None:
            return ""
        found = {one.at(node) for one in list(self.threads.values())} - {None}
        return str(found.pop()) if len(found) == 1 else ""

    def _node(self) -> int | None:
        """The number of the node whose gradients are being computed, if any."""
        with suppress(AttributeError, RuntimeError):
            node = self.torch._C._current_autograd_node()
            return int(node._sequence_nr()) if node is not None else None
        return None

    def _here(self) -> _Thread:
        return self.threads.setdefault(threading.get_ident(), _Thread())

    def _turn(self, here: _Thread) -> None:
        with suppress(AttributeError, RuntimeError):
            here.turn(int(self.torch._C._autograd._get_sequence_nr()))

    def _enters(self, module: Any, args: Any) -> None:
        here = self._here()
        here.inside.append(self._name(module))
        self._turn(here)

    def _leaves(self, module: Any, args: Any, result: Any) -> None:
        here = self._here()
        if here.inside:
            here.inside.pop()
        self._turn(here)

    def _name(self, module: Any) -> str:
        """That of its class if there is no other, whatever its own methods do."""
        with suppress(Exception):
            if module not in self.names:
                for name, one in module.named_modules():
                    self.names.setdefault(one, name or type(one).__name__)
            return self.names[module]
        return type(module).__name__
