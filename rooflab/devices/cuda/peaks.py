"""From the facts of a GPU to the ceilings of its roofline. Pure, except for reading the table.

Compute = SMs x FLOP per clock per SM x clock, memory = 2 x memory clock x bus width / 8 (decimal).
``configs/architectures.toml`` holds the rates and names their sources.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rooflab.errors import UsageError
from rooflab.model.facts import Fact
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import SFU
from rooflab.model.roofline import Ceiling, MissingCeiling, Provenance, Roofline

Facts = Mapping[str, Fact]
PeakLists = tuple[tuple[Ceiling, ...], tuple[MissingCeiling, ...]]
"""Known ceilings, and missing ones."""


Rate = Mapping[str, int | None]
"""FLOP per clock per SM on ``professional`` and ``geforce`` cards; None if none is published."""


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
    """``configs/architectures.toml``: architectures by compute capability, such as ``9.0``.

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

        path = configs_dir() / "architectures.toml"
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
    rates = {key: value for key, value in entry.items() if key not in ("cores_per_sm", "memory")}
    return Architecture(
        cores_per_sm=int(entry["cores_per_sm"]),
        memory=str(entry["memory"]),
        rates={key: _rate(value) for key, value in rates.items()},
    )


def _rate(value: Any) -> Rate:
    both = value if isinstance(value, dict) else {"professional": value, "geforce": value}
    return {card: None if both[card] == "?" else int(both[card]) for card in CARDS}


CARDS: Final = ("professional", "geforce")


class _Unknown(Exception):  # noqa: N818  not an error
    """Why a ceiling cannot be derived."""


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
) -> PeakLists:
    """Compute limits in FLOP/s, keyed by precision; ``sfu`` in operations per second.

    Without ``clock_mhz`` the clock is NVML's maximum SM clock, so that no kernel exceeds a limit.
    If the product's datasheet assumes another clock, the ceiling has the datasheet's value too. If
    a chip has FP64 tensor cores, ``fp64`` is their rate and ``fp64_vector`` the rate without them.
    """
    try:
        capability = str(_need(facts, "compute_capability", "compute capability"))
        architecture = table.architectures.get(capability)
        if architecture is None:
            raise _Unknown(
                f"no FLOP/clock/SM known for compute capability {capability} "
                "(add it to configs/architectures.toml)"
            )
        sms, sms_text = _sm_count(facts, architecture)
        caveat, datasheet = "", None
        if clock_mhz is None:
            clock_mhz, caveat = _highest_clock(facts)
            datasheet = table.datasheet(str(_value(facts, "name") or ""))
    except _Unknown as reason:
        return (), tuple(MissingCeiling("compute", key, str(reason)) for key in PRECISIONS)

    ceilings: list[Ceiling] = []
    missing: list[MissingCeiling] = []
    for rate_key, rate in architecture.rates.items():
        keys = _ceiling_keys(rate_key, architecture)
        try:
            flop_per_clock = _figure(rate, facts, table)
        except _Unknown as reason:
            missing += [MissingCeiling("compute", key, str(reason)) for key in keys]
            continue
        for key in keys:
            products = PRECISIONS[key].products if key in PRECISIONS else 1
            per_mhz = sms * flop_per_clock * 1e6 / products
            shared = f" / {products} products" if products > 1 else ""
            rate_text = f"{flop_per_clock} {'operations' if key == SFU else 'FLOP'}/clock"
            # FP64's tensor cores run at the full clock: datasheets agree with NVML's maximum.
            full = rate_key in ("fp64_tensor", SFU) or (
                key in PRECISIONS and not PRECISIONS[key].tensor_cores
            )
            assumed = datasheet and (datasheet.sm if full else datasheet.tensor)
            ceilings.append(
                Ceiling(
                    kind="compute",
                    key=key,
                    value=per_mhz * clock_mhz,
                    provenance=provenance,
                    formula=f"{sms_text} × {rate_text} × {clock_mhz:g} MHz{shared}",
                    caveat=caveat,
                    datasheet=per_mhz * assumed if assumed and assumed != clock_mhz else None,
                )
            )
    known = {ceiling.key for ceiling in ceilings} | {limit.key for limit in missing}
    missing += [
        MissingCeiling("compute", key, _no_rate(key, capability))
        for key in PRECISIONS
        if key not in known
    ]
    return tuple(ceilings), tuple(missing)


