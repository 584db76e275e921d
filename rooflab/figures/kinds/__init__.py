"""The kinds of figures, each in a file with a ``KIND``."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from rooflab.figures.model import Kind

FIGURES: Final[dict[str, Kind]] = {
    kind.name: kind
    for kind in sorted(
        (import_module(f"{__name__}.{module.name}").KIND for module in iter_modules(__path__)),
        key=lambda kind: kind.rank,
    )
}
