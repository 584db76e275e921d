"""A few cheats on a CPU. The others are in tests/slow/test_cpu_cheats.py."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter_ns

import pytest
from cheats import judge, table

from rooflab.devices.cpu import device
from rooflab.kernels.sources import load_file


def test_no_cheat_is_ok(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFLAB_CACHE_DIR", str(elsewhere / "cache"))
    found = judge.surprises([table.FEW], elsewhere)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("runs", [table.CPU, table.GPU], ids=["CPU", "GPU"])
def test_the_tables_have_every_kernel(
    runs: dict[str, tuple[table.Sweep, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "perf_counter_ns", perf_counter_ns)  # a file replaces it
    named: dict[str, set[str]] = {}
    for sweep in (sweep for run in runs.values() for sweep in run):
        for name in (*sweep.honest, *sweep.cheats):
            file, _, kernel = sweep.pattern(name).partition(".py:")
            path = f"{file}.py" if kernel else file
            named.setdefault(path, set()).add(kernel or Path(name).stem)
    for path, names in named.items():
        assert {kernel.name for kernel in load_file(path)} == names, path
    if runs is table.GPU:
        assert {Path(path) for path in named if path.endswith(".cu")} == set(
            table.FOLDER.glob("cuda/*.cu")
        )
