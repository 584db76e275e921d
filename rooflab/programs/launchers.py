"""Programs that start the ranks of another one: torchrun is told to start rooflab in each rank."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, Final

from rooflab.errors import UsageError

TORCHRUN: Final = ("torchrun", "torch.distributed.run")

OTHERS: Final = {
    "accelerate": "accelerate launch --no_python rooflab profile SCRIPT",
    "deepspeed": "deepspeed --no_local_rank --module rooflab profile SCRIPT",
    "mpirun": "mpirun -n 2 rooflab profile SCRIPT",
    "mpiexec": "mpiexec -n 2 rooflab profile SCRIPT",
    "srun": "srun -n 2 rooflab profile SCRIPT",
    "torch.distributed.launch": "torchrun --nproc-per-node 2 -m rooflab profile SCRIPT",
}
"""What to type with other launchers."""


def launches_ranks(program: str) -> bool:
    """Whether it is torchrun. Raises ``UsageError`` for another launcher, with what to type."""
    name = PurePath(program).name
    if name in OTHERS:
        raise UsageError(
            f"{name} starts the processes that are to be profiled: type {OTHERS[name]}"
        )
    return name in TORCHRUN


def start_ranks(arguments: Sequence[str], options: Sequence[str]) -> None:
    """Become torchrun, with ``rooflab profile`` and its ``options`` in each rank.

    Raises ``UsageError`` without PyTorch, or if torchrun is to start something else than Python.
    """
    command = [sys.executable, "-m", "torch.distributed.run", *_with_rooflab(arguments, options)]
    sys.stdout.flush()
    os.execv(sys.executable, command)


def _with_rooflab(arguments: Sequence[str], options: Sequence[str]) -> list[str]:
    """The arguments of torchrun, its script replaced."""
    given = _parsed(arguments)
    if given.no_python:
        raise UsageError("rooflab profiles Python under torchrun: leave out --no-python")
    program = [given.training_script, *given.training_script_args]
    own = [word for word in arguments[: len(arguments) - len(program)] if word not in _MODULE]
    module = ["-m"] if given.module else []
    return [*own, "-m", "rooflab", "profile", *options, *module, *program]


_MODULE: Final = ("-m", "--module")


def _parsed(arguments: Sequence[str]) -> Any:
    try:
        from torch.distributed.run import get_args_parser
    except ImportError:
        raise UsageError(
            "this Python has no PyTorch: torchrun --nproc-per-node 2 -m rooflab profile SCRIPT "
            "with the one that has"
        ) from None
    return get_args_parser().parse_args(list(arguments))
