"""From the facts of a GPU to the ceilings of its roofline. Pure, except for reading the table.

Compute = SMs x FLOP per clock per SM x clock, memory = 2 x memory clock x bus width / 8 (decimal).
``configs/devices.toml`` holds the rates and names their sources.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooflab.errors import UsageError
from rooflab.model.facts import Fact
from rooflab.model.precision import PRECISIONS
from rooflab.model.roofline import Ceiling, MissingCeiling, Provenance, Roofline

Facts = Mapping[str, Fact]
Limits = tuple[tuple[Ceiling, ...], tuple[MissingCeiling, ...]]
"""Known ceilings, and missing ones."""


@dataclass(frozen=True, slots=True)
class Rate:
    """FLOP per clock per SM on professional and GeForce cards; None if no figure is published."""

    professional: int | None
    geforce: int | None


@dataclass(frozen=True, slots=True)
class Architecture:
    """One compute capability: CUDA cores per SM, kind of memory, rates by precision."""

    cores_per_sm: int
    memory: str
    rates: Mapping[str, Rate]


@dataclass(frozen=True, slots=True)
class DatasheetClocks:
    """The clocks in MHz behind a product's datasheet; ``tensor`` is for the tensor cores."""

    sm: float
    tensor: float


@dataclass(frozen=True, slots=True)
class DeviceTable:
    """``configs/devices.toml``: architectures by compute capability, such as ``9.0``.

    ``datasheets`` has words of product names, such as ``RTX 3090``, as keys.
    """

    geforce_names: tuple[str, ...]
    architectures: Mapping[str, Architecture]
    datasheets: Mapping[str, DatasheetClocks]

    def datasheet(self, product: str) -> DatasheetClocks | None:
        """The clocks of the longest key whose words are in the name; None if there is none."""
        fitting = [key for key in self.datasheets if re.search(rf"\b{re.escape(key)}\b", product)]
        return self.datasheets[max(fitting, key=len)] if fitting else None


def load_table(path: Path | None = None) -> DeviceTable:
    """The table of rates, by default rooflab's own; raises ``UsageError`` if it is malformed."""
    if path is None:
        from rooflab.files import configs_dir

        path = configs_dir() / "devices.toml"
    try:
        with path.open("rb") as file:
            data = tomllib.load(file)
        return DeviceTable(
            geforce_names=tuple(data["geforce_names"]),
            architectures={
                capability: _architecture(entry)
                for capability, entry in data["compute_capability"].items()
            },
            datasheets={
                key: DatasheetClocks(float(entry["sm"]), float(entry.get("tensor", entry["sm"])))
                for key, entry in data["datasheet_clocks"].items()
            },
        )
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"cannot read the table of devices {path}: {error!r}; fix it") from error


def _architecture(entry: Mapping[str, Any]) -> Architecture:
    described = ("cores_per_sm", "memory")
    return Architecture(
        cores_per_sm=int(entry["cores_per_sm"]),
        memory=str(entry["memory"]),
        rates={key: _rate(value) for key, value in entry.items() if key not in described},
    )


def _rate(value: Any) -> Rate:
    if not isinstance(value, dict):
        value = {"professional": value, "geforce": value}
    figures = {card: None if figure == "?" else int(figure) for card, figure in value.items()}
    return Rate(**figures)


def derive(facts: Facts, table: DeviceTable) -> Roofline:
    """The roofline that follows from the facts, provenance ``derived``."""
    compute, no_compute = compute_ceilings(facts, table)
    memory, no_memory = memory_ceilings(facts, table)
    return Roofline(
        ceilings=compute + memory,
        missing=no_compute + no_memory,
        memory=memory_name(facts, table),
    )


