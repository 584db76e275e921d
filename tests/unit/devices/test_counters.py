"""Which counters are read, and what they mean. CUPTI answers for every chip without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest

from rooflab.devices.base import Counters
from rooflab.devices.cuda import cupti as counting
from rooflab.devices.cuda.counters import choose, interpret
from rooflab.devices.cuda.cupti import Counting, Cupti, Host
from rooflab.errors import KernelError, UnavailableError

FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on"


@pytest.fixture(scope="module")
def cupti() -> Cupti:
    try:
        return Cupti()
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("chip", ["GV100", "TU102", "GA100", "GA102", "AD102", "GH100", "GB202"])
def test_every_chip_has_what_is_needed(cupti: Cupti, chip: str) -> None:
    host = Host(cupti, chip)
    metrics = choose(host.metrics())
    image = host.configure(metrics)
    names = {metric.partition(".")[0] for metric in metrics}
    assert {FFMA, "l1tex__data_pipe_lsu_wavefronts", "sm__cycles_elapsed"} <= names
    assert any(name.startswith("dram__bytes") for name in names)
    assert len(image) > 0


def test_an_unknown_metric_is_an_error_of_cupti(cupti: Cupti) -> None:
    host = Host(cupti, "GH100")
    with pytest.raises(KernelError, match=r"cuptiProfilerHost.*: CUPTI_ERROR"):
        host.configure(["nothing__at_all.sum"])


class Busy:
    """Hardware that other programs use for some time, and how often it was asked for."""

    def __init__(self, times: float, why: str = "HARDWARE_BUSY") -> None:
        self.times, self.why, self.asked = times, why, 0

    def measure(self, work: object) -> dict[str, float]:
        self.asked += 1
        if self.asked <= self.times:
            raise KernelError(f"cuptiRangeProfilerStart: CUPTI_ERROR_{self.why}")
        return {"dram__bytes.sum": 640.0}


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Callable[[Busy], Counters]:
    monkeypatch.setattr(counting, "PAUSE_S", 0.001)

    def count(busy: Busy) -> Counters:
        monkeypatch.setattr(Counting, "_prepared", property(lambda self: busy))
        return Counting(0).count([lambda: None])

    return count


def test_counting_waits_for_other_programs_that_count(count: Callable[[Busy], Counters]) -> None:
    busy = Busy(3)
    assert count(busy).dram_bytes == 640
    assert busy.asked == 4


def test_counting_does_not_wait_forever_nor_for_nothing(
    count: Callable[[Busy], Counters], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "PATIENCE_S", 0.01)
    busy, forbidden = Busy(inf), Busy(inf, "INSUFFICIENT_PRIVILEGES")
    with pytest.raises(UnavailableError, match="HARDWARE_BUSY"):
        count(busy)
    with pytest.raises(UnavailableError, match="does not permit"):
        count(forbidden)
    assert busy.asked > 1 == forbidden.asked


def test_no_operation_is_counted_twice() -> None:
    fp16 = "sm__ops_path_tensor_src_fp16"
    parts = [f"{fp16}_dst_fp16", f"{fp16}_dst_fp32", f"{fp16}_sparsity_off", f"{fp16}_realtime"]
    assert choose([*parts, fp16, "sm__ops_path_tensor_op_hmma_src_fp16"]) == [f"{fp16}.sum"]
    assert choose(parts) == [f"{fp16}_dst_fp16.sum", f"{fp16}_dst_fp32.sum"]
    assert choose(["sm__ops_path_tensor_src_int8"]) == []


def test_a_chip_without_separate_directions_has_all_dram_bytes() -> None:
    assert choose(["dram__bytes"]) == ["dram__bytes.sum"]
    both = ["dram__bytes_read", "dram__bytes_write"]
    assert choose([*both, "dram__bytes"]) == [f"{name}.sum" for name in both]


def test_values_become_flops_and_bytes_of_one_launch() -> None:
    values = {
        "sm__ops_path_tensor_src_fp16_dst_fp16.sum": 100.0,
        "sm__ops_path_tensor_src_fp16_dst_fp32.sum": 300.0,
        f"{FFMA}.sum": 50.0,
        FFMA.replace("ffma", "fadd") + ".sum": 20.0,
        FFMA.replace("ffma", "hfma") + ".sum": 5.0,
        "dram__bytes_read.sum": 600.0,
        "dram__bytes_write.sum": 200.0,
        "lts__t_sectors_srcunit_tex.sum": 10.0,
        "l1tex__data_pipe_lsu_wavefronts.sum": 2.0,
        "l1tex__m_xbar2l1tex_read_bytes.sum": 300.0,
        "sm__cycles_elapsed.max": 4000.0,
        "sm__cycles_elapsed.avg.per_second": 1.5e9,
    }
    found = interpret(values, launches=2)
    assert found.flops == {"tensor_fp16": 200, "fp32": 60, "fp16": 10}
    assert found.all_flops == 270
    assert (found.dram_bytes, found.l2_bytes, found.l1_bytes) == (400, 160, 150)
    assert (found.cycles, found.mhz) == (2000, 1500)
    values["l1tex__data_pipe_lsu_wavefronts.sum"] = 10.0
    assert interpret(values, launches=2).l1_bytes == 5 * 128


OPERATIONS = {
    "fadd": ("fp32", 1),
    "fmul": ("fp32", 1),
    "ffma": ("fp32", 2),
    "dadd": ("fp64", 1),
    "dmul": ("fp64", 1),
    "dfma": ("fp64", 2),
    "hadd": ("fp16", 2),
    "hmul": ("fp16", 2),
    "hfma": ("fp16", 4),
}
"""Of one thread; those of FP16 work on two numbers."""


@pytest.mark.parametrize("instruction", OPERATIONS)
def test_an_instruction_counts_as_its_operations(instruction: str) -> None:
    pipe, operations = OPERATIONS[instruction]
    metric = FFMA.replace("ffma", instruction)
    assert choose([metric]) == [f"{metric}.sum"]
    assert interpret({f"{metric}.sum": 30.0}, launches=3).flops == {pipe: 10.0 * operations}


def test_all_metrics_of_a_launch_are_asked_for_once() -> None:
    others = (
        *("dram__bytes_read", "dram__bytes_write", "dram__bytes"),
        *("lts__t_sectors_srcunit_tex", "l1tex__data_pipe_lsu_wavefronts"),
        *("l1tex__m_xbar2l1tex_read_bytes", "sm__cycles_elapsed"),
    )
    assert choose(others) == [
        *("dram__bytes_read.sum", "dram__bytes_write.sum", "lts__t_sectors_srcunit_tex.sum"),
        *("l1tex__data_pipe_lsu_wavefronts.sum", "l1tex__m_xbar2l1tex_read_bytes.sum"),
        *("sm__cycles_elapsed.max", "sm__cycles_elapsed.avg.per_second"),
    ]
    assert interpret({"dram__bytes.sum": 12.0}, launches=4).dram_bytes == 3
    assert interpret({"l1tex__m_xbar2l1tex_read_bytes.sum": 8.0}, launches=4).l1_bytes == 2
    assert interpret({"sm__cycles_elapsed.avg.per_second": 0.0}, launches=1).mhz is None


def test_tensor_operations_add_up_by_input() -> None:
    bf16, int8 = (f"sm__ops_path_tensor_src_{name}" for name in ("bf16", "int8"))
    assert choose([bf16, int8]) == [f"{bf16}.sum"]
    found = interpret({f"{bf16}.sum": 8.0, f"{int8}.sum": 9.0}, launches=4)
    assert found.flops == {"tensor_bf16": 2.0}


def test_what_a_chip_lacks_is_none() -> None:
    found = interpret({}, launches=1)
    assert (found.flops, found.dram_bytes, found.l2_bytes, found.l1_bytes) == ({}, None, None, None)
    assert (found.cycles, found.mhz) == (None, None)
