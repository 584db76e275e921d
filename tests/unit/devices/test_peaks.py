"""Derived peaks against datasheets, and the honesty of what cannot be derived."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from rooflab.devices.cuda.peaks import (
    DatasheetClocks,
    DeviceTable,
    compute_ceilings,
    derive,
    load_table,
    memory_ceilings,
)
from rooflab.errors import UsageError
from rooflab.model.facts import Fact
from rooflab.model.precision import PRECISIONS
from rooflab.model.roofline import Ceiling, Roofline

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(scope="module")
def table() -> DeviceTable:
    return load_table()


def facts_of(**values: Any) -> dict[str, Fact]:
    """Facts with the given values; None stands for a query that the driver refused."""
    return {
        name: Fact(value, reason="" if value is not None else f"{name}: Not Supported")
        for name, value in values.items()
    }


def h200(**changes: Any) -> dict[str, Fact]:
    values: dict[str, Any] = {
        "name": "NVIDIA H200",
        "compute_capability": "9.0",
        "cores": 16896,
        "memory_bus_width": 6016,
        "sm_clock_default": 1980,
        "sm_clock_max": 1980,
        "memory_clock_max": 3201,
        "mig_mode": "disabled",
    }
    return facts_of(**(values | changes))


def geforce_3090(**changes: Any) -> dict[str, Fact]:
    values: dict[str, Any] = {
        "name": "NVIDIA GeForce RTX 3090",
        "compute_capability": "8.6",
        "cores": 10496,
        "memory_bus_width": 384,
        "sm_clock_default": None,
        "sm_clock_max": 2100,
        "memory_clock_max": 9751,
    }
    return facts_of(**(values | changes))


def only(roofline: Roofline, key: str) -> Ceiling:
    [ceiling] = [ceiling for ceiling in roofline.ceilings if ceiling.key == key]
    return ceiling


def why_missing(roofline: Roofline, key: str) -> str:
    [limit] = [limit for limit in roofline.missing if limit.key == key]
    return limit.reason


def datasheet(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(newline="") as file:
        return list(csv.DictReader(file))


PRODUCTS = {
    "V100-SXM2": "Tesla V100-SXM2-16GB",
    "T4": "Tesla T4",
    "RTX-3090": "NVIDIA GeForce RTX 3090",
    "RTX-A6000": "NVIDIA RTX A6000",
    "L4": "NVIDIA L4",
    "RTX-4090": "NVIDIA GeForce RTX 4090",
    "H100-SXM5": "NVIDIA H100 80GB HBM3",
    "H200-SXM": "NVIDIA H200",
    "B200-SXM": "NVIDIA B200",
    "RTX-5090": "NVIDIA GeForce RTX 5090",
}

HAS_FP64_TENSOR_CORES = ("9.0", "10.0")


def ceiling_key(row: dict[str, str]) -> str:
    if row["dtype"] == "fp64-tc":
        return "fp64"
    if row["dtype"] == "fp64" and row["cc"] in HAS_FP64_TENSOR_CORES:
        return "fp64_vector"
    natural = {"fp64": "fp64", "int8": "int32", "int4": "int32"}.get(row["dtype"], "fp32")
    if row["accumulate"] == natural:
        return row["dtype"]
    return f"{row['dtype']}_accumulate_{row['accumulate']}"


@pytest.mark.parametrize(
    "row",
    datasheet("peaks_compute.csv"),
    ids=lambda row: f"{row['sku']}-{row['dtype']}-{row['accumulate']}",
)
def test_compute_peaks_agree_with_the_datasheet(row: dict[str, str], table: DeviceTable) -> None:
    facts = facts_of(
        name=PRODUCTS[row["sku"]], compute_capability=row["cc"], cores=int(row["cuda_cores"])
    )
    ceilings, _ = compute_ceilings(facts, table, clock_mhz=float(row["clock_mhz_behind_datasheet"]))
    [ceiling] = [ceiling for ceiling in ceilings if ceiling.key == ceiling_key(row)]
    assert ceiling.value == pytest.approx(float(row["datasheet_tflops_dense"]) * 1e12, rel=0.015)


DISPUTED = pytest.mark.xfail(
    strict=True,
    reason="8192 bit at 3996 MHz is 8184 GB/s, the datasheet says 8000: the bus width is disputed",
)


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row["sku"], marks=DISPUTED if row["sku"] == "B200" else ())
        for row in datasheet("peaks_memory.csv")
    ],
)
def test_memory_peaks_agree_with_the_datasheet(row: dict[str, str], table: DeviceTable) -> None:
    facts = facts_of(
        memory_clock_max=int(row["nvml_mem_mhz"]), memory_bus_width=int(row["bus_bits"])
    )
    [ceiling], missing = memory_ceilings(facts, table)
    assert missing == ()
    assert ceiling.value == pytest.approx(float(row["datasheet_gbs"]) * 1e9, rel=0.015)


def test_the_formula_shows_its_inputs(table: DeviceTable) -> None:
    roofline = derive(h200(), table)
    assert only(roofline, "bf16").formula == (
        "16896 cores / 128 per SM = 132 SMs × 4096 FLOP/clock × 1980 MHz"
    )
    assert only(roofline, "HBM").formula == "2 × 3201 MHz × 6016 bit / 8"
    assert only(roofline, "bf16").value == 132 * 4096 * 1980e6
    assert only(roofline, "HBM").value == 2 * 3201e6 * 6016 / 8
    assert {ceiling.provenance for ceiling in roofline.ceilings} == {"derived"}


def test_a_whole_h200_has_a_roof_for_every_precision_and_its_memory(table: DeviceTable) -> None:
    roofline = derive(h200(), table)
    for name, precision in PRECISIONS.items():
        assert (roofline.compute(name) is None) == precision.integer, name
    assert roofline.memory == "HBM"
    assert roofline.ridge("fp32") == pytest.approx(66.908e12 / 4814.3e9, rel=1e-3)
    assert all(PRECISIONS[limit.key].integer for limit in roofline.missing)


def test_special_functions_are_sixteen_a_clock_and_run_at_the_full_one(table: DeviceTable) -> None:
    one = only(derive(h200(), table), "sfu")
    assert one.value == 132 * 16 * 1980e6
    assert one.formula.endswith("132 SMs × 16 operations/clock × 1980 MHz")
    assert (one.amount, one.datasheet) == ("4.18 Top/s", None)


def test_integers_have_no_compute_roof_and_need_none(table: DeviceTable) -> None:
    roofline = derive(h200(), table)
    for name in ("int32", "int64"):
        assert why_missing(roofline, name) == (
            "configs/architectures.toml has no rates of integer additions; memory bounds them"
        )
        roof = roofline.roof(name, 10**9, {"dram": 4})
        assert roof is not None
        assert roof.bound == "dram"


def test_fp64_means_the_tensor_rate_where_there_is_one(table: DeviceTable) -> None:
    roofline = derive(h200(), table)
    assert only(roofline, "fp64").value == 2 * only(roofline, "fp64_vector").value
    geforce = derive(geforce_3090(), table)
    assert only(geforce, "fp64").value == 82 * 4 * 2100e6
    assert all(ceiling.key != "fp64_vector" for ceiling in geforce.ceilings)


# What cards report: name, compute capability, cores, maximum and default application clock in MHz;
# then the datasheet's TFLOP/s.
CARDS = [
    ("NVIDIA A100-SXM4-80GB", "8.0", 6912, 1410, 1095, {"fp32": 19.5, "tf32": 156, "fp16": 312}),
    ("NVIDIA A100-PCIE-40GB", "8.0", 6912, 1410, 765, {"fp64": 19.5, "bf16": 312}),
    ("Tesla T4", "7.5", 2560, 1590, 585, {"fp32": 8.1, "fp16": 65}),
    ("Tesla V100-SXM2-16GB", "7.0", 5120, 1530, 1312, {"fp64": 7.8, "fp32": 15.7, "fp16": 125}),
    ("NVIDIA A10", "8.6", 9216, 1695, 885, {"fp32": 31.2, "tf32": 62.5, "bf16": 125}),
    ("NVIDIA L4", "8.9", 7424, 2040, 2040, {"fp32": 30.3, "tf32": 60, "fp8": 242.5}),
    ("NVIDIA H100 PCIe", "9.0", 14592, 1980, 1755, {"fp32": 51, "fp16": 756, "fp8": 1513}),
    ("NVIDIA H100 80GB HBM3", "9.0", 16896, 1980, 1980, {"fp64": 67, "tf32": 494.7, "bf16": 989}),
    ("NVIDIA H200 NVL", "9.0", 16896, 1980, 1785, {"fp32": 60, "bf16": 835}),
    ("NVIDIA RTX A6000", "8.6", 10752, 2100, 1800, {"fp32": 38.7, "tf32": 77.4, "fp16": 154.8}),
    ("NVIDIA GeForce RTX 3090", "8.6", 10496, 2100, None, {"fp32": 35.6, "bf16": 71}),
    ("NVIDIA GeForce RTX 4090", "8.9", 16384, 3105, None, {"fp32": 82.6, "fp8": 330.3}),
]


@pytest.mark.parametrize(
    ("name", "capability", "cores", "highest", "default", "datasheet"),
    CARDS,
    ids=[card[0] for card in CARDS],
)
def test_no_peak_is_below_the_datasheets(
    name: str,
    capability: str,
    cores: int,
    highest: int,
    default: int | None,
    datasheet: dict[str, float],
    table: DeviceTable,
) -> None:
    facts = facts_of(
        name=name,
        compute_capability=capability,
        cores=cores,
        sm_clock_max=highest,
        sm_clock_default=default,
    )
    roofline = derive(facts, table)
    for key, tflops in datasheet.items():
        ceiling = only(roofline, key)
        assert ceiling.value >= 0.99 * tflops * 1e12  # the datasheet's figure is rounded
        assert f"{highest} MHz" in ceiling.formula
        stated = ceiling.datasheet or ceiling.value
        assert stated == pytest.approx(tflops * 1e12, rel=0.015)
        assert stated <= ceiling.value


def test_the_default_clock_replaces_an_unknown_maximum(table: DeviceTable) -> None:
    a100 = h200(name="NVIDIA A100-SXM4-80GB", compute_capability="8.0", cores=6912)
    a100 |= facts_of(sm_clock_max=None, sm_clock_default=1095)
    fp32 = only(derive(a100, table), "fp32")
    assert "1095 MHz" in fp32.formula
    assert fp32.caveat == (
        "the default application clock; the maximum is unknown (sm_clock_max: Not Supported)"
    )
    assert fp32.datasheet is not None
    assert fp32.datasheet > fp32.value


def test_the_tensor_peaks_of_hopper_have_another_clock_in_the_datasheet(table: DeviceTable) -> None:
    roofline = derive(h200(), table)
    bf16 = only(roofline, "bf16")
    assert bf16.datasheet == bf16.value * 1830 / 1980
    assert only(roofline, "fp32").datasheet is None
    assert only(roofline, "fp64").datasheet is None


def test_the_longest_name_of_a_product_counts(table: DeviceTable) -> None:
    nvl, sxm = (table.datasheet(f"NVIDIA {name}") for name in ("H200 NVL", "H200"))
    assert nvl is not None
    assert sxm is not None
    assert nvl.sm < sxm.sm
    a100, a10 = (table.datasheet(f"NVIDIA {name}") for name in ("A100-SXM4-40GB", "A10"))
    assert a100 != a10
    assert table.datasheet("NVIDIA GeForce RTX 5060") is None


def test_the_halved_rate_follows_the_product_not_the_chip(table: DeviceTable) -> None:
    geforce = only(derive(geforce_3090(), table), "bf16")
    professional = only(derive(geforce_3090(name="NVIDIA RTX A6000"), table), "bf16")
    assert professional.value == 2 * geforce.value


def test_an_unnamed_product_gets_no_guess_where_cards_differ(table: DeviceTable) -> None:
    roofline = derive(geforce_3090(name=None), table)
    assert roofline.compute("fp32") is not None
    assert roofline.compute("bf16") is None
    assert "GeForce and professional cards differ" in why_missing(roofline, "bf16")


def test_three_products_on_tensor_cores_have_a_third_of_their_roof(table: DeviceTable) -> None:
    roofline = derive(h200(), table)
    split, whole = only(roofline, "fp32_3xtf32"), only(roofline, "tf32")
    assert split.value == pytest.approx(whole.value / 3)
    assert split.formula == f"{whole.formula} / 3 products"
    assert split.datasheet == pytest.approx((whole.datasheet or 0) / 3)


def test_volta_says_which_tensor_cores_it_lacks(table: DeviceTable) -> None:
    facts = facts_of(
        name="Tesla V100-SXM2-16GB", compute_capability="7.0", cores=5120, sm_clock_default=1530
    )
    roofline = derive(facts, table)
    for precision in ("tf32", "fp32_3xtf32"):
        why = why_missing(roofline, precision)
        assert why == "compute capability 7.0 has no TF32 tensor cores"
    assert why_missing(roofline, "bf16") == "compute capability 7.0 has no BF16 tensor cores"
    assert roofline.compute("fp16") is not None


def test_fp8_has_a_roof_from_ada_on(table: DeviceTable) -> None:
    assert only(derive(h200(), table), "fp8").value == 132 * 8192 * 1980e6
    b200 = derive(h200(name="NVIDIA B200", compute_capability="10.0"), table)
    assert only(b200, "fp8").value == 2 * only(b200, "bf16").value
    ampere = derive(h200(name="NVIDIA A100", compute_capability="8.0", cores=6912), table)
    assert why_missing(ampere, "fp8") == "compute capability 8.0 has no FP8 tensor cores"


def test_fp8_on_professional_blackwell_waits_for_a_figure(table: DeviceTable) -> None:
    changes = {"compute_capability": "12.0", "cores": 21760}
    geforce = derive(h200(name="NVIDIA GeForce RTX 5090", **changes), table)
    assert only(geforce, "fp8").value == 170 * 1024 * 1980e6
    professional = derive(h200(name="NVIDIA RTX PRO 6000 Blackwell", **changes), table)
    assert why_missing(professional, "fp8") == "no published figure found"


def test_a_rate_without_a_source_is_left_out(table: DeviceTable) -> None:
    b200 = h200(name="NVIDIA B200", compute_capability="10.0", cores=18944)
    roofline = derive(b200, table)
    assert why_missing(roofline, "fp64") == "no published figure found"
    assert only(roofline, "fp64_vector").value > 0


@pytest.mark.parametrize("capability", ["8.7", "10.3", "12.1"])
def test_an_unlisted_chip_gets_no_compute_roof(capability: str, table: DeviceTable) -> None:
    roofline = derive(h200(compute_capability=capability), table)
    assert why_missing(roofline, "fp32") == (
        f"no FLOP/clock/SM known for compute capability {capability} "
        "(add it to configs/architectures.toml)"
    )
    assert roofline.compute("fp32") is None
    assert roofline.bandwidth() is not None


def test_cudas_sm_count_serves_where_nvml_gives_no_cores(table: DeviceTable) -> None:
    fp32 = only(derive(h200(cores=None, sm_count=132), table), "fp32")
    assert fp32.value == 132 * 256 * 1980e6
    assert fp32.formula.startswith("132 SMs (CUDA's multiprocessor count)")


def test_a_mig_instance_is_judged_by_its_own_sms_or_not_at_all(table: DeviceTable) -> None:
    changes = {"mig_mode": "enabled", "cores": None, "memory_bus_width": None}
    blind = derive(h200(**changes), table)
    assert blind.compute("fp32") is None
    assert "cores: Not Supported" in why_missing(blind, "fp32")
    assert "memory_bus_width: Not Supported" in why_missing(blind, "HBM")
    instance = only(derive(h200(**changes, sm_count=16), table), "fp32")
    assert instance.value == 16 * 256 * 1980e6
    assert "of this MIG instance" in instance.formula


def test_cores_that_make_no_whole_sms_are_not_believed(table: DeviceTable) -> None:
    fp32 = only(derive(h200(cores=16897, sm_count=132), table), "fp32")
    assert fp32.formula == "132 SMs (CUDA's multiprocessor count) × 256 FLOP/clock × 1980 MHz"
    assert why_missing(derive(h200(cores=16897), table), "fp32") == (
        "number of SMs unknown (not reported)"
    )


def test_no_clock_no_compute_roof(table: DeviceTable) -> None:
    roofline = derive(h200(sm_clock_default=None, sm_clock_max=None), table)
    assert roofline.compute("bf16") is None
    assert why_missing(roofline, "bf16") == (
        "SM clock unknown (sm_clock_max: Not Supported; sm_clock_default: Not Supported)"
    )


def test_no_facts_at_all_still_make_a_roofline_of_reasons(table: DeviceTable) -> None:
    roofline = derive({}, table)
    assert roofline.ceilings == ()
    reasons = {limit.key: limit.reason for limit in roofline.missing}
    assert reasons == {
        **dict.fromkeys(PRECISIONS, "compute capability unknown (not reported)"),
        "DRAM": "memory clock unknown (not reported), bus width unknown (not reported)",
    }


def test_what_is_missing_of_the_memory_is_named(table: DeviceTable) -> None:
    no_clock = derive(h200(memory_clock_max=None), table)
    assert why_missing(no_clock, "HBM") == "memory clock unknown (memory_clock_max: Not Supported)"
    no_bus = derive(h200(memory_bus_width=None), table)
    assert why_missing(no_bus, "HBM") == "bus width unknown (memory_bus_width: Not Supported)"


def test_a_sampled_clock_gives_an_observed_ceiling(table: DeviceTable) -> None:
    ceilings, _ = compute_ceilings(h200(), table, clock_mhz=1430.5, provenance="observed")
    [bf16] = [ceiling for ceiling in ceilings if ceiling.key == "bf16"]
    assert (bf16.provenance, bf16.caveat, bf16.datasheet) == ("observed", "", None)
    assert bf16.value == 132 * 4096 * 1430.5e6
    assert bf16.formula.endswith("1430.5 MHz")


def test_memory_is_named_after_the_chip_else_after_its_bus(table: DeviceTable) -> None:
    assert derive(geforce_3090(), table).memory == "GDDR"
    assert derive(h200(memory_bus_width=None), table).memory == "HBM"
    assert derive(h200(compute_capability="10.3", memory_bus_width=8192), table).memory == "HBM"
    for width, name in ((256, "DRAM"), (2047, "DRAM"), (2048, "HBM")):
        unlisted = h200(compute_capability="12.1", memory_bus_width=width)
        assert derive(unlisted, table).memory == name


@pytest.mark.parametrize("text", ["not toml", "geforce_names = []", '[compute_capability."9.0"]'])
def test_a_broken_table_is_named(text: str, tmp_path: Path) -> None:
    broken = tmp_path / "architectures.toml"
    broken.write_text(text)
    with pytest.raises(UsageError, match=r"architectures\.toml"):
        load_table(broken)


TABLE = """
geforce_names = ["GeForce"]

