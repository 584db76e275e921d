"""Which counters are read, and what they mean. CUPTI answers for every chip without a GPU."""

from __future__ import annotations

import pytest

from rooflab.cuda.counters import choose, interpret
from rooflab.cuda.cupti import Cupti, Host
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
    assert chip in cupti.chips
    host = Host(cupti, chip)
    try:
        metrics = choose(host.metrics())
        image, passes = host.configure(metrics)
    finally:
        host.close()
    names = {metric.partition(".")[0] for metric in metrics}
    assert {FFMA, "l1tex__data_pipe_lsu_wavefronts", "sm__cycles_elapsed"} <= names
    assert any(name.startswith("dram__bytes") for name in names)
    assert len(image) > 0
    assert 1 <= passes <= 12


def test_an_unknown_metric_is_an_error_of_cupti(cupti: Cupti) -> None:
    host = Host(cupti, "GH100")
    with pytest.raises(KernelError, match=r"cuptiProfilerHost.*: CUPTI_ERROR"):
        host.configure(["nothing__at_all.sum"])
    host.close()


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


def test_what_a_chip_lacks_is_none() -> None:
    found = interpret({}, launches=1)
    assert (found.flops, found.dram_bytes, found.l2_bytes, found.l1_bytes) == ({}, None, None, None)
    assert (found.cycles, found.mhz) == (None, None)
