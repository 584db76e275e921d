"""The GPU, and one cache of cubins for all tests: the environment's, if it names one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from rooflab.devices.base import Device
from rooflab.devices.registry import open_device


@pytest.fixture(scope="session")
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture(scope="session")
def device() -> Device:
    return open_device("cuda:0")


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if not os.environ.get("ROOFLAB_CACHE_DIR"):
            patch.setenv("ROOFLAB_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield
