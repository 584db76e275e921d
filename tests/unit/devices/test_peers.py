"""The link to the next GPU: derived from NVLinks, measured by copies that leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import fake
import pytest

from rooflab.devices.base import Timed
from rooflab.devices.cuda import links
from rooflab.devices.cuda.links import Peer, derive_peer, measure_peer
from rooflab.devices.cuda.nvml import Nvml
from rooflab.errors import KernelError
from rooflab.model.roofline import Ceiling, MissingCeiling

THERE = Peer(0, 1, "0000:2b:00.0")


# Derived -----------------------------------------------------------------------------------------


class NVMLError(Exception):
    pass


SWITCH, GPU = 2, 0


class Linked:
    """A GPU's links as NVML tells of them: ``links`` to a switch, MB/s by field (and link)."""

    def __init__(self, links: Sequence[int], rates: dict[Any, int]) -> None:
        self.states, self.rates = list(links), rates
        self.ends: list[tuple[int, Any]] = [(SWITCH, "00000000:03:00.0")] * len(self.states)

    def nvml(self) -> Nvml:
        def fields(gpu: Linked, wanted: list[Any]) -> list[SimpleNamespace]:
            mbps = self.rates.get(wanted[0])
            value = SimpleNamespace(uiVal=mbps or 0)
            return [SimpleNamespace(nvmlReturn=0 if mbps else 3, value=value)]

        def of_a_link(answers: Callable[[], list[Any]]) -> Callable[[Linked, int], Any]:
            def call(gpu: Linked, link: int) -> Any:
                if link >= len(answers()):
                    raise NVMLError("Invalid Argument" if answers() else "Not Supported")
                return answers()[link]

            return call

        return Nvml(
            SimpleNamespace(
                NVMLError=NVMLError,
                NVML_NVLINK_MAX_LINKS=36,
                NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON=90,
                NVML_FI_DEV_NVLINK_SPEED_MBPS_L0=84,
                NVML_FI_DEV_NVLINK_GET_SPEED=164,
                nvmlInit=lambda: None,
                nvmlDeviceGetNvLinkState=of_a_link(lambda: self.states),
                nvmlDeviceGetNvLinkRemoteDeviceType=of_a_link(lambda: [e[0] for e in self.ends]),
                nvmlDeviceGetNvLinkRemotePciInfo=of_a_link(
                    lambda: [SimpleNamespace(busId=e[1]) for e in self.ends]
                ),
                nvmlDeviceGetFieldValues=fields,
            )
        )

    def derive(self) -> Ceiling | MissingCeiling:
        return derive_peer(self.nvml(), self, THERE)


def test_all_links_to_a_switch_count() -> None:
    found = Linked([1] * 18, {90: 26562}).derive()
    assert isinstance(found, Ceiling)
    assert (found.kind, found.key, found.provenance) == ("bandwidth", "PEER", "derived")
    assert found.value == 18 * 26562e6
    assert found.formula == "18 NVLinks × 26.56 GB/s, to cuda:1"


def test_links_that_are_not_active_do_not_count() -> None:
    found = Linked([0, 1, 2, 1, 0], {90: 25000}).derive()
    assert isinstance(found, Ceiling)
    assert found.value == 50e9


def test_links_to_another_gpu_do_not_count() -> None:
    gpu = Linked([1] * 5, {90: 25000})
    gpu.ends = [
        (GPU, "00000000:2B:00.0"),
        (GPU, b"00000000:2B:00.0"),
        (GPU, "00000000:3A:00.0"),
        (1, "00000000:04:00.0"),
        (255, "00000000:05:00.0"),
    ]
    found = gpu.derive()
    assert isinstance(found, Ceiling)
    assert found.value == 75e9  # the last one is unknown to NVML
    gpu.ends = []
    assert isinstance(found := gpu.derive(), Ceiling)
    assert found.value == 125e9


@pytest.mark.parametrize("rates", [{(164, 1): 26562}, {84: 26562}])
def test_other_fields_serve_where_the_common_one_does_not(rates: dict[Any, int]) -> None:
    found = Linked([0, 1], rates).derive()
    assert isinstance(found, Ceiling)
    assert found.value == 26562e6


