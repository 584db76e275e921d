"""The device of an estimate: roofs and memory, of this machine or from a run's manifest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from rooflab.devices import registry as devices
from rooflab.measure.levels import roofs
from rooflab.model.problem import PEER
from rooflab.model.roofline import Ceiling, Roofline
from rooflab.runs.manifest import Manifest, load_manifest
from rooflab.runs.store import MANIFEST


@dataclass(frozen=True, slots=True)
class Machine:
    """One device; ``memory`` are its bytes, None if they are not known."""

    name: str
    roofline: Roofline
    memory: float | None

    def linked(self, bytes_per_s: float) -> Machine:
        """The same with links to other GPUs of this rate."""
        key = PEER.upper()
        given = Ceiling("bandwidth", key, bytes_per_s, "measured", "as it was given")
        others = (one for one in self.roofline.ceilings if one.key != key)
        return replace(self, roofline=replace(self.roofline, ceilings=(given, *others)))


def of_manifest(manifest: Manifest) -> Machine:
    """The device of a run."""
    memory = manifest.device.fact("memory_total")
    known = float(memory) if isinstance(memory, int | float) else None
    return Machine(manifest.device.name, manifest.roofline, known)


def of_files(path: Path) -> Machine:
    """The device of a run's folder, or of its manifest alone; raises ``RunError``."""
    return of_manifest(load_manifest(path / MANIFEST if path.is_dir() else path))


def here(device_id: str) -> Machine:
    """A device of this machine; the roofs of a CPU are measured."""
    device = devices.open_device(device_id)
    if device.measures_roofs:
        device.claim()
    memory = device.fact("memory_total")
    known = float(memory) if isinstance(memory, int | float) else None
    return Machine(device.name, roofs(device), known)
