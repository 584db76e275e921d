"""What the page on measuring says of constants is what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest

from rooflab import device
from rooflab.config import Timing
from rooflab.measure import buffers, counting, energy, protocol, search, statistics, verify, warmup
from rooflab.model import problem
from rooflab.workloads import gemm

PAGE = (Path(__file__).parents[2] / "docs" / "measurement.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())

WORDS = {3: "three", 4: "four", 5: "five", 8: "eight"}


def power_of_two(value: int) -> str:
    """``2²³``."""
    exponent = value.bit_length() - 1
    assert value == 2**exponent
    return "2" + "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(exponent))


FIXED = {
    "most launches of a batch": f"{device.MAX_BATCH}",
    "most copies; share of the free memory for them": f"{buffers.MAX_COPIES}; ¼",
    "self-test: launches; suspect difference": (
        f"{protocol.SELF_TEST_SAMPLES}; {protocol.SUSPECT_PERCENT:g} %"
    ),
    "pause after a voided round; most voided rounds": (
        f"{protocol.COOL_S:g} s; {protocol.RETRIES}"
    ),
    "least busy share of the energy window": f"{100 * protocol.BUSY_SHARE:g} %",
    "readings of the energy counter; fewest steps": (
        f"every {1000 * energy.PERIOD_S:g} ms; {energy.LEAST_STEPS}"
    ),
    "warm-up of the device: windows; length; agreement": (
        f"{warmup.WINDOWS}; {warmup.WINDOW_S:g} s; {warmup.STEADY_PERCENT:g} %"
    ),
    "matrix products verified completely up to; bands above": (
        f"{gemm.WHOLE_FLOPS / 1e9:.0f} GFLOP; {gemm.BANDS}"
    ),
    "elements compared at a time": power_of_two(problem.PIECE_ELEMENTS),
    "a single element's limit": f"{verify.OUTLIER:g} tolerances",
    "outlier": f"{statistics.outliers.__defaults__[0]:g} MAD",  # type: ignore[index]
    "launches of a counting pass; its length": (
        f"{counting.MOST_LAUNCHES}; {1000 * counting.PASS_S:g} ms"
    ),
}


@pytest.mark.parametrize("what", FIXED)
def test_a_fixed_constant(what: str) -> None:
    assert f"| {what} | {FIXED[what]} |" in PAGE


@pytest.mark.parametrize("name", Timing.model_fields)
def test_a_constant_of_the_configuration(name: str) -> None:
    assert f"| `{name}` | {Timing.model_fields[name].default:g} |" in PAGE


RACES = [
    f"in {WORDS[search.ROUNDS]} rounds of about {search.ROUND_US / 1000:g} ms, at least three "
    f"launches (one of {search.SLOW_US / 1000:g} ms or more) and at most {search.MOST_LAUNCHES}",
    f"idles for {WORDS[int(search.REST)]} times the round's time, at most "
    f"{1000 * search.MOST_REST_S:g} ms",
    f"Those within {100 * (search.CLOSE - 1):.0f} % of the fastest, at most "
    f"{WORDS[search.MOST_FINALISTS]}, take turns again: {search.FINAL_ROUNDS} rounds",
    f"A round is about {search.FINAL_US / 1000:g} ms long, but at most "
    f"{WORDS[device.LEAST_BATCHES]} batches of {device.MAX_BATCH} launches",
    f"At a power limit there are {WORDS[search.CAPPED_ROUNDS]} rounds",
    f"those within {100 * (search.UNDECIDED - 1):.0f} % of the fastest, at most "
    f"{WORDS[search.MOST_UNDECIDED]}, have {WORDS[search.CAPPED_ROUNDS]} more",
    f"Launches of {search.FINAL_US / 1000:g} ms or more race once, in "
    f"{WORDS[search.LONG_ROUNDS]} rounds",
]


@pytest.mark.parametrize("sentence", RACES)
def test_a_constant_of_the_search(sentence: str) -> None:
    assert sentence in TEXT