def test_why_there_is_no_rate_is_told() -> None:
    for gpu, reason in (
        (
            Linked([], {}),
            "no active NVLink to cuda:1 (nvmlDeviceGetNvLinkState: Not Supported); PCIe",
        ),
        (Linked([0, 0], {90: 26562}), "no active NVLink to cuda:1; PCIe promises no rate"),
        (Linked([1], {}), "NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON: the driver returns no value"),
    ):
        found = gpu.derive()
        assert isinstance(found, MissingCeiling)
        assert found.reason.startswith(reason)
    old = Nvml(SimpleNamespace(NVMLError=NVMLError, nvmlInit=lambda: None))
    found = derive_peer(old, object(), THERE)
    assert isinstance(found, MissingCeiling)
    assert "NVML does not list them" in found.reason


def test_the_installed_package_has_the_names_that_are_asked_for() -> None:
    pynvml = pytest.importorskip("pynvml")
    for name in (
        "NVML_NVLINK_MAX_LINKS",
        "NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON",
        "NVML_FI_DEV_NVLINK_SPEED_MBPS_L0",
        "NVML_FI_DEV_NVLINK_GET_SPEED",
        "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetNvLinkRemoteDeviceType",
        "nvmlDeviceGetNvLinkRemotePciInfo",
    ):
        assert hasattr(pynvml, name), name
    assert pynvml.NVML_FEATURE_ENABLED == links._ACTIVE
    assert (pynvml.NVML_NVLINK_DEVICE_TYPE_GPU, pynvml.NVML_NVLINK_DEVICE_TYPE_IBMNPU) == (0, 1)


# Measured ----------------------------------------------------------------------------------------


class CUDARuntimeError(RuntimeError):
    pass


class Event:
    def __init__(self, machine: TwoGpus) -> None:
        self.machine, self.gpu = machine, machine.current
        self.at_us = 0.0

    def record(self, stream: Stream) -> None:
        assert self.gpu == stream.gpu, "cudaErrorInvalidResourceHandle"
        self.at_us = stream.now_us


class Stream:
    def __init__(self, machine: TwoGpus) -> None:
        self.gpu, self.now_us = machine.current, 0.0
        machine.streams.append(self)
        self.ptr = len(machine.streams)

    def wait_event(self, event: Event) -> None:
        self.now_us = max(self.now_us, event.at_us)

    def synchronize(self) -> None:
        pass


