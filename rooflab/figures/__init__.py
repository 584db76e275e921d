"""Figures of runs: the roofline, and throughput against size. Reads runs only, not devices."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

from rooflab.errors import UsageError
from rooflab.figures.energy import draw_energy
from rooflab.figures.levels import draw_levels, of_one_device
from rooflab.figures.palette import kernel_styles
from rooflab.figures.roofline import draw_roofline
from rooflab.figures.roofs import above_roof_cause
from rooflab.figures.scaling import draw_scaling
from rooflab.figures.selection import select
from rooflab.figures.size import draw_size
from rooflab.figures.speedup import draw_speedup
from rooflab.figures.style import THEMES, styled
from rooflab.figures.timeline import draw_timeline
from rooflab.figures.transfers import draw_transfers
from rooflab.files import unwritable, write_atomic
from rooflab.runs.store import Run
from rooflab.runs.timelines import fastest

__all__ = [
    "THEMES",
    "above_roof_cause",
    "draw_all",
    "energy_figure",
    "kernel_styles",
    "levels_figure",
    "roofline_figure",
    "save",
    "scaling_figure",
    "size_figure",
    "speedup_figure",
    "timeline_figure",
    "transfers_figure",
]

# The same figure always gives the same bytes: no dates, and no version of matplotlib in the PNG.
_METADATA: Final[dict[str, dict[str, Any]]] = {
    ".png": {"Software": "rooflab"},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}


def roofline_figure(
    runs: Sequence[Run],
    precisions: Sequence[str] | None = None,
    workload: str | None = None,
    *,
    style: str = "default",
) -> Figure:
    """The roofline of ``runs``, one panel per precision, all with the same axes.

    Raises ``UsageError`` if there is nothing to draw.
    """
    with styled(style):
        return draw_roofline(select(runs, precisions, workload))


def size_figure(
    runs: Sequence[Run],
    precisions: Sequence[str] | None = None,
    workload: str | None = None,
    *,
    style: str = "default",
) -> Figure:
    """TFLOP/s and GB/s against size, intensity on top, one pair of panels per precision.

    Sizes of one number have a logarithmic axis, problems of several workloads an axis of bytes.
    Other shapes are in order of intensity, each with its name. Raises ``UsageError`` if there is
    nothing to draw.
    """
    with styled(style):
        return draw_size(select(runs, precisions, workload, flops=False))


def levels_figure(
    runs: Sequence[Run],
    precisions: Sequence[str] | None = None,
    workload: str | None = None,
    *,
    style: str = "default",
) -> Figure:
    """The hierarchical roofline of runs of one device, from counted bytes.

    Raises ``UsageError`` if there is nothing to draw.
    """
    with styled(style):
        return draw_levels(
            select(of_one_device(runs), precisions, workload, flops=False, every=True)
        )


def energy_figure(
    runs: Sequence[Run],
    precisions: Sequence[str] | None = None,
    workload: str | None = None,
    *,
    style: str = "default",
) -> Figure:
    """GFLOP/J against FLOP/byte, one panel per precision.

    Raises ``UsageError`` if no row has an energy.
    """
    with styled(style):
        return draw_energy(select(runs, precisions, workload, every=True))


def speedup_figure(
    runs: Sequence[Run],
    precisions: Sequence[str] | None = None,
    workload: str | None = None,
    *,
    base: str,
    style: str = "default",
) -> Figure:
    """How many times as fast as the kernel ``base`` the others are, one panel per precision.

    Raises ``UsageError`` if there is nothing to compare.
    """
    with styled(style):
        return draw_speedup(select(runs, precisions, workload, flops=False, every=True), base)


def transfers_figure(runs: Sequence[Run], *, style: str = "default") -> Figure:
    """Throughput of streamed problems against the chunk, with the bounds that copies allow.

    Raises ``UsageError`` if there is nothing to draw.
    """
    with styled(style):
        return draw_transfers(runs)


def timeline_figure(run: Run, *, style: str = "default") -> Figure:
    """When the chunks of the fastest streamed row were copied and computed.

    Raises ``UsageError`` if there is nothing to draw.
    """
    with styled(style):
        return draw_timeline(run)


def scaling_figure(run: Run, *, style: str = "default") -> Figure:
    """Several GPUs against one, and the bandwidth of collectives.

    Raises ``UsageError`` if there is nothing to draw.
    """
    with styled(style):
        return draw_scaling(run)


def save(figure: Figure, path: Path) -> None:
    """Write PNG, SVG or PDF by suffix; the same figure always gives the same bytes."""
    metadata = _METADATA.get(path.suffix.lower())
    if metadata is None:
        raise UsageError(f"cannot draw to {path}: name a .png, .svg or .pdf file")
    picture = BytesIO()
    with styled("default"):
        figure.savefig(picture, format=path.suffix[1:].lower(), dpi="figure", metadata=metadata)
    try:
        write_atomic(path, picture.getvalue())
    except (OSError, ValueError) as error:
        raise unwritable(path, error) from error


def draw_all(run: Run, style: str = "default") -> list[Path]:
    """Draw the figures that the run's rows have a place in, into its folder."""
    figures = {}
    if any(row.flops and row.problem.resident for row in run.ok):
        figures["roofline.png"] = roofline_figure([run], style=style)
    resident = [row.problem for row in run.ok if row.problem.resident]
    drawn_by_size = len({(one.workload, one.size) for one in resident})
    if drawn_by_size > len({one.workload for one in resident}) or (resident and not figures):
        figures["size.png"] = size_figure([run], style=style)
    if any(row.problem.streamed for row in run.ok):
        figures["transfers.png"] = transfers_figure([run], style=style)
    if any(row.problem.gpus > 1 for row in run.ok):
        with suppress(UsageError):  # without a row on one GPU there is nothing to compare with
            figures["scaling.png"] = scaling_figure(run, style=style)
    if fastest(run.path, run.ok):
        figures["timeline.png"] = timeline_figure(run, style=style)
    for name, figure in figures.items():
        save(figure, run.path / name)
    return [run.path / name for name in figures]
