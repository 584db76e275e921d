"""Filters and switches. They are shown only if the script runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rooflab.report.html.markup import Markup, element
from rooflab.report.html.points import MANY
from rooflab.report.html.rows import Column

PROVENANCES: Final = ("derived", "measured", "observed")


def controls(columns: Sequence[Column], provenances: set[str], counted: bool) -> Markup:
    """A choice for each column with several values, and the switches that change something."""
    choices = []
    for column in columns:
        values = dict.fromkeys(filter(None, column.texts))
        choices += [choice(column.filter, values)] if column.filter and len(values) > 1 else []
    switches = [_roofs(provenances)] if len(provenances) > 1 else []
    switches += [_bytes()] if counted else []
    shown = element("p", element("output", id="shown"))
    return element(
        "form", *choices, *switches, shown, id="controls", aria_label="Filters", hidden=True
    )


def choice(name: str, values: Iterable[str]) -> Markup:
    """A list of values, and all of them; the script fills a long list."""
    given = list(values)
    options = [element("option", value, value=value) for value in given if len(given) <= MANY]
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
