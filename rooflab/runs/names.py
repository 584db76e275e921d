"""Names of devices and runs, for figures and sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rooflab.runs.store import RunData


def short_name(device: str) -> str:
    """``Xeon Platinum 8481C`` for ``Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz``."""
    plain = re.sub(r"\((R|TM|C)\)|\bCPU\b|@.*", "", device)
    words = plain.split() or [device]
    return " ".join(words[1:] if words[0] in ("NVIDIA", "Intel", "AMD") and words[1:] else words)


def run_names(runs: Sequence[RunData]) -> list[str]:
    """A short name per run: its device if those differ, else its date, else its folder."""
    names = [short_name(run.manifest.device.name) for run in runs]
    dates = [f"{run.manifest.created:%Y-%m-%d %H:%M}" for run in runs]
    both = [", ".join(pair) for pair in zip(names, dates, strict=True)]
    folders = [run.path.name for run in runs]
    choices = (names, dates if len(set(names)) == 1 else both, folders)
    distinct = (labels for labels in choices if len(set(labels)) == len(runs))
    return next(distinct, [f"{i}: {label}" for i, label in enumerate(both, 1)])


def competitors(runs: Sequence[RunData]) -> list[str]:
    """A name for the device of each run: ``H200``, ``Xeon Platinum 8481C (16 threads)``.

    The number of threads is a fact of CPUs only. Whole names if the short ones are not distinct.
    """
    names = [run.manifest.device.name for run in runs]
    short = [short_name(name) for name in names]
    chosen = short if len(set(short)) == len(set(names)) else names
    return [name + _threads(run) for name, run in zip(chosen, runs, strict=True)]


def _threads(run: RunData) -> str:
    threads = run.manifest.device.fact("threads")
    return "" if threads is None else f" ({threads} thread{'s' * (threads != 1)})"
