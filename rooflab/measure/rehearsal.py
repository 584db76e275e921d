"""All checks once, on small problems with right results, before anything is measured.

A GPU's array library compiles a kernel for each operation and type when it is first used, a few
tenths of a second each, and keeps it on disk. So each of the processes that are started rehearses
some of the precisions, all at the same time.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress

from rooflab.device import Device
from rooflab.measure.buffers import rotate
from rooflab.measure.inspection import Inspector
from rooflab.measure.verify import right
from rooflab.model.problem import Problem


def rehearse(device: Device, problems: Sequence[Problem]) -> None:
    """Check results of these problems; failures do not matter here."""
    device.time([device.nothing])
    for problem in problems:
        _rehearse(device, problem)
        device.release()


def _rehearse(device: Device, problem: Problem) -> None:
    with suppress(Exception):  # the kernels' rows will tell
        rotation = rotate(device, problem, 0, cold=True)
        inspector = Inspector(device, rotation, random.Random(0))

        def run(launches: object) -> None:
            for copy in rotation.copies:
                right(device, copy)

        launches = [lambda: None] * len(rotation.copies)
        inspector.poison(0)
        run(launches)
        inspector.judge(0)
        inspector.between(launches, run, close=True)
        inspector.after(launches, run, close=True)
        inspector.on_other_inputs(launches, run)
        device.synchronize()
