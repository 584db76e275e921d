"""Which of a program's processes this one is, as its launcher says. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rooflab.errors import UsageError

_NUMBERS: Final = (
    ("RANK", "WORLD_SIZE"),  # torchrun, Ray Train, accelerate, deepspeed
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # a batch script has only SLURM_NTASKS
    ("PMI_RANK", "PMI_SIZE"),
)
"""Rank and number of ranks, of the innermost launcher first."""

_LAUNCH: Final = (
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "PMIX_NAMESPACE",
)
"""What all ranks of a launch have in common."""

MOST: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Rank ``number`` of ``size``. ``launch`` is the same in all ranks of a launch."""

    number: int
    size: int
    launch: str = ""


def place_of(variables: Mapping[str, str]) -> RankPlace | None:
    """That of a process with these environment variables; None if it is the only one."""
    for names in _NUMBERS:
        number, size = (_number(variables.get(name)) for name in names)
        if number is not None and size is not None and number < size:
            launch = "/".join(f"{name}={variables[name]}" for name in _LAUNCH if name in variables)
            return RankPlace(number, size, launch) if size > 1 else None
    return None


def given_place(rank: int | None, ranks: int | None, variables: Mapping[str, str]) -> RankPlace:
    """As given, or that of this process; raises ``UsageError`` if it is not known or impossible."""
    known = place_of(variables)
    number, size = rank, ranks
    if known:
        number = known.number if number is None else number
        size = known.size if size is None else size
    if number is None or size is None:
        raise UsageError("this process has no RANK and WORLD_SIZE: give rank= and ranks=")
    if not 0 <= number < size <= MOST:
        raise UsageError(f"rank={number} of ranks={size}: ranks are numbered from 0")
    return RankPlace(number, size)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) < 8 else None
