import csv
import io
from pathlib import Path

import pytest

from rooflab.devices.records import Recording
from rooflab.errors import RunError
from rooflab.programs.imports import load

DATA = Path(__file__).parents[2] / "data" / "programs"

WIDE = {
    "ID": ("", "0"),
    "Kernel Name": ("", "gemm(float*, int)"),
    "Stream": ("", "7"),
    "Block Size": ("", "(128, 1, 1)"),
    "Grid Size": ("", "(4, 2, 1)"),
    "Device": ("", "0"),
    "CC": ("", "9.0"),
    "gpu__time_duration.sum": ("usecond", "1,024.50"),
}


def table(*lines: list[str]) -> str:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows(lines)
    return text.getvalue()


def loaded(folder: Path, text: str) -> Recording:
    path = folder / "a.csv"
    path.write_text(text)
    return load(path)


def wide(folder: Path, **metrics: tuple[str, str]) -> Recording:
    cells = WIDE | {name.replace("sum_", ".sum"): value for name, value in metrics.items()}
    units, values = zip(*cells.values(), strict=True)
    return loaded(folder, table(list(cells), list(units), list(values)))


def long(folder: Path, *metrics: tuple[str, str, str, str]) -> Recording:
    """Lines of launch, metric, unit and value."""
    names = ["ID", "Process ID", "Kernel Name", "Block Size", "Grid Size", "Metric Name"]
    lines = [
        [launch, "884", f"kernel_{launch}", "(128, 1, 1)", "(4, 2, 1)", name, unit, value]
        for launch, name, unit, value in metrics
    ]
    return loaded(folder, table([*names, "Metric Unit", "Metric Value"], *lines))


@pytest.mark.parametrize("cell", ["nan", "inf", "-5", "1.2.3", "12x", "9" * 40])
def test_a_cell_that_is_no_number_is_left_out_and_told(tmp_path: Path, cell: str) -> None:
    found = wide(tmp_path, **{"dram__bytes_read.sum": ("byte", cell)})
    assert found.launches[0].counters is None
    note = next(note for note in found.notes if note.startswith("Left out"))
    assert note == (
        f"Left out, because they are no numbers: line 3, dram__bytes_read.sum: {cell[:40]!r}."
    )


@pytest.mark.parametrize("cell", ["", "n/a", "N/A"])
def test_a_metric_without_a_value_is_no_damage(tmp_path: Path, cell: str) -> None:
    found = wide(tmp_path, **{"dram__bytes_read.sum": ("byte", cell)})
    assert not any(note.startswith("Left out") for note in found.notes)


def test_of_many_damaged_cells_the_first_are_told(tmp_path: Path) -> None:
    lines = [(str(i), "dram__bytes_read.sum", "byte", "nan") for i in range(9)]
    times = [(str(i), "gpu__time_duration.sum", "ns", "9") for i in range(9)]
    note = long(tmp_path, *lines, *times).notes[-1]
    assert note.count("'nan'") == 3 and note.endswith("and 6 more.")
    assert "line 2, dram__bytes_read.sum" in note


def test_texts_of_a_table_are_no_damaged_numbers(tmp_path: Path) -> None:
    found = wide(tmp_path, launch__func_cache_config=("", "CachePreferNone"))
    assert not any(note.startswith("Left out") for note in found.notes)


def test_a_real_table_of_the_set_full() -> None:
    found = load(DATA / "ncu_raw.csv")
    assert (found.source, found.device_name) == ("Nsight Compute", "NVIDIA H200")
    assert found.facts == {"sm_count": 132, "l2_cache": 62914560, "compute_capability": "9.0"}
    assert [one.ns for one in found.launches] == [17664, 33024, 9440]
    assert [one.start_ns for one in found.launches] == [0, 17664, 50688]
    gemm = found.launches[1]
    assert gemm.kernel == "nvjet_sm90_hsh_256x128_64x4_1x2_h_bz_coopA_NNT"
    assert (gemm.grid, gemm.block) == ((2, 64, 1), (384, 1, 1))
    assert (gemm.shared_bytes, gemm.registers, gemm.stream) == (213188, 168, 7)


