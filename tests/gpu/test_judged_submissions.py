"""``rooflab judge`` on a GPU: honest submissions are accepted, cheats are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cheats import table

import rooflab
from rooflab.judging.trial import Arena
from rooflab.model.measurement import Measurement

pytestmark = pytest.mark.gpu

SIZE, LARGE = 2**20 + 3, 2**24 + 3
"""Elements: adding few of them takes no longer than an empty launch while others use the GPU."""


@pytest.fixture(autouse=True)
def in_company(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests use the GPU too: what goes on working there is in test_judged_times.py."""
    monkeypatch.setattr(Arena, "disturbed", lambda self: False)


def judged(file: str, workload: str = "add", **more: Any) -> Measurement:
    found = rooflab.judge(file, workload, "cuda:0", **{"sizes": SIZE, **more})
    assert not found.refused.lacking
    row: Measurement = found.problems[0].row
    return row


@pytest.mark.parametrize(
    "name",
    [
        *("prepared", "memo_pointer", "first_launches", "every_other", "in_pool"),
        *("zeros", "half", "works_in_a", "past_the_end.cu", "memo_blocks.cu", "lane_missing.cu"),
    ],
)
def test_cheats_are_refused(name: str) -> None:
    row = judged(table.ADD_GPU.pattern(name))
    assert row.status in ("incorrect", "failed"), row
    assert row.time_us is None


def refusals(file: str) -> list[str]:
    """Why two turns refused it; nothing if one did not: others may lengthen empty launches."""
    found: list[str] = []
    for _ in range(2):
        row = judged(file, sizes=LARGE)
        if (row.status, row.reason) == ("ok", ""):
            return []
        found.append(f"{row.status}: {row.reason}")
    return found


@pytest.mark.parametrize("name", ["honest", "honest_graph", "honest_loop.cu"])
def test_honest_ones_are_accepted(name: str) -> None:
    assert not refusals(table.ADD_GPU.pattern(name))


def test_libraries_of_python_are_accepted(elsewhere: Path) -> None:
    Path("mine.py").write_text(LIBRARIES)
    for name in ("torch_add", "triton_add"):
        pytest.importorskip(name.partition("_")[0])
        assert not refusals(f"mine.py:{name}")


LIBRARIES = """
import rooflab

try:
    import triton
    from triton import language as tl

    @triton.jit
    def added(a, b, c, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(c + i, tl.load(a + i, i < n) + tl.load(b + i, i < n), i < n)
except ImportError:
    pass

def arrays(operands):
    import torch
    return [torch.from_dlpack(operands[name]).reshape(-1) for name in "abc"]

@rooflab.kernel(workload="add")
def torch_add(operands, stream):
    import torch
    a, b, c = arrays(operands)
    mine = torch.cuda.ExternalStream(stream.ptr)
    def launch():
        with torch.cuda.stream(mine):
            torch.add(a, b, out=c)
    return launch

@rooflab.kernel(workload="add")
def triton_add(operands, stream):
    import torch
    a, b, c = arrays(operands)
    mine = torch.cuda.ExternalStream(stream.ptr)
    def launch():
        with torch.cuda.stream(mine):
            added[(triton.cdiv(c.numel(), 1024),)](a, b, c, c.numel(), BLOCK=1024)
    return launch
"""
