from __future__ import annotations

from collections.abc import Callable

import fake
import pytest

from rooflab import plot
from rooflab.cli import main

Rooflab = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def device(fake_device: fake.FakeDevice, monkeypatch: pytest.MonkeyPatch) -> fake.FakeDevice:
    """Every command meets the exact device, in a terminal of 80 columns without colour."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    return fake_device


@pytest.fixture(autouse=True)
def pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes a second: only tests marked ``pictures`` do it."""
    if not request.node.get_closest_marker("pictures"):
        monkeypatch.setattr(plot, "draw_all", lambda run: [])


@pytest.fixture
def rooflab(capsys: pytest.CaptureFixture[str]) -> Rooflab:
    """Runs a command line; returns exit code, stdout, stderr, without trailing blanks."""

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return code, _trimmed(out), _trimmed(err)

    return run


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")
