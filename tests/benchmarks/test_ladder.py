"""benchmarks/ladder.py: which rows race, what is reached, and errors, without a GPU."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import _common
import _ladder
import _ladder_errors
import fake
import ladder
import numpy as np
import pytest
from synthetic import h200_roofline, row, run

from rooflab.devices.base import Launch
from rooflab.kernels.base import Kernel, Operands, Variant
from rooflab.kernels.registry import Registry
from rooflab.kernels.sources import discover
from rooflab.model.encoding import decode, encode
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import Problem
from rooflab.runs.store import RunData
from rooflab.workloads.rows import Gemv

ROOFLINE = h200_roofline()


def ours(kernel: str, size: int, us: float, precision: str = "bf16", **other: Any) -> Measurement:
    return timed(kernel, size, us, precision, **{"backend": "cuda", **other})


def library(
    size: int, us: float, precision: str = "bf16", kernel: str = "cublas", **other: Any
) -> Measurement:
    return timed(kernel, size, us, precision, **{"backend": "cublas", **other})


def timed(kernel: str, size: int, us: float, precision: str, **other: Any) -> Measurement:
    shape = other.pop("shape", (size, size, size))
    other.setdefault("layout", "nt")
    made = row(kernel, shape, precision, 1.0, ROOFLINE, **other)
    return replace(made, time_us=us, time_lo_us=0.99 * us, time_hi_us=us / 0.99)


def made(*rows: Measurement, name: str = "run", hours: int = 0) -> RunData:
    one = run("NVIDIA H200", ROOFLINE, list(rows), path=Path("results") / name)
    one.manifest.created += timedelta(hours=hours)
    return one


def only(one: RunData, what: str = "bf16") -> _ladder.Contest:
    (contest,) = _ladder.contests(one, what).values()
    return contest


# What counts -------------------------------------------------------------------------------------


def test_the_faster_library_counts() -> None:
    contest = only(
        made(
            ours("champion", 1024, 10.0),
            ours("overlapped", 1024, 11.0),
            library(1024, 12.0),
            library(1024, 11.0, kernel="cublaslt"),
            ours("cutlass_heuristics", 1024, 11.5, backend="cutlass"),
        )
    )
    assert (contest.ours.kernel, contest.library.kernel) == ("champion", "cublaslt")
    assert contest.rivals == 3
    assert contest.ratio == pytest.approx(1.1)
    assert contest.interval == "1.084 to 1.116"


def test_a_clock_that_kernels_shared_is_told() -> None:
    capped = made(ours("champion", 1024, 10.0, flags="noisy;power_capped"), library(1024, 12.0))
    cool = made(ours("champion", 1024, 10.0), library(1024, 12.0))
    assert _ladder.verdict([capped], "bf16").shared_clock.endswith("shared: 1024 nt.")
    assert _ladder.verdict([cool], "bf16").shared_clock == ""
    capped.manifest.config["timing"] = {"own_clock_s": 0.3}
    assert _ladder.verdict([capped], "bf16").shared_clock == ""


def test_each_layout_counts_by_itself() -> None:
    found = _ladder.contests(
        made(
            ours("champion", 1024, 10.0, layout="nt"),
            ours("mma", 1024, 20.0, layout="nn"),
            library(1024, 12.0, layout="nt"),
            library(1024, 9.0, layout="nn"),
        ),
        "bf16",
    )
    assert {place: one.ratio for place, one in found.items()} == {
        ("1024", "nn"): pytest.approx(0.45),
        ("1024", "nt"): pytest.approx(1.2),
    }


def test_bursts_are_those_of_the_fastest_there() -> None:
    """Where the power limit acts; a row that it did not slow down would be as fast."""
    rows = [
        ours("champion", 1024, 10.0, flags="power_capped", burst_us=9.0),
        ours("large", 1024, 11.0, flags="power_capped", burst_us=8.0),
        library(1024, 12.0, flags="power_capped", burst_us=9.6),
        library(1024, 11.5, kernel="cublaslt"),
    ]
    assert only(made(*rows)).burst == pytest.approx(9.6 / 8.0)
    assert only(made(*(replace(row, flags="") for row in rows))).burst is None
    assert only(made(*(replace(row, burst_us=None) for row in rows))).burst is None


@pytest.mark.parametrize(
    ("variant", "against"), [("128x256", "cublaslt_fast"), ("128x256 promoted", "cublaslt")]
)
def test_fp8_races_with_the_same_sums(variant: str, against: str) -> None:
    contest = only(
        made(
            ours("champion", 1024, 10.0, "fp8", variant=variant),
            library(1024, 12.0, "fp8", kernel="cublaslt"),
            library(1024, 11.0, "fp8", kernel="cublaslt_fast"),
        ),
        "fp8",
    )
    assert contest.library.kernel == against


def test_three_products_race_with_fp32() -> None:
    rows = [
        ours("mma", 1024, 10.0, "fp32_3xtf32"),
        ours("producers", 1024, 5.0, "fp32"),
        library(1024, 20.0, "fp32"),
    ]
    contest = only(made(*rows), "fp32_3xtf32")
    assert contest.ours.kernel == "mma"
    assert contest.ratio == pytest.approx(2.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"cache": "warm"},
        {"beta": 1.0},
        {"batch": 2},
        {"shape": (1024, 1024, 512)},
        {"backend": "cutlass"},
        {"kernel": "early"},
        {"kernel": "cute_gemm"},
        {"size": 512},
        {"status": "failed"},
    ],
)
def test_other_rows_do_not_count(wrong: dict[str, Any]) -> None:
    size, kernel = wrong.pop("size", 1024), wrong.pop("kernel", "champion")
    rows = [ours(kernel, size, 10.0, **wrong), library(size, 12.0)]
    assert not _ladder.contests(made(*rows), "bf16")


def test_other_fills_and_devices_do_not_count() -> None:
    one = made(ours("champion", 1024, 10.0), library(1024, 12.0))
    one.manifest.config["fill"] = "zeros"
    assert not _ladder.contests(one, "bf16")
    cpu = run("CPU", ROOFLINE, one.measurements, kind="cpu")
    assert not _ladder.contests(cpu, "bf16")


def test_one_run_counts_for_a_precision() -> None:
    """That with most of it, then with most rivals, then the newest."""
    both = [r for n in (1024, 2048) for r in (ours("champion", n, 10.0), library(n, 12.0))]
    rival = library(1024, 9.0, kernel="cublaslt")
    runs = [
        made(*both, name="old"),
        made(*both[:2], rival, name="small", hours=1),
        made(*both, rival, name="hard", hours=2),
        made(*both, name="easy", hours=3),
        made(*both, rival, name="later", hours=4),
        made(both[0], name="alone", hours=5),
    ]
    for chosen in ("later", "hard", "easy", "old", "small"):
        found = _ladder.verdict(_ladder.newest_first(runs), "bf16")
        assert found.run
        assert found.run.path.name == chosen
        runs = [run for run in runs if run.path.name != chosen]
    assert _ladder.verdict(runs, "bf16").run is None


def test_a_vector_is_a_matrix_of_one_row() -> None:
    problem = Gemv(m=6144, n=4096, precision=PRECISIONS["fp16"]).record
    teams = replace(ours("teams", 1, 10.0), problem=problem)
    rows = [teams, library(0, 12.0, "fp16", shape=(1, 6144, 4096))]
    found = _ladder.contests(made(*rows), "decode")
    assert {place: one.ratio for place, one in found.items()} == {
        ("fp16 1x6144x4096", "nt"): pytest.approx(1.2)
    }
    assert len(_ladder.places("decode")) == 18


# Targets -----------------------------------------------------------------------------------------


def race(ratios: Iterable[float], other: float = 1.1) -> RunData:
    """The ratios of one layout, by size; that of the other."""
    rows = []
    for size, ratio in zip(_ladder.SIZES, ratios, strict=False):
        for layout, times in (("nt", ratio), ("nn", other)):
            rows.append(ours("champion", size, 10.0, layout=layout))
            rows.append(library(size, 10 * times, layout=layout))
    return made(*rows)


@pytest.mark.parametrize(
    ("ratios", "told"),
    [
        ([1.2, 1.1, 1.0, 1.0], "reached"),
        ([1.04] * 4, "NOT REACHED"),
        ([1.3, 1.1, 1.0, 0.98], "NOT REACHED"),
        ([1.2] * 3, "open, without 8192 nn, 8192 nt"),
    ],
)
def test_a_target_has_a_mean_and_a_least(ratios: list[float], told: str) -> None:
    verdict = _ladder.verdict([race(ratios)], "bf16")
    assert verdict.sentence.endswith(f": {told}")
    assert verdict.reached == (told == "reached")


def test_the_page_says_what_is_missing() -> None:
    other = replace(race([1.04] * 4), manifest=race([]).manifest.model_copy(deep=True))
    other.manifest.device.name = "NVIDIA H100"
    text, good = _ladder.page([race([1.1] * 4, 1.2), other], [])
    assert not good
    assert "### BF16\n\n| size | layout |" in text
    mean = "Geometric mean: nn 1.200 (95 %: 1.192 to 1.209), least 1.200; "
    mean += "nt 1.100 (95 %: 1.092 to 1.108), least 1.100"
    assert f"{mean}; target 1.05, none below 0.99: reached. From run." in text
    assert "### FP64\n\nNot measured; target 1.00, none below 0.97." in text
    cards = [line for line in text.splitlines() if line.startswith("## ")]
    assert cards == ["## On one NVIDIA H100", "## On one NVIDIA H200"]
    assert text.endswith("\n1 of 2 as wanted\n")


def test_the_summary_has_a_column_for_each_layout() -> None:
    one = race([1.2, 1.0], 1.1)
    row = next(r for r in one.measurements if r.kernel == "champion")
    capped = replace(row, flags="power_capped", burst_us=0.9 * (row.time_us or 0))
    rows = [capped if r is row else r for r in one.measurements]
    head, _, first, second, *others, mean = _ladder.summary([made(*rows)]).splitlines()
    assert head == "| size | BF16 nn | BF16 nt |"
    assert first == "| 1024 | 1.100 | 1.200 (1.333) |"
    assert second == "| 2048 | 1.100 | 1.000 |"
    assert others[0] == "| 4096 | – | – |"
    assert mean == "| geometric mean | 1.100 | 1.095 |"


def test_a_mean_without_all_intervals_has_none() -> None:
    rows = race([1.1] * 5).measurements
    some = [replace(rows[0], time_lo_us=None, time_hi_us=None), *rows[1:]]
    sentence = _ladder.verdict([made(*some)], "bf16").sentence
    assert "nn 1.100 (95 %" in sentence
    assert "nt 1.100, least" in sentence


def rungs(**us: tuple[float, float]) -> RunData:
    return made(
        *(
            ours(kernel, size, time, "bf16")
            for kernel, times in us.items()
            for size, time in zip(_ladder.RUNG_SIZES, times, strict=True)
        )
    )


def test_each_rung_is_faster() -> None:
    good = rungs(early=(1, 1), wgmma=(5, 5), mma=(9, 9), champion=(2, 2), tiled=(1, 1))
    ((text, right),) = _ladder.ladder_sections([good])
    assert right
    rows = [line.split()[1] for line in text.splitlines() if line.startswith("| ")][2:]
    assert rows == ["mma", "wgmma", "champion"]  # launches of `early` overlap
    bad = rungs(mma=(9, 9), wgmma=(5, 5), specialised=(4, 6))
    ((text, right),) = _ladder.ladder_sections([bad])
    assert not right
    assert "NOT faster than before: specialised at 8192. From run." in text
    close = rungs(mma=(9, 9), wgmma=(8.99, 5))
    ((text, right),) = _ladder.ladder_sections([close])
    assert right
    assert "than the one before, but the interval has 1 in it: wgmma at 4096. From run." in text


# The script --------------------------------------------------------------------------------------


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    commands: list[list[str]] = []

    def sweep(options: list[str], out: Path, limit_s: float) -> None:
        commands.append([*options, str(limit_s)])

    monkeypatch.setattr(ladder, "sweep", sweep)
    monkeypatch.setattr(ladder, "open_gpu", fake.FakeDevice)
    monkeypatch.setattr(ladder, "compile_all", lambda *how: None)
    monkeypatch.setattr(ladder, "perf_counter", lambda: 0.0)
    return commands


def option(command: list[str], name: str) -> list[str]:
    return command[command.index(name) + 1].split(",")


def test_a_sweep_has_our_best_and_the_libraries(swept: list[list[str]], tmp_path: Path) -> None:
    words = ("fp32", "fp8", "fp32_3xtf32", "fp64", "--seconds", "40", "--sizes", "1024,4096")
    assert ladder.main([*words, "--out", str(tmp_path), "--pages", str(tmp_path)]) == 1
    fp32, fp8, three, fp64 = swept
    assert option(fp32, "-k")[-2:] == ["cublas", "cublaslt"]
    assert option(fp32, "--layout") == ["nn", "nt"]
    assert option(fp32, "--max-time") == ["40"]
    libraries = ["cublas", "cublaslt", "cublaslt_fast", "cutlass_heuristics"]
    assert option(fp8, "-k")[1:] == libraries
    assert option(fp8, "--layout") == ["nt"]
    assert option(three, "-p") == ["fp32", "fp32_3xtf32"]
    assert option(fp64, "--sizes") == ["1024", "4096"]
    assert float(fp64[-1]) == 40 + ladder.GRACE_S
    assert (tmp_path / "ladder.md").is_file()


def test_beside_it_races_what_is_for_larger_sizes(swept: list[list[str]], tmp_path: Path) -> None:
    words = ("bf16", "--sizes", "4096,16384", "--out", str(tmp_path), "--pages", str(tmp_path))
    ladder.main(words)
    assert "large" in option(swept[0], "-k")


def test_all_variants_are_compiled_before_the_sweep(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[tuple[str, int]] = []

    def variant(name: str) -> Variant:
        def build(device: object, problem: Problem) -> None:
            built.append((name, problem.extents["m"]))
            if name == "b":
                raise ValueError("no")

        unsupported = "too large" if name == "c" else ""
        return Variant(name, lambda device, operands: lambda: None, build, lambda _: unsupported)

    def kernel(name: str, *names: str, reason: str = "") -> Kernel:
        raced = tuple(map(variant, names))
        how: dict[str, Any] = {"variants": raced, "unavailable": lambda device: reason}
        return Kernel(name, "", "cuda", "", ("bf16",), _never, **how)

    registry = Registry()
    lacking = kernel("lacking", "d", reason="a package is missing")
    for one in (kernel("one", "a", "b", "c"), kernel("other"), lacking):
        registry.add(one)
    monkeypatch.setattr(ladder, "discover", lambda: registry)
    race = ladder.Race(["one", "other", "lacking", "un*known"], ["bf16"], ["nn"], [64, 128])
    ladder.compile_all(race, fake.FakeDevice(), [])
    assert sorted(built) == [("a", 64), ("a", 128), ("b", 64), ("b", 128)]
    assert "compiling 4/4" in capsys.readouterr().err
    ladder.compile_all(race, fake.FakeDevice(), ["a*"])
    assert sorted(built[4:]) == [("a", 64), ("a", 128)]


def test_the_kernels_of_one_race_are_not_those_of_the_next(
    swept: list[list[str]], tmp_path: Path
) -> None:
    words = ("fp8", "fp32", "decode", "--kernel", "mine.cu", "--sizes", "1024")
    ladder.main([*words, "--out", str(tmp_path), "--pages", str(tmp_path)])
    fp8, fp32, decode = swept
    assert option(fp8, "-k") == [
        *("mine.cu", "cublas", "cublaslt", "cublaslt_fast", "cutlass_heuristics")
    ]
    assert option(fp32, "-k") == option(decode, "-k") == ["mine.cu", "cublas", "cublaslt"]


def _never(device: object, operands: object) -> Launch:
    raise AssertionError


def test_the_best_is_the_highest_rung_that_takes_the_problem() -> None:
    kernels = [one for one in discover().all() if one.device_kind == "cuda"]
    chosen = ladder.entrants(kernels, "bf16", [1024], [])
    assert set(chosen) == {"nn", "nt"}
    assert not any({"early", "large"} & set(names) for names in chosen.values())
    assert "mma" not in chosen["nt"]
    assert "nn" in ladder.entrants(kernels, "bf16", [1024], ["nn"])


def test_all_rungs(swept: list[list[str]], tmp_path: Path) -> None:
    ladder.main(["bf16", "--rungs", "--out", str(tmp_path), "--pages", str(tmp_path)])
    (command,) = swept
    assert option(command, "-k")[:2] == ["mma", "wgmma"]
    assert "early" not in option(command, "-k")  # its launches overlap
    assert "large" not in option(command, "-k")  # for some sizes only
    assert option(command, "--sizes") == ["4096", "8192"]


def test_few_rows(swept: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for few rows race at the decode shapes, and nowhere else."""
    words = ["decode", "bf16", "--out", str(tmp_path), "--pages", str(tmp_path)]
    known = {n: h for n, h in _ladder.rungs().items() if h.rung < _ladder.FEW_ROWS_RUNG}
    few = known["gemm/mma"].model_copy(update={"rung": _ladder.FEW_ROWS_RUNG + 1.0})
    for found in (known, {**known, "gemm/few": few}):
        for module in (_ladder, ladder):
            monkeypatch.setattr(module, "rungs", lambda found=found: found)
        ladder.main(words)
    without, _, with_few, square = swept
    assert option(without, "-k")[1:] == ["cublas", "cublaslt"]
    assert option(with_few, "-k") == ["few", "cublas", "cublaslt"]
    assert option(with_few, "--shape")[0] == "1x6144x4096"
    assert "few" not in option(square, "-k")
    rows = [ours("few", 1024, 10.0), library(1024, 12.0)]
    assert not _ladder.contests(made(*rows), "bf16")
    shape = (1, 6144, 4096)
    rows = [ours("few", 0, 10.0, shape=shape), library(0, 12.0, shape=shape)]
    assert only(made(*rows), "decode").ours.kernel == "few"


