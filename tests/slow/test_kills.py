"""A sweep that is killed at any moment loses nothing, and goes on where it stopped."""

from __future__ import annotations

import kills
import pytest
from commands import Rooflab

pytestmark = pytest.mark.slow


def test_killed_fifty_times_at_random_moments(rooflab: Rooflab) -> None:
    kills.survive(kills.finish(rooflab), 50)
