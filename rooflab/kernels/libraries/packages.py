"""Kernels of packages beside PyTorch: how one is registered, and launched on its tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from math import prod
from typing import Any, Final

from rooflab.devices.base import Device, Launch
from rooflab.kernels.base import Operands, no_reason
from rooflab.kernels.libraries import pytorch
from rooflab.kernels.libraries.cuda import guarded

Computation = Callable[..., Any]
"""``work(torch, problem, *inputs)`` returns the results. One that ``plans`` gets the outputs too:
it returns a launch that writes them."""

HALVES: Final = ("fp16", "bf16")
FLOATS: Final = ("fp32", *HALVES)


@dataclass(frozen=True)
class Package:
    """What is installed as ``distribution`` and imported as ``module``, which needs ``others``."""

    distribution: str
    module: str
    title: str
    others: tuple[str, ...] = ()

    def unavailable(self, device: Device | None) -> str:
        """Why none of its kernels can run, empty if they can."""
        if reason := pytorch.without_torch_on_a_gpu(device):
            return reason
        here = all(map(find_spec, (self.module.partition(".")[0], *self.others)))
        try:
            version(self.distribution)  # another one may have a module of that name
        except PackageNotFoundError:
            here = False
        return "" if here else f"{self.title} is not installed: pip install {self.distribution}"

    def version(self) -> str:
        """Its version, and that of PyTorch, with which Triton comes."""
        return f"{self.title} {version(self.distribution)}, PyTorch {version('torch')}"

    def add(
        self,
        name: str,
        title: str,
        workload: str,
        work: Computation,
        *precisions: str,
        plans: bool = False,
        unsupported: Callable[[Any], str] = no_reason,
    ) -> None:
        """Register what it does for a workload on GPUs."""
        prepare = partial(_prepare, f"{self.title}'s {workload}", work, plans)
        told = {"backend": name, "unavailable": self.unavailable}
        told |= {"compiler": self.version, "fingerprint": self.version}
        told |= {"unsupported": lambda problem: pytorch.streamed(problem) or unsupported(problem)}
        pytorch.add(prepare, name, title, workload, "cuda", *precisions, **told)


def _prepare(
    told: str, work: Computation, plans: bool, device: Device, operands: Operands
) -> Launch:
    """One launch compiles what the package compiles."""
    launch = guarded(_made(work, plans, device, operands), Exception, told, alive=operands)
    launch()
    return launch


def _made(work: Computation, plans: bool, device: Device, operands: Operands) -> Callable[[], None]:
    """The launch, which is planned when it is first called."""
    import torch

    problem, queue = operands.problem, pytorch.queue_of(torch, device)
    named = dict(zip(operands, pytorch.tensors(operands), strict=True))
    outputs = [named[one.name] for one in problem.operands if one.role == "out"]
    inputs = [named[one.name] for one in problem.operands if one.role != "out"]

    @cache
    def planned() -> Callable[[], object]:
        made: Callable[[], object] = work(torch, problem, *inputs, *outputs)
        return made

    def call() -> None:
        with queue, torch.no_grad():
            if plans:
                planned()()
                return
            with _placed(torch, outputs):
                found = work(torch, problem, *inputs)
            for output, one in zip(outputs, found, strict=True):
                if one.data_ptr() != output.data_ptr():
                    output.copy_(one)

    return call


def _placed(torch: Any, outputs: Iterable[Any]) -> AbstractContextManager[None]:
    """Memory that a package asks for its results is that of the outputs: nothing is copied.

    Zeros that a kernel overwrites are not written either.
    """
    from torch.overrides import TorchFunctionMode

    left = list(outputs)

    class Placed(TorchFunctionMode):  # type: ignore[misc]  # PyTorch may not be installed
        def __torch_function__(
            self, called: Any, types: Any, given: Any = (), words: Any = None
        ) -> Any:
            asked = _asked(torch, called, given, words or {})
            for i, one in enumerate(left):
                if asked == (one.numel(), one.dtype):
                    shape = given[0] if called is torch.empty else given[0].shape
                    return left.pop(i).view(shape)
            return called(*given, **(words or {}))

    mode: AbstractContextManager[None] = Placed()
    return mode


def _asked(torch: Any, called: Any, given: Any, words: dict[str, Any]) -> tuple[int, Any] | None:
    """The number of elements and the type of new memory, None for other calls."""
    if called is torch.empty and given and isinstance(given[0], tuple):
        return prod(given[0]), words.get("dtype")
    if called in (torch.empty_like, torch.zeros_like):
        return given[0].numel(), words.get("dtype") or given[0].dtype
    return None
