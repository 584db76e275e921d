"""Links, products and collectives on a machine with two GPUs or more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rooflab.config import SweepConfig, Timing
from rooflab.devices.base import Device
from rooflab.devices.cuda.device import CudaDevice
from rooflab.devices.cuda.links import measure_peer
from rooflab.kernels.sources import discover
from rooflab.measure.protocol import Protocol
from rooflab.model.roofline import Ceiling
from rooflab.workloads import build

pytestmark = pytest.mark.gpu


def test_peers_are_measured_and_nothing_stays_behind(device: Device) -> None:
    assert isinstance(device, CudaDevice)
    if device._peer is None:
        pytest.skip("there is no second GPU")
    cuda = device.arrays.cuda
    stream = cuda.get_current_stream()
    measure_peer(device, device._peer)  # creates what stays: a context, the gate
    free = cuda.runtime.memGetInfo()[0]
    one_way, both = measure_peer(device, device._peer)
    assert isinstance(one_way, Ceiling), one_way
    assert isinstance(both, Ceiling), both
    print(one_way.amount, one_way.formula, both.amount, both.formula, sep="\n")
    assert both.value < 1.1 * one_way.value
    for derived in (one for one in device.roofline().ceilings if one.key == "PEER"):
        assert one_way.value < derived.value
    assert cuda.runtime.getDevice() == 0
    assert cuda.get_current_stream() is stream
    assert free - cuda.runtime.memGetInfo()[0] < 2**28


PRODUCTS: dict[str, dict[str, Any]] = {
    "rows": {"m": 512, "n": 384, "k": 256},
    "odd": {"m": 257, "n": 131, "k": 67},
    "transposed": {"m": 512, "n": 384, "k": 256, "layout": "tt", "alpha": 2.0},
}


@pytest.mark.parametrize("split", ["rows", "columns"])
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("kernel", ["cublas", "tiled"])
def test_a_product_on_two_gpus_is_right(device: Device, kernel: str, name: str, split: str) -> None:
    parameters = {**PRODUCTS[name], "gpus": 2, "split": split}
    assert _measured(device, "gemm", kernel, parameters) == ("ok", "")


@pytest.mark.parametrize("workload", ["allreduce", "allgather"])
@pytest.mark.parametrize("elements", [1, 1001, 2**22])
def test_collectives_are_right(device: Device, workload: str, elements: int) -> None:
    assert _measured(device, workload, "nccl", {"elements": elements}) == ("ok", "")


def _measured(
    device: Device, workload: str, kernel: str, parameters: Mapping[str, Any]
) -> tuple[str, str]:
    """Status and reason of one row."""
    if device.group_size < 2:
        pytest.skip("there is no second GPU")
    (found,) = discover().select([kernel], "cuda", workload)
    problem = build(workload, "fp32", parameters)
    timing = Timing(min_rounds=3, warmup_s=0, warmup_launches=3)
    (outcome,) = Protocol(device, SweepConfig(timing=timing)).measure(problem, [found])
    return outcome.status, outcome.reason
