"""Which rank a process is, by the variables of its launcher."""

from __future__ import annotations

import pytest

from rooflab.errors import UsageError
from rooflab.programs.place import RankPlace, given_place, place_of


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({}, None),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"RANK": "1", "WORLD_SIZE": "2"}, RankPlace(1, 2)),
        ({"RANK": "2", "WORLD_SIZE": "2"}, None),
        ({"RANK": "x", "WORLD_SIZE": "2"}, None),
        ({"RANK": "1"}, None),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, RankPlace(3, 4)),
        ({"PMI_RANK": "3", "PMI_SIZE": "4"}, RankPlace(3, 4)),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}, RankPlace(3, 4)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None),  # a batch script
        (
            {"RANK": "1", "WORLD_SIZE": "8", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"},
            RankPlace(1, 8),
        ),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "a"},
            RankPlace(1, 2, "TORCHELASTIC_RUN_ID=a/MASTER_PORT=1"),
        ),
        # The only process of an inner launch is no rank of the outer one.
        ({"RANK": "0", "WORLD_SIZE": "1", "PMI_RANK": "1", "PMI_SIZE": "2"}, None),
    ],
)
def test_launchers(variables: dict[str, str], place: RankPlace | None) -> None:
    assert place_of(variables) == place


def test_a_place_that_is_given() -> None:
    known = {"RANK": "1", "WORLD_SIZE": "4"}
    assert given_place(None, None, known) == RankPlace(1, 4)
    assert given_place(3, None, known) == RankPlace(3, 4)
    assert given_place(0, 1, {}) == RankPlace(0, 1)
    for rank, ranks in ((None, 2), (2, 2), (-1, 2)):
        with pytest.raises(UsageError):
            given_place(rank, ranks, {})
