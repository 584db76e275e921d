"""A program in a notebook: what is to say of it, and the table of its groups."""

from __future__ import annotations

from rooflab.report.html.markup import element, table
from rooflab.report.program import cells_of, lines
from rooflab.runs.store import Run


def notebook(run: Run) -> str:
    """HTML; all text of the run is escaped."""
    headings, rows = cells_of(run)
    title = f"{run.manifest.device.name}, {run.manifest.created:%Y-%m-%d %H:%M} UTC"
    said = "".join(element("p", line) for line in lines(run))
    return f"{said}{table(headings, rows, title)}"
