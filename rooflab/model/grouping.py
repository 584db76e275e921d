"""Items by what they have in common. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")
Common = TypeVar("Common")


def grouped(items: Iterable[Item], key: Callable[[Item], Common]) -> dict[Common, list[Item]]:
    """The items of each key, in their order."""
    groups: dict[Common, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
