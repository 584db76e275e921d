"""Watching PyTorch: FLOPs, bytes and modules of training steps. On a CPU too."""

from __future__ import annotations

import json
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

import pytest

from rooflab.devices.records import Needs
from rooflab.programs.labels import CallLabel
from rooflab.programs.main_thread import in_main_thread
from rooflab.programs.naming import leave
from rooflab.programs.operations import work_of
from rooflab.programs.watch import OperationWatch

pytestmark = pytest.mark.gpu

PRODUCTS = ("mm", "conv", "attention")


def watched(function: Callable[[], object], *, modules: bool = False) -> OperationWatch:
    events: list[int] = []
    with OperationWatch(
        events.append, lambda number: events.append(-number), modules=modules
    ) as watch:
        function()
    assert events == [sign * number for number in watch.calls for sign in (1, -1)]
    assert list(watch.calls) == list(range(1, len(watch.calls) + 1))
    return watch


def flops(watch: OperationWatch, *parts: str) -> int:
    return sum(
        one.work.flops or 0
        for one in watch.calls.values()
        if one.work and any(part in one.operation for part in parts)
    )


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
    unknown = {one.operation for one in watch.calls.values() if not one.work}
    # A lazy layer's parameters have no shape at first.
    allowed = {"aten::randint", "aten::_local_scalar_dense", "aten::detach"}
    allowed |= {"aten::_to_copy"} if place == "cuda" else set()  # of the batch, from the host
    assert {one for one in unknown if one.startswith("aten::")} <= allowed
    assert all(one.work.bytes is not None for one in watch.calls.values() if one.work)


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
        assert flops(watched(run), "attention") * part == counter.get_total_flops()


def test_gradients_of_grouped_convolutions_cost_what_the_convolution_costs(torch: Any) -> None:
    layer = torch.nn.Conv2d(6, 12, 3, groups=3)
    x = torch.randn(2, 6, 9, 9, requires_grad=True)
    forward = watched(lambda: layer(x))
    everything = watched(lambda: layer(x).sum().backward())
    assert flops(everything, "conv") == 3 * flops(forward, "conv") == 3 * 2 * 2 * 49 * 12 * 2 * 9


def alone(work: Needs | None) -> Needs | None:
    """Without the problem that it is: an addition in place is none, and the same work."""
    return work and replace(work, same_as="")


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")
def test_a_trace_says_the_same(torch: Any, place: str, transformer: Any, tmp_path: Path) -> None:
    from torch.profiler import ProfilerActivity, profile

    train = Training(torch, place, transformer, "fused AdamW")
    watch = watched(train)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        train()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    fields = ("Input Dims", "Input type", "Concrete Inputs", "Input Strides")
    traced: Counter[tuple[str, Needs | None]] = Counter()
    for one in events:
        if one.get("name", "").startswith("aten::"):
            values = [one["args"].get(name, []) for name in fields]
            traced[one["name"].rstrip("_"), alone(work_of(one["name"], *values))] += 1
    # Autograd adds gradients in place unless they are watched.
    seen = Counter((one.operation.rstrip("_"), alone(one.work)) for one in watch.calls.values())
    lists = ("aten::cat", "aten::_foreach", "aten::_fused_adamw")  # types are not in traces
    other = ("profiler::", "aten::detach", "aten::zeros_like", "aten::zeros")  # of setting up
    for (name, work), times in seen.items():
        if not name.startswith((*lists, *other)):
            assert traced[name, work] >= times, (name, work)
        elif name.startswith("aten::_fused"):
            assert work and traced[name, Needs(work.flops)] >= times


# Modules -----------------------------------------------------------------------------------------


def where(watch: OperationWatch, part: str) -> Counter[str]:
    """In which modules such operations were."""
    found = [one for one in watch.calls.values() if part in one.operation]
    return Counter(one.phase[-1] if one.phase else "" for one in found)


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
    found = where(watch, "mm")
    forward = 2 if again else 1
    unsure = {""} if again is not None and place == "cuda" else set()
    assert set(found) - unsure == {"0.a", "0.b", "1.a", "1.b"}
    if not unsure:
        assert found == {"0.a": 2, "1.a": 3, "0.b": forward + 2, "1.b": forward + 2}
    assert watched(lambda: x.relu(), modules=True).calls[1].phase == ()


def test_a_module_of_its_own_has_the_name_of_its_class(torch: Any) -> None:
    relu = torch.nn.ReLU()
    watch = watched(lambda: relu(torch.ones(3)), modules=True)
    *_, last = watch.calls.values()
    assert (last.operation, last.phase) == ("aten::relu", ("ReLU",))


