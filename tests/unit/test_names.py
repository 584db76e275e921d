"""A name means one thing in the whole package."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import rooflab

CLASS = re.compile(r"[A-Z]\w*[a-z]\w*")
"""What names a class or an alias of types; not a constant, nor a variable of types like ``P``."""


def test_no_two_classes_or_aliases_have_the_same_name() -> None:
    sources = Path(rooflab.__file__).parent.rglob("*.py")
    trees = [ast.parse(source.read_text(encoding="utf-8")) for source in sources]
    names = Counter(name for tree in trees for name in defined(tree))
    assert [name for name, count in names.items() if count > 1] == []
    assert names["Run"] == names["Runner"] == 1


def defined(tree: ast.Module) -> Iterator[str]:
    """Names of classes, and of aliases of types, at the module's level."""
    for one in tree.body:
        if isinstance(one, ast.ClassDef):
            yield one.name
        elif isinstance(one, ast.Assign):
            targets = [target.id for target in one.targets if isinstance(target, ast.Name)]
            yield from filter(CLASS.fullmatch, targets)
