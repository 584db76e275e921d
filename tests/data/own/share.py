"""A figure of a user's own, in one file: the share of the roof against the size."""

from __future__ import annotations

from rooflab.figures import Kind, model, register
from rooflab.figures.page import grid, page
from rooflab.figures.selection import Wanted, select


def make(wanted: Wanted) -> model.Page:
    """A panel per precision."""
    selection = select(wanted)
    cells = grid(len(selection.panels), apart=0.7, above=0.34, tall=3, below=0.5)
    panels = []
    for (precision, group), cell in zip(selection.panels.items(), cells, strict=True):
        sizes = [row.bytes or 1 for series in group for row in series.rows]
        x = model.Axis(model.log_limits(sizes, cell.width, 0.3, 0.3, 1), "Bytes")
        panel = model.log_panel(cell, x, model.Axis((0, 110), "% of roof", log=False), precision)
        lines = [(s, [(row.bytes or 1, row.roof_percent or 0) for row in s.rows]) for s in group]
        panel.draw_series(lines, selection.styles)
        panels.append(panel)
    return page(selection, "share of the roof", (), panels, cells[-1].top + cells[-1].height + 0.5)


KIND = register(Kind("share", 9, make, "share", suits=lambda run: bool(run.ok)))
