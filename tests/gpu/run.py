"""All tests that need a GPU, in a few minutes: python tests/gpu/run.py [options of pytest]

Kernels are compiled and compared by many processes at once, and beside them the tests run that ask
what comes out, and not how fast it is. Whatever is not named here has the GPU to itself: it asks
for times and for counters.
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
)
ALIKE = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
"""torch.compile starts no process for each processor, of which all are busy."""

AT_A_TIME = 3
"""Commands: more of them have to wait for one another, to count and for the processors."""

MOST_PROCESSES = 15


class Part:
    """One process of pytest, with a cache of its own; what it prints is printed when it ends."""

    def __init__(self, options: Sequence[str], nice: int = 0) -> None:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._output = Path(self._folder.name) / "output.txt"
        pytest = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "--timeout", "400"]
        pytest += ["--durations", "8"]
        pytest += ["-p", "no:benchmark"]  # where that plugin is, it warns beside xdist
        with self._output.open("w") as output:
            self._process = subprocess.Popen(
                [*pytest, *sys.argv[1:], *options],
                env={**os.environ, **ALIKE, "ROOFLAB_CACHE_DIR": self._folder.name},
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=partial(os.nice, nice),
            )

    def ended(self) -> int:
        """The exit code."""
        code = self._process.wait()
        print(self._output.read_text(errors="replace"), flush=True)
        self._folder.cleanup()
        return code


def paths(names: Sequence[str]) -> list[str]:
    return [str(FOLDER / name) for name in names]


def main() -> int:
    """The exit code: 0 if all parts pass."""
    started = perf_counter()
    processes = max(1, min(MOST_PROCESSES, (os.cpu_count() or 1) - 1))
    # The others wait for the GPU, and need little of the CPU when it is theirs.
    first = [Part(["-n", str(processes), "--dist", "worksteal", *paths(TOGETHER)], nice=10)]
    first += [Part(["-n", str(AT_A_TIME), *paths(names)]) for names in BESIDE]
    codes = [part.ended() for part in first]
    named = [word for path in paths(sum(BESIDE, TOGETHER)) for word in ("--ignore", path)]
    codes.append(Part([*named, str(FOLDER)]).ended())
    print(f"all of tests/gpu: {perf_counter() - started:.0f} s, exit codes {codes}")
    return int(any(codes))  # a signal's code is negative


if __name__ == "__main__":
    sys.exit(main())
