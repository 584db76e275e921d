"""The pytest plugin: the fixture ``roofline`` times functions, and asserts what they reach."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rooflab.api import Races
    from rooflab.functions.bench import Result
    from rooflab.runs.compare import Comparison

SAVE, JSON, COMPARE, THRESHOLD, FAIL, DEVICE = (
    f"--roofline-{word}" for word in ("save", "json", "compare", "threshold", "fail", "device")
)

IN_WORKERS = (
    "workers of pytest-xdist would disturb each other's times: run the tests that use the fixture "
    "roofline with -n 0"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the plugin."""
    group = parser.getgroup("rooflab", "rooflab: how close functions are to the device's roofs")
    group.addoption(SAVE, metavar="FOLDER", help="write all rows as one run of rooflab")
    group.addoption(JSON, metavar="FILE", help="write all rows as JSON")
    group.addoption(COMPARE, metavar="BASE", help="compare with a run that was saved before")
    group.addoption(
        THRESHOLD, metavar="PERCENT", type=float, help="smallest change that counts; default: 0.5"
    )
    group.addoption(FAIL, action="store_true", help="fail if a function is SLOW beside BASE")
    group.addoption(DEVICE, metavar="DEVICE", help="skip the tests if it is not here: cuda:0")


def pytest_configure(config: pytest.Config) -> None:
    """Where the rows of the session are."""
    config.stash[_RESULTS] = []
    if (base := config.getoption(COMPARE)) and not Path(base).is_dir():
        raise pytest.UsageError(f"{COMPARE} {base}: no such run; write one with {SAVE} {base}")
    if config.getoption(FAIL) and not base:
        raise pytest.UsageError(f"{FAIL} is for {COMPARE} BASE")
    _check_outputs(config.getoption(SAVE), config.getoption(JSON))
    threshold = config.getoption(THRESHOLD)
    if threshold is not None and not (base and 0 <= threshold < inf):
        raise pytest.UsageError(f"{THRESHOLD} is 0 or more, in percent, and for {COMPARE} BASE")


def _check_outputs(folder: str | None, file: str | None) -> None:
    """Before anything is timed."""
    from rooflab.runs.store import MANIFEST

    if folder and (Path(folder) / MANIFEST).exists():
        raise pytest.UsageError(f"{SAVE} {folder}: this is a run already; name another folder")
    if file and not Path(file).absolute().parent.is_dir():
        raise pytest.UsageError(f"{JSON} {file}: no such folder")


_RESULTS = pytest.StashKey[list["Result"]]()


@pytest.fixture
def roofline(request: pytest.FixtureRequest) -> Callable[..., Result]:
    """``roofline(f, x).percent``: ``rooflab.bench``, with a row named after the test.

    Workers of pytest-xdist are refused. With ``--roofline-device`` the test is skipped if that
    device is not here.
    """
    from rooflab.devices.registry import open_device
    from rooflab.errors import UnavailableError, UsageError
    from rooflab.functions.bench import bench

    if hasattr(request.config, "workerinput"):
        pytest.fail(IN_WORKERS, pytrace=False)
    results = request.config.stash[_RESULTS]
    device = request.config.getoption(DEVICE)
    if device:
        try:
            open_device(device)
        except UnavailableError as error:
            pytest.skip(str(error))
        except UsageError as error:
            pytest.fail(f"{DEVICE} {device}: {error}", pytrace=False)

    calls = 0

    def timed(functions: Any, *args: Any, **options: Any) -> Result:
        nonlocal calls
        calls += 1
        name = request.node.nodeid + (f" {calls}" if calls > 1 else "")
        if callable(functions):
            functions = {name: functions}
        result = bench(functions, *args, **{"device": device, **options})
        results.append(result.renamed(lambda one: one if one == name else f"{name} {one}"))
        if wrong := [row for row in result.measurements if row.status != "ok"]:
            pytest.fail("\n".join(f"{row.kernel}: {row.status}: {row.reason}" for row in wrong))
        return result

    return timed


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The rows, where they are, and what has changed."""
    results = config.stash[_RESULTS]
    if not results:
        return
    from rooflab.errors import RooflabError
    from rooflab.files import write_named
    from rooflab.functions.bench import joined
    from rooflab.report.export import EXPORTERS

    terminalreporter.section("roofline")
    for result in results:
        terminalreporter.line(str(result))
    together = joined(results)
    try:
        if file := config.getoption(JSON):
            write_named(Path(file), EXPORTERS["json"](together))
        if folder := config.getoption(SAVE):
            terminalreporter.line(f"saved: {together.save(folder).path}")
    except (OSError, RooflabError) as error:
        terminalreporter.line(f"error: {error}", red=True)
    if base := config.getoption(COMPARE):
        for line in _changes(base, together, config.getoption(THRESHOLD)):
            terminalreporter.line(line)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail if something is slower than before, and if that was asked for."""
    results, base = session.config.stash[_RESULTS], session.config.getoption(COMPARE)
    if session.config.getoption(FAIL) and base and results and not session.exitstatus:
        from rooflab.functions.bench import joined
        from rooflab.runs.compare import Comparison, Verdict

        compared = _compared(base, joined(results), session.config.getoption(THRESHOLD))
        if isinstance(compared, str) or (
            isinstance(compared, Comparison) and (compared.counts[Verdict.SLOW] or compared.broken)
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _compared(base: str, new: Result, threshold_percent: float | None) -> Comparison | Races | str:
    """As ``rooflab.compare``, or why they cannot be compared."""
    from rooflab.api import compare
    from rooflab.errors import RooflabError

    try:
        return compare(base, new, threshold_percent)
    except RooflabError as error:
        return f"not compared with {base}: {error}"


def _changes(base: str, new: Result, threshold_percent: float | None) -> list[str]:
    """What ``rooflab compare`` says, one line for each point that is not the SAME."""
    from rooflab.report import verdicts
    from rooflab.runs.compare import Comparison, Verdict

    compared = _compared(base, new, threshold_percent)
    if not isinstance(compared, Comparison):
        return str(compared).splitlines()
    shown = [one for one in Verdict if one != Verdict.SAME]
    cells = verdicts.cells(compared, shown)
    lines = ["  ".join(filter(None, line)) for line in cells and [verdicts.COLUMNS, *cells]]
    return [*lines, verdicts.sentence(compared)]
