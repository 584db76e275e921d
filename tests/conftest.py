"""Fixtures for all tests: a private cache, a private folder, and a device with an exact clock."""

from __future__ import annotations

import os
from pathlib import Path

import fake
import pytest


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run every test in a folder of its own, so that none writes into the checkout."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def fake_device(monkeypatch: pytest.MonkeyPatch) -> fake.FakeDevice:
    """Stands in for every device; time on it is what its kernels say."""
    return fake.install(monkeypatch)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI nothing may be left out in silence: a skipped test is a failure there."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") and reporter and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
