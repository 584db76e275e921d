"""Ceilings of the links of a GPU: to host memory and to a peer, the next GPU.

Derived from PCIe and NVLink, measured by copies. Copies between GPUs leave nothing behind: what is
allocated on either GPU is freed, peer access that was switched on is switched off, and the current
device stays what it was. CUDA's streams and events belong to the device that is current when they
are created; copies, waits and recording need none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

from rooflab.devices.base import Device, Limit, MarkedLaunch
from rooflab.devices.cuda.nvml import Nvml, normalise_bus_id
from rooflab.errors import RooflabError
from rooflab.model.roofline import Ceiling, MissingCeiling

# Host and device -------------------------------------------------------------------------------

COPY_BYTES: Final = 2**28
WINDOWS: Final = 7
WARMUP_S: Final = 0.1

LANE_GBPS: Final = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""GB/s of one lane and direction by PCIe generation, after its encoding (PCI-SIG)."""


def derive_links(device: Device) -> list[Limit]:
    """Generation × lanes, the same in both directions."""
    generation, lanes = device.fact("pcie_generation"), device.fact("pcie_width")
    rate = LANE_GBPS.get(int(generation or 0))
    if rate is None or not lanes:
        reason = "NVML reports no PCIe generation or width"
        return [MissingCeiling("bandwidth", key, reason) for key in ("H2D", "D2H")]
    formula = f"PCIe {generation}: {rate:g} GB/s × {lanes} lanes"
    value = rate * int(lanes) * 1e9
    return [Ceiling("bandwidth", key, value, "derived", formula) for key in ("H2D", "D2H")]


def _to_and_from_host(device: Device, ways: tuple[str, ...], *, pinned: bool) -> MarkedLaunch:
    """Copies of COPY_BYTES, each in a queue of its own, at the same time."""
    queues, pairs = device.queues(len(ways)), []
    for way in ways:
        host = device.host_array((COPY_BYTES,), "uint8", pinned=pinned)
        own = device.arrays.zeros((COPY_BYTES,), "uint8")
        pairs.append((own, host) if way == "H2D" else (host, own))

    def copy() -> None:
        device.fork(queues)
        for pair, queue in zip(pairs, queues, strict=True):
            device.copy(*pair, queue)
        device.join(queues)

    return MarkedLaunch(copy, gated=pinned)


def measure_links(device: Device) -> list[Limit]:
    """Each way alone and both at once with pinned memory, each way with pageable memory."""
    return [*_measured_links(device, pinned=True), *_measured_links(device, pinned=False)]


def _measured_links(device: Device, *, pinned: bool) -> Iterator[Limit]:
    suffix = "" if pinned else "_PAGEABLE"
    cases: dict[str, tuple[str, ...]] = {"H2D": ("H2D",), "D2H": ("D2H",)}
    if pinned:
        cases |= {"H2D_BOTH": ("H2D", "D2H")}
    for key, ways in cases.items():
        names = [f"{way}_BOTH" for way in ways] if len(ways) > 1 else [key + suffix]
        try:
            us = best_us(device, _to_and_from_host(device, ways, pinned=pinned))
        except (RooflabError, MemoryError) as error:
            yield from (MissingCeiling("bandwidth", n, f"not measured: {error}") for n in names)
            continue
        memory = "pinned" if pinned else "pageable"
        both = ", both ways at once" if len(ways) > 1 else ""
        formula = f"{COPY_BYTES / 1e6:.0f} MB of {memory} memory{both}, best of {WINDOWS}"
        rate = COPY_BYTES / us * 1e6
        yield from (Ceiling("bandwidth", name, rate, "measured", formula) for name in names)


def best_us(device: Device, copy: Callable[[], Any]) -> float:
    """The least microseconds of WINDOWS copies, after WARMUP_S of copies: the link wakes up."""
    end = perf_counter() + WARMUP_S
    copy()
    device.synchronize()
    while perf_counter() < end:
        copy()
        device.synchronize()
    return min(device.time([copy]).times_us[0] for _ in range(WINDOWS))


# Peers -----------------------------------------------------------------------------------------

PEER_BYTES: Final = 2**30
"""Large enough that starting a copy is less than a percent of its time over NVLink."""

_ACTIVE: Final = 1
"""NVML_FEATURE_ENABLED"""

_ENDS: Final = (0, 1)
"""NVML_NVLINK_DEVICE_TYPE_GPU and …_IBMNPU: a link to one of them leads to nothing else."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The next GPU: CUDA's index of this one (``here``) and of the next one, with its bus id."""

    here: int
    index: int
    bus_id: str


def derive_peer(nvml: Nvml, handle: Any, peer: Peer) -> Limit:
    """Active NVLinks × rate of one, each way. ``handle`` is NVML's of this GPU."""
    links, refusal = _links(nvml, handle, normalise_bus_id(peer.bus_id))
    if not links:
        why = f" ({refusal})" if refusal else ""
        reason = f"no active NVLink to cuda:{peer.index}{why}; PCIe promises no rate between GPUs"
        return MissingCeiling("bandwidth", "PEER", reason)
    rate, reason = _rate(nvml, handle, links[0])
    if not rate:
        return MissingCeiling("bandwidth", "PEER", reason)
    formula = f"{len(links)} NVLinks × {rate / 1e3:.4g} GB/s, to cuda:{peer.index}"
    return Ceiling("bandwidth", "PEER", len(links) * rate * 1e6, "derived", formula)