class TwoGpus(fake.FakeDevice):
    """One of two GPUs: 400 byte/µs with peer access on both sides, 40 without."""

    def __init__(self, here: int = 0, *, direct: bool = True) -> None:
        super().__init__()
        self.here = self.current = here
        self.direct = direct
        self.enabled: set[tuple[int, int]] = set()
        self.memory_of: dict[int, int] = {}
        self.streams: list[Stream] = []
        self.copies: list[tuple[int, int]] = []
        self.gated: list[bool] = []
        self.fails: dict[str, Exception] = {}
        self.main = Stream(self)

    @property
    def arrays(self) -> Any:
        names = (
            "getDevice", "setDevice", "malloc", "free", "memcpyPeerAsync", "deviceCanAccessPeer",
            "deviceEnablePeerAccess", "deviceDisablePeerAccess",
        )  # fmt: skip
        calls = {name: self._failing(name) for name in names}
        return SimpleNamespace(
            cuda=SimpleNamespace(
                runtime=SimpleNamespace(CUDARuntimeError=CUDARuntimeError, **calls),
                Stream=lambda non_blocking: Stream(self),
                Event=lambda disable_timing: Event(self),
            )
        )

    def _failing(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if name in self.fails:
                raise self.fails[name]
            return getattr(self, f"_{name}")(*arguments)

        return call

    def _getDevice(self) -> int:  # noqa: N802  CUDA's names
        return self.current

    def _setDevice(self, gpu: int) -> None:  # noqa: N802
        self.current = gpu

    def _malloc(self, size: int) -> int:
        assert size == links.PEER_BYTES
        address = 4096 + len(self.memory_of)
        self.memory_of[address] = self.current
        return address

    def _free(self, address: int) -> None:
        assert self.memory_of.pop(address) == self.current

    def _deviceCanAccessPeer(self, one: int, other: int) -> int:  # noqa: N802
        assert one != other
        return int(self.direct)

    def _deviceEnablePeerAccess(self, other: int) -> None:  # noqa: N802
        if (self.current, other) in self.enabled:
            raise CUDARuntimeError("cudaErrorPeerAccessAlreadyEnabled: peer access is already …")
        self.enabled.add((self.current, other))

    def _deviceDisablePeerAccess(self, other: int) -> None:  # noqa: N802
        self.enabled.remove((self.current, other))

    def _memcpyPeerAsync(  # noqa: N802
        self, target: int, to: int, source: int, of: int, size: int, stream: int
    ) -> None:
        assert (self.memory_of[target], self.memory_of[source]) == (to, of)
        assert self.streams[stream - 1].gpu == of
        self.copies.append((of, to))
        rate = 400 if (of, to) in self.enabled else 40
        self.streams[stream - 1].now_us += size / rate

    def mark(self, queue: Any, *, timed: bool = False) -> Event:
        event = Event(self)
        event.record(self.main)
        return event

    def wait(self, queue: Any, event: Event) -> None:
        self.main.wait_event(event)

    def time(
        self, launches: Sequence[Callable[[], None]], before: Callable[[], None] | None = None
    ) -> Timed:
        [launch] = launches
        self.gated.append(bool(getattr(launch, "gated", True)))
        start = self.main.now_us
        launch()
        return Timed([self.main.now_us - start])


@pytest.fixture(autouse=True)
def awake(monkeypatch: pytest.MonkeyPatch) -> None:
    """The link needs no time to wake up."""
    monkeypatch.setattr(links, "WARMUP_S", 0.0)


def measured(device: TwoGpus) -> list[Ceiling | MissingCeiling]:
    """What is found, and that nothing is left behind."""
    before, here = set(device.enabled), device.current
    there = Peer(device.here, 1 - device.here, THERE.bus_id)
    found = measure_peer(device, there)
    assert [one.key for one in found] == ["PEER", "PEER_BOTH"]
    assert (device.current, device.enabled, device.memory_of) == (here, before, {})
    return found


def texts(found: list[Ceiling | MissingCeiling]) -> list[str]:
    return [one.formula if isinstance(one, Ceiling) else one.reason for one in found]


@pytest.mark.parametrize("here", [0, 1])
def test_copies_to_the_next_gpu_are_timed_one_way_and_both(
    here: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "WARMUP_S", 0)
    device = TwoGpus(here)
    found = measured(device)
    assert texts(found) == [
        f"1074 MB from cuda:{here} to cuda:{1 - here}, peer access on, best of 7",
        f"1074 MB each way between cuda:{here} and cuda:{1 - here} at once, peer access on, "
        "best of 7",
    ]
    values = [one.value for one in found if isinstance(one, Ceiling)]
    assert values == pytest.approx([400e6, 400e6])
    assert all(device.gated)
    assert device.copies == [(here, 1 - here)] * 8 + [(here, 1 - here), (1 - here, here)] * 8


def test_without_peer_access_copies_pass_through_the_host_and_no_gate() -> None:
    device = TwoGpus(direct=False)
    found = measured(device)
    assert all("peer access off" in text for text in texts(found))
    assert [one.value for one in found if isinstance(one, Ceiling)] == pytest.approx([40e6, 40e6])
    assert not any(device.gated)


def test_peer_access_of_others_stays() -> None:
    device = TwoGpus()
    device.enabled = {(0, 1)}
    assert all("peer access on" in text for text in texts(measured(device)))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("deviceCanAccessPeer", CUDARuntimeError("cudaErrorInvalidDevice: invalid device ordinal")),
        ("deviceEnablePeerAccess", CUDARuntimeError("cudaErrorTooManyPeers: …")),
        ("malloc", CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")),
        ("memcpyPeerAsync", CUDARuntimeError("cudaErrorIllegalAddress: …")),
        ("memcpyPeerAsync", KernelError("CUDA on cuda:0: …")),
        ("getDevice", TypeError()),
    ],
)
def test_a_failure_is_a_missing_ceiling_with_its_reason(call: str, error: Exception) -> None:
    device = TwoGpus()
    device.fails[call] = error
    found = measured(device)
    assert all(isinstance(one, MissingCeiling) for one in found)
    assert texts(found) == [f"not measured: {str(error) or 'TypeError'}"] * 2


def test_memory_of_this_gpu_is_freed_if_the_peer_has_none() -> None:
    device = TwoGpus()

    class Full(dict[int, int]):
        def __setitem__(self, address: int, gpu: int) -> None:
            if gpu == 1:
                raise CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")
            super().__setitem__(address, gpu)

    device.memory_of = Full()
    assert all("out of memory" in text for text in texts(measured(device)))
