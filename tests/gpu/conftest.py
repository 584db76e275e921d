"""The GPU, and one cache of cubins for all tests: the environment's, if it names one."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from typing import Any

import pytest

from rooflab.devices.base import Device
from rooflab.devices.registry import open_device


@pytest.fixture(scope="session")
def torch() -> Any:
    return pytest.importorskip("torch")


MANY = 4
"""More processes than these take the processors from one another."""

SCHED_BLOCKING_SYNC = 4
"""Of a context in CUDA's driver: whoever waits for the device sleeps, and does not ask again."""


def many() -> bool:
    return int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > MANY


@pytest.fixture(scope="session")
def device() -> Device:
    if many():
        driver = ctypes.CDLL("libcuda.so.1")
        assert driver.cuInit(0) == 0
        assert driver.cuDevicePrimaryCtxSetFlags_v2(0, SCHED_BLOCKING_SYNC) == 0
    return open_device("cuda:0")


@pytest.fixture(autouse=True)
def memory_for_others(request: pytest.FixtureRequest) -> Iterator[None]:
    """One of many processes keeps no memory of the device from test to test."""
    yield
    if many() and "device" in request.fixturenames:
        request.getfixturevalue("device").release()


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if not os.environ.get("ROOFLAB_CACHE_DIR"):
            patch.setenv("ROOFLAB_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield
