"""All tests that need a GPU, in a few minutes: python tests/gpu/run.py [options of pytest]

First those that ask for times and for counters: they have the GPU to themselves, and all processors
but a few compile. Then many processes compare kernels, and beside them the tests run that ask what
comes out, and not how fast it is. All find what is compiled and measured in one cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import perf_counter

FOLDER = Path(__file__).parent
TOGETHER = ("test_kernels.py", "test_cutlass_kernels.py")
BESIDE = (
    ("test_commands.py",),
    ("test_examples.py", "test_main_job.py"),
    ("test_launchers.py", "test_judged_submissions.py"),
    ("test_cheats_on_gpu.py", "test_isolation.py", "test_python_files.py"),
    ("test_tensors.py", "test_watch.py"),
)
"""What is in neither has the GPU to itself."""

ALIKE = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
"""torch.compile starts no process for each processor, of which all are busy."""

CACHE = "tests"
"""The name of the cache of all tests: in a folder of any other name they make one of this name."""

AT_A_TIME = 4
"""Commands: more of them have to wait for one another, to count and for the processors."""

MOST_PROCESSES = 15

FREE = 5
"""Processors that compile nothing while times are asked for."""


class Part:
    """One process of Python; what it prints is printed when it ends."""

    def __init__(self, folder: Path, arguments: Sequence[str], nice: int = 0) -> None:
        self._output = folder / f"{len(list(folder.iterdir()))}.txt"
        with self._output.open("w") as output:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                env={**os.environ, **ALIKE, "ROOFLAB_CACHE_DIR": str(folder / CACHE)},
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=partial(os.nice, nice),
            )

    def ended(self) -> int:
        """The exit code."""
        code = self._process.wait()
        print(self._output.read_text(errors="replace"), flush=True)
        return code


def pytest(*options: str) -> list[str]:
    """The arguments of Python for a part of the tests."""
    given = ["-m", "pytest", "-m", "gpu", "-q", "--timeout", "400", "--durations", "8"]
    # Where the plugin for benchmarks is, it warns beside xdist.
    return [*given, "-p", "no:benchmark", *sys.argv[1:], *options]


def paths(names: Sequence[str]) -> list[str]:
    return [str(FOLDER / name) for name in names]


def main() -> int:
    """The exit code: 0 if all parts pass."""
    started, processors = perf_counter(), os.cpu_count() or 1
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        compiling = Part(folder, [str(FOLDER / "compile_all.py"), str(max(1, processors - FREE))])
        named = [word for path in paths(sum(BESIDE, TOGETHER)) for word in ("--ignore", path)]
        codes = [Part(folder, pytest(*named, str(FOLDER))).ended()]
        processes = str(max(1, min(MOST_PROCESSES, processors - 1)))
        many = pytest("-n", processes, "--dist", "worksteal", *paths(TOGETHER))
        # The others wait for the GPU, and need little of the processors when it is theirs.
        parts = [compiling, Part(folder, many, nice=10)]
        parts += [Part(folder, pytest("-n", str(AT_A_TIME), *paths(one))) for one in BESIDE]
        codes += [part.ended() for part in parts]
    print(f"all of tests/gpu: {perf_counter() - started:.0f} s, exit codes {codes}")
    return int(any(codes))  # a signal's code is negative


if __name__ == "__main__":
    sys.exit(main())