def compute_ceilings(
    facts: Facts,
    table: DeviceTable,
    clock_mhz: float | None = None,
    provenance: Provenance = "derived",
) -> Limits:
    """Compute limits in FLOP/s, keyed by precision.

    Without ``clock_mhz`` the clock is NVML's maximum SM clock, so that no kernel exceeds a limit.
    If the product's datasheet assumes another clock, the ceiling has the datasheet's value too. If
    a chip has FP64 tensor cores, ``fp64`` is their rate and ``fp64_vector`` the rate without them.
    """
    capability = _value(facts, "compute_capability")
    if capability is None:
        return _all_missing(
            PRECISIONS, f"compute capability unknown ({_why(facts, 'compute_capability')})"
        )
    architecture = table.architectures.get(str(capability))
    if architecture is None:
        reason = (
            f"no FLOP/clock/SM known for compute capability {capability} "
            "(add it to configs/devices.toml)"
        )
        return _all_missing(PRECISIONS, reason)

    sms, sms_text = _sm_count(facts, architecture)
    if sms is None:
        return _all_missing(PRECISIONS, sms_text)
    caveat, datasheet = "", None
    if clock_mhz is None:
        clock_mhz, caveat = _highest_clock(facts)
        if clock_mhz is None:
            return _all_missing(PRECISIONS, caveat)
        datasheet = table.datasheet(str(_value(facts, "name") or ""))

    ceilings: list[Ceiling] = []
    missing: list[MissingCeiling] = []
    for rate_key, rate in architecture.rates.items():
        flop_per_clock, reason = _figure(rate, facts, table)
        for key in _ceiling_keys(rate_key, architecture):
            if flop_per_clock is None:
                missing.append(MissingCeiling("compute", key, reason))
                continue
            products = PRECISIONS[key].products if key in PRECISIONS else 1
            per_mhz = sms * flop_per_clock * 1e6 / products
            shared = f" / {products} products" if products > 1 else ""
            # FP64's tensor cores run at the full clock: datasheets agree with NVML's maximum.
            full = rate_key == "fp64_tensor" or (
                key in PRECISIONS and not PRECISIONS[key].tensor_cores
            )
            assumed = datasheet and (datasheet.sm if full else datasheet.tensor)
            ceilings.append(
                Ceiling(
                    kind="compute",
                    key=key,
                    value=per_mhz * clock_mhz,
                    provenance=provenance,
                    formula=f"{sms_text} × {flop_per_clock} FLOP/clock × {clock_mhz:g} MHz{shared}",
                    caveat=caveat,
                    datasheet=per_mhz * assumed if assumed and assumed != clock_mhz else None,
                )
            )
    known = {ceiling.key for ceiling in ceilings} | {limit.key for limit in missing}
    missing += [
        MissingCeiling("compute", key, _no_rate(key, str(capability)))
        for key in PRECISIONS
        if key not in known
    ]
    return tuple(ceilings), tuple(missing)


def _no_rate(key: str, capability: str) -> str:
    if PRECISIONS[key].integer:
        return "configs/devices.toml has no rates of integer additions; memory bounds them"
    needed = (PRECISIONS[key].rate or key).upper()
    return f"compute capability {capability} has no {needed} tensor cores"


def memory_ceilings(facts: Facts, table: DeviceTable) -> Limits:
    """The bandwidth of device memory in byte/s, decimal."""
    key = memory_name(facts, table)
    clock_mhz = _number(facts, "memory_clock_max")
    bus_bits = _number(facts, "memory_bus_width")
    if clock_mhz is None or bus_bits is None:
        unknown = [
            f"{title} unknown ({_why(facts, name)})"
            for title, name, value in (
                ("memory clock", "memory_clock_max", clock_mhz),
                ("bus width", "memory_bus_width", bus_bits),
            )
            if value is None
        ]
        return (), (MissingCeiling("bandwidth", key, ", ".join(unknown)),)
    ceiling = Ceiling(
        kind="bandwidth",
        key=key,
        value=2 * clock_mhz * 1e6 * bus_bits / 8,
        provenance="derived",
        formula=f"2 × {clock_mhz:g} MHz × {bus_bits:g} bit / 8",
    )
    return (ceiling,), ()


