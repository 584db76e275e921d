"""The link to the next GPU, on a machine with two or more."""

from __future__ import annotations

import pytest

from rooflab.cuda.device import CudaDevice
from rooflab.cuda.peers import measure_peer
from rooflab.device import Device
from rooflab.model.roofline import Ceiling

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