def test_sums_and_rates_of_the_set_full_become_flops_and_bytes() -> None:
    _, gemm, gelu = (one.counters for one in load(DATA / "ncu_raw.csv").launches)
    assert gemm is not None
    assert gelu is not None
    assert gemm.flops == {"tensor_fp16": 2 * 2048 * 2048 * 2048}
    assert gemm.dram_bytes == pytest.approx(254_666_666_666.67 * 33.024e-6, rel=1e-6)
    assert gemm.cycles == 43598
    assert gemm.mhz == pytest.approx(1293.9, rel=1e-4)
    per_cycle = 600.75 + 2 * 2129.31 + 1216.75
    assert gelu.flops == {"fp32": pytest.approx(per_cycle * 13788.55)}


def test_a_real_table_with_a_line_per_metric() -> None:
    found = load(DATA / "ncu_long.csv")
    assert [one.ns for one in found.launches] == [17344, 32672, 9472]
    gemm, gelu = (one.counters for one in found.launches[1:])
    assert gemm is not None
    assert gelu is not None
    assert gemm.flops == {"tensor_fp16": 2 * 2048 * 2048 * 2048}
    assert (gemm.dram_bytes, gelu.dram_bytes) == (8_410_368, 8_401_664 + 512)


def test_a_note_says_under_what_the_times_are(tmp_path: Path) -> None:
    notes = wide(tmp_path).notes
    assert "locked clocks" in notes[0]
    assert "1 launches of 1 have no counters" in notes[1]


@pytest.mark.parametrize(
    ("unit", "value", "ns"),
    [
        ("nsecond", "1,024", 1024),
        ("usecond", "1.50", 1500),
        ("msecond", "2", 2_000_000),
        ("second", "1", 10**9),
        ("ns", "7", 7),
        ("us", "7", 7000),
        ("ms", "7", 7_000_000),
        ("s", "7", 7 * 10**9),
    ],
)
def test_units_of_time(tmp_path: Path, unit: str, value: str, ns: int) -> None:
    found = long(tmp_path, ("0", "gpu__time_duration.sum", unit, value))
    assert found.launches[0].ns == ns


@pytest.mark.parametrize(
    ("unit", "factor"),
    [("byte", 1), ("Kbyte", 1e3), ("Mbyte", 1e6), ("Gbyte", 1e9), ("Tbyte", 1e12)],
)
def test_units_of_bytes(tmp_path: Path, unit: str, factor: float) -> None:
    found = wide(tmp_path, dram__bytes_readsum_=(unit, "2.50"))
    assert found.launches[0].counters is not None
    assert found.launches[0].counters.dram_bytes == 2.5 * factor


@pytest.mark.parametrize(
    ("unit", "value"),
    [("hz", "1,500,000,000"), ("Mhz", "1,500"), ("GHz", "1.50"), ("cycle/nsecond", "1.50")],
)
def test_units_of_clocks(tmp_path: Path, unit: str, value: str) -> None:
    clock = {"sm__cycles_elapsed.avg.per_second": (unit, value), "dram__bytes_read.sum": ("", "8")}
    found = wide(tmp_path, **clock)
    assert found.launches[0].counters is not None
    assert found.launches[0].counters.mhz == pytest.approx(1500)


def test_rates_per_block_keep_their_prefix(tmp_path: Path) -> None:
    shared = {
        "launch__shared_mem_per_block_static": ("Kbyte/block", "49.15"),
        "launch__shared_mem_per_block_dynamic": ("byte/block", "16"),
    }
    assert wide(tmp_path, **shared).launches[0].shared_bytes == 49_166


