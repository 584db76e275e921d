"""Work beside a program's threads, which get the interpreter as soon as they ask for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from math import isclose
from typing import Final

SWITCH_S: Final = 1e-4
"""The usual 5 ms, for each call that gives the interpreter back, would be many times as long as a
step of short calls."""

_usual: Final[list[float]] = []


@contextmanager
def yielding() -> Iterator[None]:
    """Meanwhile threads wait SWITCH_S for one another; a program's own choice is left as it is."""
    _usual.append(sys.getswitchinterval())
    sys.setswitchinterval(min(_usual[-1], SWITCH_S))
    try:
        yield
    finally:
        _restore()


def _restore() -> None:
    """As it was before, here or in a fork that began meanwhile."""
    while _usual:
        usual = _usual.pop()
        if isclose(sys.getswitchinterval(), SWITCH_S, rel_tol=0.02):
            sys.setswitchinterval(usual)


os.register_at_fork(after_in_child=_restore)
