"""Measured ceilings, kept on disk by device and driver: levels, pipes, and the best roofs.

The rate of the best library GEMM is one of any device, which is not kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rooflab.config import SweepConfig, Timing
from rooflab.devices.base import Device
from rooflab.errors import RooflabError
from rooflab.files import cache_dir, private_folder, write_atomic
from rooflab.kernels.registry import Registry
from rooflab.measure.protocol import Protocol
from rooflab.model.precision import PRECISIONS
from rooflab.model.roofline import Ceiling, CeilingList, MissingCeiling, Roofline
from rooflab.version import __version__
from rooflab.workloads.gemm import Gemm

IDENTITY: Final = ("uuid", "driver_version", "model", "threads", "power_limit", "peer")
"""Facts of which another value means other ceilings."""


LINKS: Final = "links"


def known_levels(device: Device, *, links: bool = False, again: bool = False) -> CeilingList:
    """The device's levels, with ``links`` to other memory too.

    They are measured once, or ``again``, which takes seconds and forgets the best roofs too.
    """
    if again:
        with suppress(OSError):
            _path(device, "roofs").unlink()
    found: list[Ceiling | MissingCeiling] = []
    for what, measure in (("ceilings", device.levels), (LINKS, device.links)):
        if what == LINKS and not links:
            continue
        path = _path(device, what)
        limits = None if again else _read(path)
        if limits is None:
            limits = measure()
            _write(path, limits)
        found += limits
    return found


def stored_levels(device: Device, *, links: bool = False) -> CeilingList | None:
    """The device's levels, None if they were never measured; with the links that are known."""
    levels, known = _read(_path(device)), _read(_path(device, LINKS))
    if levels is None or (links and known is None):
        return None
    return [*levels, *(known or ())]


def best_roofs(device: Device) -> CeilingList:
    """The best ceilings that earlier runs have measured while nothing else disturbed them."""
    return _read(_path(device, "roofs")) or ()


def best_roofline(device: Device) -> Roofline:
    """The same as a roofline, with which another can be raised."""
    return Roofline(tuple(one for one in best_roofs(device) if isinstance(one, Ceiling)))


def keep_roofs(device: Device, measured: Sequence[Ceiling]) -> None:
    """Keep clean ceilings that are higher than those that are kept."""
    best = {(one.kind, one.key): one for one in best_roofline(device).ceilings}
    for one in measured:
        known = best.get((one.kind, one.key))
        if not one.disturbed and (known is None or one.value > known.value):
            best[one.kind, one.key] = one
    _write(_path(device, "roofs"), list(best.values()))


def _write(path: Path, limits: CeilingList) -> None:
    record = [{"type": type(limit).__name__, **asdict(limit)} for limit in limits]
    with suppress(OSError, RooflabError):  # then they are measured again
        private_folder(path.parent)
        write_atomic(path, json.dumps(record).encode())


def _path(device: Device, what: str = "ceilings") -> Path:
    facts = [__version__, device.id, device.name, *map(device.fact, IDENTITY)]
    key = hashlib.sha256(repr(facts).encode()).hexdigest()[:32]
    return cache_dir() / what / f"{key}.json"


def _read(path: Path) -> CeilingList | None:
    types = {kind.__name__: kind for kind in (Ceiling, MissingCeiling)}
    try:
        record = json.loads(path.read_bytes())
        return [types[limit.pop("type")](**limit) for limit in record]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


# The best library ---------------------------------------------------------------------------------

SIZES: Final = (4096, 8192)
CONFIG: Final = SweepConfig(timing=Timing(min_rounds=5, max_rounds=5, energy_s=0))


def library_ceilings(device: Device, registry: Registry) -> Iterator[Ceiling | MissingCeiling]:
    """For each precision the highest rate of the vendor's GEMM on large squares."""
    kernel = registry.library(device.kind, Gemm.workload)
    if kernel is None or (reason := kernel.unavailable(device)):
        return
    protocol = Protocol(device, CONFIG)
    for name in kernel.precisions:
        flops, reason = {}, ""
        for size in SIZES:
            problem = Gemm(m=size, n=size, k=size, precision=PRECISIONS[name])
            (outcome,) = protocol.measure(problem, [kernel])
            if outcome.summary:
                flops[size] = problem.flops / (outcome.summary.median * 1e-6)
            reason = reason or outcome.reason
        if flops:
            best = max(flops, key=flops.__getitem__)
            formula = f"{kernel.name} at n = {best}, the better of {' and '.join(map(str, SIZES))}"
            yield Ceiling("compute", name, flops[best], "measured", formula)
        else:
            yield MissingCeiling("compute", name, f"{kernel.name} not measured: {reason}")


def roofs(device: Device) -> Roofline:
    """The device's ceilings, with what earlier runs have measured of this machine."""
    own = device.roofline()
    if device.measures_roofs:
        keep_roofs(device, [one for one in own.ceilings if one.provenance == "measured"])
        own = own.raised(best_roofline(device))
    return own.with_limits(*(stored_levels(device) or ()))
