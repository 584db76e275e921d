"""From which size on one device is faster than another, and the sentences about it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import synthetic

from rooflab import api
from rooflab.errors import UsageError
from rooflab.model.facts import Fact
from rooflab.model.measurement import Measurement
from rooflab.report.races import races_json, races_markdown, races_text, sentence
from rooflab.runs.compare import Comparison
from rooflab.runs.names import competitors
from rooflab.runs.races import races
from rooflab.runs.store import RunData
from rooflab.workloads import build

XEON = "Intel(R) Xeon(R) Platinum 8592+ CPU @ 1.90GHz"
STREAMING = ("host", "chunk", "streams", "graph")


def row(size: int, time: float, half: float | None = 0.01, **other: Any) -> Measurement:
    """A square product that took ``time`` microseconds ± the share ``half``."""
    parameters: dict[str, Any] = {"m": size, "n": size, "k": size}
    names = ("m", "n", "k", "batch", "layout", *STREAMING)
    parameters |= {name: other.pop(name) for name in names if name in other}
    problem = build(
        other.pop("workload", "gemm"), other.pop("precision", "fp32"), other.pop("of", parameters)
    )
    low, high = (None if half is None else time * (1 + sign * half) for sign in (-1, 1))
    values = {"time_us": time, "time_lo_us": low, "time_hi_us": high}
    return synthetic.of(problem, **{"kernel": "blas", **values, **other})


def cpu(*rows: Measurement, threads: int = 16, name: str = XEON, **config: Any) -> RunData:
    made = synthetic.run(
        name, synthetic.cpu_roofline(), list(rows), {"threads": Fact(threads)}, kind="cpu"
    )
    return replace(made, manifest=made.manifest.model_copy(update={"config": config}))


def gpu(*rows: Measurement, name: str = "NVIDIA H200") -> RunData:
    return synthetic.run(name, synthetic.h200_roofline(), list(rows))


def told(*runs: RunData) -> list[str]:
    return [sentence(race) for race in races(runs)]


def duel(base: Mapping[int, float], new: Mapping[int, float], half: float = 0.01) -> str:
    """The one sentence about times by size, without its title."""
    (one,) = told(
        cpu(*(row(size, time, half) for size, time in base.items())),
        gpu(*(row(size, time, half) for size, time in new.items())),
    )
    title, _, claim = one.partition(": ")
    assert title == "gemm FP32, layout nn, without transfers"
    return claim


SIZES = (64, 128, 256, 512)


def marks(text: str) -> str:
    """The claim if the GPU is faster (f), slower (s) or even (e) at the sizes in order."""
    times = {"f": 25.0, "s": 320.0, "e": 100.5}
    new = {size: times[mark] for size, mark in zip(SIZES, text, strict=False)}
    claim = duel(dict.fromkeys(new, 100.0), new)
    assert claim.count("Xeon Platinum 8592+ (16 threads)") == 1
    return claim.replace("Xeon Platinum 8592+ (16 threads)", "CPU")


# --- the crossing ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "claim"),
    [
        (
            "ffff",
            "H200 beats CPU at every size measured on both (64 to 512); at 512 it is 4.0 times "
            "as fast.",
        ),
        ("ssff", "H200 beats CPU from 256 on; at 512 it is 4.0 times as fast."),
        (
            "seff",
            "H200 beats CPU from 256 on; they are even at 128; at 512 it is 4.0 times as fast.",
        ),
        ("sssf", "H200 beats CPU only at 512, the largest size; at 512 it is 4.0 times as fast."),
        ("fsff", "H200 beats CPU only at 64, 256 and 512; at 512 it is 4.0 times as fast."),
        (
            "ffes",
            "H200 beats CPU only at 64 and 128; they are even at 256; at 512 it takes 3.2 times"
            " as long.",
        ),
        ("sffe", "H200 beats CPU only at 128 and 256; they are even at 512."),
        (
            "ssss",
            "H200 is slower than CPU at every size measured on both (64 to 512); at 512 it "
            "takes 3.2 times as long.",
        ),
        (
            "eess",
            "H200 beats CPU at none of the sizes measured on both (64 to 512); they are even at"
            " 64 and 128; at 512 it takes 3.2 times as long.",
        ),
        ("eeee", "H200 and CPU are even at every size measured on both (64 to 512)."),
        ("f", "H200 beats CPU at 64, the only size measured on both; it is 4.0 times as fast."),
        (
            "s",
            "H200 is slower than CPU at 64, the only size measured on both; it takes 3.2 times "
            "as long.",
        ),
        ("e", "H200 and CPU are even at 64, the only size measured on both."),
    ],
)
def test_each_case_has_its_words(text: str, claim: str) -> None:
    assert marks(text) == claim


@pytest.mark.parametrize(
    ("text", "start"), [("ssff", "256"), ("ffff", "64"), ("fsff", ""), ("fffs", ""), ("ssss", "")]
)
def test_faster_from_is_a_single_crossing(text: str, start: str) -> None:
    times = {"f": 25.0, "s": 320.0}
    rows = zip(SIZES, text, strict=True)
    (race,) = races(
        [cpu(*(row(s, 100) for s in SIZES)), gpu(*(row(s, times[mark]) for s, mark in rows))]
    )
    assert (race.faster_from.size if race.faster_from else "") == start


def test_intervals_that_touch_are_even() -> None:
    assert "are even" in duel({64: 100}, {64: 99}, half=0.0051)
    assert "are even" in duel({64: 110}, {64: 90}, half=0.1)
    assert duel({64: 100}, {64: 99}, half=0.001).endswith("it is 1.010 times as fast.")


def test_without_an_interval_there_is_no_winner() -> None:
    (one,) = told(cpu(row(64, 100)), gpu(row(64, 1, None)))
    assert "are even" in one


def test_many_sizes_are_counted() -> None:
    sizes = [2**i for i in range(12)]
    new = {size: 25.0 if i % 4 else 320.0 for i, size in enumerate(sizes)}
    assert "only at 2, 4, 8, 32, 64, 128, 512, 1024 and 1 larger size;" in duel(
        dict.fromkeys(sizes, 100.0), new
    )


def test_sizes_go_by_their_work_and_not_by_their_name_or_order() -> None:
    shapes = [(1024, 8, 8), (64, 64, 64), (8, 4096, 4096)]
    times = {"1024x8x8": 320.0, "64": 25.0, "8x4096x4096": 25.0}
    pairs = [dict(zip("mnk", shape, strict=True)) for shape in reversed(shapes)]
    (one,) = told(
        cpu(*(row(0, 100, of=pair) for pair in pairs)),
        gpu(*(row(0, times[build("gemm", "fp32", p).size], of=p) for p in pairs)),
    )
    assert "from 64 on; at 8x4096x4096 it is" in one


# --- who races ---------------------------------------------------------------------------------


def test_the_fastest_kernel_of_each_device_counts() -> None:
    slow, fast = row(64, 900, kernel="naive"), row(64, 100)
    (one,) = told(cpu(slow, fast), gpu(row(64, 500, kernel="naive"), row(64, 50), row(128, 1)))
    assert one.endswith("at 64, the only size measured on both; it is 2.0 times as fast.")


def test_only_rows_that_are_ok_count() -> None:
    wrong = row(128, 1, status="incorrect", reason="NaN")
    (one,) = told(cpu(row(64, 100), row(128, 100)), gpu(row(64, 50), wrong))
    assert "at 64, the only size" in one


@pytest.mark.parametrize("time", [0.0, -1.0, float("nan"), float("inf"), 1e-300])
def test_impossible_times_do_not_count(time: float) -> None:
    (one,) = told(cpu(row(64, 100), row(128, 100)), gpu(row(64, 50), row(128, time)))
    assert "at 64, the only size" in one


def test_each_place_of_the_operands_is_a_sentence() -> None:
    def streamed(size: int, host: str, time: float, chunk: int, streams: int) -> Measurement:
        return row(size, time, batch=8, host=host, chunk=chunk, streams=streams)

    base = cpu(row(64, 100, batch=8), row(128, 800, batch=8))
    new = gpu(
        streamed(64, "pinned", 300, 1, 1),
        streamed(64, "pinned", 200, 4, 2),
        streamed(128, "pinned", 900, 1, 1),
        streamed(128, "pinned", 400, 8, 1),
        streamed(128, "pageable", 1600, 8, 1),
        row(64, 10, batch=8),
        row(128, 20, batch=8),
    )
    assert told(base, new) == [
        "gemm FP32, layout nn, batch 8, without transfers: H200 beats Xeon Platinum 8592+ "
        "(16 threads) at every size measured on both (64x64x64x8 to 128x128x128x8); "
        "at 128x128x128x8 it is 40 times as fast.",
        "gemm FP32, layout nn, batch 8, with pinned host memory: H200 beats Xeon Platinum 8592+ "
        "(16 threads) only at 128x128x128x8, the largest size; "
        "at 128x128x128x8 it is 2.0 times as fast.",
        "gemm FP32, layout nn, batch 8, with pageable host memory: H200 is slower than Xeon "
        "Platinum 8592+ (16 threads) at 128x128x128x8, the only size measured on both; "
        "it takes 2.0 times as long.",
    ]
    swapped = told(new, base)
    assert len(swapped) == 3
    assert (
        "pinned host memory: Xeon Platinum 8592+ (16 threads) beats H200 only at 64x" in swapped[1]
    )


def test_gpus_race_with_their_operands_at_the_same_place() -> None:
    old = gpu(row(64, 100, batch=8), name="NVIDIA A100")
    new = gpu(row(64, 50, batch=8), row(64, 70, batch=8, host="pinned"))
    assert told(old, new) == [
        "gemm FP32, layout nn: H200 beats A100 at 64x64x64x8, the only size measured on both; "
        "it is 2.0 times as fast."
    ]


def test_families_do_not_mix() -> None:
    def rows(factor: float) -> list[Measurement]:
        return [
            row(64, 100 * factor),
            row(64, 100, layout="nt"),
            row(64, 100 / factor, precision="fp64"),
            row(64, 100, workload="add", of={"columns": 64}),
        ]

    assert [one.partition(": ")[0] for one in told(cpu(*rows(1)), gpu(*rows(0.5)))] == [
        "gemm FP32, layout nn, without transfers",
        "gemm FP32, layout nt, without transfers",
        "gemm FP64, layout nn, without transfers",
        "add FP32, without transfers",
    ]


def test_a_batch_is_a_family_unless_it_is_all_that_differs() -> None:
    def rows(time: float, *sizes: int) -> list[Measurement]:
        return [row(size, time, batch=batch) for size in sizes for batch in (1, 16)]

    assert [one.partition(" (")[0] for one in told(cpu(*rows(100, 64)), gpu(*rows(50, 64)))] == [
        "gemm FP32, layout nn, without transfers: H200 beats Xeon Platinum 8592+"
    ]
    both = told(cpu(*rows(100, 64, 128)), gpu(*rows(50, 64, 128)))
    assert [one.partition(": ")[0] for one in both] == [
        "gemm FP32, layout nn, without transfers",
        "gemm FP32, layout nn, batch 16, without transfers",
    ]


def test_runs_of_one_device_count_together_and_threads_make_another() -> None:
    one, every = (cpu(row(64, time), threads=n) for n, time in ((1, 400), (16, 100)))
    assert told(one, every, gpu(row(128, 1)), gpu(row(64, 50))) == [
        f"gemm FP32, layout nn, without transfers: H200 beats Xeon Platinum 8592+ ({name}) at 64, "
        f"the only size measured on both; it is {ratio} times as fast."
        for name, ratio in (("1 thread", "8.0"), ("16 threads", "2.0"))
    ]
    two = cpu(row(64, 200), threads=2)
    assert told(one, two, every)[1] == (
        "gemm FP32, layout nn: Xeon Platinum 8592+ (16 threads) beats Xeon Platinum 8592+ "
        "(2 threads) at 64, the only size measured on both; it is 2.0 times as fast."
    )


def test_names_are_whole_where_short_ones_are_alike() -> None:
    slow, fast = (cpu(name=f"Intel(R) Xeon(R) CPU @ {ghz}GHz", threads=2) for ghz in (2.0, 3.0))
    assert competitors([slow, gpu()]) == ["Xeon (2 threads)", "H200"]
    assert competitors([slow, fast]) == [
        "Intel(R) Xeon(R) CPU @ 2.0GHz (2 threads)",
        "Intel(R) Xeon(R) CPU @ 3.0GHz (2 threads)",
    ]


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "message"),
    [
        (cpu(row(64, 100), fill="zeros"), "fill is zeros in BASE and uniform in NEW"),
        (cpu(row(64, 100, cache="warm")), "their caches are cold and warm"),
        (cpu(row(64, 1, status="failed")), r"8592\+ \(16 threads\) has no row with status ok"),
        (cpu(row(64, 1, precision="fp64")), "no problem of the same precision in common"),
        (cpu(row(32, 1)), "no problem of the same size and settings in common"),
    ],
)
def test_what_does_not_compare_is_refused(base: RunData, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        races([base, gpu(row(64, 100))])


def test_one_device_is_no_race() -> None:
    with pytest.raises(UsageError, match="these runs are of one device: give two runs, or add"):
        races([gpu(row(64, 1))] * 3)


# --- what is written ---------------------------------------------------------------------------


def test_text_markdown_and_json_say_the_same() -> None:
    found = races([cpu(row(64, 100), row(128, 100)), gpu(row(64, 320), row(128, 25))])
    (one,) = map(sentence, found)
    assert races_text(found) == f"{one}\n"
    assert races_markdown(found).replace("\\", "") == f"- {one}\n"
    (content,) = json.loads(races_json(found))
    assert content["sentence"] == one
    assert (content["host"], content["faster_from"]) == ("none", "128")
    assert [(size["size"], size["verdict"], size["ratio"]) for size in content["sizes"]] == [
        ("64", "slower", 100 / 320),
        ("128", "faster", 4.0),
    ]
    assert content["sizes"][0]["new"]["time_us"] == 320


def test_python_gets_races_of_two_devices_and_points_of_one() -> None:
    base, new = (api.Run.of(run) for run in (cpu(row(64, 100)), gpu(row(64, 50))))
    compared = base.compare(new)
    assert isinstance(compared, api.Races)
    assert [duel.ratio for race in compared for duel in race.duels] == [2.0]
    assert str(compared) == "\n".join(map(sentence, compared))
    assert isinstance(base.compare(base), Comparison)
