"""Measured roofs: the best that a machine has shown, in all rows of a run and in all runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import Rooflab, joined, only_run, statuses

from rooflab import engine
from rooflab.engine import REMEASURED
from rooflab.measure import levels
from rooflab.runs import store

ONE = ("-k", "fast", "-p", "fp32", "--sizes", "64")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Nothing is known of the machine yet."""
    monkeypatch.setattr(engine, "best_roofline", levels.best_roofline)
    monkeypatch.setattr(engine, "keep_roofs", levels.keep_roofs)
    monkeypatch.setenv("ROOFLAB_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Machine:
    """Sweeps on a device whose roofs change."""

    def __init__(self, rooflab: Rooflab, monkeypatch: pytest.MonkeyPatch) -> None:
        self._rooflab, self._patch = rooflab, monkeypatch

    def sweep(
        self, factor: float, device: str = "Changing", *, disturbed: bool = False
    ) -> tuple[float, str]:
        """GFLOP/s of the roof in the run, and what was said about it."""
        self._patch.setenv("FAKE_ROOFS", str(factor))
        if disturbed:
            self._patch.setenv("FAKE_DISTURBED", "1")
        else:
            self._patch.delenv("FAKE_DISTURBED", raising=False)
        before = set(Path("results").glob("*"))
        code, _, err = self._rooflab("sweep", *ONE, "--device", f"fake:{device}")
        assert code == 0, err
        (folder,) = set(Path("results").glob("*")) - before
        run = store.load(folder)
        (row,) = run.measurements
        ceiling = run.manifest.roofline.compute("fp32")
        assert ceiling is not None
        assert row.roof_us == pytest.approx(2 * 64**3 / ceiling.value * 1e6)
        notes = [line for line in joined(err).split("warning: ") if "slower than in" in line]
        return ceiling.value / 1e9, "".join(notes)


@pytest.fixture
def machine(rooflab: Rooflab, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(rooflab, monkeypatch)


def test_the_best_roofs_of_earlier_runs_are_used(machine: Machine) -> None:
    assert machine.sweep(1.0) == (1.0, "")
    used, note = machine.sweep(0.5)
    assert used == 1.0
    assert note.startswith(
        "this machine is slower than in an earlier run, whose roofs are used: "
        "DRAM 0.05 GB/s (best: 0.1 GB/s), fp32 0.5 GFLOP/s (best: 1 GFLOP/s), "
        "fp64 0.25 GFLOP/s (best: 0.5 GFLOP/s)"
    )
    assert machine.sweep(0.96) == (1.0, "")  # as from one minute to the next
    assert machine.sweep(2.0) == (2.0, "")
    assert machine.sweep(1.99) == (2.0, "")


def test_roofs_beside_other_programs_are_not_kept(machine: Machine) -> None:
    assert machine.sweep(1.5, disturbed=True)[0] == 1.5
    assert machine.sweep(1.0) == (1.0, "")
    used, note = machine.sweep(0.5, disturbed=True)
    assert used == 1.0
    assert "slower than in an earlier run" in note


def test_roofs_that_are_facts_are_not_kept(machine: Machine, cache: Path) -> None:
    assert machine.sweep(2.0, "Given") == (2.0, "")
    assert machine.sweep(1.0, "Given") == (1.0, "")
    assert not (cache / "roofs").exists()


def test_a_cache_that_cannot_be_written_is_no_failure(machine: Machine, cache: Path) -> None:
    cache.write_text("a file")
    assert machine.sweep(1.0) == (1.0, "")
    assert machine.sweep(0.5) == (0.5, "")


def test_rows_from_before_the_roofs_were_raised_are_rated_again(rooflab: Rooflab) -> None:
    """A kernel passes the roofs: all rows refer to the higher ones."""
    kernels = ("-k", "fast,beats_the_roof", "-p", "fp32", "--device", "fake:BusyAtFirst")
    code, _, err = rooflab("sweep", *kernels, "--sizes", "64,128")
    assert code == 0
    assert joined(err).count("a kernel exceeded a measured roof; roofs measured again: ") == 1
    run = only_run()
    assert statuses(run) == [("fast", "ok"), ("beats_the_roof", "ok")] * 2
    shares = [row.roof_percent for row in run.measurements]
    assert shares == pytest.approx([10, 50, 10, 50])
    assert all("above_roof" not in row.flag_names for row in run.measurements)
    # They are the machine's from now on.
    code, _, err = rooflab("sweep", *kernels, "--sizes", "64", "--out", "again")
    rows = only_run("again").measurements
    assert [row.status for row in rows] == ["ok", "ok"]
    assert [row.roof_percent for row in rows] == pytest.approx([10, 50])
    assert "measured again" not in err


def test_a_roof_that_stays_too_low_is_measured_a_few_times(rooflab: Rooflab) -> None:
    """``NeverAgain`` says each time why it was not."""
    sizes = ",".join(str(32 + 8 * i) for i in range(REMEASURED + 2))
    code, _, err = rooflab(
        *("sweep", "-k", "beats_the_roof", "-p", "fp32", "--sizes", sizes),
        *("--device", "fake:NeverAgain"),
    )
    assert code == 3
    assert joined(err).count("the roofs were not measured again: ") == REMEASURED
    assert {row.status for row in only_run().measurements} == {"impossible"}


def test_a_continued_run_keeps_the_roofs_of_its_first_rows(
    rooflab: Rooflab, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = ("--device", "fake:Changing")
    rooflab("sweep", "-k", "fast", "-p", "fp32", "--sizes", "64,72", *device)
    table = only_run().path / store.MEASUREMENTS
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:-1]))
    monkeypatch.setenv("FAKE_ROOFS", "0.25")
    code, _, err = rooflab("sweep", "--resume", only_run().path, *device)
    assert code == 0, err
    shares = [row.roof_percent for row in only_run().measurements]
    assert shares == pytest.approx([80, 20])
