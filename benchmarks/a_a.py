"""A/A test: the same sweep twice. Do the two runs agree?

    python benchmarks/a_a.py

Runs ``rooflab sweep`` twice (``--config`` names another configuration; unknown options go to
``sweep``). Counts the medians that agree within 0.5 %, and the points that ``rooflab compare``
calls slower or faster. ``--runs BASE NEW`` judges two existing runs. A point is noisy if its
interval did not become as narrow as asked, mostly at the power limit: it is compared and listed,
but only its interval says how exact its figure is.

PASS: at least 100 points, 95 % of those that are not noisy within 0.5 %, none SLOW, none FAST.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from _common import first_line, markdown, percent, sweep

from rooflab.errors import RooflabError
from rooflab.model.measurement import Measurement
from rooflab.report.text import label
from rooflab.runs import store

WITHIN_PERCENT = 0.5
SHARE_PERCENT = 95.0
LEAST_POINTS = 100
WORST = 10


def differences(base: store.RunData, new: store.RunData) -> dict[str, float | None]:
    """By point: the change of the time in percent, None if only one run has a time."""

    def times(run: store.RunData) -> dict[str, float]:
        return {label(row): row.time_us for row in run.ok if row.time_us}

    old_us, new_us = times(base), times(new)
    return {
        point: percent(new_us[point], old_us[point])
        if point in old_us and point in new_us
        else None
        for point in {**old_us, **new_us}
    }


def flags(*rows: Measurement | None) -> str:
    return ";".join(dict.fromkeys(f for row in rows if row for f in row.flag_names))


def compare(base: Path, new: Path) -> tuple[Counter[str], list[str]]:
    """The count of each verdict of ``rooflab compare``, and its failures."""
    command = [sys.executable, "-m", "rooflab", "compare", str(base), str(new)]
    complaints = []
    failing = [*command, "--fail-on", "slow"]
    code = subprocess.run(failing, stdout=sys.stderr, check=False).returncode
    if code:
        complaints.append(f"rooflab compare --fail-on slow ended with {code}")
    ended = subprocess.run([*command, "--format", "json"], stdout=subprocess.PIPE, check=False)
    try:
        points = json.loads(ended.stdout)["points"]
        return Counter(point["verdict"] for point in points), complaints
    except (ValueError, KeyError, TypeError) as error:
        complaints.append(f"rooflab compare --format json: {first_line(error)}")
        return Counter(), complaints


def judge(base: store.RunData, new: store.RunData) -> tuple[str, bool]:
    """The report, and whether the test passed."""
    found = differences(base, new)
    before, after = ({label(row): row for row in run.ok} for run in (base, new))
    noisy = {
        point
        for point in before.keys() & after.keys()
        if "noisy" in {*before[point].flag_names, *after[point].flag_names}
    }
    judged = [difference for point, difference in found.items() if point not in noisy]
    near = [d for d in judged if d is not None and abs(d) <= WITHIN_PERCENT]
    share = 100 * len(near) / len(judged) if judged else 0.0
    unmatched = [point for point, difference in found.items() if difference is None]
    farthest = sorted(set(found) - set(unmatched), key=lambda point: -abs(found[point] or 0))
    verdicts, faults = compare(base.path, new.path)

    if len(found) < LEAST_POINTS:
        faults.append(f"{len(found)} points are fewer than {LEAST_POINTS}")
    if share < SHARE_PERCENT:
        faults.append(f"{share:.1f} % of the points agree, {SHARE_PERCENT:g} % are needed")
    if unmatched:
        faults.append(f"{len(unmatched)} points are in only one of the runs")
    faults += [f"{verdicts[bad]} points are {bad}" for bad in ("SLOW", "FAST") if verdicts[bad]]

    worst = [
        {
            "point": point,
            "base µs": before[point].time_us if point in before else None,
            "new µs": after[point].time_us if point in after else None,
            "difference %": found[point],
            "flags": flags(before.get(point), after.get(point)),
        }
        for point in (*unmatched, *farthest[:WORST])
    ]
    lines = [
        f"# A/A: {base.path.name} and {new.path.name}",
        base.manifest.device.name,
        f"The {WORST} points with the largest differences, and those that only one run has:",
        markdown(worst) if worst else "none",
        f"rooflab compare: {', '.join(f'{n} {v}' for v, n in verdicts.items()) or 'nothing'}",
        f"{len(noisy)} of {len(found)} points are noisy: their intervals say that they may differ",
        f"{len(near)} of the others ({share:.1f} %) agree within {WITHIN_PERCENT} %",
        f"FAIL: {'; '.join(faults)}" if faults else "PASS",
    ]
    return "\n\n".join(lines), not faults


def main() -> int:
    # An abbreviation might be an option of the sweep.
    parser = argparse.ArgumentParser(
        description="Sweep twice and compare; unknown options go to rooflab sweep.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", default="default")
    parser.add_argument("--out", type=Path, default=Path("results/a_a"))
    parser.add_argument("--runs", type=Path, nargs=2, metavar=("BASE", "NEW"))
    args, options = parser.parse_known_args()
    args.out.mkdir(parents=True, exist_ok=True)
    base, new = args.runs or [
        sweep(["--config", args.config, *options], args.out) for _ in range(2)
    ]
    try:
        text, good = judge(store.load(base), store.load(new))
    except RooflabError as error:
        text, good = f"FAIL: {error}", False
    (args.out / "a_a.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
