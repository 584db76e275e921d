"""Figures from samples: medians, intervals, quantiles. Pure; no sample is dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import pi, sqrt
from statistics import fmean, median, stdev
from typing import Final

# 97.5 % points of Student's t distribution for 1 to 30 degrees of freedom (NIST/SEMATECH
# e-Handbook of Statistical Methods, 1.3.6.7.2); above 30 the expansion below errs by under 1e-4.
_T_975: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def t_975(degrees: int) -> float:
    """97.5 % point of Student's t with ``degrees`` ≥ 1 degrees of freedom."""
    if degrees <= len(_T_975):
        return _T_975[degrees - 1]
    z = 1.959964
    # First terms of the Cornish-Fisher expansion (Abramowitz & Stegun 26.7.5).
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


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
    """Median of the round medians with its t-interval; extremes over all samples.

    Launches within a round share clock and temperature and are not independent; the medians of
    rounds at different times count as independent. Needs two rounds or more, with a sample each.

    For large n the standard error of the median of n normal values is sqrt(pi / 2) times that of
    their mean (Cramér, "Mathematical Methods of Statistics", 1946, 28.5); the interval is wider by
    the same factor.
    """
    medians = [median(samples) for samples in rounds]
    everything = [sample for samples in rounds for sample in samples]
    middle = median(medians)
    spread = sqrt(pi / 2) * stdev(medians, fmean(medians))
    half = t_975(len(medians) - 1) * spread / sqrt(len(medians))
    return Summary(
        samples=len(everything),
        rounds=len(rounds),
        median=middle,
        low=max(middle - half, 0.0),
        high=middle + half,
        minimum=min(everything),
        p05=quantile(everything, 0.05),
        p95=quantile(everything, 0.95),
    )


def outliers(rounds: Sequence[Sequence[float]], limit: float = 14.8) -> int:
    """Number of samples more than ``limit`` median absolute deviations from the median.

    They are counted and kept: 14.8 MAD is ten standard deviations of a normal distribution.
    """
    samples = [sample for times in rounds for sample in times]
    middle = median(samples)
    spread = median([abs(sample - middle) for sample in samples])
    return sum(abs(sample - middle) > limit * spread for sample in samples) if spread else 0
