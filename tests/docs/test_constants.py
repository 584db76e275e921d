"""What the page on measuring says of constants is what the code does."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

import pytest

from rooflab import engine, recording
from rooflab.config import Timing
from rooflab.devices import base as device
from rooflab.devices.cpu import device as cpu
from rooflab.devices.cuda import ceilings, gate
from rooflab.devices.cuda import device as gpu
from rooflab.measure import (
    buffers,
    counting,
    energy,
    inspection,
    protocol,
    search,
    statistics,
    verify,
    warmup,
)
from rooflab.model import problem
from rooflab.worker import printed, process
from rooflab.workloads import gemm

PAGE = (Path(__file__).parents[2] / "docs" / "measurement.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())

WORDS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 8: "eight"}


def power_of_two(value: int) -> str:
    """``2²³``."""
    exponent = value.bit_length() - 1
    assert value == 2**exponent
    return "2" + "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(exponent))


FIXED = {
    "launches timed one by one behind one gate": f"{gpu.QUEUE}",
    "most launches of a batch": f"{device.MAX_BATCH}",
    "batches, and single launches beside them, per round": (
        f"{device.LEAST_BATCHES} to {Timing().round_samples // 2}, at a power limit more if "
        f"{device.MAX_BATCH} launches take less than a quarter of the round; {protocol.PAIRS}"
    ),
    "the gate opens by itself after": f"{gate.LIMIT_NS / 1e9:g} s",
    "other operands used between two uses of a copy, in last-level caches": "3",
    "most copies; share of the free memory for them": f"{buffers.MAX_COPIES}; ¼",
    "last-level caches that a flush writes": "2",
    "self-test: launches; suspect difference": (
        f"{protocol.SELF_TEST_SAMPLES}; {protocol.SUSPECT_PERCENT:g} %"
    ),
    "part of `own_clock_s` for a kernel below the limit, beside one at it": (
        {0.25: "¼"}[protocol.COOLER]
    ),
    "and for one that follows its own launches; rounds in a row": (
        f"{ {0.5: '½'}[protocol.AGAIN] }; {protocol.AT_A_TIME}"
    ),
    "bursts; length of one, and of the longest launch that has them": (
        f"{protocol.BURSTS}; {protocol.BURST_US / 1000:g} ms"
    ),
    "pause after a voided round; most voided rounds": (
        f"{protocol.COOL_S:g} s; {protocol.RETRIES}"
    ),
    "shortest launch whose energy is counted": f"{protocol.SHORT_US:g} µs",
    "least busy share of the energy window": f"{100 * protocol.BUSY_SHARE:g} %",
    "readings of the energy counter; fewest intervals between its steps": (
        f"every {1000 * energy.PERIOD_S:g} ms; {energy.LEAST_INTERVALS}"
    ),
    "warm-up of the device: windows; length; agreement": (
        f"{warmup.WINDOWS}; {warmup.WINDOW_S:g} s; {warmup.STEADY_PERCENT:g} %"
    ),
    "matrix products verified completely up to; bands above": (
        f"{gemm.WHOLE_FLOPS / 1e9:.0f} GFLOP; {gemm.BANDS}"
    ),
    "elements compared at a time": power_of_two(problem.PIECE_ELEMENTS),
    "time behind a closed gate for a launch on another stream to show": (
        f"{1000 * gpu.ESCAPE_S:g} ms"
    ),
    "a single element's limit": f"{verify.OUTLIER:g} tolerances",
    "parts of a row with a random product of their own; its limit": (
        f"{verify.SKETCHES}; {verify.SKETCHED:g} tolerances"
    ),
    "references that are kept: part of the free memory; most": (
        f"{ {8: '⅛'}[inspection.KEPT_SHARE] }; {inspection.MOST_KEPT / 2**30:g} GiB"
    ),
    "guard zones: part of the operand; least; most": (
        f"1/16; {buffers.LEAST_GUARD // 2**10} KiB; {buffers.MOST_GUARD // 2**10} KiB"
    ),
    "buffer copies of an inspection between two rounds; after the last": (
        f"{inspection.INSPECTED}; all"
    ),
    "buffer copies of a user's kernel whose outputs are changed before each round and looked at "
    "after it; share of rounds after which one is compared": (
        f"{inspection.WATCHED}; {100 * inspection.JUDGED:g} %"
    ),
    "elements that an inspection changes; size of the new numbers, in sizes of the others": (
        f"{inspection.POKED}; {inspection.STIRRED:g}"
    ),
    "further launches of a user's kernel that must write; longest time for them; launches without "
    "a pause before them": (
        f"{inspection.OFTEN}; {inspection.OFTEN_S:g} s; {inspection.STREAK_S * 1e3:g} ms"
    ),
    "by how much new inputs are slower than known ones if results are kept; share of pairs; "
    "chance; wrong suspicions": (
        f"{100 * (inspection.REPLAYED - 1):.0f} % and {inspection.REPLAYED_US:g} µs; "
        f"{100 * inspection.REPLAYED_SHARE:g} %; {100 * inspection.CHANCE:g} %; "
        f"1 in {1 / inspection.SURE:,.0f}"
    ),
    "time in which a user's kernel on a CPU must not write after its return": (
        f"{1000 * cpu.ESCAPE_S:g} ms"
    ),
    "outlier": f"{statistics.outliers.__defaults__[0]:g} MAD",  # type: ignore[index]
    "launches of a counting pass; its length": (
        f"{counting.MOST_LAUNCHES}; {1000 * counting.PASS_S:g} ms"
    ),
    "share by which counted cycles may take longer than the events say": (
        f"{100 * (protocol.STRETCHED - 1):.0f} %"
    ),
    "part of a GPU's free memory that a user's kernel must leave": f"{100 * gpu.LEAST_FREE:g} %",
    "shortest window with a counted clock": f"{gate.SHORTEST_US:g} µs",
    "windows of a ceiling on a GPU; their length": (
        f"{ceilings.WINDOWS}; {ceilings.WINDOW_US / 1000:g} ms"
    ),
    "part of the bytes that counters must find at a ceiling's level": f"{100 * ceilings.FOUND:g} %",
    "sleeps before a CPU round until idle; longest; untimed launches": (
        f"{1000 * cpu.IDLE_S:g} ms; {cpu.MOST_SPIN_S:g} s; {1000 * cpu.WAKE_S:g} ms"
    ),
    "a row is `impossible` if it is faster than measured roofs by more than": (
        f"{100 * (recording.MARGIN - 1):.0f} %"
    ),
    "times that a sweep measures its roofs again": f"{engine.REMEASURED}",
    "part of the best roofs of earlier runs below which a run says that the machine is slower": (
        f"{100 * engine.LOWER:.0f} %"
    ),
    "longest start of a measuring process": f"{process.START_S:g} s",
    "what is kept of what kernels print": f"{printed.MOST_BYTES // 2**20} MiB",
}


def rows(heading: str) -> list[str]:
    """The first cells of the table that begins with ``heading``."""
    lines = PAGE[PAGE.index(heading) :].splitlines()[2:]
    return [line.split(" | ")[0].removeprefix("| ") for line in takewhile(bool, lines)]


def test_the_tables_have_every_constant_and_no_other() -> None:
    assert rows("| what | value | where |") == [*FIXED]
    keys = [f"`{name}`" for name in Timing.model_fields]
    assert sorted(rows("| key | default | meaning |")) == sorted(keys)


@pytest.mark.parametrize("what", FIXED)
def test_a_fixed_constant(what: str) -> None:
    assert f"| {what} | {FIXED[what]} |" in PAGE


@pytest.mark.parametrize("name", Timing.model_fields)
def test_a_constant_of_the_configuration(name: str) -> None:
    assert f"| `{name}` | {Timing.model_fields[name].default:g} |" in PAGE


RACES = [
    f"one round each of about {search.ROUND_US / 1000:g} ms: at least three launches (one if it "
    f"takes {search.SLOW_US / 1000:g} ms or more), at most {search.MOST_LAUNCHES}.",
    f"Variants within {100 * (search.FAR - 1):.0f} % of the fastest run "
    f"{WORDS[search.ROUNDS - 1]} more rounds",
    f"idles {WORDS[int(search.REST)]} times as long as the round took, at most "
    f"{1000 * search.MOST_REST_S:g} ms",
    f"The variants within {100 * (search.CLOSE - 1):.0f} % of the fastest, at most "
    f"{WORDS[search.MOST_FINALISTS]}, run {WORDS[search.LEAST_FINAL_ROUNDS]} more rounds",
    f"{WORDS[search.MORE_FINAL_ROUNDS]} rounds more, at most {search.MOST_FINAL_ROUNDS}",
    f"within {100 * (search.ALIKE - 1):.1f} %",
    f"A round takes about {search.FINAL_US / 1000:g} ms, but at most "
    f"{WORDS[device.LEAST_BATCHES]} batches of {device.MAX_BATCH} launches",
    f"At a power limit there are {WORDS[search.CAPPED_TURNS]} turns of "
    f"{WORDS[search.ROUNDS_OF_A_TURN]} rounds",
    f"the variants within {100 * (search.UNDECIDED - 1):.0f} % of the fastest, at most "
    f"{WORDS[search.MOST_UNDECIDED]}, get {WORDS[search.CAPPED_TURNS]} more turns",
    f"Launches of {search.FINAL_US / 1000:g} ms or more race once, in "
    f"{WORDS[search.LONG_ROUNDS]} rounds",
]


@pytest.mark.parametrize("sentence", RACES)
def test_a_constant_of_the_search(sentence: str) -> None:
    assert sentence in TEXT
