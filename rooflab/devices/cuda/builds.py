"""Records of a kernel's compilations: registers, spills, shared memory."""

from __future__ import annotations

from typing import Any


class Builds:
    """One kernel's compilations; notes on the same one are merged."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, ...], dict[str, Any]] = {}

    def note(self, build: dict[str, str], **found: Any) -> None:
        """Add ``found`` to the record of ``build`` (variant, precision, arch …)."""
        shown = {name: value for name, value in build.items() if value}
        self._records.setdefault(tuple(build.values()), shown).update(found)

    def records(self) -> list[dict[str, Any]]:
        """``registers`` and ``spill_bytes`` per thread, ``shared_bytes`` per block."""
        return list(self._records.values())
