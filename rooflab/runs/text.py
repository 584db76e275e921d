"""Text from files that anybody may have written. Pure."""

from __future__ import annotations

import re
from typing import Any, Final

_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """``text`` with replacements for characters that could control a terminal: control characters,
    lone surrogates, and changes of the writing direction."""
    return _CONTROL.sub("\ufffd", text)


def cleaned(value: Any) -> Any:
    """A value from JSON with ``clean`` text."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [cleaned(item) for item in value]
    if isinstance(value, dict):
        return {clean(key): cleaned(item) for key, item in value.items()}
    return value
