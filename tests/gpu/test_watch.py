"""Watching PyTorch: FLOPs, bytes and modules of training steps. On a CPU too."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from rooflab.devices.records import Needs
from rooflab.programs.operations import modelled
from rooflab.programs.ranges import Range, innermost
from rooflab.programs.rules.base import Operation
from rooflab.programs.tensors import Tensor
from rooflab.programs.watch import OperationWatch, work_of

pytestmark = pytest.mark.gpu

PRODUCTS = tuple(
    f"aten::{name}"
    for name in ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward")
)


def watched(function: Callable[[], object], *, modules: bool = False) -> OperationWatch:
    with OperationWatch(modules) as watch:
        function()
    assert not watch.problem
    return watch


def operations(watch: OperationWatch) -> list[Range]:
    found = [one for ranges in watch.host.operations.values() for one in ranges]
    return sorted(found, key=lambda one: one.start_ns)


def flops(watch: OperationWatch, *names: str) -> int:
    works = [work_of(one) for one in operations(watch) if one.name in names]
    return sum(one.flops or 0 for one in works if one)


@pytest.fixture
def place(torch: Any) -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def transformer(torch: Any) -> Callable[[], Any]:
    nn = torch.nn

    class Layer(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.drop = nn.LayerNorm(24), nn.Dropout(0.1)
            self.qkv, self.out = nn.Linear(24, 72), nn.Linear(24, 24)
            self.up, self.down = nn.Linear(24, 88), nn.Linear(88, 24)

        def forward(self, x: Any) -> Any:
            b, t, d = x.shape
            parts = self.qkv(self.norm(x)).split(d, -1)
            q, k, v = (one.view(b, t, 3, 8).transpose(1, 2) for one in parts)
            scores = (q @ k.transpose(2, 3)).softmax(-1) @ v
            x = x + self.drop(self.out(scores.transpose(1, 2).reshape(b, t, d)))
            return x + self.down(nn.functional.gelu(self.up(x)))

    class Model(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(101, 24)
            self.layers = nn.ModuleList([Layer() for _ in range(2)])
            self.head = nn.Linear(24, 101, bias=False)

        def forward(self, x: Any) -> Any:
            x = self.tokens(x)
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    return Model


def convnet(torch: Any) -> Any:
    nn = torch.nn
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 6, (3, 1), dilation=(2, 1)), nn.GroupNorm(2, 6), nn.SiLU()),
        *(nn.ConvTranspose2d(6, 5, 3, stride=2, output_padding=1), nn.Flatten()),
        nn.LazyLinear(7),
    )


OPTIMIZERS: dict[str, Callable[[Any, Any], Any]] = {
    "fused AdamW": lambda torch, p: torch.optim.AdamW(p, fused=True),
    "foreach AdamW": lambda torch, p: torch.optim.AdamW(p, foreach=True),
    "fused SGD": lambda torch, p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "foreach SGD": lambda torch, p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
}


class Training:
    """Two steps from the same start, whenever it is called."""

    def __init__(self, torch: Any, place: str, make: Callable[[], Any], optimizer: str) -> None:
        self.torch, self.place, self.make, self.optimizer = torch, place, make, optimizer
        self.parameters: list[Any] = []

    def __call__(self) -> None:
        torch = self.torch
        torch.manual_seed(1)
        model = self.make().to(self.place)
        images = isinstance(model, torch.nn.Sequential)
        x = torch.randn(5, 3, 17, 19) if images else torch.randint(101, (3, 17))
        y = torch.randint(7, (5 if images else 3 * 17,))
        x, y = x.to(self.place), y.to(self.place)
        model(x)
        optimizer = OPTIMIZERS[self.optimizer](torch, model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x).flatten(0, -2), y).backward()
            optimizer.step()
        self.parameters = [one.detach().clone() for one in model.parameters()]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("images", [False, True])
def test_a_training_step_has_the_flops_of_pytorch_s_counter(
    torch: Any, place: str, transformer: Any, optimizer: str, images: bool
) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    train = Training(torch, place, (lambda: convnet(torch)) if images else transformer, optimizer)
    train()
    expected = train.parameters
    with FlopCounterMode(display=False) as counter:
        train()
    watch = watched(train, modules=True)
    assert flops(watch, *PRODUCTS) == counter.get_total_flops() > 0
    assert all(map(torch.equal, train.parameters, expected)) or place == "cuda"
    step = next(
        one
        for one in operations(watch)
        if "fused" in one.name or "addcdiv" in one.name or "foreach" in one.name
    )
    assert (work := work_of(step)) and work.bytes


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["flash", "efficient", "cudnn"])
def test_attention_has_the_flops_of_pytorch_s_counter(torch: Any, kind: str, causal: bool) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    def some(*shape: int, kind: Any = torch.bfloat16) -> Any:
        return torch.empty(shape, dtype=kind, device="meta")

    def run() -> None:
        bias = [] if kind == "flash" else [None, True]
        forward(q, k, k, *bias, 0.0, causal)
        backward(q, q, k, k, *rest[kind])

    forward = getattr(torch.ops.aten, f"_scaled_dot_product_{kind}_attention")
    backward = getattr(torch.ops.aten, f"_scaled_dot_product_{kind}_attention_backward")
    q, sums, seed = some(2, 6, 33, 24), some(2, 6, 33, kind=torch.float32), some(kind=torch.int64)
    for k, part in ((some(2, 6, 57, 24), 1), (q, 2 if causal else 1)):
        ends = [None, None, 33, k.shape[2], 0.0, causal]
        rest = {
            "flash": [q, sums, *ends, seed, seed],
            "efficient": [None, q, sums, seed, seed, 0.0, [True, True, True, False], causal],
            "cudnn": [q, sums, seed, seed, None, *ends],
        }
        with FlopCounterMode(display=False) as counter:
            run()
        found = [modelled(one) for one in calls(run)]
        total = sum(one.flops or 0 for one in found if one)
        assert total * part == counter.get_total_flops()


def calls(function: Callable[[], object]) -> list[Operation]:
    """Operations on tensors without data, which no profiler sees."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    found = []

    class Mode(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            given = [
                Tensor(tuple(one.shape), str(one.dtype).removeprefix("torch."), one.stride())
                if isinstance(one, torch.Tensor)
                else one
                for one in args
            ]
            found.append(Operation(function._schema.name, given))
            return function(*args, **(kwargs or {}))

    with Mode():
        function()
    return found


def test_gradients_of_grouped_convolutions_cost_what_the_convolution_costs(torch: Any) -> None:
    layer = torch.nn.Conv2d(6, 12, 3, groups=3)
    x = torch.randn(2, 6, 9, 9, requires_grad=True)
    forward = flops(watched(lambda: layer(x)), *PRODUCTS)
    everything = flops(watched(lambda: layer(x).sum().backward()), *PRODUCTS)
    assert everything == 3 * forward == 3 * 2 * 2 * 49 * 12 * 2 * 9


# Modules -----------------------------------------------------------------------------------------


def where(watch: OperationWatch, *names: str) -> Counter[str]:
    """The modules in which these operations begin."""
    found: Counter[str] = Counter()
    for thread, ranges in watch.host.operations.items():
        moments = [one.start_ns for one in ranges if one.name in names]
        modules = innermost(watch.host.modules[thread], moments)
        found.update(modules[at].name if at in modules else "" for at in moments)
    return found


@pytest.mark.parametrize("again", [None, False, True])
def test_backward_is_in_the_modules_of_forward(torch: Any, place: str, again: bool | None) -> None:
    from torch.utils.checkpoint import checkpoint

    nn = torch.nn

    class Pair(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            x = self.a(x)
            return self.b(x) if again is None else checkpoint(self.b, x, use_reentrant=again)

    model = nn.Sequential(Pair(), Pair()).to(place)
    x = torch.randn(3, 4, device=place)
    watch = watched(lambda: model(x).sum().backward(), modules=True)
    found = where(watch, "aten::mm", "aten::addmm")
    forward = 2 if again is not None else 1
    assert found == {"0.a": 2, "1.a": 3, "0.b": forward + 2, "1.b": forward + 2}
    assert where(watched(lambda: x.relu(), modules=True), "aten::relu") == {"": 1}


def test_a_module_of_its_own_has_the_name_of_its_class(torch: Any) -> None:
    relu = torch.nn.ReLU()
    watch = watched(lambda: relu(torch.ones(3)), modules=True)
    assert where(watch, "aten::relu") == {"ReLU": 1}


def test_a_strange_module_runs_as_it_does_without_a_watch(torch: Any) -> None:
    class Strange(torch.nn.ReLU):  # type: ignore[misc, name-defined, unused-ignore]
        __hash__ = None  # type: ignore[assignment]

        def named_modules(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("no names")

    strange = Strange()
    watch = watched(lambda: strange(torch.ones(3)), modules=True)
    assert where(watch, "aten::relu") == {"Strange": 1}


def test_what_is_compiled_stays_compiled(torch: Any) -> None:
    runs = []

    def backend(graph: Any, examples: Any) -> Any:
        return lambda *args: (runs.append(graph), graph(*args))[1]  # type: ignore[func-returns-value]

    function, x = torch.compile(lambda x: (x @ x).relu(), backend=backend), torch.ones(3, 3)
    function(x)
    watch = watched(lambda: function(x), modules=True)
    names = [one.name for one in operations(watch)]
    assert "aten::mm" in names and "aten::relu" in names
    assert len(runs) == 2


def test_all_hooks_are_gone_also_after_an_error(torch: Any) -> None:
    module = torch.nn.modules.module
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    watch = OperationWatch(modules=True)
    with pytest.raises(RuntimeError, match="shapes"), watch:
        model(torch.randn(3, 5))
    assert where(watch, "aten::addmm") == {"0": 1}
    assert not module._global_forward_hooks
    assert not module._global_forward_pre_hooks
    model(torch.randn(3, 4))


def test_ranges_of_the_program_are_marked(torch: Any) -> None:
    def run() -> None:
        with torch.profiler.record_function("outer"), torch.profiler.record_function("inner"):
            torch.ones(3)

    (ranges,) = watched(run).host.annotations.values()
    assert [one.name for one in ranges] == ["outer", "inner"]


def test_all_threads_are_watched_from_any(torch: Any) -> None:
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(0.001):
            torch.ones(3) * 2

    worker = threading.Thread(target=work)
    worker.start()
    with OperationWatch() as watch:
        torch.ones(3) / 2
        time.sleep(0.05)
    ended.set()
    worker.join()
    names = {thread: {one.name for one in all_} for thread, all_ in watch.host.operations.items()}
    assert "aten::mul" in names[os.getpid(), worker.native_id]
    assert "aten::div" in names[os.getpid(), threading.main_thread().native_id]


def test_another_profiler_goes_on(torch: Any) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as other:
        with OperationWatch() as watch:
            torch.ones(3) * 2
        torch.ones(3) / 2
    assert "not named" in watch.problem and not watch.host.operations
    assert {"aten::mul", "aten::div"} <= {one.key for one in other.key_averages()}


# Strange arguments -------------------------------------------------------------------------------


def test_no_tensor_is_kept(torch: Any) -> None:
    with OperationWatch(modules=True):
        x = torch.ones(9) * 2
        alive = weakref.ref(x)
        del x
        assert alive() is None


def test_strange_tensors_have_no_work(torch: Any) -> None:
    def run() -> None:
        torch.eye(3).to_sparse() @ torch.ones(3, 3)
        torch.linalg.svd(torch.eye(3))
        torch.ones(3, dtype=torch.complex64) * 2
        torch.ones(3).sum().item()

    works = {one.name: work_of(one) for one in operations(watched(run))}
    assert works["aten::_linalg_svd"] is None
    assert works["aten::mm"] is None
    assert works["aten::mul"] == Needs(None, 48, "fp32")