def memory_name(facts: Facts, table: DeviceTable) -> str:
    """``HBM`` or ``GDDR``; ``DRAM`` if the kind of memory is unknown."""
    architecture = table.architectures.get(str(_value(facts, "compute_capability")))
    if architecture:
        return architecture.memory
    # No other memory has a bus as wide. A narrow one may be LPDDR as well as GDDR.
    return "HBM" if (_number(facts, "memory_bus_width") or 0) >= 2048 else "DRAM"


def _sm_count(facts: Facts, architecture: Architecture) -> tuple[int | None, str]:
    """Number of SMs and its formula, or None and the reason."""
    cores = _number(facts, "cores")
    per_sm = architecture.cores_per_sm
    if cores is not None and cores % per_sm == 0:
        sms = int(cores) // per_sm
        return sms, f"{cores:g} cores / {per_sm} per SM = {sms} SMs"
    counted = _number(facts, "sm_count")
    if counted is not None:
        whose = "of this MIG instance " if _value(facts, "mig_mode") == "enabled" else ""
        return int(counted), f"{counted:g} SMs {whose}(CUDA's multiprocessor count)"
    return None, f"number of SMs unknown ({_why(facts, 'cores')})"


def _highest_clock(facts: Facts) -> tuple[float | None, str]:
    """MHz and a caveat, or None and the reason.

    The default application clock can be far below the clock that a card runs at: 1095 of 1410 MHz
    on an A100, 585 of 1590 MHz on a T4.
    """
    highest = _number(facts, "sm_clock_max")
    if highest is not None:
        return highest, ""
    default = _number(facts, "sm_clock_default")
    if default is not None:
        reason = _why(facts, "sm_clock_max")
        return default, f"the default application clock; the maximum is unknown ({reason})"
    reasons = f"{_why(facts, 'sm_clock_max')}; {_why(facts, 'sm_clock_default')}"
    return None, f"SM clock unknown ({reasons})"


def _ceiling_keys(rate_key: str, architecture: Architecture) -> tuple[str, ...]:
    """Names of the ceilings that one rate gives."""
    if rate_key == "fp64_tensor":
        return ("fp64",)
    if rate_key == "fp64" and "fp64_tensor" in architecture.rates:
        return ("fp64_vector",)
    sharing = [one.name for one in PRECISIONS.values() if rate_key in (one.name, one.rate)]
    return tuple(sharing) or (rate_key,)


def _figure(rate: Rate, facts: Facts, table: DeviceTable) -> tuple[int | None, str]:
    """FLOP per clock per SM, or None and the reason."""
    if rate.professional == rate.geforce:
        figure = rate.professional
    else:
        geforce = _is_geforce(facts, table)
        if geforce is None:
            return (
                None,
                f"GeForce and professional cards differ, name unknown ({_why(facts, 'name')})",
            )
        figure = rate.geforce if geforce else rate.professional
    return figure, "" if figure is not None else "no published figure found"


def _is_geforce(facts: Facts, table: DeviceTable) -> bool | None:
    """None if the product's name is unknown."""
    name = _value(facts, "name")
    if name is None:
        return None
    return any(mark.casefold() in str(name).casefold() for mark in table.geforce_names)


def _all_missing(keys: Iterable[str], reason: str) -> Limits:
    return (), tuple(MissingCeiling("compute", key, reason) for key in keys)


def _value(facts: Facts, name: str) -> str | int | float | None:
    fact = facts.get(name)
    return fact.value if fact else None


def _number(facts: Facts, name: str) -> int | float | None:
    value = _value(facts, name)
    return value if isinstance(value, (int, float)) else None


def _why(facts: Facts, name: str) -> str:
    """Why a fact has no value."""
    fact = facts.get(name)
    return (fact.reason if fact else "") or "not reported"