def test_the_page_of_details_has_other_names(tmp_path: Path) -> None:
    found = long(
        tmp_path,
        *(("0", "Duration", "usecond", "3.00"), ("0", "Registers Per Thread", "", "40")),
        *(("0", "Memory Throughput", "%", "14.26"), ("1", "Duration", "msecond", "1.00")),
    )
    assert [(one.kernel, one.ns, one.registers) for one in found.launches] == [
        ("kernel_0", 3000, 40),
        ("kernel_1", 1_000_000, 0),
    ]


def test_dimensions_from_metrics_of_an_older_version(tmp_path: Path) -> None:
    names = [f"launch__{what}_dim_{axis}" for what in ("grid", "block") for axis in "xyz"]
    values = dict(zip(names, "425311", strict=True))
    lines = {"ID": "0", "Kernel Name": "k", "gpu__time_duration.sum": "9", **values}
    units = ["", "", "nsecond", *[""] * 6]
    found = loaded(tmp_path, table(list(lines), units, list(lines.values())))
    assert (found.launches[0].grid, found.launches[0].block) == ((4, 2, 5), (3, 1, 1))


def test_messages_between_the_lines_are_not_of_the_table(tmp_path: Path) -> None:
    text = (DATA / "ncu_long.csv").read_text().splitlines()
    mixed = "\r\n".join(["loss 0.5", *text[:6], "==WARNING== something", *text[6:], "done"])
    assert len(loaded(tmp_path, mixed).launches) == 3


def test_a_number_of_another_language_is_told(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"line 2: 5,4 is not a number in English.*LC_ALL=C"):
        long(tmp_path, ("0", "gpu__time_duration.sum", "usecond", "5,4"))


def test_a_launch_without_a_time_says_how_to_record_it(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"line 3: this launch has no gpu__time_duration\.sum"):
        wide(tmp_path, **{"gpu__time_duration.sum": ("", "n/a")})


def test_a_line_that_was_cut_off_is_told_by_its_number(tmp_path: Path) -> None:
    text = (DATA / "ncu_raw.csv").read_text()
    with pytest.raises(RunError, match=r"a\.csv line 7: damaged"):
        loaded(tmp_path, text[:-50])


def test_no_launches_say_how_to_write_them(tmp_path: Path) -> None:
    lines = (DATA / "ncu_raw.csv").read_text().splitlines()
    with pytest.raises(RunError, match="no kernel is in this table"):
        loaded(tmp_path, "\n".join(lines[:4]))


def report(folder: Path) -> Path:
    path = folder / "a.ncu-rep"
    path.write_bytes(b"NVR\0\x02\0\0\0")
    return path


def test_a_report_without_ncu_has_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rooflab.devices.cuda.ncu.find", lambda: None)
    with pytest.raises(RunError, match=r"ncu --import FILE.ncu-rep --csv --page raw"):
        load(report(tmp_path))


def program(folder: Path, prints: str) -> str:
    """A program that says with what it was called, and prints a file."""
    path = folder / "ncu"
    path.write_text(f'#!/bin/sh\necho "$@" > "{folder}/called"\n{prints}\n')
    path.chmod(0o755)
    return str(path)


def test_a_report_is_read_by_ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ncu = program(tmp_path, f'cat "{DATA}/ncu_raw.csv"')
    monkeypatch.setattr("rooflab.devices.cuda.ncu.find", lambda: ncu)
    assert len(load(report(tmp_path)).launches) == 3
    called = (tmp_path / "called").read_text()
    assert called.startswith(f"--import {tmp_path}/a.ncu-rep --csv --page raw")


def test_what_ncu_says_of_a_report_that_it_does_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ncu = program(tmp_path, 'echo "==ERROR== Failed to open report"; exit 1')
    monkeypatch.setattr("rooflab.devices.cuda.ncu.find", lambda: ncu)
    with pytest.raises(RunError, match=r"ncu does not read it .*Failed to open report"):
        load(report(tmp_path))
