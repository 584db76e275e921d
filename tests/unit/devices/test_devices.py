"""Choosing a device, and what a GPU reports: CuPy and NVML stand-ins take the GPU's place."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rooflab.devices.base import MarkedLaunch, Reading
from rooflab.devices.cuda import device as cuda
from rooflab.devices.cuda import install
from rooflab.devices.cuda.device import CudaDevice
from rooflab.devices.cuda.gate import window
from rooflab.devices.cuda.nvml import Nvml
from rooflab.devices.registry import all_ids, open_device, resolve
from rooflab.errors import KernelError, UnavailableError, UsageError

about: Any = pytest.approx


class CUDARuntimeError(RuntimeError):
    pass


class CUDADriverError(RuntimeError):
    pass


class NVMLError(Exception):
    pass


class Array(np.ndarray[Any, Any]):
    """An array that a host can read."""

    def get(self) -> Any:
        return np.asarray(self)


class FakeCuda:
    """One GPU program whose clock moves only when a launch says so."""

    def __init__(self, devices: list[dict[str, Any]]) -> None:
        self.devices = devices
        self.now_ms = 0.0
        self.waits = 0
        self.gates = 0
        self.free = 100 * 10**9
        self.failure: Exception | None = None
        self.queued: list[Callable[[], None]] = []
        """What runs when the stream is waited for."""
        self.pinned = bytearray()
        self.most_pinned = 10**9
        self.sm_mhz = 1400.0
        self.sms = range(132)

    def device_count(self) -> int:
        if self.failure:
            raise self.failure
        return len(self.devices)

    def wait(self) -> None:
        self.waits += 1
        while self.queued:
            self.queued.pop(0)()
        if self.failure:
            raise self.failure

    @property
    def gate(self) -> Any:
        """Two integers: whether the gate is open, and whether it gave up waiting for that."""
        return np.frombuffer(self.pinned, np.int32, 2)

    def launch(self, duration_us: float) -> Callable[..., None]:
        def run(*_: Any) -> None:
            self.now_ms += duration_us / 1e3

        return run

    def module(self) -> Any:
        """What ``import cupy`` gives."""
        fake = self

        class Event:
            def record(self, stream: Any) -> None:
                self.at_ms = fake.now_ms

        class Pinned(bytearray):
            ptr = 4096

        def pin(size: int) -> Pinned:
            if size > fake.most_pinned:
                raise MemoryError("cudaErrorMemoryAllocation: out of memory")
            self.pinned = Pinned(size)
            return self.pinned

        def gate(grid: Any, block: Any, arguments: Any) -> None:
            self.gates += 1

        def stamp(grid: Any, block: Any, arguments: Any) -> None:
            stamps, _ = arguments
            cycles = 1000 + self.now_ms * 1e3 * self.sm_mhz
            stamps[: len(self.sms)] = [[cycles, 5000 + self.now_ms * 1e6]] * len(self.sms)

        functions = {"gate": gate, "stamp": stamp}

        class Stream:
            ptr = 77

            def __init__(self, **options: bool) -> None:
                assert not options.get("null")

            def synchronize(self) -> None:
                fake.wait()

            def __enter__(self) -> Stream:
                current.append(self)
                return self

            def __exit__(self, *error: object) -> None:
                current.pop()

        current = [Stream()]
        pool = SimpleNamespace(free_bytes=lambda: 1000, free_all_blocks=lambda: None)
        return SimpleNamespace(
            cuda=SimpleNamespace(
                runtime=SimpleNamespace(
                    CUDARuntimeError=CUDARuntimeError,
                    getDeviceCount=self.device_count,
                    getDeviceProperties=lambda index: self.devices[index]["properties"],
                    deviceGetPCIBusId=lambda index: self.devices[index]["bus_id"],
                    runtimeGetVersion=lambda: 12090,
                    driverGetVersion=lambda: 13000,
                    memGetInfo=lambda: (self.free, 2 * self.free),
                    deviceSynchronize=self.wait,
                ),
                driver=SimpleNamespace(CUDADriverError=CUDADriverError),
                Device=lambda index: SimpleNamespace(use=lambda: None),
                Event=Event,
                Stream=Stream,
                get_current_stream=lambda: current[-1],
                get_elapsed_time=lambda start, end: end.at_ms - start.at_ms,
                alloc_pinned_memory=pin,
            ),
            RawModule=lambda code: SimpleNamespace(
                get_function=lambda name: functions.get(name, self.launch(0.0))
            ),
            zeros=lambda shape, dtype: np.zeros(shape, dtype).view(Array),
            get_default_memory_pool=lambda: pool,
            get_default_pinned_memory_pool=lambda: pool,
        )


def gpu(name: str, bus_id: str, capability: tuple[int, int], sms: int) -> dict[str, Any]:
    properties = {
        "name": name.encode(),
        "major": capability[0],
        "minor": capability[1],
        "multiProcessorCount": sms,
        "totalGlobalMem": 10**11,
        "l2CacheSize": 60 * 10**6,
        "sharedMemPerBlockOptin": 232_448,
        "uuid": b"cut short",
    }
    return {"properties": properties, "bus_id": bus_id}


H200 = gpu("NVIDIA H200", "0000:c1:00.0", (9, 0), 132)
L4 = gpu("NVIDIA L4", "0000:0a:00.0", (8, 9), 58)


def fake_nvml(*gpus: dict[str, Any], cuda_version: int = 13000) -> Nvml:
    """NVML that knows little: bus ids, cores, clocks."""
    return Nvml(
        SimpleNamespace(
            NVMLError=NVMLError,
            NVML_CLOCK_SM="SM",
            NVML_CLOCK_MEM="MEM",
            nvmlInit=lambda: None,
            nvmlSystemGetDriverVersion=lambda: "580.95.05",
            nvmlSystemGetCudaDriverVersion=lambda: cuda_version,
            nvmlDeviceGetCount=lambda: len(gpus),
            nvmlDeviceGetHandleByIndex=lambda index: gpus[index],
            nvmlDeviceGetPciInfo=lambda handle: SimpleNamespace(busId=handle["bus_id"]),
            nvmlDeviceGetNumGpuCores=lambda handle: handle["cores"],
            nvmlDeviceGetMaxClockInfo=lambda handle, domain: handle[domain],
        )
    )


NVML_H200 = {"bus_id": "00000000:C1:00.0", "cores": 16896, "SM": 1980, "MEM": 3201}
NVML_L4 = {"bus_id": "00000000:0A:00.0", "cores": 7424, "SM": 2040, "MEM": 6251}


def no_driver() -> Nvml:
    def refuse() -> None:
        raise NVMLError("NVML Shared Library Not Found")

    return Nvml(SimpleNamespace(NVMLError=NVMLError, nvmlInit=refuse))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """A machine where CUDA counts H200, L4 and NVML counts L4, H200."""
    fake = FakeCuda([H200, L4])
    monkeypatch.setitem(sys.modules, "cupy", fake.module())
    monkeypatch.setattr(install, "installed_cupy", lambda: ["cupy-cuda12x"])
    monkeypatch.setattr(cuda, "Nvml", lambda: fake_nvml(NVML_L4, NVML_H200))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


@pytest.fixture
def no_cupy(machine: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(install, "installed_cupy", list)


def test_auto_takes_the_first_gpu(machine: FakeCuda) -> None:
    assert resolve("auto") == ("cuda:0", "")
    assert resolve("cuda") == ("cuda:0", "")
    assert resolve("cuda:1") == ("cuda:1", "")
    assert cuda.count() == 2


def test_auto_says_why_it_fell_back_to_the_cpu(no_cupy: None) -> None:
    device, note = resolve("auto")
    assert device == "cpu"
    assert note == "using the CPU: CuPy is missing: pip install 'rooflab[cuda13]'"


def test_the_cpu_needs_no_note(machine: FakeCuda) -> None:
    assert resolve("cpu") == ("cpu", "")


def test_a_gpu_that_was_asked_for_is_never_replaced(no_cupy: None) -> None:
    with pytest.raises(UnavailableError, match=r"pip install 'rooflab\[cuda13\]'.*--device cpu"):
        resolve("cuda:0")


@pytest.mark.parametrize("spec", ["gpu", "", "cuda:", "cuda:-1", "cuda:x", "CUDA", "cpu:0"])
def test_a_bad_device_is_told_what_to_type(spec: str, machine: FakeCuda) -> None:
    with pytest.raises(UsageError, match="type auto, cpu, cuda or cuda:N"):
        resolve(spec)


def test_a_gpu_too_many_names_those_there_are(machine: FakeCuda) -> None:
    with pytest.raises(UnavailableError, match="no cuda:3: this machine has cuda:0, cuda:1"):
        open_device("cuda:3")


@pytest.mark.parametrize(("cuda_version", "extra"), [(12080, "cuda12"), (13000, "cuda13")])
def test_the_driver_chooses_which_cupy_to_install(
    cuda_version: int, extra: str, no_cupy: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "Nvml", lambda: fake_nvml(cuda_version=cuda_version))
    assert cuda.availability() == f"CuPy is missing: pip install 'rooflab[{extra}]'"


def test_without_cupy_and_driver_both_are_named(
    no_cupy: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "Nvml", no_driver)
    assert "pip install 'rooflab[cuda12]'" in cuda.availability()
    assert "no NVIDIA driver" in cuda.availability()


def test_two_cupys_are_refused_in_one_line(
    machine: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "installed_cupy", lambda: ["cupy-cuda12x", "cupy-cuda13x"])
    assert cuda.availability() == (
        "cupy-cuda12x and cupy-cuda13x cannot be installed together: "
        "pip uninstall cupy-cuda12x cupy-cuda13x, then pip install 'rooflab[cuda13]'"
    )


def test_a_broken_cupy_is_reported_in_one_line(
    machine: FakeCuda, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cupy.py").write_text("raise ImportError('\\n=====\\nlibcudart is lost\\n=====')")
    monkeypatch.delitem(sys.modules, "cupy")
    monkeypatch.syspath_prepend(tmp_path)
    assert cuda.availability() == (
        "CuPy cannot be imported (libcudart is lost): "
        "pip install 'rooflab[cuda13]' --force-reinstall"
    )


def test_an_old_driver_is_told_apart_from_none(
    machine: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.failure = CUDARuntimeError("cudaErrorInsufficientDriver: CUDA driver version is …")
    monkeypatch.setattr(cuda, "Nvml", lambda: fake_nvml(cuda_version=11080))
    assert cuda.availability() == (
        "the driver supports CUDA 11.8, this CuPy needs 12.x: update the driver"
    )
    monkeypatch.setattr(cuda, "Nvml", no_driver)
    assert cuda.availability().startswith("no NVIDIA driver answers")
    assert cuda.count() == 0


def test_a_cupy_for_a_newer_cuda_can_be_exchanged(
    machine: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.failure = CUDARuntimeError("cudaErrorInsufficientDriver: CUDA driver version is …")
    monkeypatch.setattr(sys.modules["cupy"].cuda.runtime, "runtimeGetVersion", lambda: 13000)
    monkeypatch.setattr(install, "installed_cupy", lambda: ["cupy-cuda13x"])
    monkeypatch.setattr(cuda, "Nvml", lambda: fake_nvml(cuda_version=12080))
    assert cuda.availability().endswith(
        "update the driver, or pip uninstall cupy-cuda13x, then pip install 'rooflab[cuda12]'"
    )


def test_hidden_gpus_are_explained(machine: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.failure = CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")
    assert cuda.availability() == "CUDA finds no GPU: run nvidia-smi to see why"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert cuda.availability() == "CUDA_VISIBLE_DEVICES='' hides every GPU: unset it"


def test_all_devices_are_listed(machine: FakeCuda) -> None:
    assert all_ids() == ["cuda:0", "cuda:1", "cpu"]
    machine.devices.clear()
    assert all_ids() == ["cpu"]


def test_threads_are_for_a_cpu(machine: FakeCuda) -> None:
    with pytest.raises(UsageError, match="--threads is for --device cpu, not for cuda:0"):
        open_device("auto", threads=1)


def test_a_class_of_ones_own_is_a_device(machine: FakeCuda) -> None:
    assert resolve("fake:FakeDevice") == ("fake:FakeDevice", "")
    assert open_device("fake:FakeDevice").name == "Exact 1000"


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("fake:NoSuchDevice", "no device fake:NoSuchDevice: "),
        ("no_such_module:Device", "no device no_such_module:Device: No module named"),
        ("math:pi", "math:pi is not a rooflab.devices.base.Device"),
        ("pathlib:Path", "pathlib:Path is not a rooflab.devices.base.Device"),
    ],
)
def test_a_class_that_is_no_device_is_named(spec: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_device(spec)
    assert str(caught.value).startswith(told)


def test_facts_of_cuda_and_nvml_belong_to_the_same_gpu(machine: FakeCuda) -> None:
    first, second = CudaDevice(0), CudaDevice(1)
    assert (first.id, first.name, first.fact("cores")) == ("cuda:0", "NVIDIA H200", 16896)
    assert (second.id, second.name, second.fact("cores")) == ("cuda:1", "NVIDIA L4", 7424)


def test_facts_say_what_cuda_knows_and_why_nvml_does_not(machine: FakeCuda) -> None:
    device = CudaDevice(0)
    assert device.fact("compute_capability") == "9.0"
    assert device.fact("sm_count") == 132
    assert device.fact("shared_memory_per_block") == 232_448
    assert device.fact("cuda_runtime_version") == "12.9"
    assert device.last_level_cache_bytes() == 60 * 10**6
    assert device.fact("memory_bus_width") is None
    assert "nvmlDeviceGetMemoryBusWidth" in device.facts["memory_bus_width"].reason


def test_the_peer_is_the_next_gpu_if_there_is_one(machine: FakeCuda) -> None:
    assert CudaDevice(0).fact("peer") == "cuda:1 at 0000:0a:00.0"
    assert CudaDevice(1).fact("peer") == "cuda:0 at 0000:c1:00.0"
    [missing] = [one for one in CudaDevice(0).roofline().missing if one.key == "PEER"]
    assert missing.reason.startswith("no active NVLink to cuda:1 (")
    machine.devices.pop()
    assert "peer" not in CudaDevice(0).facts
    assert "PEER" not in [one.key for one in CudaDevice(0).roofline().missing]


def test_a_peer_that_does_not_answer_costs_its_own_ceiling(
    machine: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:

    def bus_id(index: int) -> str:
        if index:
            raise CUDARuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
        return "0000:c1:00.0"

    monkeypatch.setattr(sys.modules["cupy"].cuda.runtime, "deviceGetPCIBusId", bus_id)
    device = CudaDevice(0)
    assert device.fact("peer") == "cuda:1 at an unknown bus id"
    assert "PEER" in [one.key for one in device.roofline().missing]


def test_host_memory_is_allocated_on_the_gpus_node(
    machine: FakeCuda, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for path, text in (
        ("bus/pci/devices/0000:c1:00.0/numa_node", "1"),
        ("devices/system/node/node0/cpulist", "0-1"),
        ("devices/system/node/node1/cpulist", "2-3"),
    ):
        file = tmp_path / "sys" / path
        file.parent.mkdir(parents=True)
        file.write_text(text)
    bound: list[set[int]] = [{0, 1, 2, 3}]
    monkeypatch.setattr(os, "sched_getaffinity", lambda thread: bound[-1])
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, cpus: bound.append(set(cpus)))
    where: list[set[int]] = []
    pin = sys.modules["cupy"].cuda.alloc_pinned_memory

    def allocate(size: int) -> Any:
        where.append(bound[-1])
        return pin(size)

    monkeypatch.setattr(sys.modules["cupy"].cuda, "alloc_pinned_memory", allocate)
    device = CudaDevice(0, root=tmp_path)
    assert device.fact("numa_node") == 1
    assert device.facts["numa_node"].source.startswith("/sys/bus/pci/devices/0000:c1:00.0/")
    assert device.host_array((4, 2), "float32", pinned=True).shape == (4, 2)
    assert where == [{2, 3}]
    array = device.host_array((4, 2), "float32", pinned=False)
    assert (array.shape, array.any()) == ((4, 2), False)
    assert bound == [{0, 1, 2, 3}, {2, 3}, {0, 1, 2, 3}, {2, 3}, {0, 1, 2, 3}]


def test_free_memory_includes_what_the_pool_holds_unused(machine: FakeCuda) -> None:
    assert CudaDevice(0).free_bytes() == machine.free + 1000


def test_each_launch_is_timed_and_waited_for_once_in_all(machine: FakeCuda) -> None:
    launches = [machine.launch(3.0), machine.launch(5.0), machine.launch(2.0)]
    device = CudaDevice(0)
    device.nothing()
    waits = machine.waits
    timed = device.time(launches, before=machine.launch(100.0))
    assert timed.times_us == pytest.approx([3.0, 5.0, 2.0])
    assert timed.gated
    assert machine.waits == waits + 1


def test_a_batch_is_one_time_per_launch(machine: FakeCuda) -> None:
    timed = CudaDevice(0).time_batch([machine.launch(3.0), machine.launch(5.0)])
    assert timed.times_us == pytest.approx([4.0])


class CapturingStream:
    """Counts captures; it was left open if work failed."""

    def __init__(self) -> None:
        self.open, self.launched = False, 0

    def begin_capture(self) -> None:
        self.open = True

    def end_capture(self) -> CapturingStream:
        self.open = False
        return self

    def launch(self, stream: object) -> None:
        assert stream is self
        self.launched += 1


def test_a_graph_is_launched_in_the_stream(machine: FakeCuda) -> None:
    device, stream = CudaDevice(0), CapturingStream()
    device.stream = stream
    launch = device.capture(lambda: None)
    launch()
    assert stream.launched == 1


def test_what_cannot_be_captured_says_why(machine: FakeCuda) -> None:
    device, stream = CudaDevice(0), CapturingStream()
    device.stream = stream

    def refuse() -> None:
        raise NotImplementedError("calling cuBLAS API during stream capture is unsupported")

    with pytest.raises(UnavailableError, match=r"no CUDA graph: .*cuBLAS.*; leave out --graph"):
        device.capture(refuse)
    assert not stream.open


def test_pinned_memory_that_is_refused_says_how_much_would_fit(machine: FakeCuda) -> None:
    device = CudaDevice(0)
    with pytest.raises(UnavailableError, match=r"refuses 4 GB .* about 1 GB would fit: use --host"):
        device.host_array((10**9,), "float32", pinned=True)
    machine.most_pinned = 0
    with pytest.raises(UnavailableError, match=r"about 0 GB would fit"):
        device.host_array((100,), "float32", pinned=True)


def test_a_launch_that_blocks_is_timed_by_the_host(
    machine: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = CudaDevice(0)
    device.nothing()
    launch = MarkedLaunch(machine.launch(300.0), gated=False)
    ticks = iter([1.0, 1.002, 5.0, 5.003])
    monkeypatch.setattr(cuda, "perf_counter", lambda: next(ticks))
    gates = machine.gates
    timed = device.time([launch, launch])
    assert timed.times_us == pytest.approx([2000.0, 3000.0])
    assert not timed.gated
    assert machine.gates == gates


def test_no_more_launches_than_the_queue_takes_wait_behind_one_gate(machine: FakeCuda) -> None:
    device = CudaDevice(0)
    device.nothing()
    before = machine.gates
    assert len(device.time([machine.launch(1.0)] * 70).times_us) == 70
    assert machine.gates == before + 3


def test_the_gate_opens_when_a_launch_fails(machine: FakeCuda) -> None:
    def refuse() -> None:
        raise KernelError("cannot be launched")

    device = CudaDevice(0)
    with pytest.raises(KernelError, match="cannot be launched"):
        device.time([refuse])
    assert machine.gate[0] == 1


def test_a_gate_that_gave_up_is_told_of(machine: FakeCuda) -> None:
    device = CudaDevice(0)
    device.nothing()

    def give_up() -> None:
        machine.gate[1] = 1

    assert not device.time([give_up]).gated


@pytest.mark.parametrize("error", [CUDARuntimeError, CUDADriverError])
def test_a_failed_kernel_has_cudas_name_for_it(
    error: type[RuntimeError], machine: FakeCuda
) -> None:
    device = CudaDevice(0)
    machine.failure = error("cudaErrorIllegalAddress: an illegal memory access was encountered")
    with pytest.raises(KernelError, match="cudaErrorIllegalAddress"):
        device.synchronize()
    with pytest.raises(KernelError, match="cudaErrorIllegalAddress"):
        device.time([machine.launch(1.0)])


def test_a_sweep_on_a_gpu_needs_no_measured_roof(machine: FakeCuda) -> None:
    roofline = CudaDevice(0).roofline()
    assert {ceiling.provenance for ceiling in roofline.ceilings} == {"derived"}
    assert machine.now_ms == 0


# What a launch may do ----------------------------------------------------------------------------


def test_the_stream_of_launches_stays_current(
    machine: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "sleep", lambda seconds: None)
    monkeypatch.setattr(CudaDevice, "copy", lambda *_: None)
    device = CudaDevice(0)
    null = device._cupy.cuda.get_current_stream()
    own = device.arrays.cuda.get_current_stream()
    assert own is not null
    device.escapes(lambda: None, [np.zeros(4, np.float32)])
    assert device.arrays.cuda.get_current_stream() is own


def test_a_launch_outside_its_stream_is_found(
    machine: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "sleep", lambda seconds: None)
    device = CudaDevice(0)
    output = np.zeros(4, np.float32)

    def write() -> None:
        output[2] += 1

    def copy(target: np.ndarray, source: np.ndarray, queue: None) -> None:
        machine.queued.append(lambda: target.__setitem__(..., source))

    monkeypatch.setattr(device, "copy", copy)
    assert not device.escapes(lambda: machine.queued.append(write), [output])
    assert output[2] == 1  # it has run, when the gate was open
    assert "outside the given stream" in device.escapes(write, [output])

    def pause(seconds: float) -> None:  # a thread launches when the gate is open
        if machine.gate[0]:
            write()

    monkeypatch.setattr(cuda, "sleep", pause)
    machine.queued.clear()
    assert "has not queued all of its work" in device.escapes(lambda: None, [output])
    monkeypatch.setattr(cuda, "sleep", lambda seconds: None)
    assert machine.gate[0] == 1

    def fail() -> None:
        raise KernelError("cannot be launched")

    with pytest.raises(KernelError, match="cannot be launched"):
        device.escapes(fail, [output])
    assert machine.gate[0] == 1


def test_a_launch_that_waits_for_the_gate_is_refused(
    machine: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "sleep", lambda seconds: None)
    monkeypatch.setattr(CudaDevice, "copy", lambda *_: None)
    output = np.zeros(4, np.float32)

    def late() -> None:
        machine.gate[1] = 1
        output[2] += 1

    with pytest.raises(KernelError, match="the launch waits for the device"):
        CudaDevice(0).escapes(late, [output])


def test_the_clock_is_counted_around_the_window(
    machine: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVML has another opinion, which is kept beside it."""
    nvml = Reading(nvml_mhz=1755.0)
    monkeypatch.setattr(CudaDevice, "_sample", staticmethod(lambda: nvml))
    device = CudaDevice(0)
    reading = device.time([machine.launch(300.0)]).reading
    assert reading == replace(nvml, sm_mhz=about(1400, rel=1e-4))
    machine.sm_mhz = 1900.0
    reading = device.time_batch([machine.launch(100.0)] * 4).reading
    assert reading == replace(nvml, sm_mhz=about(1900, rel=1e-4))
    assert device.time_batch([machine.launch(100.0)] * 4, sense=False).reading is None
    assert device.time([machine.launch(50.0)]).reading == nvml


