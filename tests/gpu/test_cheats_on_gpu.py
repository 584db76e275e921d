"""No cheat and no mistake is ``ok`` on a GPU, each row says why, and what is right stays ``ok``.

The kernels and what they must come to are in tests/cheats.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cheats import judge, table

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", [name for name in table.GPU if name not in table.ALONE])
def test_no_cheat_is_ok(name: str, elsewhere: Path) -> None:
    found = judge.surprises(table.GPU[name], elsewhere, "cuda:0")
    if found and "PYTEST_XDIST_WORKER" in os.environ:
        # Other tests may have hidden a cheat, or slowed an honest kernel down.
        found = judge.surprises(table.GPU[name], elsewhere, "cuda:0")
    assert not found, "\n".join(found)
