"""Reports in a headless Chromium."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fleet_pages
import pytest
from many import grown, joined
from measured import COUNTED, CPUS, CUTLASS, HOST_MEMORY, LADDER
from pages import hostile_run
from synthetic import with_device
from window import MANY, Opens, View

from rooflab.files import write_named
from rooflab.report.html.page import write
from rooflab.runs.store import RunData, load

if TYPE_CHECKING:
    from playwright.sync_api import Browser

COMMANDS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


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


def runs(name: str, folder: Path) -> list[RunData]:
    """Those of a report."""
    if name == "hostile":
        return [load(hostile_run(folder / "hostile"))]
    if name == "devices":
        other = with_device(load(CUTLASS), name="AMD Instinct MI300X accelerator OAM 192 GB")
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
                write_named(path, fleet_page(name, folder))
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
