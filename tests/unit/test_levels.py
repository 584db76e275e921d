from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import fake
import pytest

from rooflab.measure.levels import known_levels
from rooflab.model.roofline import Ceiling, MissingCeiling


class Levelled(fake.FakeDevice):
    """Counts how often its levels are measured."""

    measured = 0

    def levels(self) -> Sequence[Ceiling | MissingCeiling]:
        self.measured += 1
        value = 1e9 * self.measured
        l2 = Ceiling("bandwidth", "L2", value, "measured", "read", datasheet=2e9)
        return [l2, MissingCeiling("bandwidth", "L1", "no such level")]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("ROOFLAB_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ceilings"


def test_levels_are_measured_once_per_device() -> None:
    device = Levelled()
    first = known_levels(device)
    assert known_levels(device) == list(first)
    assert known_levels(Levelled()) == list(first)
    assert device.measured == 1
    again = known_levels(device, again=True)
    assert isinstance(again[0], Ceiling)
    assert again[0].value == 2e9
    assert known_levels(device) == list(again)
    other = Levelled()
    other.name = "another"
    known_levels(other)
    assert other.measured == 1


@pytest.mark.parametrize("content", [b"", b"[1]", b'[{"type": "os"}]', b"{}" * 3])
def test_a_damaged_record_is_measured_again(cache: Path, content: bytes) -> None:
    known_levels(Levelled())
    (file,) = cache.iterdir()
    file.write_bytes(content)
    device = Levelled()
    assert len(known_levels(device)) == 2
    assert device.measured == 1


def test_a_cache_that_cannot_be_written_is_no_failure(cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("a file")
    device = Levelled()
    assert len(known_levels(device)) == len(known_levels(device)) == 2
    assert device.measured == 2
