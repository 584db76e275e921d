"""Filters and switches. They are shown only if the script runs."""

from __future__ import annotations

from collections.abc import Iterable

from rooflab.report.html.markup import Markup, element
from rooflab.report.html.points import Content
from rooflab.report.html.roofs import PROVENANCES
from rooflab.report.html.rows import CELLS


def controls(content: Content, provenances: set[str], counted: bool) -> Markup:
    """A choice for each column with several values, and the switches that change something."""
    choices = [choice("run", content.names)] if content.several else []
    for cell in CELLS.values():
        if cell.filter:
            values = dict.fromkeys(cell.text(entry.row) for entry in content.entries)
            choices += [choice(cell.filter, values)] if len(values) > 1 else []
    switches = [_roofs(provenances)] if len(provenances) > 1 else []
    switches += [_bytes()] if counted else []
    shown = element("p", element("output", id="shown"))
    return element(
        "form", *choices, *switches, shown, id="controls", aria_label="Filters", hidden=True
    )


def choice(name: str, values: Iterable[str]) -> Markup:
    """A list of values, and all of them."""
    options = [element("option", value, value=value) for value in values]
    select = element("select", element("option", "all", value=""), *options, data_filter=name)
    return element("label", f"{name} ", select)


def _roofs(provenances: set[str]) -> Markup:
    boxes = [
        element(
            "label",
            element("input", type="checkbox", checked=True, data_show=name),
            f" {name}",
        )
        for name in PROVENANCES
        if name in provenances
    ]
    return element("fieldset", element("legend", "Roofs"), *boxes)


def _bytes() -> Markup:
    boxes = [
        element(
            "label",
            element("input", type="radio", name="bytes", value=value, checked=value == "modelled"),
            f" {value}",
        )
        for value in ("modelled", "counted")
    ]
    return element("fieldset", element("legend", "Bytes"), *boxes)