def test_what_is_neither_run_nor_precision(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        ladder.main(["bf61"])
    assert "bf61 is neither a run folder nor one of fp32" in capsys.readouterr().err


def test_a_sweep_that_takes_too_long_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    signals: list[int] = []

    class Slow:
        def __init__(self, command: list[str], **options: Any) -> None:
            pass

        def __enter__(self) -> Slow:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def wait(self, limit_s: float | None = None) -> int:
            if limit_s is not None:
                raise subprocess.TimeoutExpired("sweep", limit_s)
            (tmp_path / "run").mkdir()
            (tmp_path / "run" / "manifest.json").touch()
            return 130

        def send_signal(self, number: int) -> None:
            signals.append(number)

    monkeypatch.setattr(subprocess, "Popen", Slow)
    assert _common.sweep([], tmp_path, 1.0) == tmp_path / "run"
    assert signals == [signal.SIGINT]


# Errors ------------------------------------------------------------------------------------------


def off(by: float) -> Callable[[Any, Operands], Launch]:
    """The product with an error of ``by`` in each element, up or down."""

    def prepare(device: Any, operands: Operands) -> Launch:
        problem = operands.problem
        (one,) = (one for one in problem.operands if one.written)
        a, b = (decode(np, operands[o.name], o.type) for o in problem.operands[:2])
        b = b.swapaxes(1, 2) if problem.settings["layout"] == "nt" else b

        def launch() -> None:
            sign = np.where(
                np.indices((problem.extents["m"], problem.extents["n"])).sum(0) % 2, 1, -1
            )
            operands.c[...] = encode(np, a @ b + by * sign, one.type)

        return launch

    return prepare


def competitor(name: str, by: float, precisions: tuple[str, ...]) -> Kernel:
    return Kernel(name, "cuda", "exact", "", precisions, off(by))


@pytest.mark.parametrize(("by", "verdict"), [(1e-3, "agrees"), (4e-3, "LARGER")])
def test_errors_beside_the_library(by: float, verdict: str) -> None:
    kernels = [
        competitor("tiled", 1.0, ("fp32",)),
        competitor("producers", by, ("fp32",)),
        competitor("cublas", 1e-3, ("fp32",)),
        competitor("cublaslt", 2e-3, ("fp32",)),
    ]
    rows = list(_ladder_errors.error_rows(fake.FakeDevice(), kernels, "fp32", [(33, 35, 40)]))
    assert [row["fill"] for row in rows] == ["uniform", "normal"]
    for found in rows:
        assert (found["ours"], found["library"]) == ("producers", "cublas")
        assert found["verdict"] == verdict
        assert found["layout"] == "nn"
    text, good = _ladder.error_section([{k: str(v) for k, v in row.items()} for row in rows])
    assert good == (verdict == "agrees")
    assert text.endswith("so everywhere." if good else "NOT so in 2 of 2 rows.")


def test_three_products_are_beside_fp32() -> None:
    kernels = [competitor("mma", 1e-6, ("fp32_3xtf32",)), competitor("cublas", 1e-6, ("fp32",))]
    device = fake.FakeDevice()
    (found, _) = _ladder_errors.error_rows(device, kernels, "fp32_3xtf32", [(16, 16, 16)])
    assert (found["library"], found["verdict"]) == ("cublas", "agrees")


def test_errors_of_what_is_beside_the_highest_rung() -> None:
    names = ("overlapped", "large", "cublas")
    kernels = [competitor(name, 1e-3, ("bf16",)) for name in names]
    found = _ladder_errors.error_rows(fake.FakeDevice(), kernels, "bf16", [(16, 16, 16)])
    ours = [(row["fill"], row["ours"]) for row in found]
    assert ours == [(f, k) for f in ("uniform", "normal") for k in ("overlapped", "large")]


def test_errors_without_a_library() -> None:
    device, kernels = fake.FakeDevice(), [competitor("producers", 0.0, ("fp32",))]
    (found, _) = _ladder_errors.error_rows(device, kernels, "fp32", [(16, 16, 16)])
    assert found["verdict"] == "no kernel of the library"
    nan = _ladder_errors.Error(float("nan"), float("nan"), "a", "")
    fine = _ladder_errors.Error(1.0, 1.0, "b", "")
    assert _ladder_errors.verdict(nan, fine) == "LARGER"


def test_an_exact_product() -> None:
    """Against fractions: better than FP64's own sums by far, where those cancel."""
    random = np.random.default_rng(3)
    a, b = random.standard_normal((1, 2, 4000)), random.standard_normal((1, 4000, 3))
    found = _ladder_errors.exact_product(np, a, b)
    for i in range(2):
        for j in range(3):
            products = zip(a[0, i].tolist(), b[0, :, j].tolist(), strict=True)
            exact = sum(Fraction(x) * Fraction(y) for x, y in products)
            assert float(found[0, i, j]) == pytest.approx(float(exact), rel=1e-14)


def test_errors_are_kept_for_other_precisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = fake.FakeDevice()
    monkeypatch.setattr(ladder, "open_gpu", lambda: device)
    told = {"precision": "", "verdict": "agrees"}
    monkeypatch.setattr(
        ladder, "error_rows", lambda device, kernels, name: [{**told, "precision": name}]
    )
    for names in (["fp32", "bf16"], ["fp32"]):
        ladder.measure_errors(names, tmp_path)
    assert [row["precision"] for row in _ladder.read_errors(tmp_path)] == ["bf16", "fp32"]
