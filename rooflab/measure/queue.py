"""How many launches wait in a device's queue together, if nobody says what each puts there."""

from __future__ import annotations

from math import ceil
from typing import Final

from rooflab.devices.base import MAX_BATCH, Device, Launch

TRIED_US: Final = 1e4
SPARE: Final = 2.0
"""Launches that last so long together are tried in the queue; of one that is full, a part is
used."""


def queue_depth(device: Device, launch: Launch, launch_us: float, host_us: float) -> int:
    """The most entries of a launch, as far as it is known; 0 if it blocks the host.

    A launch lasts ``launch_us`` and keeps the host busy for ``host_us``.
    """
    tried = max(1, min(MAX_BATCH, int(TRIED_US / launch_us)))
    fitting = device.queued(launch, host_us, tried)
    return ceil((1.0 if fitting == tried else SPARE) * MAX_BATCH / fitting) if fitting else 0
