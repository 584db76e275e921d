"""Figures drawn by matplotlib, as PNG, SVG or PDF."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis as Ticks
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from rooflab.errors import UsageError
from rooflab.figures import model
from rooflab.figures.labels import Labels
from rooflab.figures.page import LEFT, RIGHT
from rooflab.figures.style import Theme, styled, theme
from rooflab.files import unwritable, write_atomic

_LEADING: Final = 0.0207
"""Inches from line to line, for each point of the type's size."""

_MARGIN: Final = 0.08

MANY: Final = 100
"""Boxes that are worth an artist each, which takes a millisecond."""

LEADER: Final = 8
"""The order of lines from labels to their bubbles: above all."""

# The same figure always gives the same bytes: no dates.
_METADATA: Final[dict[str, dict[str, Any]]] = {
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}


class Picture(Figure):
    """A figure that a notebook shows, also without ``%matplotlib inline``."""

    def _repr_png_(self) -> bytes:
        picture = BytesIO()
        with settings():
            _save_with_palette(self, picture)
        return picture.getvalue()


def save(figure: Figure, path: Path) -> None:
    """Write PNG, SVG or PDF by suffix; the same figure always gives the same bytes."""
    suffix, picture = path.suffix.lower(), BytesIO()
    if suffix not in (".png", *_METADATA):
        raise UsageError(f"cannot draw to {path}: name a .png, .svg or .pdf file")
    with styled("default"), settings():
        if suffix == ".png":
            _save_with_palette(figure, picture)
        else:
            metadata = _METADATA[suffix]
            figure.savefig(picture, format=suffix[1:], dpi="figure", metadata=metadata)
    try:
        write_atomic(path, picture.getvalue())
    except (OSError, ValueError) as error:
        raise unwritable(path, error) from error


def _save_with_palette(figure: Figure, picture: BytesIO) -> None:
    """A PNG of 256 colours is a third as large as one of all, and looks the same."""
    pixels, size = BytesIO(), figure.bbox.size
    figure.savefig(pixels, format="raw", dpi="figure")
    image = Image.frombytes("RGBA", (int(size[0]), int(size[1])), pixels.getvalue())
    text = PngInfo()
    text.add_text("Software", "rooflab")
    few = image.convert("RGB").quantize(dither=Image.Dither.NONE)
    few.save(picture, "PNG", dpi=(figure.dpi, figure.dpi), pnginfo=text)


