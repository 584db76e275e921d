"""Reports in a headless Chromium."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fleet_pages
import pytest
from many import grown, joined
from measured import COUNTED, CPUS, CUTLASS, HOST_MEMORY, LADDER
from pages import hostile_run

from rooflab.report.html.frame import save
from rooflab.report.html.page import write
from rooflab.runs.store import Run, load

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

COMMANDS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MANY = 900
"""Rows: three times as many as a page has elements for."""


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


def executable(own: str) -> str | None:
    """An installed Chromium that starts, or Playwright's ``own``."""
    for command in (*COMMANDS, own):
        path = shutil.which(command)
        if path and subprocess.run([path, "--version"], capture_output=True).returncode == 0:
            return path
    return None


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    api = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is missing: pip install -e '.[browser]'"
    )
    with api.sync_playwright() as playwright:
        path = executable(playwright.chromium.executable_path)
        if path is None:
            pytest.skip("no Chromium: apt install chromium, or playwright install chromium")
        flags = ["--disable-gpu", "--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        yield browser
        browser.close()


def renamed(run: Run, name: str) -> Run:
    device = run.manifest.device.model_copy(update={"name": name})
    return replace(run, manifest=run.manifest.model_copy(update={"device": device}))


SHADES = {i: {"dram": share} for i, share in enumerate((0.007, -0.015, 0.03, -0.07, 0.2, -0.12))}


def fleet_page(name: str, folder: Path) -> str:
    """The page of a fleet."""
    if name == "hostile fleet":
        return fleet_pages.page(*fleet_pages.hostile(folder / "hostile-fleet"))
    if name == "lossy fleet":
        return fleet_pages.page(*fleet_pages.lossy())
    if name == "shades fleet":
        return fleet_pages.page(fleet_pages.fleet(16, slow=SHADES))
    return fleet_pages.page(fleet_pages.fleet({"small fleet": 2, "large fleet": 64}[name]))


def runs(name: str, folder: Path) -> list[Run]:
    """Those of a report."""
    if name == "hostile":
        return [load(hostile_run(folder / "hostile"))]
    if name == "devices":
        other = renamed(load(CUTLASS), "AMD Instinct MI300X accelerator OAM 192 GB")
        return [*map(load, CPUS), load(HOST_MEMORY), other]
    if name == "many":
        return [grown(joined(), MANY)]
    if name == "cpus":
        return [*map(load, CPUS)]
    return [load({"ladder": LADDER, "counted": COUNTED}[name])]


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The file of a report, written once."""
    folder = tmp_path_factory.mktemp("reports")

    def written(name: str) -> Path:
        path = folder / f"{name}.html"
        if not path.exists():
            if name.endswith("fleet"):
                save(fleet_page(name, folder), path)
            else:
                write(runs(name, folder), path)
        return path

    return written


@pytest.fixture
def opened(browser: Browser, report: Callable[[str], Path]) -> Iterator[Opens]:
    """Opens a report in a window of its own."""
    contexts = []

    def show(name: str, width: int = 1280, **options: Any) -> View:
        contexts.append(browser.new_context(viewport={"width": width, "height": 800}, **options))
        return View(contexts[-1].new_page(), report(name).as_uri())

    yield show
    for context in contexts:
        context.close()
