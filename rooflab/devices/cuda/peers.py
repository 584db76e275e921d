"""Ceilings of the link to a peer, the next GPU: derived from NVLink, measured by copies.

The copies may leave nothing behind: what is allocated on either GPU is freed, peer access that was
switched on is switched off, and the current device stays what it was. CUDA's streams and events
belong to the device that is current when they are created; copies, waits and recording need none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import permutations
from typing import Any, Final

from rooflab.devices.base import Device, MarkedLaunch
from rooflab.devices.cuda.nvml import Nvml, normalise_bus_id
from rooflab.devices.cuda.transfers import WINDOWS, best_us
from rooflab.model.roofline import Ceiling, MissingCeiling

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


# Derived -----------------------------------------------------------------------------------------


def derive_peer(nvml: Nvml, handle: Any, peer: Peer) -> Ceiling | MissingCeiling:
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


# Measured ----------------------------------------------------------------------------------------


Route = tuple[str, str]
"""The ids of two devices."""


def measure_routes(group: Sequence[Device]) -> dict[Route, list[Ceiling | MissingCeiling]]:
    """One way, and both ways at once, from each GPU of a group to each other one."""
    found = {}
    for one, other in permutations(group, 2):
        peer = Peer(_index(one), _index(other), "")
        with one.active():
            found[one.id, other.id] = measure_peer(one, peer)
    return found


def _index(device: Device) -> int:
    return int(device.id.removeprefix("cuda:"))


def measure_peer(device: Device, peer: Peer) -> list[Ceiling | MissingCeiling]:
    """From this GPU to the peer, and both ways at once: the rate of one direction."""
    there, back = (peer.here, peer.index), (peer.index, peer.here)
    return [_measured(device, "PEER", [there]), _measured(device, "PEER_BOTH", [there, back])]


def _measured(
    device: Device, key: str, ways: Sequence[tuple[int, int]]
) -> Ceiling | MissingCeiling:
    (one, other), *back = ways
    try:
        cuda = device.arrays.cuda
        device.release()  # what CuPy's pool holds unused could be all memory
        with ExitStack() as stack:
            direct = stack.enter_context(_peer_access(cuda.runtime, one, other))
            copies = [stack.enter_context(_copy(cuda, *way)) for way in ways]
            us = best_us(device, MarkedLaunch(_Together(device, cuda.runtime, copies), direct))
    except Exception as error:  # CUDA, CuPy and the driver raise many kinds; none may end a sweep
        reason = f"not measured: {str(error) or type(error).__name__}"
        return MissingCeiling("bandwidth", key, reason)
    route = f"from cuda:{one} to cuda:{other}"
    if back:
        route = f"each way between cuda:{one} and cuda:{other} at once"
    access = f"peer access {'on' if direct else 'off'}"
    formula = f"{PEER_BYTES / 1e6:.0f} MB {route}, {access}, best of {WINDOWS}"
    return Ceiling("bandwidth", key, PEER_BYTES / us * 1e6, "measured", formula)


@contextmanager
def _current(runtime: Any, gpu: int) -> Iterator[None]:
    """``gpu`` is CUDA's current device meanwhile."""
    before = runtime.getDevice()
    runtime.setDevice(gpu)
    try:
        yield
    finally:
        runtime.setDevice(before)


@contextmanager
def _peer_access(runtime: Any, one: int, other: int) -> Iterator[bool]:
    """Let both GPUs reach each other's memory meanwhile; False, and nothing, if they cannot."""
    pairs = ((one, other), (other, one))
    direct = all(runtime.deviceCanAccessPeer(*pair) for pair in pairs)
    with ExitStack() as stack:
        for gpu, target in pairs if direct else ():
            stack.enter_context(_enabled(runtime, gpu, target))
        yield direct


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


@contextmanager
def _enabled(runtime: Any, gpu: int, target: int) -> Iterator[None]:
    """``gpu`` reaches the memory of ``target`` meanwhile, and afterwards if it did so before."""
    with _current(runtime, gpu):
        ours = _enable(runtime, target)
    try:
        yield
    finally:
        if ours:
            with _current(runtime, gpu):
                runtime.deviceDisablePeerAccess(target)


@contextmanager
def _memory(runtime: Any, gpu: int) -> Iterator[int]:
    """The address of PEER_BYTES on ``gpu``, not from CuPy's pool."""
    with _current(runtime, gpu):
        address = runtime.malloc(PEER_BYTES)
    try:
        yield address
    finally:
        with _current(runtime, gpu):
            runtime.free(address)


@dataclass
class _PeerCopy:
    """A copy between GPUs: the arguments of cudaMemcpyPeerAsync, and an event after it."""

    target: tuple[int, int]
    """Address and GPU."""
    source: tuple[int, int]
    stream: Any
    """A stream of the source's GPU, which then does the work."""
    ended: Any


@contextmanager
def _copy(cuda: Any, source: int, target: int) -> Iterator[_PeerCopy]:
    """What a copy from GPU ``source`` to ``target`` needs; all of it is freed afterwards."""
    runtime = cuda.runtime
    with _memory(runtime, source) as data, _memory(runtime, target) as place:
        with _current(runtime, source):
            stream = cuda.Stream(non_blocking=True)
            ended = cuda.Event(disable_timing=True)
        try:
            yield _PeerCopy((place, target), (data, source), stream, ended)
        finally:
            stream.synchronize()  # it uses the memory


class _Together:
    """Copies at the same time."""

    def __init__(self, device: Device, runtime: Any, copies: Sequence[_PeerCopy]) -> None:
        self._device, self._runtime, self._copies = device, runtime, copies

    def __call__(self) -> None:
        """Queue the copies."""
        begun = self._device.mark(None)
        for copy in self._copies:
            copy.stream.wait_event(begun)
            self._runtime.memcpyPeerAsync(*copy.target, *copy.source, PEER_BYTES, copy.stream.ptr)
            copy.ended.record(copy.stream)
            self._device.wait(None, copy.ended)
