"""Figures of runs. Reads runs only, not devices.

A figure is one file in ``kinds/``, which makes a ``Page`` of a ``Wanted``; ``drawing`` draws it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rooflab.errors import UsageError
from rooflab.figures.kinds import FIGURES
from rooflab.figures.model import Kind
from rooflab.figures.selection import Wanted
from rooflab.figures.style import THEMES, styled
from rooflab.runs.store import RunData

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FIGURES", "THEMES", "Kind", "chosen", "draw", "draw_all", "register", "save"]


def register(kind: Kind) -> Kind:
    """Add a kind of figure of your own; raises ``UsageError`` if its name or option is taken."""
    for known in FIGURES.values():
        if known.name == kind.name or (kind.option and known.option == kind.option):
            raise UsageError(f"there is a figure {known.name!r} already: choose another name")
    FIGURES[kind.name] = kind
    return kind


def draw(
    name: str,
    runs: Sequence[RunData],
    precisions: Sequence[str] | None = None,
    workload: str | None = None,
    *,
    style: str = "default",
    value: str = "",
) -> Figure:
    """The figure ``name`` of ``runs``; ``value`` is that of its option.

    Raises ``UsageError`` if there is nothing to draw.
    """
    from rooflab.figures import drawing

    with styled(style):
        return drawing.draw(FIGURES[name].make(Wanted(runs, precisions, workload, value)))


def chosen(options: Mapping[str, str | bool | None]) -> tuple[str, str]:
    """The figure that ``options`` choose, and the value of its option; the first without any.

    Raises ``UsageError`` if they choose several figures.
    """
    kinds = {kind.option: kind for kind in FIGURES.values() if kind.option}
    given = {name: value for name, value in options.items() if value not in (None, False)}
    if unknown := given.keys() - kinds.keys():
        raise UsageError(f"no figure {min(unknown)!r}: choose from {', '.join(kinds)}")
    if len(given) > 1:
        *most, last = (f"--{name.replace('_', '-')}" for name in kinds)
        raise UsageError(f"{', '.join(most)} and {last} are different figures: give one")
    for name, value in given.items():
        return kinds[name].name, value if isinstance(value, str) else ""
    return next(iter(FIGURES)), ""


def save(figure: Figure, path: Path) -> None:
    """Write PNG, SVG or PDF by suffix; the same figure always gives the same bytes."""
    from rooflab.figures import drawing

    drawing.save(figure, path)


def draw_all(run: RunData, style: str = "default") -> list[Path]:
    """Draw the figures that the run's rows have a place in, into its folder."""
    drawn = {
        run.path / f"{kind.name}.png": draw(kind.name, [run], style=style)
        for kind in FIGURES.values()
        if kind.suits(run)
    }
    for path, figure in drawn.items():
        save(figure, path)
    return list(drawn)
