"""All checks once, on small problems with right results, before anything is measured.

A GPU's array library compiles a kernel for each operation and type when it is first used, a few
tenths of a second each. Here it does so for all precisions at the same time.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from rooflab.device import Device
from rooflab.measure.buffers import rotate
from rooflab.measure.inspection import Inspector
from rooflab.measure.verify import right
from rooflab.model.problem import Problem

THREADS: Final = 8


def rehearse(device: Device, problems: Sequence[Problem]) -> None:
    """Check results of these problems, on threads of their own; failures do not matter here."""
    with ThreadPoolExecutor(THREADS) as pool:
        for problem in problems:
            pool.submit(_rehearse, device, problem)


def _rehearse(device: Device, problem: Problem) -> None:
    with suppress(Exception), device.active():  # the kernels' rows will tell
        rotation = rotate(device, problem, 0, cold=True)
        inspector = Inspector(device, rotation, random.Random(0))

        def run(launches: object) -> None:
            for copy in rotation.copies:
                right(device, copy)

        launches = [lambda: None] * len(rotation.copies)
        inspector.poison(0)
        run(launches)
        inspector.judge(0)
        inspector.between(launches, run)
        inspector.on_other_inputs(launches, run)
        device.synchronize()
