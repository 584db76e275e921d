from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import fake
import pytest

from rooflab.measure.levels import best_roofs, keep_roofs, known_levels, stored_levels
from rooflab.model.roofline import DISTURBED, Ceiling, MissingCeiling


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


# Links -------------------------------------------------------------------------------------------


class Linked(Levelled):
    """Counts how often its links are measured, too."""

    linked = 0

    def links(self) -> Sequence[Ceiling | MissingCeiling]:
        self.linked += 1
        return [Ceiling("bandwidth", "H2D", 1e9 * self.linked, "measured", "copies")]


def keys(limits: Sequence[Ceiling | MissingCeiling] | None) -> list[str]:
    return [one.key for one in limits or ()]


def test_links_are_measured_only_where_they_are_asked_for() -> None:
    device = Linked()
    assert keys(known_levels(device)) == ["L2", "L1"]
    assert (device.measured, device.linked) == (1, 0)
    assert keys(known_levels(device, links=True)) == ["L2", "L1", "H2D"]
    assert (device.measured, device.linked) == (1, 1)
    assert keys(known_levels(device, links=True)) == ["L2", "L1", "H2D"]
    assert keys(known_levels(device)) == ["L2", "L1"]
    assert (device.measured, device.linked) == (1, 1)
    known_levels(device, links=True, again=True)
    assert (device.measured, device.linked) == (2, 2)
    known_levels(device, again=True)
    assert (device.measured, device.linked) == (3, 2)


def test_what_is_stored_is_measured_by_nobody() -> None:
    device = Linked()
    assert stored_levels(device) is None
    known_levels(device)
    assert keys(stored_levels(device)) == ["L2", "L1"]
    assert stored_levels(device, links=True) is None
    known_levels(device, links=True)
    assert keys(stored_levels(device, links=True)) == ["L2", "L1", "H2D"]
    assert keys(stored_levels(device)) == ["L2", "L1", "H2D"]  # they cost nothing
    assert (device.measured, device.linked) == (1, 1)


# The best roofs ----------------------------------------------------------------------------------

ROOF = Ceiling("compute", "fp32", 1e9, "measured", "first")


def test_the_highest_clean_roofs_are_kept() -> None:
    device = fake.FakeDevice()
    assert best_roofs(device) == ()
    memory = Ceiling("bandwidth", "DRAM", 1e8, "measured", "read")
    keep_roofs(device, [ROOF, memory])
    assert best_roofs(device) == [ROOF, memory]
    higher = replace(ROOF, value=2e9, formula="second")
    keep_roofs(device, [higher, replace(memory, value=0.9e8)])
    assert best_roofs(device) == [higher, memory]
    keep_roofs(device, [replace(ROOF, value=3e9, caveat=DISTURBED)])
    assert best_roofs(device) == [higher, memory]
    keep_roofs(device, [])
    assert best_roofs(device) == [higher, memory]
    known_levels(device)
    assert best_roofs(device) == [higher, memory]
    known_levels(device, again=True)
    assert best_roofs(device) == ()


def test_each_machine_has_its_own_roofs() -> None:
    class Other(fake.FakeDevice):
        name = "Exact 2000"

    keep_roofs(fake.FakeDevice(), [ROOF])
    assert best_roofs(Other()) == ()
    keep_roofs(Other(), [replace(ROOF, value=2.0)])
    assert best_roofs(fake.FakeDevice()) == [ROOF]


def test_a_damaged_record_of_roofs_is_none(cache: Path) -> None:
    device = fake.FakeDevice()
    keep_roofs(device, [ROOF])
    (file,) = (cache.parent / "roofs").iterdir()
    file.write_text("[")
    assert best_roofs(device) == ()
    keep_roofs(device, [ROOF])
    assert best_roofs(device) == [ROOF]
