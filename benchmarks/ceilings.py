"""Are the measured ceilings of an H200 as high as its microkernels can reach?

    python benchmarks/ceilings.py

Measures what ``rooflab devices --measure`` shows. The limits are those of an H200: each must be at
least ``least``. Bandwidths are in TB/s; others are shares in percent of the architecture's limit at
the SM clock that was counted meanwhile. Counters have confirmed each memory level, or the row says
why not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from _common import Row, conclude, describe, open_gpu

from rooflab.devices.base import Device
from rooflab.model.roofline import Ceiling

TERABYTES = {"HBM_read": 4.35, "HBM_write": 4.1, "HBM_copy": 4.2, "L2": 8.0, "L1": 30.0}
SHARES = {
    "shared": 90.0,
    "fp32_fma": 97.0,
    "fp64_fma": 97.0,
    "tf32_mma": 92.0,
    "fp16_mma": 92.0,
    "bf16_mma": 92.0,
    "fp8_mma": 92.0,
}
"""Percent of the limit at the counted clock."""

BYTES_PER_CLOCK = 128
"""Of shared memory, per multiprocessor."""


def limit(device: Device, ceiling: Ceiling) -> float:
    """What the architecture allows at the clock of the measurement: FLOP/s or byte/s."""
    mhz = ceiling.sm_mhz or float(device.fact("sm_clock_max") or 0)
    if ceiling.key == "shared":
        return BYTES_PER_CLOCK * float(device.fact("sm_count") or 0) * mhz * 1e6
    name, _, unit = ceiling.key.partition("_")
    observed = device.observed("fp64_vector" if (name, unit) == ("fp64", "fma") else name, mhz)
    return observed.value if observed else float("nan")


def judge(
    device: Device, found: Mapping[str, Ceiling], reasons: Mapping[str, str]
) -> Iterator[Row]:
    for key, least in {**TERABYTES, **SHARES}.items():
        ceiling = found.get(key)
        row: Row = {"ceiling": key, "value": None, "unit": "", "least": least, "how": ""}
        if ceiling is None:
            yield {**row, "how": reasons.get(key, ""), "verdict": "MISSING"}
            continue
        share = key in SHARES
        value = 100 * ceiling.value / limit(device, ceiling) if share else ceiling.value / 1e12
        how = f"{ceiling.amount}: {ceiling.formula}"
        how += f" ({ceiling.caveat})" if ceiling.caveat else ""
        verdict = "agrees" if value >= least else "LOW"
        unit = "% of the limit" if share else "TB/s"
        yield {**row, "value": value, "unit": unit, "how": how, "verdict": verdict}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/ceilings"))
    args = parser.parse_args()
    device = open_gpu()
    limits = device.levels()
    found = {one.key: one for one in limits if isinstance(one, Ceiling)}
    reasons = {one.key: one.reason for one in limits if not isinstance(one, Ceiling)}
    rows = list(judge(device, found, reasons))
    return conclude(rows, f"# Ceilings\n\n{describe(device)}", args.out, "ceilings")


if __name__ == "__main__":
    sys.exit(main())
