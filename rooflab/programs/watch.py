"""PyTorch's own records of its operations while the program runs: what was called, where, when."""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import zip_longest
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from rooflab.devices.records import Needs, Thread
from rooflab.programs.host import HostThreads
from rooflab.programs.operations import modelled
from rooflab.programs.ranges import Range, innermost
from rooflab.programs.rules.base import Operation
from rooflab.programs.tensors import Tensor

USER: Final = 7
"""PyTorch's number for ranges that a program marks: at::RecordScope::USER_SCOPE."""

MODULE: Final = "rooflab.module:"
"""Before the names of the ranges of modules."""


class OperationWatch(AbstractContextManager["OperationWatch"]):
    """``host`` has all operations of PyTorch between enter and exit, of all threads.

    Operations run as they would: PyTorch's profiler records them, with their arguments, as it does
    for a trace. What ``torch.compile`` made stays compiled. With ``modules`` hooks, which are
    removed at the end, mark the modules; operations of a backward pass have the module of the
    forward operation which they belong to. ``problem`` says why nothing is known.

    Without PyTorch nothing happens: it must have been imported before.
    """

    def __init__(self, modules: bool = False) -> None:
        self.host = HostThreads()
        self.problem = ""
        self._modules = modules
        self._paths: Paths | None = None
        self._profiler: Any = None

    def __enter__(self) -> OperationWatch:
        """Begin to watch."""
        torch = sys.modules.get("torch")
        if torch is None:
            return self
        try:
            if torch.autograd._profiler_enabled():
                raise RuntimeError("the program uses PyTorch's profiler itself")
            self._profiler = _profiler(torch)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._profiler.__enter__()
        except Exception as error:  # such as another profiler, which goes on
            self._profiler = None
            self.problem = f"PyTorch's operations are not named: {str(error).splitlines()[0]}"
            return self
        if self._modules:
            self._paths = Paths(torch).__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop, and remove all hooks."""
        profiler, self._profiler = self._profiler, None
        if self._paths:
            self._paths.__exit__()
        if profiler is None:
            return
        try:
            profiler.__exit__(None, None, None)
            self.host = _host(profiler.kineto_results)
        except Exception as problem:
            self.problem = f"PyTorch's operations are not named: {problem}"


def work_of(one: Range) -> Needs | None:
    """The modelled work of a range of a watch; None if it cannot be told, whatever the reason."""
    with suppress(Exception):
        node, event = (one.arguments or {})["call"]
        pairs = zip_longest(node.extra_fields.inputs, event.concrete_inputs())
        return modelled(Operation(one.name, [_argument(*pair) for pair in pairs]))
    return None


def _profiler(torch: Any) -> Any:
    """One of all threads if this PyTorch can, else of this one and autograd's for it."""
    config = torch._C._profiler._ExperimentalConfig
    with suppress(TypeError):
        whole = config(profile_all_threads=True)
        return torch.autograd.profiler.profile(record_shapes=True, experimental_config=whole)
    return torch.autograd.profiler.profile(record_shapes=True)


def _argument(given: Any, value: Any) -> Any:
    """A tensor without its data, a list of them, or a value. Raises if it is no ordinary tensor."""
    if isinstance(given, (list, tuple)):
        return [_argument(one, None) for one in given]
    if given is None or not hasattr(given, "sizes"):
        return value if given is None else given
    if "strided" not in str(given.layout):
        raise ValueError("no ordinary tensor")
    kind = str(given.dtype).removeprefix("torch.")
    return Tensor(tuple(given.sizes), kind, tuple(given.strides))


# What was recorded -------------------------------------------------------------------------------