@pytest.mark.parametrize("share", [1.0, 0.4])
def test_events_that_say_too_little_are_contradicted_by_the_cycles(
    machine: FakeCuda, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    device = CudaDevice(0)
    honest = device.arrays.cuda.get_elapsed_time
    monkeypatch.setattr(
        device.arrays.cuda, "get_elapsed_time", lambda start, end: share * honest(start, end)
    )
    launches = [machine.launch(100.0)] * 8
    machine.sm_mhz = float(device.fact("sm_clock_max") or 0)
    timed = device.time_batch(launches)
    assert timed.times_us == pytest.approx([100 * share])
    assert timed.stretch == pytest.approx(1 / share, rel=1e-3)
    machine.sm_mhz /= 2  # the clock is lowered: this is all that is certain
    assert device.time_batch(launches).stretch == pytest.approx(0.5 / share, rel=1e-3)
    assert device.time_batch(launches, sense=False).stretch == 0
    # A flush is in the window, but not between the events.
    assert device.time_batch(launches, lambda: None).stretch == 0
    assert device.time_batch([machine.launch(10.0)] * 4).stretch == 0  # too short


def test_multiprocessors_without_a_stamp_do_not_count() -> None:
    stamps = np.zeros((2, 8, 2), np.uint64)
    assert window(stamps) is None
    stamps[0, :3] = [[100, 1000], [7, 2000], [50, 3000]]
    stamps[1, 0] = [100 + 1500, 1000 + 1000]
    stamps[1, 2] = [50 + 1600, 3000 + 1000]
    counted = window(stamps)
    assert counted is not None
    assert (counted.mhz, counted.cycles) == pytest.approx((1550, 1550))


def test_kernels_are_given_a_stream_of_the_devices_own(machine: FakeCuda) -> None:
    assert CudaDevice(0).stream.ptr == 77


def test_the_roof_at_the_clock_that_was_seen(machine: FakeCuda) -> None:
    seen = CudaDevice(0).observed("fp32", 990.0)
    assert seen is not None
    assert (seen.provenance, seen.value) == ("observed", 132 * 256 * 990e6)
    assert CudaDevice(0).observed("int32", 990.0) is None


def test_sensors_that_are_missing_are_told_of(
    machine: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "nvmlDeviceGetPowerUsage" in CudaDevice(0).missing_telemetry()
    assert CudaDevice(0).energy_j() is None
    monkeypatch.setattr(cuda, "Nvml", no_driver)
    assert "no NVIDIA driver answers" in CudaDevice(0).missing_telemetry()
    assert CudaDevice(0).energy_j() is None
