"""The site: it builds without a warning, has every page, and needs no other host."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rooflab.version import __version__

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
LOADED = re.compile(r"<(?:script|img|iframe)[^>]*\ssrc=\"?(?P<src>[^\s\">]+)|<link[^>]*>")
ELSEWHERE = re.compile(r"(?:https?:)?//")


def pages() -> list[str]:
    return re.findall(r": ([\w/.-]+\.md)$", SETTINGS, re.M)


def test_every_page_is_in_the_navigation() -> None:
    there = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")}
    reports = {path.relative_to(ROOT).as_posix() for path in (ROOT / "results").glob("**/*.md")}
    assert (there | reports | {"README.md", "CONTRIBUTING.md", "CHANGELOG.md"}) <= set(pages())
    assert len(pages()) == len(set(pages()))


def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="pip install -e '.[docs]'")
    pytest.importorskip("material", reason="pip install -e '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file"]
    built = subprocess.run(
        [*command, str(ROOT / "mkdocs.yml"), "--site-dir", str(tmp_path / "site")],
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr[-2000:]
    html = list((tmp_path / "site").rglob("*.html"))
    assert len(html) > len(pages())
    for page in html:
        for found in LOADED.finditer(page.read_text(encoding="utf-8")):
            sources = (
                [found["src"]] if found["src"] else re.findall(r"href=\"?([^\s\">]+)", found[0])
            )
            assert not any(map(ELSEWHERE.match, sources)), f"{page}: {found[0]}"


def test_the_citation_has_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {__version__}\n" in citation
