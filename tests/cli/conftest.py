from __future__ import annotations

from collections.abc import Callable

import pytest

from rooflab import plot
from rooflab.cli import main

Rooflab = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns without colour."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture(autouse=True)
def pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes a second: only tests marked ``pictures`` do it."""
    if not request.node.get_closest_marker("pictures"):
        monkeypatch.setattr(plot, "draw_all", lambda run: [])


@pytest.fixture
def rooflab(capsys: pytest.CaptureFixture[str]) -> Rooflab:
    """Runs a command line; returns exit code, stdout, stderr, without trailing blanks.

    ``sweep`` runs on the exact device, unless a device is named.
    """

    def run(*arguments: object) -> tuple[int, str, str]:
        words = [str(argument) for argument in arguments]
        if words[0] == "sweep" and not {"--device", "--resume"} & set(words):
            words += ["--device", "fake:FakeDevice"]
        with pytest.raises(SystemExit) as ended:
            main(words)
        out, err = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return code, _trimmed(out), _trimmed(err)

    return run


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")
