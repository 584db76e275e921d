"""What ``rooflab model`` predicts of a stack of kernels, against the model run by transformers.

    python benchmarks/decoding.py [MODEL] [--batch 1,8,64] [--operators RUN RUN] [--out results]

MODEL is one of configs/models/; the report of any but llama-3.1-8b has its name. Each operator of a
prefill and of a decode step is swept with PyTorch's eager kernels and cuBLAS, those that read what
was written just before in a warm cache. examples/programs/decode.py has the same model with random
weights, its step as a CUDA graph.

PASS: the sum of the operators is within 10 % of the time of the program, within 15 % for a mixture
of experts. What has no row is in it with its roof, if that is at most 1 %.
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
from rooflab.llm.operators import ModelStep, Phase, warm
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import Problem

PROGRAM = Path(__file__).resolve().parent.parent / "examples" / "programs" / "decode.py"
DENSE: Final = "llama-3.1-8b"
CONTEXT: Final = 2048
STACK: Final = "torch,cublas"
KERNELS: Final = {
    "gemm": ["cublas"],
    "attention": ["torch_cudnn", "torch_flash"],
    "grouped_gemm": ["torch_grouped"],
    "rmsnorm": ["torch_steps"],
    "embedding": ["torch_index"],
}
"""Those that the program launches; of other workloads it is ``torch``."""

LIMIT_PERCENT: Final = 10.0
LIMIT_OF_EXPERTS_PERCENT: Final = 15.0
"""Which experts are chosen is not known: it is modelled as random."""

UNKNOWN_PERCENT: Final = 1.0
"""Of the time may have no row."""

CACHES: Final = {False: "cold", True: "warm"}
LINE = re.compile(r"batch (\d+): prefill ([\d.]+) ms, decode ([\d.]+) ms")


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("model", nargs="?", default=DENSE)
    options.add_argument("--batch", default="1,8,64")
    options.add_argument("--operators", type=Path, nargs="+", default=[])
    options.add_argument("--out", type=Path, default=Path("results"))
    given = options.parse_args()
    batches = [int(one) for one in given.batch.split(",")]
    about = describe(open_gpu())
    measured = program(given.model, batches)
    given.out.mkdir(parents=True, exist_ok=True)
    runs = given.operators or swept_operators(given.model, batches, given.out)
    steps = predicted(given.model, given.batch, runs)
    limit = LIMIT_OF_EXPERTS_PERCENT if read(given.model).experts else LIMIT_PERCENT
    rows = [compared(step, measured, limit) for step in steps]
    names = " and ".join(run.name for run in runs)
    title = "# What the operators of a model take, and the model"
    heading = f"{title}\n\n{given.model}, context {CONTEXT}. {about}. Operators: {names}"
    name = "decoding" if given.model == DENSE else f"decoding_{Path(given.model).stem}"
    return conclude(rows, heading, given.out / "benchmarks", name)


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


def swept_operators(model: str, batches: list[int], out: Path) -> list[Path]:
    """The folders of the runs, of a cold and of a warm cache."""
    found = operators_of(model, batches)
    return [swept([one for one in found if warm(one) == cached], cached, out) for cached in CACHES]


def swept(problems: list[Problem], cached: bool, out: Path) -> Path:
    """The folder of the run."""
    file = out / f"{CACHES[cached]}.toml"
    file.write_text(config(problems), encoding="utf-8")
    return sweep(["--config", str(file), "--cache", CACHES[cached]], out)


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


def predicted(model: str, batches: str, runs: list[Path]) -> list[dict[str, Any]]:
    """The steps that ``rooflab model`` tells."""
    command = [sys.executable, "-m", "rooflab", "model", model, "--separate", "--json"]
    command += ["--batch", batches, "--context", str(CONTEXT)]
    command += ["--device-facts", str(runs[0]), "--stack", STACK]
    command += [word for run in runs for word in ("--with", str(run))]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return list(json.loads(said)["steps"])


def compared(
    step: dict[str, Any], measured: dict[tuple[str, int], float], limit_percent: float
) -> Row:
    us = step["stacks"][STACK]["us"]
    program_ms = measured.get((step["phase"], step["batch"]))
    modelled = [one for one in step["operators"] if STACK not in one["measured"]]
    unknown = 100 * sum(one["times"] * one["roof_us"] for one in modelled) / us
    compares = unknown <= UNKNOWN_PERCENT
    row: dict[str, str | float | None] = {
        "step": step["phase"],
        "batch": str(step["batch"]),
        "roof ms": step["roof_us"] / 1000,
        "operators ms": us / 1000,
        "no row %": unknown,
        "program ms": program_ms,
        "difference %": percent(us / 1000, program_ms) if compares and program_ms else None,
    }
    judge(row, limit_percent, "" if compares else "operators are missing")
    return row


if __name__ == "__main__":
    sys.exit(main())
