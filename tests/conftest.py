"""For all tests: a folder of their own, and no silent skips."""

from __future__ import annotations

import gc
import os
import signal
from itertools import count
from pathlib import Path

import pytest
from gpu.run import CACHE
from hypothesis import HealthCheck, settings
from nursery import forked, remember_kernels, starting  # noqa: F401  fixtures

from rooflab import engine, workloads
from rooflab.files import cache_dir
from rooflab.model.roofline import Roofline

# Before NumPy is loaded, here and in processes of tests: threads of BLAS on a busy core wait for
# each other for scheduler ticks.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Roofs that tests imitate are not to be taken for this machine's, also in processes of tests.
if cache_dir().name != CACHE:
    os.environ["ROOFLAB_CACHE_DIR"] = str(cache_dir() / CACHE)

# Shells start what they run in the background with Ctrl-C ignored. Tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How fast examples are drawn and run depends on what else the machine does: it is no failure.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

remember_kernels()


NUMBERS = count()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run every test in a folder of its own, so that none writes into the checkout.

    ``tmp_path`` would find a number and replace a link too, which takes as long as many tests.
    """
    folder = tmp_path_factory.mktemp(f"elsewhere{next(NUMBERS)}", numbered=False)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(autouse=True)
def own_workloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A workload that a test registers is gone after it."""
    monkeypatch.setattr(workloads, "_known", dict(workloads._known))


@pytest.fixture(autouse=True)
def first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the roofs of another, nor those of this machine when it was less busy."""
    monkeypatch.setattr(engine, "best_roofline", lambda device: Roofline(()))
    monkeypatch.setattr(engine, "keep_roofs", lambda device, measured: None)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """``pytest -m slow`` need not import the files without such tests, which are most."""
    if config.option.markexpr != "slow" or not collection_path.match("test_*.py"):
        return None
    return "mark.slow" not in collection_path.read_text(encoding="utf-8") or None


MINUTES = (
    *("test_kernels_in_cute_compile", "test_what_is_proposed_for_hopper_compiles"),
    *("test_no_cheat_is_accepted", "test_no_cheat_is_ok"),
)
"""Tests that take a minute or more each."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first, so that other processes do not wait for it at the end."""
    items.sort(
        key=lambda item: (item.path.parent.name != "docs", not item.name.startswith(MINUTES))
    )


def pytest_collection_finish() -> None:
    """The garbage collector looks no more at what lasts as long as the tests: a million objects."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI nothing may be left out in silence: a skipped test is a failure there."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") and reporter and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
