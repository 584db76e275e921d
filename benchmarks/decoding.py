"""What ``rooflab model`` predicts of a stack of kernels, against the model run by transformers.

    python benchmarks/decoding.py [MODEL] [--batch 1,8,64] [--out results]

Each operator of a prefill and of a decode step is swept with PyTorch's eager kernels and cuBLAS;
examples/programs/decode.py has the same model with random weights, its step as a CUDA graph.

PASS: the sum of the operators is within 10 % of the time of the program.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from _common import Row, conclude, describe, judge, open_gpu, percent, sweep

from rooflab.llm.config import read
from rooflab.llm.estimate import problems
from rooflab.llm.operators import ModelStep, Phase
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import Problem

PROGRAM = Path(__file__).resolve().parent.parent / "examples" / "programs" / "decode.py"
CONTEXT: Final = 2048
STACK: Final = "torch,cublas"
KERNELS: Final = {"gemm": ["cublas"], "attention": ["torch_cudnn", "torch_flash"]}
"""Those that the program launches; of other workloads it is ``torch``."""

LIMIT_PERCENT: Final = 10.0
LINE = re.compile(r"batch (\d+): prefill ([\d.]+) ms, decode ([\d.]+) ms")


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("model", nargs="?", default="llama-3.1-8b")
    options.add_argument("--batch", default="1,8,64")
    options.add_argument("--out", type=Path, default=Path("results"))
    given = options.parse_args()
    batches = [int(one) for one in given.batch.split(",")]
    about = describe(open_gpu())
    measured = program(given.model, batches)
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / "operators.toml"
    file.write_text(config(operators_of(given.model, batches)), encoding="utf-8")
    run = sweep(["--config", str(file)], given.out)
    rows = [compared(step, measured) for step in predicted(given.model, given.batch, run)]
    heading = f"{given.model}, context {CONTEXT}. {about}. Operators: {run.name}"
    return conclude(rows, heading, given.out / "benchmarks", "decoding")


def program(model: str, batches: list[int]) -> dict[tuple[str, int], float]:
    """Milliseconds of each phase and batch."""
    command = [sys.executable, str(PROGRAM), model, "--context", str(CONTEXT), "--batch"]
    print(*command[1:], *batches, file=sys.stderr, flush=True)
    given = [*command, *map(str, batches)]
    said = subprocess.run(given, stdout=subprocess.PIPE, text=True, check=True).stdout
    print(said, file=sys.stderr, flush=True)
    found: dict[tuple[str, int], float] = {}
    for batch, prefill, decode in LINE.findall(said):
        found |= {("prefill", int(batch)): float(prefill), ("decode", int(batch)): float(decode)}
    return found


def operators_of(model: str, batches: list[int]) -> list[Problem]:
    phases: tuple[Phase, ...] = ("prefill", "decode")
    steps = [
        ModelStep(phase, batch, CONTEXT, PRECISIONS["bf16"], separate=True)
        for phase in phases
        for batch in batches
    ]
    return problems(read(model), steps)


def config(found: Iterable[Problem]) -> str:
    """A sweep of the operators, as TOML."""
    shapes: dict[str, list[str]] = defaultdict(list)
    settings: dict[str, dict[str, Any]] = {}
    for one in found:
        shapes[one.workload].append("x".join(map(str, one.extents.values())))
        here = {n: v for n, v in one.settings.items() if v != one.parameters()[n].default}
        assert settings.setdefault(one.workload, here) == here
    lines = []
    for name, sizes in shapes.items():
        lines += [f"[workloads.{name}]", f"shapes = {json.dumps(sizes)}"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in settings[name].items()]
        kernels = json.dumps(KERNELS.get(name, ["torch"]))
        lines += [f"[cuda.workloads.{name}]", f"kernels = {kernels}", 'precisions = "bf16"', ""]
    return "\n".join(lines)


def predicted(model: str, batches: str, run: Path) -> list[dict[str, Any]]:
    """The steps that ``rooflab model`` tells."""
    command = [sys.executable, "-m", "rooflab", "model", model, "--separate", "--json"]
    command += ["--batch", batches, "--context", str(CONTEXT)]
    command += ["--device-facts", str(run), "--with", str(run), "--stack", STACK]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return list(json.loads(said)["steps"])


def compared(step: dict[str, Any], measured: dict[tuple[str, int], float]) -> Row:
    stack = step["stacks"][STACK]
    program_ms = measured.get((step["phase"], step["batch"]))
    compares = not stack["lower_bound"]
    row: dict[str, str | float | None] = {
        "step": step["phase"],
        "batch": str(step["batch"]),
        "roof ms": step["roof_us"] / 1000,
        "operators ms": stack["us"] / 1000,
        "program ms": program_ms,
        "difference %": percent(stack["us"] / 1000, program_ms)
        if compares and program_ms
        else None,
    }
    judge(row, LIMIT_PERCENT, "operators are missing" if stack["lower_bound"] else "")
    return row


if __name__ == "__main__":
    sys.exit(main())
