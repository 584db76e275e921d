"""The frame of a page: head, style and script in one file that needs no network."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Final

from rooflab.report.html.markup import Markup, element
from rooflab.version import __version__

MANY: Final = 500
"""A page with more rows has them and their points as data, of which its script makes a table and
marks. A page with fewer has elements, and needs no script."""

_FILES: Final = Path(__file__).resolve().parent


def own_file(name: str, folder: Path = _FILES) -> Markup:
    """The text of a file beside this one, or in another ``folder`` of the package."""
    return Markup((folder / name).read_text(encoding="utf-8"))


def document(title: str, body: Iterable[Markup], style: str) -> str:
    """A page; ``style`` follows that of all pages. At its end is the card that a point fills.

    Nothing may be loaded or sent, and only this style and this script are used.
    """
    styles, script = Markup(own_file("report.css") + style), own_file("report.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(styles)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", styles),
    )
    footer = element("footer", element("p", f"Made by rooflab {__version__}."))
    card = element("div", id="card", hidden=True)
    whole = element("body", *body, footer, card, element("script", script))
    return f"<!DOCTYPE html>\n{element('html', head, whole, lang='en')}\n"


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}"


def choice(name: str, values: Iterable[str]) -> Markup:
    """A list of values, and all of them; the script fills a long list."""
    given = list(values)
    options = [element("option", value, value=value) for value in given if len(given) <= MANY]
    select = element("select", element("option", "all", value=""), *options, data_filter=name)
    return element("label", f"{name} ", select)
