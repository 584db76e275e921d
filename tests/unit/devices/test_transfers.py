"""The links between host and device: derived, measured, and both ways at once."""

from __future__ import annotations

import fake
import pytest

from rooflab.devices.cuda import links
from rooflab.model.facts import Fact
from rooflab.model.roofline import Ceiling, MissingCeiling, Provenance, Roofline


class Linked(fake.Streaming):
    """A GPU's facts about its link, on a device with known rates."""

    def __init__(self, generation: int | None, lanes: int | None) -> None:
        super().__init__()
        self._link = {"pcie_generation": Fact(generation), "pcie_width": Fact(lanes)}

    @property
    def facts(self) -> dict[str, Fact]:
        return super().facts | self._link


def test_links_are_derived_from_generation_and_lanes() -> None:
    h2d, d2h = links.derive_links(Linked(5, 16))
    assert isinstance(h2d, Ceiling)
    assert isinstance(d2h, Ceiling)
    assert (h2d.amount, d2h.value) == ("63 GB/s", h2d.value)
    for facts in ((None, 16), (5, None), (9, 16)):
        assert all(isinstance(one, MissingCeiling) for one in links.derive_links(Linked(*facts)))


def test_links_are_measured_each_way_and_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "COPY_BYTES", 4096)
    monkeypatch.setattr(links, "WARMUP_S", 0.0)
    found = {one.key: one for one in links.measure_links(fake.Streaming())}
    assert set(found) == {"H2D", "D2H", "H2D_BOTH", "D2H_BOTH", "H2D_PAGEABLE", "D2H_PAGEABLE"}
    values = {key: one.value for key, one in found.items() if isinstance(one, Ceiling)}
    assert values["H2D"] == pytest.approx(fake.LINKS["h2d"])
    assert values["D2H"] == pytest.approx(fake.LINKS["d2h"])
    assert values["H2D_BOTH"] == pytest.approx(fake.LINKS["d2h"])  # until the slower one has ended


def test_memory_that_is_refused_is_a_missing_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_UNPINNED", "1")
    monkeypatch.setattr(links, "COPY_BYTES", 4096)
    monkeypatch.setattr(links, "WARMUP_S", 0.0)
    missing = [m for m in links.measure_links(fake.Streaming()) if isinstance(m, MissingCeiling)]
    assert [m.key for m in missing] == ["H2D", "D2H", "H2D_BOTH", "D2H_BOTH"]


def test_the_roof_counts_both_ways_at_once() -> None:
    def link(key: str, value: float, provenance: Provenance = "measured") -> Ceiling:
        return Ceiling("bandwidth", key, value, provenance, "")

    roofline = Roofline(
        (
            link("HBM", 1000.0, "derived"),
            link("H2D", 12.0, "derived"),
            link("H2D", 10.0),
            link("D2H", 10.0),
            link("H2D_BOTH", 8.0),
            link("D2H_BOTH", 8.0),
        ),
        memory="HBM",
    )
    # 8 bytes go both ways at 8 byte/s, then 12 more to the device at 10 byte/s.
    roof = roofline.roof("int32", 0, {"dram": 40, "h2d": 20, "d2h": 8})
    assert roof is not None
    assert roof.us == pytest.approx(2.2e6)
    assert roof.bound == "h2d"
    one_way = roofline.roof("int32", 0, {"dram": 40, "h2d": 20})
    assert one_way is not None
    assert one_way.us == pytest.approx(2e6)
    serial = roofline.serial_us("int32", 0, {"dram": 40, "h2d": 20, "d2h": 8}, 1000)
    assert serial == pytest.approx((2 + 0.8 + 1) * 1e6)
