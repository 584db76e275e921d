"""All tests that need a GPU, in a few minutes: python tests/gpu/run.py [options of pytest]

Kernels are compiled and compared by many processes at once; what measures, and what hangs or kills
a GPU's context on purpose, has the GPU to itself afterwards.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

FOLDER = Path(__file__).parent
TOGETHER = ("test_kernels.py", "test_cutlass_kernels.py")
MOST_PROCESSES = 14


def main() -> int:
    """The exit code: 0 if both parts pass."""
    started = perf_counter()
    processes = min(MOST_PROCESSES, os.cpu_count() or 1)
    files = [str(FOLDER / name) for name in TOGETHER]
    pytest = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "--timeout", "400"]
    pytest += ["-p", "no:benchmark"]  # where that plugin is, it warns beside xdist
    common = [*pytest, *sys.argv[1:]]
    with tempfile.TemporaryDirectory() as cache:
        environment = {"ROOFLAB_CACHE_DIR": cache, **os.environ}
        parts = (
            ["-n", str(processes), "--dist", "worksteal", *files],
            [*(word for name in files for word in ("--ignore", name)), str(FOLDER)],
        )
        codes = [subprocess.run([*common, *part], env=environment).returncode for part in parts]
    print(f"all of tests/gpu: {perf_counter() - started:.0f} s, exit codes {codes}")
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
