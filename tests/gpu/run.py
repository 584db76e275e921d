"""All tests that need a GPU, in a few minutes: python tests/gpu/run.py [options of pytest]

What measures, and what hangs or kills a GPU's context on purpose, has the GPU to itself, while the
other processors compile what comes next. Then kernels are compared by many processes at once, and
beside them the tests run that ask what comes out, and not how fast it is.
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
BESIDE = (("test_commands.py",), ("test_examples.py", "test_main_job.py"))
MOST_PROCESSES = 15
IMPORTS = [str(FOLDER.parents[1]), str(FOLDER.parent)]


class Part:
    """A process with a cache of its own, or a given one; what it prints is printed when it ends."""

    def __init__(self, command: Sequence[str], nice: int = 0, cache: Path | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._output = Path(self._folder.name) / "output.txt"
        with self._output.open("w") as output:
            self._process = subprocess.Popen(
                command,
                env={
                    **os.environ,
                    "ROOFLAB_CACHE_DIR": str(cache or self._folder.name),
                    "PYTHONPATH": os.pathsep.join([*IMPORTS, os.environ.get("PYTHONPATH", "")]),
                },
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

    def stop(self) -> None:
        """End it now, if it has not ended; its exit code says nothing."""
        self._process.terminate()
        self.ended()


def pytest(*options: str) -> list[str]:
    """The command for tests that need a GPU."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "--timeout", "400"]
    command += ["-p", "no:benchmark"]  # where that plugin is, it warns beside xdist
    return [*command, *sys.argv[1:], *options]


def paths(names: Sequence[str]) -> list[str]:
    return [str(FOLDER / name) for name in names]


def main() -> int:
    """The exit code: 0 if all parts pass."""
    started = perf_counter()
    processes = max(1, min(MOST_PROCESSES, (os.cpu_count() or 1) - 1))
    others = [word for path in paths(sum(BESIDE, TOGETHER)) for word in ("--ignore", path)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        cache = Path(folder)
        ahead = [sys.executable, str(FOLDER / "compile_ahead.py"), str((processes + 1) // 2)]
        compilers = Part(ahead, 19, cache)  # half of them: what measures must not wait
        codes = [Part(pytest(*others, str(FOLDER))).ended()]
        compilers.stop()
        together = pytest("-n", str(processes), "--dist", "worksteal", *paths(TOGETHER))
        last = [Part(together, 10, cache), *(Part(pytest(*paths(names))) for names in BESIDE)]
        codes += [part.ended() for part in last]
    print(f"all of tests/gpu: {perf_counter() - started:.0f} s, exit codes {codes}")
    return int(any(codes))  # a signal's code is negative


if __name__ == "__main__":
    sys.exit(main())