def _no_rate(key: str, capability: str) -> str:
    if PRECISIONS[key].integer:
        return "configs/architectures.toml has no rates of integer additions; memory bounds them"
    needed = (PRECISIONS[key].rate or key).upper()
    return f"compute capability {capability} has no {needed} tensor cores"


def memory_ceilings(facts: Facts, table: DeviceTable) -> PeakLists:
    """The bandwidth of device memory in byte/s, decimal."""
    key, found, reasons = memory_name(facts, table), [], []
    for name, title in (("memory_clock_max", "memory clock"), ("memory_bus_width", "bus width")):
        try:
            found.append(float(_need(facts, name, title)))
        except _Unknown as reason:
            reasons.append(str(reason))
    if reasons:
        return (), (MissingCeiling("bandwidth", key, ", ".join(reasons)),)
    clock_mhz, bus_bits = found
    formula = f"2 × {clock_mhz:g} MHz × {bus_bits:g} bit / 8"
    value = 2 * clock_mhz * 1e6 * bus_bits / 8
    return (Ceiling("bandwidth", key, value, "derived", formula),), ()


def memory_name(facts: Facts, table: DeviceTable) -> str:
    """``HBM`` or ``GDDR``; ``DRAM`` if the kind of memory is unknown."""
    architecture = table.architectures.get(str(_value(facts, "compute_capability")))
    if architecture:
        return architecture.memory
    # No other memory has a bus as wide. A narrow one may be LPDDR as well as GDDR.
    return "HBM" if float(_value(facts, "memory_bus_width") or 0) >= 2048 else "DRAM"


def _sm_count(facts: Facts, architecture: Architecture) -> tuple[int, str]:
    """Number of SMs and its formula."""
    cores, per_sm = _value(facts, "cores"), architecture.cores_per_sm
    if isinstance(cores, int) and cores % per_sm == 0:
        sms = cores // per_sm
        return sms, f"{cores:g} cores / {per_sm} per SM = {sms} SMs"
    if counted := _value(facts, "sm_count"):
        whose = "of this MIG instance " if _value(facts, "mig_mode") == "enabled" else ""
        return int(counted), f"{counted:g} SMs {whose}(CUDA's multiprocessor count)"
    raise _Unknown(f"number of SMs unknown ({_why(facts, 'cores')})")


def _highest_clock(facts: Facts) -> tuple[float, str]:
    """MHz and a caveat.

    The default application clock can be far below the clock that a card runs at: 1095 of 1410 MHz
    on an A100, 585 of 1590 MHz on a T4.
    """
    highest, default = _value(facts, "sm_clock_max"), _value(facts, "sm_clock_default")
    reason = _why(facts, "sm_clock_max")
    if highest is not None:
        return float(highest), ""
    if default is not None:
        return float(default), f"the default application clock; the maximum is unknown ({reason})"
    raise _Unknown(f"SM clock unknown ({reason}; {_why(facts, 'sm_clock_default')})")


def _ceiling_keys(rate_key: str, architecture: Architecture) -> tuple[str, ...]:
    """Names of the ceilings that one rate gives."""
    if rate_key == "fp64_tensor":
        return ("fp64",)
    if rate_key == "fp64" and "fp64_tensor" in architecture.rates:
        return ("fp64_vector",)
    sharing = [one.name for one in PRECISIONS.values() if rate_key in (one.name, one.rate)]
    return tuple(sharing) or (rate_key,)


def _figure(rate: Rate, facts: Facts, table: DeviceTable) -> int:
    """FLOP per clock per SM."""
    card = "professional"
    if rate["professional"] != rate["geforce"]:
        name = str(_need(facts, "name", "GeForce and professional cards differ, name")).casefold()
        geforce = any(mark.casefold() in name for mark in table.geforce_names)
        card = "geforce" if geforce else "professional"
    figure = rate[card]
    if figure is None:
        raise _Unknown("no published figure found")
    return figure


def _value(facts: Facts, name: str) -> Any:
    fact = facts.get(name)
    return fact.value if fact else None


def _need(facts: Facts, name: str, title: str) -> Any:
    """The value of a fact; raises ``_Unknown``."""
    value = _value(facts, name)
    if value is None:
        raise _Unknown(f"{title} unknown ({_why(facts, name)})")
    return value


def _why(facts: Facts, name: str) -> str:
    """Why a fact has no value."""
    fact = facts.get(name)
    return (fact.reason if fact else "") or "not reported"
