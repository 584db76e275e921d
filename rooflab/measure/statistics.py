"""Figures from samples: medians, intervals, quantiles. Pure; no sample is dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, exp, log, pi, sqrt
from statistics import median, stdev
from typing import Final

T_975: Final = (12.706, 4.303, 3.182, 2.776)
"""97.5 % points of Student's t distribution for 1 to 4 degrees of freedom (NIST/SEMATECH e-Handbook
of Statistical Methods, 1.3.6.7.2): more values have an interval by rank."""


def quantile(samples: Sequence[float], fraction: float) -> float:
    """The ``fraction`` quantile with linear interpolation between neighbours."""
    ordered = sorted(samples)
    place = fraction * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


@dataclass(frozen=True, slots=True)
class Summary:
    """Times in the unit of the samples. ``low`` and ``high`` bound the 95 % interval."""

    samples: int
    rounds: int
    median: float
    low: float
    high: float
    minimum: float
    p05: float
    p95: float

    @property
    def half_width_percent(self) -> float:
        """Half of the interval in percent of the median."""
        return 50 * (self.high - self.low) / self.median if self.median else 0.0


def summarize(rounds: Sequence[Sequence[float]]) -> Summary:
    """Median of the round medians with its 95 % interval; extremes over all samples.

    Launches within a round share clock and temperature and are not independent; the medians of
    rounds at different times count as independent. Needs two rounds or more, with a sample each.
    """
    medians = [median(samples) for samples in rounds]
    everything = [sample for samples in rounds for sample in samples]
    low, high = by_rank(medians) if len(medians) >= FEWEST_BY_RANK else by_t(medians)
    return Summary(
        samples=len(everything),
        rounds=len(rounds),
        median=median(medians),
        low=low,
        high=high,
        minimum=min(everything),
        p05=quantile(everything, 0.05),
        p95=quantile(everything, 0.95),
    )


CONFIDENCE: Final = 0.95
FEWEST_BY_RANK: Final = 6
"""The extremes of fewer values contain the median with less than 95 % probability."""


def by_rank(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median, for any distribution, from six values or more.

    The k-th smallest and the k-th largest of n values enclose the median with a probability that
    follows from the binomial distribution. No k gives exactly 95 %: the ends are interpolated
    between those of the two nearest (Hettmansperger and Sheather, "Confidence intervals based on
    interpolated order statistics", Statistics & Probability Letters 4, 1986). One value that is
    far off, such as a preempted round, does not widen the interval.
    """
    ordered, n = sorted(values), len(values)
    k = max(k for k in range(1, n // 2 + 1) if _enclosed(n, k) >= CONFIDENCE)
    wide, narrow = _enclosed(n, k), _enclosed(n, k + 1)
    share = (wide - CONFIDENCE) / (wide - narrow)
    inward = (n - k) * share / (k + (n - 2 * k) * share)
    low = ordered[k - 1] + inward * (ordered[k] - ordered[k - 1])
    high = ordered[n - k] + inward * (ordered[n - k - 1] - ordered[n - k])
    return low, high


def _enclosed(n: int, k: int) -> float:
    """Probability that the k-th smallest and the k-th largest of n values enclose the median."""
    return max(0.0, 1 - 2 * sum(comb(n, i) for i in range(k)) / 2.0**n)


def by_t(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median from fewer values, by Student's t for their logarithms.

    Logarithms keep the ends positive. For large n the standard error of the median of n normal
    values is sqrt(pi / 2) times that of their mean (Cramér, "Mathematical Methods of Statistics",
    1946, 28.5); the interval is wider by the same factor.
    """
    logarithms = [log(max(value, 1e-9)) for value in values]
    error = sqrt(pi / 2) * stdev(logarithms) / sqrt(len(values))
    factor = exp(T_975[len(values) - 2] * error)
    return median(values) / factor, median(values) * factor


def outliers(rounds: Sequence[Sequence[float]], limit: float = 14.8) -> int:
    """Number of samples more than ``limit`` median absolute deviations from the median.

    They are counted and kept: 14.8 MAD is ten standard deviations of a normal distribution.
    """
    samples = [sample for times in rounds for sample in times]
    middle = median(samples)
    spread = median([abs(sample - middle) for sample in samples])
    return sum(abs(sample - middle) > limit * spread for sample in samples) if spread else 0
