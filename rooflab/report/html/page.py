"""The whole page: sections, style and script in one file that needs no network."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

from rooflab.errors import UsageError
from rooflab.files import write_atomic
from rooflab.report.html import comparing, machine, panel, points, rooflines, roofs, sizes, summary
from rooflab.report.html.controls import controls
from rooflab.report.html.markup import Markup, element, section
from rooflab.report.html.points import Content
from rooflab.report.html.rows import rows
from rooflab.report.html.verdicts import explained, verdicts
from rooflab.runs.looks import DARK, kernel_styles
from rooflab.runs.names import short_name
from rooflab.runs.store import Run
from rooflab.version import __version__

_FILES: Final = Path(__file__).resolve().parent


def write(runs: Sequence[Run], path: Path) -> None:
    """Write the report of ``runs``; raises ``UsageError`` without a row, or if it cannot write."""
    page = to_html(runs)
    try:
        write_atomic(path, page.encode("utf-8", "replace"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot write {str(path)[:200]}: {reason}") from error


def to_html(runs: Sequence[Run]) -> str:
    """The report of ``runs``; raises ``UsageError`` if one of them has no row."""
    content = points.content(runs)
    style = Markup((_FILES / "report.css").read_text(encoding="utf-8") + _colours(content))
    script = Markup((_FILES / "report.js").read_text(encoding="utf-8"))
    names = dict.fromkeys(short_name(run.manifest.device.name) for run in runs)
    title = f"rooflab: {', '.join(names)}"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", style),
    )
    body = element("body", *_body(content, title), element("script", script))
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _policy(style: str, script: str) -> str:
    """Nothing may be loaded or sent, and only this style and this script are used."""
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}"


def _colours(content: Content) -> str:
    """Each kernel's colour, another shade on a dark page."""
    light = [style.colour for style in content.styles.values()]
    dark = [style.colour for style in kernel_styles(content.styles, DARK).values()]

    def rules(colours: Iterable[str]) -> str:
        return "".join(f".k{i}{{color:{colour}}}" for i, colour in enumerate(colours))

    return f"{rules(light)}\n@media screen and (prefers-color-scheme:dark){{{rules(dark)}}}\n"


def _body(content: Content, title: str) -> list[Markup]:
    found = explained(content)
    drawn = rooflines.figures(content)
    legend = panel.legend(content, content.measured)
    counted = any(spot.counted for spot in rooflines.spots(content.measured))
    figures = [
        section("rooflines", "Rooflines", legend, panel.panels(drawn)) if drawn else Markup(),
        *_by_size(content, legend),
    ]
    return [
        panel.markers(),
        element("header", element("h1", title), *map(_origin, content.runs)),
        element(
            "main",
            summary.summary(content, found),
            controls(content, roofs.provenances(content), counted),
            *figures,
            comparing.comparison(content),
            verdicts(content, found),
            rows(content),
            machine.devices(content),
            machine.method(content),
            machine.again(content),
        ),
        element("footer", element("p", f"Made by rooflab {__version__}.")),
        element("div", id="card", hidden=True),
    ]


def _origin(run: Run) -> Markup:
    manifest = run.manifest
    return element(
        "p",
        f"{manifest.device.name}, {manifest.created:%Y-%m-%d %H:%M} UTC, "
        f"{len(run.measurements)} rows, rooflab {manifest.versions.get('rooflab', 'unknown')}",
    )


def _by_size(content: Content, legend: Markup) -> list[Markup]:
    """Throughput is open; time and power open by a click."""
    parts = (
        ("Throughput", sizes.throughput(content)),
        ("Time", sizes.times(content)),
        ("Power", sizes.power(content)),
    )
    drawn = [
        element(
            "details",
            element("summary", name),
            panel.panels(figures),
            open=name == "Throughput",
        )
        for name, figures in parts
        if figures
    ]
    return [section("sizes", "Against the size", legend, *drawn)] if drawn else []
