"""HTML and SVG elements. All text is escaped, unless it is ``Markup`` from here."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Final

VOID: Final = ("meta", "input", "br")
"""Elements without content or end tag."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def escape(text: str) -> Markup:
    """``text`` as HTML, also within quotes."""
    return text if isinstance(text, Markup) else Markup(html.escape(text))


def element(name: str, /, *children: str, **attributes: str | bool | float) -> Markup:
    """One element; children and values of attributes are escaped.

    ``class_`` is the attribute ``class``, and ``data_row`` is ``data-row``. True is an attribute
    without value, False is none.
    """
    given = "".join(
        f" {_attribute(key)}" if value is True else f' {_attribute(key)}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not False
    )
    if name in VOID:
        return Markup(f"<{name}{given}>")
    return Markup(f"<{name}{given}>{join(children)}</{name}>")


def _attribute(key: str) -> str:
    return key.strip("_").replace("_", "-")


def join(parts: Iterable[str], between: str = "") -> Markup:
    """Parts one after the other, each escaped."""
    return Markup(escape(between).join(map(escape, parts)))


def table(
    headings: Iterable[str], rows: Iterable[Iterable[str]], caption: str, name: str = "table"
) -> Markup:
    """A table that scrolls sideways by itself if it is too wide."""
    head = element("tr", *(element("th", cell, scope="col") for cell in headings))
    body = [element("tr", *(element("td", cell) for cell in row)) for row in rows]
    return scrolled(
        element(
            "table",
            element("caption", caption),
            element("thead", head),
            element("tbody", *body),
        ),
        name,
    )


def scrolled(content: Markup, name: str, look: str = "wide") -> Markup:
    """``content`` in a box of its own that scrolls sideways; the keyboard reaches it."""
    return element("div", content, class_=look, role="group", tabindex=0, aria_label=name)


def section(name: str, title: str, *children: str) -> Markup:
    """A section with a heading."""
    heading = element("h2", title, id=f"{name}-title")
    return element("section", heading, *children, id=name, aria_labelledby=f"{name}-title")