[compute_capability."9.9"]
cores_per_sm = 64
memory = "HBM"
fp32 = 100
fp16 = { professional = 400, geforce = 200 }
fp8 = "?"

[datasheet_clocks]
Slow = { sm = 1000 }
"Slow One" = { sm = 900, tensor = 800 }
"""


def test_a_table_is_what_its_file_says(tmp_path: Path) -> None:
    path = tmp_path / "architectures.toml"
    path.write_text(TABLE)
    found = load_table(path)
    assert found.geforce_names == ("GeForce",)
    assert found.architectures["9.9"].cores_per_sm == 64
    assert found.datasheet("Card Slow") == DatasheetClocks(1000.0, 1000.0)
    assert found.datasheet("Card Slow One") == DatasheetClocks(900.0, 800.0)
    assert found.datasheet("Card Slowest") is None
    facts = {"compute_capability": "9.9", "cores": 640, "sm_clock_max": 1000}
    card = derive(facts_of(name="Card", **facts), found)
    assert only(card, "fp32").value == 10 * 100 * 1e9
    assert only(card, "fp16").value == only(card, "fp16_fp32").value == 10 * 400 * 1e9
    assert why_missing(card, "fp8") == "no published figure found"
    assert only(derive(facts_of(name="my GEFORCE", **facts), found), "fp16").value == 2e12
    slow = derive(facts_of(name="Slow One", **facts), found)
    assert only(slow, "fp32").datasheet == 10 * 100 * 0.9e9
    assert only(slow, "fp16").datasheet == 10 * 400 * 0.8e9
    same = derive(facts_of(name="Slow", **facts), found)
    assert only(same, "fp32").datasheet is None
