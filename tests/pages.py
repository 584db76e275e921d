"""Pages for tests: what a parser finds in one, and runs whose every text is hostile."""

from __future__ import annotations

import csv
import io
import json
import shutil
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from measured import LADDER

HOSTILE = (
    "</script></style></title><script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
    "<svg onload=alert(3)> javascript:alert(4) &lt;b&gt; ]]> --> {{x}} ${y} `z` "
    "<script>struck=1</script>"
)
VOID = ("meta", "input", "br")
DEEPEST = 30


@dataclass
class Element:
    """One element, with the text directly and deeper in it."""

    name: str
    attributes: dict[str, str | None]
    parents: tuple[str, ...]
    text: str = ""


@dataclass
class Page(HTMLParser):
    """The elements of a page; ``errors`` are tags that do not nest."""

    elements: list[Element] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[Element] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if len({name for name, _ in attrs}) < len(attrs):
            self.errors.append(f"{tag} has an attribute twice")
        element = Element(tag, dict(attrs), tuple(parent.name for parent in self._open))
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)
        assert len(self._open) < DEEPEST, f"<{tag}> is nested too deep: tags stay open"

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1].name != tag:
            self.errors.append(f"</{tag}> ends {self._open[-1].name if self._open else 'nothing'}")
        else:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data

    def handle_comment(self, data: str) -> None:
        self.errors.append(f"a comment: {data[:40]}")

    def all(self, name: str, class_: str = "") -> list[Element]:
        """The elements of a name, and a class."""
        return [
            element
            for element in self.elements
            if element.name == name
            and class_ in ("", *(element.attributes.get("class") or "").split())
        ]


def parse(text: str) -> Page:
    """A page, all of whose tags are closed."""
    page = Page()
    page.feed(text)
    page.close()
    page.errors += [f"<{element.name}> stays open" for element in page._open]
    return page


def hostile_run(folder: Path) -> Path:
    """A copy of a measured run with HOSTILE in every text that need not be a known word."""
    shutil.copytree(LADDER, folder)
    manifest = folder / "manifest.json"
    content: dict[str, Any] = json.loads(manifest.read_text())
    content["schema"] = 3
    content["command"] = [HOSTILE, "-k", HOSTILE]
    content["versions"] = {"rooflab": HOSTILE, HOSTILE: HOSTILE}
    content["host"] = {HOSTILE: HOSTILE}
    content["config"]["fill"] = HOSTILE
    facts = content["device"]["facts"].values()
    content["device"] |= {
        "id": HOSTILE,
        "name": HOSTILE,
        "facts": {f"{i} {HOSTILE}": fact | dict.fromkeys(("value", "unit", "source"), HOSTILE)
                  for i, fact in enumerate(facts)},
    }  # fmt: skip
    for ceiling in content["roofline"]["ceilings"]:
        ceiling |= {"formula": HOSTILE, "caveat": HOSTILE}
    content["roofline"]["ceilings"].append(content["roofline"]["ceilings"][0] | {"key": HOSTILE})
    content["roofline"]["missing"] = [{"kind": "compute", "key": HOSTILE, "reason": HOSTILE}]
    content["kernels"] = {
        f"{HOSTILE}/{name} {HOSTILE}": record | {"title": HOSTILE, "source": HOSTILE}
        for name, record in content["kernels"].items()
    }
    content["workloads"] = {
        HOSTILE: {
            "title": HOSTILE,
            "formula": HOSTILE,
            "extents": {"m": HOSTILE, "n": HOSTILE, "k": HOSTILE},
            "settings": {"batch": "int", "layout": "str", "alpha": "float", "beta": "float"},
            "descriptions": {"layout": HOSTILE},
        }
    }
    manifest.write_text(json.dumps(content))
    table = folder / "measurements.csv"
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    for number, row in enumerate(rows):
        row |= {"workload": HOSTILE, "size": row["m"], "layout": HOSTILE, "flags": HOSTILE}
        row |= {"backend": HOSTILE, "variant": HOSTILE, "kernel": f"{row['kernel']} {HOSTILE}"}
        if number % 10 == 0:
            row |= {"status": HOSTILE, "reason": HOSTILE}
        if number % 10 == 1:
            row |= {"bound": HOSTILE, "size": HOSTILE}
        if number % 10 == 2:
            row["precision"] = HOSTILE
    with table.open("w") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return folder
