"""A page in a browser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

MANY = 900
"""Rows: three times as many as a page has elements for."""

CHARACTERS = """(panel) => [...panel.querySelectorAll("text")].map((text) =>
    [...text.textContent].map((_, i) => {
        const box = text.getExtentOfChar(i), at = panel.createSVGPoint();
        [at.x, at.y] = [box.x + box.width / 2, box.y + box.height / 2];
        const there = at.matrixTransform(panel.getCTM().inverse().multiply(text.getCTM()));
        return [there.x, there.y];
    }))"""


@dataclass
class View:
    """A report in the browser, and what it did beyond showing itself."""

    page: Page
    url: str
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", lambda message: self.console.append(message.text))
        self.page.on("pageerror", lambda error: self.console.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", self._dismiss)
        self.page.goto(self.url)

    def _dismiss(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    @property
    def quiet(self) -> bool:
        """No console message, no error, no dialog, no request but the one for the page itself."""
        return (self.console, self.dialogs, self.requests) == ([], [], [self.url])

    def violations(self) -> list[tuple[str, str, str]]:
        """What axe-core finds that keeps people out."""
        axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
        return [
            (one["id"], node["html"][:200], node["failureSummary"])
            for one in axe.run(self.page).response["violations"]
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"]
        ]

    def harmed(self, usual: View) -> str:
        """What hostile text has done, beside a page without it; empty if nothing."""
        names = "Object.keys(window).sort()"
        elements = "document.querySelectorAll('img, iframe, object, svg[onload]').length"
        if not self.quiet:
            return f"{self.console} {self.dialogs} {self.requests}"
        if self.run(names) != usual.run(names):
            return "new global names"
        if self.run("document.scripts.length") != 1 or self.run(elements) != 0:
            return "new elements"
        shown = "<script>alert(1)</script>" in self.page.locator("h1").inner_text()
        return "" if shown else "the text is gone"

    def run(self, script: str, argument: Any = None) -> Any:
        """The result of a JavaScript expression or function."""
        return self.page.evaluate(script, argument)

    def open_all(self) -> None:
        """Open whatever can be opened."""
        self.run("for (const one of document.querySelectorAll('details')) one.open = true")

    def shown(self, selector: str, attribute: str) -> list[str]:
        """An attribute of all elements that are displayed."""
        script = """([selector, name]) => [...document.querySelectorAll(selector)]
            .filter((one) => one.checkVisibility()).map((one) => one.getAttribute(name))"""
        found: list[str] = self.run(script, [selector, attribute])
        return found

    def column(self, heading: str) -> list[str]:
        """The texts of a column in the rows that are displayed, from top to bottom."""
        script = """(heading) => {
            const table = document.querySelector("table.rows");
            const at = [...table.querySelectorAll("th")].findIndex((one) =>
                one.textContent === heading);
            return [...table.tBodies[0].rows].filter((row) => row.id && row.checkVisibility())
                .map((row) => row.cells[at].textContent);
        }"""
        found: list[str] = self.run(script, heading)
        return found


Opens = Callable[..., View]