@contextmanager
def settings() -> Iterator[None]:
    """Draw in the style. A user's matplotlibrc has no effect: it would move labels."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_settings(theme()))
        # A name may have characters that the font lacks: they are drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def _settings(style: Theme) -> dict[Any, Any]:
    inks = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    return {
        **dict.fromkeys(inks, style.ink),
        **dict.fromkeys(("figure.facecolor", "axes.facecolor"), style.palette.background),
        "font.size": style.type,
        "axes.linewidth": 0.8,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.titlesize": style.type + 1,
        "axes.labelsize": style.type,
        "legend.fontsize": style.type,
        "grid.color": style.grid,
        "grid.linewidth": 0.6,
        "pdf.fonttype": 42,  # text stays text
        "svg.hashsalt": "rooflab",
        "text.parse_math": False,  # names may hold dollars
    }


# The page ----------------------------------------------------------------------------------------


def draw(page: model.Page) -> Figure:
    """The page in the style of ``theme``."""
    with settings():
        style, width = theme(), page.width
        figure = Picture(figsize=(width, 4.0), dpi=style.dpi)
        FigureCanvasAgg(figure)
        legend = _legend(figure, page.legend, width)
        inches = width - LEFT - RIGHT
        lines = [line for note in page.notes for line in _wrapped(note, style.note, inches)]
        title = _wrapped(page.title, style.title, inches)
        title_height = 0.1 + 0.0185 * style.title * len(title)
        top = title_height + legend.get_window_extent().height / style.dpi + _MARGIN
        leading = _LEADING * style.note
        height = top + page.body + leading * len(lines) + _MARGIN
        figure.set_size_inches(width, height)
        left = LEFT / width
        figure.text(left, 1 - 0.1 / height, "\n".join(title), va="top", fontsize=style.title)
        legend.set_bbox_to_anchor((left, 1 - title_height / height))
        for i, line in enumerate(reversed(lines)):
            y = (_MARGIN + i * leading) / height
            figure.text(left, y, line, fontsize=style.note, color=style.muted, va="bottom")
        for panel in page.panels:
            cell = panel.cell
            bottom = height - top - cell.top - cell.height
            box = (cell.left / width, bottom / height, cell.width / width, cell.height / height)
            draw_panel(figure.add_axes(box), panel)
        return figure


def _wrapped(text: str, size: float, inches: float) -> list[str]:
    return textwrap.wrap(text, model.characters(size, inches))


def _legend(figure: Figure, keys: Sequence[model.Key], width: float) -> Legend:
    columns, handles = len(keys), [_handle(key, width) for key in keys]
    while True:
        legend = figure.legend(
            handles=handles,
            ncols=columns,
            loc="upper left",
            frameon=False,
            borderaxespad=0,
            borderpad=0,
        )
        if columns == 1 or legend.get_window_extent().width / theme().dpi <= width - 0.8:
            return legend
        legend.remove()
        columns -= 1


def _handle(key: model.Key, width: float) -> Line2D | Patch:
    name = model.shortened(key.name, theme().type, width - 1.4)
    if not key.dash:
        return Patch(color=key.colour, label=name)
    return Line2D(
        *([], []),
        color=key.colour,
        label=name,
        marker=key.marker,
        linestyle=key.dash,
        fillstyle=key.fill,
        markersize=theme().marker + 0.5,
        linewidth=theme().line + 0.3,
    )


# A panel -----------------------------------------------------------------------------------------


def draw_panel(axes: Axes, panel: model.Panel) -> None:
    """Draw everything of ``panel`` in ``axes``, which have its size."""
    style, cell = theme(), panel.cell
    colours: dict[str, Any] = dict.fromkeys(("color", "labelcolor"), style.ink)
    axes.tick_params(which="both", length=3, grid_color=style.grid, **colours)
    axes.tick_params(labelsize=style.type - 0.5)
    axes.tick_params(which="minor", length=1.5)
    axes.yaxis.set_label_coords(-0.52 / cell.width, 0.5)
    scales = ("log" if axis.log else "linear" for axis in (panel.x, panel.y))
    for name, scale, axis in zip("xy", scales, (panel.x, panel.y), strict=True):
        title = axis.title if axis.titled else ""
        axes.set(**{f"{name}scale": scale, f"{name}lim": axis.limits, f"{name}label": title})
    _ticks(axes.xaxis, panel.x, cell.width / 0.52)
    _ticks(axes.yaxis, panel.y, cell.height / 0.21)
    if panel.titled:
        axes.set_title(panel.title, loc="left", fontweight="bold", pad=panel.pad, y=1.0)
    if panel.above:
        _above(axes, panel.above)
    for bars in panel.bars:
        _bars(axes, bars)
    for line in panel.lines:
        if line.width:
            look: dict[str, Any] = {"linestyle": line.dash, "linewidth": line.width}
            axes.plot(*zip(*line.points, strict=True), color=line.colour, zorder=line.z, **look)
    for marks in panel.marks:
        _marks(axes, marks)
    labels = Labels(panel)
    placed: set[object] = set()
    for label in panel.labels:
        if (label.key is None or label.key not in placed) and _label(axes, panel, labels, label):
            placed.add(label.key)


def _label(axes: Axes, panel: model.Panel, labels: Labels, label: model.Label) -> bool:
    note = axes.annotate(
        label.text,
        (axes.get_xlim()[0], axes.get_ylim()[0]),
        xytext=(0, 0),
        textcoords="offset points",
        annotation_clip=False,
        color=label.colour,
        fontsize=label.size or theme().label,
        multialignment=label.align,
        path_effects=[withStroke(linewidth=2, foreground=theme().palette.background)],
    )
    extent, points = note.get_window_extent(), 72 / theme().dpi
    width, height = extent.width * points, extent.height * points
    spot = labels.place(label, width, height)
    if spot is None:
        note.remove()
        return False
    note.xy = (spot.x, spot.y)
    note.set_position((spot.dx, spot.dy))
    note.set(ha=spot.ha, va=spot.va, rotation=label.rotation, rotation_mode="anchor")
    if line := labels.leader(label, spot, width, height):
        ends = zip(*(panel.data(*end) for end in line), strict=True)
        axes.plot(*ends, color=label.colour, linewidth=0.6, zorder=LEADER)
    return True


_SLANTED: Final[dict[str, Any]] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}


def _ticks(ticks: Ticks, axis: model.Axis, room: float) -> None:
    """Ticks without numbers are few: Matplotlib takes a millisecond for each."""
    numbered, others = axis.marks(room)
    places, texts = zip(*numbered, strict=True) if numbered else ((), ())
    ticks.set_ticks(places, texts, **(_SLANTED if axis.turned == 45 else {}))
    ticks.set_minor_locator(FixedLocator(others))
    ticks.set_minor_formatter(NullFormatter())
    if axis.size:
        ticks.set_tick_params(labelsize=axis.size)
    if not axis.numbers:
        ticks.set_tick_params(labelbottom=False, labelleft=False)
    if not axis.grid:
        ticks.grid(visible=False)


def _above(axes: Axes, axis: model.Axis) -> None:
    top = axes.secondary_xaxis("top")
    places, texts = zip(*axis.ticks or (), strict=True)
    top.set_xticks(places, texts, rotation=axis.turned)
    top.xaxis.set_minor_locator(NullLocator())
    top.tick_params(labelsize=theme().label, length=3)
    if axis.titled:  # the panel's title is on the left
        top.set_xlabel(axis.title, fontsize=theme().type - 0.5, labelpad=4, loc="right")


def _bars(axes: Axes, bars: model.Bars) -> None:
    if len(bars.boxes) > MANY:
        corners = [[(x, y), (x + w, y), (x + w, y + h), (x, y + h)] for x, y, w, h in bars.boxes]
        look: dict[str, Any] = {"facecolors": bars.colour, "edgecolors": "none", "zorder": 2}
        axes.add_collection(PolyCollection(corners, **look), autolim=False)
        return
    lefts, bottoms, widths, heights = zip(*bars.boxes, strict=True)
    edges: dict[str, Any] = {"edgecolor": bars.edge, "linewidth": 0.4} if bars.edge else {}
    axes.bar(*(lefts, heights, widths, bottoms), align="edge", color=bars.colour, zorder=2, **edges)


def _marks(axes: Axes, marks: model.Marks) -> None:
    face: dict[str, Any] = {"markerfacecolor": marks.face} if marks.face else {}
    axes.plot(
        *zip(*marks.points, strict=True),
        color=marks.colour,
        marker=marks.marker,
        markersize=marks.size,
        fillstyle=marks.fill,
        markerfacecoloralt=theme().palette.background,
        markeredgewidth=marks.edge,
        linestyle=marks.dash or "none",
        linewidth=marks.width,
        zorder=marks.z,
        label=marks.name or None,
        **face,
    )
