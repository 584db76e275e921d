"""Ranks of a program, each in a process of its own with an imitated GPU; and figures of ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import program_runs
import pytest
from imitation import Chip

from rooflab.programs import peers, profile, script, whole
from rooflab.programs.profile import Roofs

HERE = Path(__file__).resolve().parent
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"

STEPS = f"""\
import os
from ranked import chip
rank = int(os.environ["RANK"])
for _ in range(20):
    chip.launch("gemm", 1000 + 300 * rank)
    chip.launch("{ALL_REDUCE}", 700 - 300 * rank)
    chip.wait(100)
"""
"""Rank 1 computes 300 µs longer: the others wait so long."""

chip = Chip()


def main() -> None:
    """The process that a rank of ``rooflab profile`` becomes, with the imitation."""
    patch = pytest.MonkeyPatch()
    chip.install(patch, whole)
    patch.setattr(whole, "LOOK_S", 1e6)
    patch.setattr(peers, "JOIN_S", float(os.environ.get("JOIN_S", "30")))
    known = program_runs.run().manifest
    found = Roofs(known.device, known.roofline, {}, {})
    patch.setattr(profile, "open_device", lambda name: None)
    patch.setattr(profile, "roofs", lambda device: None)
    patch.setattr(Roofs, "of", lambda device, roofline: found)
    sys.modules["ranked"] = sys.modules["__main__"]
    sys.exit(script.main())


def start(text: str, out: str = "results", **variables: object) -> subprocess.Popen[str]:
    """One process of a program with these environment variables."""
    Path("it.py").write_text(textwrap.dedent(text))
    options: dict[str, Any] = {"module": False, "out": out, "counters": False}
    options |= {"steps": 0, "skip": 0, "kernels": "", "inside": ""}
    own = {name: str(value) for name, value in variables.items()}
    paths = [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, paths))
    given = {**os.environ, "PYTHONPATH": path, script.OPTIONS: json.dumps(options), **own}
    command = [sys.executable, str(HERE / "ranked.py"), "it.py"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, env=given, **pipes)  # type: ignore[call-overload,no-any-return]


Ended = list[tuple[int, str, str]]
"""Exit code, standard output and standard error of each rank."""


def ranks(text: str, count: int = 2, out: str = "results", **more: object) -> Ended:
    """All ranks of a launch, as torchrun starts them."""
    launch = {"WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500, **more}
    started = [start(text, out, RANK=rank, **launch) for rank in range(count)]
    told = [one.communicate() for one in started]
    return [(one.returncode, *each) for one, each in zip(started, told, strict=True)]


if __name__ == "__main__":
    main()