def _links(nvml: Nvml, handle: Any, bus_id: str) -> tuple[list[int], str]:
    """Numbers of the active links; and why NVML tells of none at all, empty if it tells of any.

    A link is left out if NVML says that it leads to another GPU than that at ``bus_id``, or to a
    CPU. A switch leads to every GPU.
    """
    links: list[int] = []
    reasons: list[str] = []
    count = nvml.constant("NVML_NVLINK_MAX_LINKS") or 0
    for link in range(count):
        state, refusal = nvml.query("nvmlDeviceGetNvLinkState", handle, link)
        if refusal:
            reasons.append(refusal)
        elif state == _ACTIVE and not _leads_elsewhere(nvml, handle, link, bus_id):
            links.append(link)
    # The package knows of more links than most GPUs have: some refusals are usual.
    known = len(reasons) < count
    return links, "" if known else (reasons or ["NVML does not list them"])[0]


def _leads_elsewhere(nvml: Nvml, handle: Any, link: int, bus_id: str) -> bool:
    kind, _ = nvml.query("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
    if kind not in _ENDS:
        return False
    end, _ = nvml.query("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
    if end is None:
        return False
    found = end.busId.decode() if isinstance(end.busId, bytes) else str(end.busId)
    return normalise_bus_id(found) != bus_id


def _rate(nvml: Nvml, handle: Any, link: int) -> tuple[int | None, str]:
    """MB/s of one link and direction, or None and the reason. Drivers know different fields."""
    fields = (("SPEED_MBPS_COMMON", None), ("GET_SPEED", link), ("SPEED_MBPS_L0", None))
    answers = [nvml.field(handle, f"NVML_FI_DEV_NVLINK_{name}", of) for name, of in fields]
    return next((answer for answer in answers if answer[0]), answers[0])


def measure_peer(device: Device, peer: Peer) -> list[Limit]:
    """From this GPU to the peer, and both ways at once: the rate of one direction."""
    there, back = (peer.here, peer.index), (peer.index, peer.here)
    return [_measured(device, "PEER", [there]), _measured(device, "PEER_BOTH", [there, back])]


def _measured(device: Device, key: str, ways: Sequence[tuple[int, int]]) -> Limit:
    (one, other), *back = ways
    try:
        device.release()  # what CuPy's pool holds unused could be all memory
        with _between_gpus(device, ways) as copies:
            us = best_us(device, copies)
    except Exception as error:  # CUDA, CuPy and the driver raise many kinds; none may end a sweep
        reason = f"not measured: {str(error) or type(error).__name__}"
        return MissingCeiling("bandwidth", key, reason)
    route = f"from cuda:{one} to cuda:{other}"
    if back:
        route = f"each way between cuda:{one} and cuda:{other} at once"
    access = f"peer access {'on' if copies.gated else 'off'}"
    formula = f"{PEER_BYTES / 1e6:.0f} MB {route}, {access}, best of {WINDOWS}"
    return Ceiling("bandwidth", key, PEER_BYTES / us * 1e6, "measured", formula)


@contextmanager
def _between_gpus(device: Device, ways: Sequence[tuple[int, int]]) -> Iterator[MarkedLaunch]:
    """Copies of PEER_BYTES from GPU to GPU at the same time, whose resources are freed afterwards.

    Each is on a stream of its source, which then does the work.
    """
    cuda = device.arrays.cuda
    runtime = cuda.runtime
    pairs = [ways[0], ways[0][::-1]]
    copies: list[tuple[tuple[int, ...], Any, Any]] = []
    with ExitStack() as undo:
        direct = all(runtime.deviceCanAccessPeer(*pair) for pair in pairs)
        for gpu, target in pairs if direct else ():
            if _on(runtime, gpu, _enable, runtime, target):
                undo.callback(_on, runtime, gpu, runtime.deviceDisablePeerAccess, target)
        for source, target in ways:
            address = {}
            for gpu in (source, target):  # not from CuPy's pool
                address[gpu] = _on(runtime, gpu, runtime.malloc, PEER_BYTES)
                undo.callback(_on, runtime, gpu, runtime.free, address[gpu])
            stream = _on(runtime, source, cuda.Stream, non_blocking=True)
            ended = _on(runtime, source, cuda.Event, disable_timing=True)
            undo.callback(stream.synchronize)  # it uses the memory
            places = (address[target], target, address[source], source)
            copies.append((places, stream, ended))

        def copy() -> None:
            begun = device.mark(None)
            for places, stream, ended in copies:
                stream.wait_event(begun)
                runtime.memcpyPeerAsync(*places, PEER_BYTES, stream.ptr)
                ended.record(stream)
                device.wait(None, ended)

        yield MarkedLaunch(copy, gated=direct)


def _on(runtime: Any, gpu: int, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call while ``gpu`` is CUDA's current device."""
    before = runtime.getDevice()
    runtime.setDevice(gpu)
    try:
        return call(*arguments, **named)
    finally:
        runtime.setDevice(before)


def enable_peers(runtime: Any, gpu: int, targets: Sequence[int]) -> None:
    """Let ``gpu``, CUDA's current device, reach the memory of ``targets`` that it can reach."""
    for target in targets:
        if target != gpu and runtime.deviceCanAccessPeer(gpu, target):
            _enable(runtime, target)


def _enable(runtime: Any, target: int) -> bool:
    """Whether the current device did not reach ``target`` before."""
    try:
        runtime.deviceEnablePeerAccess(target)
    except runtime.CUDARuntimeError as error:
        if str(error).partition(":")[0] != "cudaErrorPeerAccessAlreadyEnabled":
            raise
        return False
    return True
