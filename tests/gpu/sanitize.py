"""Each kernel once per precision and layout at odd sizes, with no other work on the GPU.

Made to be watched: compute-sanitizer --tool memcheck python tests/gpu/sanitize.py [KERNEL...]
"""

from __future__ import annotations

import sys

import cupy
import numpy as np
from rooflab.problem import PRECISIONS, Problem

from rooflab.backends import discover
from rooflab.devices import open_device
from rooflab.measure.buffers import Operands, decode, encode

CASES = (
    *(((129, 65, 33), 1.0, 0.0), ((7, 127, 129), 0.5, -2.0)),
    *(((129, 65, 40), 1.0, 0.0), ((7, 127, 136), 0.5, -2.0)),  # for copies of 16 bytes
    *(((128, 256, 192), 1.0, 0.0), ((256, 128, 64), 0.5, -2.0)),  # for whole tiles
)


def main(names: list[str]) -> None:
    device, random, launched = open_device("cuda:0"), np.random.default_rng(), 0
    for kernel in discover().select(names, "cuda"):
        for name in kernel.precisions:
            for layout in kernel.layouts:
                for (m, n, k), alpha, beta in CASES:
                    problem = Problem(m, n, k, PRECISIONS[name], layout, 2, alpha, beta)
                    if kernel.refuses(problem):
                        continue
                    types = problem.precision
                    a, b, c = (
                        encode(np, random.uniform(-1, 1, shape), data_type)
                        for shape, data_type in (
                            (problem.a_shape, types.input),
                            (problem.b_shape, types.input),
                            (problem.c_shape, types.output),
                        )
                    )
                    operands = Operands(problem, *map(cupy.asarray, (a, b, c)), None)
                    kernel.prepare(device, operands)()
                    device.synchronize()
                    a, b = decode(np, a, types.input), decode(np, b, types.input)
                    a = a.swapaxes(1, 2) if layout[0] == "t" else a
                    b = b.swapaxes(1, 2) if layout[1] == "t" else b
                    expected = alpha * (a @ b) + beta * decode(np, c, types.output)
                    result = decode(np, cupy.asnumpy(operands.c), types.output)
                    error = np.linalg.norm(result - expected) / np.linalg.norm(expected)
                    assert error < 2 * types.tolerance(k), (kernel.name, problem, error)
                    launched += 1
    print(f"{launched} launches, all right")


if __name__ == "__main__":
    main(sys.argv[1:] or ["naive", "coalesced", "tiled"])
