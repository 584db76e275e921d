"""A name means one thing in the whole package."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import rooflab

TWICE = {"Run": "rooflab.Run is the run that is read from a folder, with methods for scripts"}
"""Names of two classes, and why."""


def test_no_two_classes_have_the_same_name() -> None:
    sources = Path(rooflab.__file__).parent.rglob("*.py")
    trees = [ast.parse(source.read_text(encoding="utf-8")) for source in sources]
    names = Counter(
        one.name for tree in trees for one in tree.body if isinstance(one, ast.ClassDef)
    )
    assert {name for name, count in names.items() if count > 1} == {*TWICE}
