"""What a judge asks of a submission before it is loaded."""

from __future__ import annotations

from time import sleep

import pytest

from rooflab.judging.submission import EMPTY, LEAST_EMPTY, Submission


@pytest.mark.parametrize(
    ("seconds", "least", "most"), [(0.0, EMPTY, EMPTY), (0.1, LEAST_EMPTY, 11)]
)
def test_empty_launches_are_fewer_where_a_cache_takes_long_to_clear(
    monkeypatch: pytest.MonkeyPatch, seconds: float, least: int, most: int
) -> None:
    times_us = iter(range(1, EMPTY + 1))

    def launched(self: Submission, *_: object) -> float:
        sleep(seconds)
        return float(next(times_us))

    monkeypatch.setattr(Submission, "_launched", launched)
    middle = object.__new__(Submission)._empty_us(lambda: None)
    assert (1 + least) / 2 <= middle <= (1 + most) / 2
