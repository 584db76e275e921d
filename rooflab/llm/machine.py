"""The device of an estimate: roofs and memory, of this machine or from a run's manifest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rooflab.devices import registry as devices
from rooflab.errors import RunError, UsageError
from rooflab.measure.levels import roofs
from rooflab.model.problem import PEER
from rooflab.model.roofline import Ceiling, Roofline
from rooflab.runs.manifest import Manifest, load_manifest
from rooflab.runs.store import MANIFEST

MOST_BYTES: Final = 2**63
"""A device that is said to have more memory has an unknown amount."""

GIVEN: Final = "as --link gives it"
"""The formula of a ceiling that was not measured here."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One device; ``memory`` are its bytes, None if they are not known."""

    name: str
    roofline: Roofline
    memory: float | None

    def linked(self, bytes_per_s: float) -> Machine:
        """The same with links to other GPUs of this rate."""
        key = PEER.upper()
        given = Ceiling("bandwidth", key, bytes_per_s, "measured", GIVEN)
        others = (one for one in self.roofline.ceilings if one.key != key)
        return replace(self, roofline=replace(self.roofline, ceilings=(given, *others)))


def of_manifest(manifest: Manifest) -> Machine:
    """The device of a run."""
    memory = _bytes(manifest.device.fact("memory_total"))
    return Machine(manifest.device.name, manifest.roofline, memory)


def of_files(path: Path) -> Machine:
    """The device of a run's folder, or of its manifest alone; raises ``UsageError``."""
    try:
        return of_manifest(load_manifest(path / MANIFEST if path.is_dir() else path))
    except RunError as error:
        raise UsageError(f"{error}: give a run's folder, or its {MANIFEST}") from None


def here(device_id: str) -> Machine:
    """A device of this machine; the roofs of a CPU are measured."""
    device = devices.open_device(device_id)
    if device.measures_roofs:
        device.claim()
    memory = _bytes(device.fact("memory_total"))
    return Machine(device.name, roofs(device), memory)


def _bytes(fact: Any) -> float | None:
    return float(fact) if type(fact) in (int, float) and 0 < fact < MOST_BYTES else None