def test_a_strange_module_runs_as_it_does_without_a_watch(torch: Any) -> None:
    class Strange(torch.nn.ReLU):  # type: ignore[misc, name-defined, unused-ignore]
        __hash__ = None  # type: ignore[assignment]

        def named_modules(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("no names")

    strange = Strange()
    watch = watched(lambda: strange(torch.ones(3)), modules=True)
    assert where(watch, "relu") == {"Strange": 1}


def test_what_is_compiled_is_watched_eagerly_and_compiled_after(torch: Any) -> None:
    runs = []

    def backend(graph: Any, examples: Any) -> Any:
        return lambda *args: (runs.append(graph), graph(*args))[1]  # type: ignore[func-returns-value]

    function, x = torch.compile(lambda x: (x @ x).relu(), backend=backend), torch.ones(3, 3)
    function(x)
    watch = watched(lambda: function(x), modules=True)
    assert [one.operation for one in watch.calls.values()] == ["aten::mm", "aten::relu"]
    assert len(runs) == 1
    function(x)
    assert len(runs) == 2


def test_all_hooks_are_gone_also_after_an_error(torch: Any) -> None:
    module = torch.nn.modules.module
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    numbers: list[int] = []
    watch = OperationWatch(numbers.append, numbers.append, modules=True)
    with pytest.raises(RuntimeError, match="shapes"), watch:
        model(torch.randn(3, 5))
    *_, last = watch.calls.values()
    assert last == CallLabel("aten::addmm", ("0",))
    assert len(numbers) == 2 * len(watch.calls)
    assert not module._global_forward_hooks
    assert not module._global_forward_pre_hooks
    model(torch.randn(3, 4))
    assert len(numbers) == 2 * len(watch.calls)


# Strange arguments -------------------------------------------------------------------------------


def test_no_tensor_is_kept(torch: Any) -> None:
    with OperationWatch(lambda number: None, lambda number: None, modules=True):
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

    calls = watched(run).calls.values()
    works = {one.operation: one.work for one in calls}
    assert works["aten::_linalg_svd"] is None
    assert works["aten::mm"] is None
    assert works["aten::mul"] == Needs(None, 48, "fp32")


def test_operations_are_those_with_kernels(torch: Any) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    layer, x = torch.nn.Linear(4, 5), torch.randn(2, 3, 4)
    with torch.inference_mode():
        inside = watched(lambda: layer(x))
    assert flops(inside, "addmm") == 2 * 6 * 4 * 5
    assert not where(inside, "linear")
    two = TwoTensor(x[0], x[0])
    assert flops(watched(lambda: two @ two.t()), "mm") == 2 * 2 * 3 * 4 * 3
    leaf = torch.ones(7, requires_grad=True)
    step = watched(lambda: torch.nn.functional.silu(leaf).sum().backward())
    assert where(step, "silu_backward") == {"": 1}  # it has a kernel, and a composition


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_operations_that_take_functions_are_called(
    torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    q = torch.randn(1, 2, 16, 8)
    results = [flex.flex_attention(q, q, q)]
    watch = watched(lambda: results.append(flex.flex_attention(q, q, q)))
    assert torch.equal(*results)
    assert [one.work for one in watch.calls.values() if "flex" in one.operation] == [None]


# In a program that knows nothing of it -----------------------------------------------------------


def test_ranges_are_known_in_the_backward_pass_too(torch: Any, place: str) -> None:
    x = torch.randn(8, 8, device=place, requires_grad=True)
    record = torch.profiler.record_function

    def step() -> None:
        with record("step"):
            with record("forward"):
                y = (x @ x).sum()
            with record("backward"):
                y.backward()

    watch = watched(step)
    products = [one for one in watch.calls.values() if one.operation == "aten::mm"]
    assert [one.phase for one in products] == [("step", "forward"), *[("step", "backward")] * 2]


def test_another_thread_begins_and_ends_it(torch: Any, place: str) -> None:
    x = torch.randn(64, 64, device=place)
    watch = OperationWatch(lambda number: None, lambda number: None, compiles=False)
    answers: list[bool] = []

    def ask() -> None:
        answers.append(in_main_thread(watch.__enter__, 30))
        while len(watch.calls) < 10:
            sleep(0.01)
        leave(watch)

    asking = Thread(target=ask)
    asking.start()
    while asking.is_alive():
        x = (x @ x).clamp(-1, 1)
    count = len(watch.calls)
    x @ x
    assert answers == [True] and len(watch.calls) == count >= 10
    assert {one.operation for one in watch.calls.values()} == {"aten::mm", "aten::clamp"}
    assert not torch._C._len_torch_dispatch_stack()


def test_it_does_not_end_inside_of_a_later_mode(torch: Any, place: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    x = torch.randn(8, 8, device=place)
    watch = OperationWatch(lambda number: None, lambda number: None, compiles=False)
    watch.__enter__()
    counter = FlopCounterMode(display=False)
    with counter:
        x @ x
        assert not watch.left()
        watch.pause()
        x @ x
    assert counter.get_total_flops() == 2 * 2 * 8**3
    assert watch.left() and watch.left()
    assert len([one for one in watch.calls.values() if one.operation == "aten::mm"]) == 1
    assert not torch._C._len_torch_dispatch_stack()


def test_it_does_not_end_inside_of_a_composed_operation(
    torch: Any, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which puts the mode in place again, for the operations that it consists of."""
    left: list[bool] = []
    decompose = torch._ops.OpOverload.decompose

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        left.append(watch.left())
        return decompose(*args, **kwargs)

    monkeypatch.setattr(torch._ops.OpOverload, "decompose", interrupted)
    watch = OperationWatch(lambda number: None, lambda number: None, compiles=False)
    watch.__enter__()
    with torch.inference_mode():
        x = torch.randn(8, 8, device=place)
        torch.nn.functional.linear(x, x)
    assert left and not any(left)
    assert watch.left() and not torch._C._len_torch_dispatch_stack()