class _Call(NamedTuple):
    """An event in its two forms: one has its arguments' types, the other one their values."""

    node: Any
    event: Any

    @property
    def thread(self) -> Thread:
        return os.getpid(), self.event.device_resource_id()

    @property
    def is_backward(self) -> bool:
        return bool(self.event.fwd_thread_id())

    @property
    def number(self) -> tuple[int, int]:
        """That of its node in autograd's graph, as the thread of the forward pass counts."""
        thread = self.event.fwd_thread_id() or self.event.start_thread_id()
        return thread, self.event.sequence_nr()


def _host(results: Any) -> HostThreads:
    """Everything by thread, on the clock of ``perf_counter_ns``."""
    offset = time.time_ns() - time.perf_counter_ns()
    events = {one.correlation_id(): one for one in results.events()}
    host = HostThreads()
    backward: list[tuple[_Call, Range]] = []
    forward: dict[tuple[int, int], tuple[Thread, int]] = {}
    for node in _all(results.experimental_event_tree()):
        event = events.get(node.correlation_id)
        if event is None or event.name() != node.name:
            continue
        call = _Call(node, event)
        span = (node.start_time_ns - offset, node.end_time_ns - offset)
        if event.scope() == USER:
            marked = host.modules if node.name.startswith(MODULE) else host.annotations
            marked[call.thread].append(Range(node.name.removeprefix(MODULE), *span))
            continue
        one = Range(node.name, *span, {"call": call})
        host.operations[call.thread].append(one)
        if call.is_backward:
            backward.append((call, one))
        elif event.sequence_nr() >= 0:  # several have a node's number: the last one made it
            forward[call.number] = max(
                forward.get(call.number, (call.thread, 0)), (call.thread, span[0])
            )
    if host.modules:
        _add_backward(host, backward, forward)
    return host


def _add_backward(
    host: HostThreads,
    backward: Sequence[tuple[_Call, Range]],
    forward: dict[tuple[int, int], tuple[Thread, int]],
) -> None:
    """A node's gradients are in the module that made the node."""
    moments: dict[Thread, list[int]] = defaultdict(list)
    for thread, at in forward.values():
        moments[thread].append(at)
    paths = {
        (thread, at): one.name
        for thread, times in moments.items()
        for at, one in innermost(host.modules.get(thread, ()), times).items()
    }
    for call, one in backward:
        if path := paths.get(forward.get(call.number, ((0, 0), 0))):
            host.modules[call.thread].append(Range(path, one.start_ns, one.end_ns))


def _all(nodes: Sequence[Any]) -> Iterator[Any]:
    """Calls of operations, and marked ranges, with what is inside them."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        waiting += node.children
        if "TorchOp" in str(node.tag):
            yield node


# Modules -----------------------------------------------------------------------------------------


class Paths(AbstractContextManager["Paths"]):
    """Marks the modules that run, by hooks: ``layers.0.attn.q`` in the outermost one's names.

    The outermost module has the name of its class.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._inside: dict[int, list[Any]] = defaultdict(list)
        self._handles: list[Any] = []

    def __enter__(self) -> Paths:
        """Add the hooks."""
        module = self._torch.nn.modules.module
        self._handles = [
            module.register_module_forward_pre_hook(self._enters),
            module.register_module_forward_hook(self._leaves, always_call=True),
        ]
        return self

    def __exit__(self, *error: object) -> None:
        """Remove them."""
        for one in self._handles:
            one.remove()

    def _enters(self, module: Any, args: Any) -> None:
        marked = self._torch.autograd.profiler.record_function(MODULE + self._name(module))
        marked.__enter__()
        self._inside[threading.get_ident()].append(marked)

    def _leaves(self, module: Any, args: Any, result: Any) -> None:
        if inside := self._inside[threading.get_ident()]:
            inside.pop().__exit__(None, None, None)

    def _name(self, module: Any) -> str:
        """That of its class if there is no other, whatever its own methods do."""
        with suppress(Exception):
            if module not in self._names:
                for name, one in module.named_modules():
                    self._names.setdefault(one, name or type(one).__name__)
            return self._names[module]
        return type(module).__name__
