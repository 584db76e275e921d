"""Cheats that leave no room for other tests on the same GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from cheats import judge, table

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", table.ALONE)
def test_no_cheat_is_ok(name: str, elsewhere: Path) -> None:
    found = judge.surprises(table.GPU[name], elsewhere, "cuda:0")
    assert not found, "\n".join(found)
