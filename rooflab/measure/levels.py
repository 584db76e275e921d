"""Measured ceilings of each memory level and pipe, kept on disk by device and driver."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rooflab.device import Device
from rooflab.errors import RooflabError
from rooflab.files import cache_dir, private_folder, write_atomic
from rooflab.model.roofline import Ceiling, Limits, MissingCeiling
from rooflab.version import __version__

IDENTITY: Final = ("uuid", "driver_version", "model", "threads", "power_limit", "peer")
"""Facts of which another value means other ceilings."""


def known_levels(device: Device, *, again: bool = False) -> Limits:
    """The device's levels: measured once, or ``again``, which takes seconds."""
    if not again and (limits := stored_levels(device)) is not None:
        return limits
    path = _path(device)
    limits = device.levels()
    record = [{"type": type(limit).__name__, **asdict(limit)} for limit in limits]
    with suppress(OSError, RooflabError):  # then they are measured again
        private_folder(path.parent)
        write_atomic(path, json.dumps(record).encode())
    return limits


def stored_levels(device: Device) -> Limits | None:
    """The device's levels, None if they were never measured."""
    return _read(_path(device))


def _path(device: Device) -> Path:
    facts = [__version__, device.id, device.name, *map(device.fact, IDENTITY)]
    key = hashlib.sha256(repr(facts).encode()).hexdigest()[:32]
    return cache_dir() / "ceilings" / f"{key}.json"


def _read(path: Path) -> Limits | None:
    types = {kind.__name__: kind for kind in (Ceiling, MissingCeiling)}
    try:
        record = json.loads(path.read_bytes())
        return [types[limit.pop("type")](**limit) for limit in record]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
