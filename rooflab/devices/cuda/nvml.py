"""All calls of NVML, the driver's management library.

A query may be missing (old driver, old package), refused (permissions, virtual GPUs) or return
zero (GB10, vGPU). The result is a ``Fact`` with a value, or None and the reason; in telemetry it is
a ``Reading`` with a value or None. NVIDIA's NVML API reference documents the functions, which are
called through the package ``nvidia-ml-py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from rooflab.devices.base import Reading
from rooflab.model.facts import Fact

FactValue = str | int | float | None


def _text(raw: Any) -> FactValue:
    # The package returned bytes until version 11.
    text = raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)
    return text.strip() or None


def _present(raw: Any) -> FactValue:
    """A count that may be zero; all bits set is NVML's "not available"."""
    return None if raw < 0 or raw in (2**32 - 1, 2**64 - 1) else int(raw)


def _positive(raw: Any) -> FactValue:
    return _present(raw) or None


def _thousandths(raw: Any) -> FactValue:
    """Watts from milliwatts, joules from millijoules."""
    return _positive(raw) and raw / 1000


def _capability(raw: Any) -> FactValue:
    major, minor = raw
    return f"{major}.{minor}" if major > 0 else None


def _cuda_version(raw: Any) -> FactValue:
    return f"{raw // 1000}.{raw % 1000 // 10}" if raw > 0 else None


def _switch(raw: Any) -> FactValue:
    # Some functions return [current, pending], some the current state alone.
    current = raw[0] if isinstance(raw, (list, tuple)) else raw
    return {0: "disabled", 1: "enabled"}.get(current)


def _compute_mode(raw: Any) -> FactValue:
    return {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}.get(raw)


@dataclass(frozen=True, slots=True)
class _Query:
    """``constants`` are the names of the module's constants that follow the device handle."""

    function: str
    convert: Callable[[Any], FactValue]
    unit: str = ""
    constants: tuple[str, ...] = ()


_SM: Final = ("NVML_CLOCK_SM",)
_MEMORY: Final = ("NVML_CLOCK_MEM",)

_DEVICE_QUERIES: Final[dict[str, _Query]] = {
    "name": _Query("nvmlDeviceGetName", _text),
    "uuid": _Query("nvmlDeviceGetUUID", _text),
    "pci_bus_id": _Query("nvmlDeviceGetPciInfo", lambda raw: _text(raw.busId)),
    "compute_capability": _Query("nvmlDeviceGetCudaComputeCapability", _capability),
    "cores": _Query("nvmlDeviceGetNumGpuCores", _positive),
    "memory_total": _Query("nvmlDeviceGetMemoryInfo", lambda raw: _positive(raw.total), "B"),
    "memory_bus_width": _Query("nvmlDeviceGetMemoryBusWidth", _positive, "bit"),
    "sm_clock_default": _Query("nvmlDeviceGetDefaultApplicationsClock", _positive, "MHz", _SM),
    "sm_clock_max": _Query("nvmlDeviceGetMaxClockInfo", _positive, "MHz", _SM),
    "memory_clock_max": _Query("nvmlDeviceGetMaxClockInfo", _positive, "MHz", _MEMORY),
    "sm_clock": _Query("nvmlDeviceGetClockInfo", _positive, "MHz", _SM),
    "memory_clock": _Query("nvmlDeviceGetClockInfo", _positive, "MHz", _MEMORY),
    "power_limit": _Query("nvmlDeviceGetEnforcedPowerLimit", _thousandths, "W"),
    "power": _Query("nvmlDeviceGetPowerUsage", _thousandths, "W"),
    "temperature": _Query("nvmlDeviceGetTemperature", _present, "°C", ("NVML_TEMPERATURE_GPU",)),
    "ecc_mode": _Query("nvmlDeviceGetEccMode", _switch),
    "mig_mode": _Query("nvmlDeviceGetMigMode", _switch),
    # The link's generation falls while the GPU idles, its width does not.
    "pcie_generation": _Query("nvmlDeviceGetMaxPcieLinkGeneration", _positive),
    "pcie_width": _Query("nvmlDeviceGetCurrPcieLinkWidth", _positive, "lanes"),
    "persistence_mode": _Query("nvmlDeviceGetPersistenceMode", _switch),
    "compute_mode": _Query("nvmlDeviceGetComputeMode", _compute_mode),
}

_SYSTEM_QUERIES: Final[dict[str, _Query]] = {
    "driver_version": _Query("nvmlSystemGetDriverVersion", _text),
    "cuda_driver_version": _Query("nvmlSystemGetCudaDriverVersion", _cuda_version),
}

_ENERGY: Final = _Query("nvmlDeviceGetTotalEnergyConsumption", _thousandths, "J")
_INSTANT: Final = _Query("nvmlDeviceGetFieldValues", _thousandths, "W")

_SENSORS: Final = {
    "SM clock": (_DEVICE_QUERIES["sm_clock"],),
    "memory clock": (_DEVICE_QUERIES["memory_clock"],),
    "power": (_INSTANT, _DEVICE_QUERIES["power"]),
    "temperature": (_DEVICE_QUERIES["temperature"],),
    # Newer drivers call "event" what older ones called "throttle"; the bits are the same.
    "clock event": (
        _Query("nvmlDeviceGetCurrentClocksEventReasons", _present),
        _Query("nvmlDeviceGetCurrentClocksThrottleReasons", _present),
    ),
}
"""What is read of each sensor, the best first."""

_REASONS: Final = {
    "hw_slowdown": "HwSlowdown",
    "hw_thermal": "HwThermalSlowdown",
    "hw_power_brake": "HwPowerBrakeSlowdown",
    "sw_thermal": "SwThermalSlowdown",
    "sw_power_cap": "SwPowerCap",
    "idle": "GpuIdle",
    "applications_clocks": "ApplicationsClocksSetting",
    "sync_boost": "SyncBoost",
    "display_clocks": "DisplayClockSetting",
}
"""The reasons of a ``Reading``, and how NVML's constants end."""

_SHARED_UNDER_MIG: Final = ("cores", "memory_total", "memory_bus_width")


def normalise_bus_id(bus_id: str) -> str:
    """One spelling for CUDA's ``0000:01:00.0`` and NVML's ``00000000:01:00.0``."""
    domain, _, rest = bus_id.strip().lower().partition(":")
    return f"{domain.zfill(8)}:{rest}"


class _Gauge:
    """One sensor, read by the first of its calls that works.

    A call that fails before it has ever worked is dropped. If a call that has worked fails later,
    only that sample is missing.
    """

    def __init__(self, *calls: Callable[[], tuple[Any, str]]) -> None:
        self._calls = list(calls)
        self._answered = False
        self.reason = ""

    def read(self) -> Any:
        """A value; None, with the last ``reason``, if no call returns one."""
        while self._calls:
            value, self.reason = self._calls[0]()
            if self._answered or not self.reason:
                self._answered = True
                return value
            del self._calls[0]
        return None


class Nvml:
    """NVML, if it is available.

    ``reason`` is empty if NVML works, else one line with the cause; every fact is then None with
    that reason. ``module`` replaces the package ``pynvml`` in tests.
    """

    def __init__(self, module: Any | None = None) -> None:
        self.reason = ""
        self._module: Any = module
        if module is None:
            try:
                import pynvml
            except ImportError:
                self.reason = "nvidia-ml-py is not installed: pip install nvidia-ml-py"
                return
            self._module = pynvml
        _, refusal = self.query("nvmlInit")
        if refusal:
            self.reason = (
                f"no NVIDIA driver answers ({refusal}): install one, "
                "or start the container with --gpus all"
            )

    def query(self, function: str, *arguments: Any) -> tuple[Any, str]:
        """The result of one NVML function and an empty text, or None and the reason."""
        if self.reason:
            return None, self.reason
        call = getattr(self._module, function, None)
        if call is None:
            return None, f"{function}: not in the installed nvidia-ml-py"
        try:
            return call(*arguments), ""
        except self._module.NVMLError as error:
            return None, f"{function}: {error}"

    def constant(self, name: str) -> Any:
        """A constant of the package, None if the installed one lacks it."""
        return getattr(self._module, name, None)

    def field(self, handle: Any, name: str, link: int | None = None) -> tuple[Any, str]:
        """The positive integer in one field, of one NVLink if given, or None and the reason."""
        field = self.constant(name)
        if field is None:
            return None, f"{name}: not in the installed nvidia-ml-py"
        wanted = field if link is None else (field, link)
        answers, reason = self.query("nvmlDeviceGetFieldValues", handle, [wanted])
        if reason:
            return None, reason
        # The call succeeds even if the driver refuses each field.
        [answer] = answers
        value = None if answer.nvmlReturn else _positive(answer.value.uiVal)
        return value, "" if value else f"{name}: the driver returns no value"

    def devices(self) -> list[dict[str, Fact]]:
        """Facts of every GPU that the driver lists, in NVML's order: it may differ from CUDA's."""
        return [self._facts(handle, reason) for handle, reason in self._handles()]

    def system_facts(self) -> dict[str, Fact]:
        """``driver_version`` and ``cuda_driver_version``, the newest CUDA that it supports."""
        return {name: self._ask(query) for name, query in _SYSTEM_QUERIES.items()}

    @property
    def cuda_version(self) -> str:
        """The newest CUDA that the driver supports, empty if it is unknown."""
        return str(self.system_facts()["cuda_driver_version"].value or "")

    def facts_of(self, pci_bus_id: str, uuid: str = "") -> dict[str, Fact]:
        """Facts of one CUDA device; all None with the reason if NVML does not list it.

        ``uuid`` is CUDA's, without the prefix ``GPU-`` or ``MIG-``.
        """
        handle = self.find(pci_bus_id, uuid)
        reason = "" if handle is not None else self.reason or f"NVML lists no GPU at {pci_bus_id}"
        return self._facts(handle, reason)

    def find(self, pci_bus_id: str, uuid: str = "") -> Any | None:
        """NVML's handle of a CUDA device, by PCI bus id, else by UUID; None if there is none.

        For a MIG instance this is the handle of the whole GPU: instances have no clocks.
        """
        wanted = normalise_bus_id(pci_bus_id)
        for handle, lost in self._handles():
            if lost:
                continue
            bus_id = self._ask(_DEVICE_QUERIES["pci_bus_id"], handle).value
            if normalise_bus_id(str(bus_id)) == wanted:
                return handle
        if not uuid:
            return None
        handle, _ = self.query("nvmlDeviceGetHandleByUUID", f"GPU-{uuid}")
        if handle is None:
            instance, _ = self.query("nvmlDeviceGetHandleByUUID", f"MIG-{uuid}")
            if instance is not None:
                handle, _ = self.query("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", instance)
        return handle

    def sampler(self, handle: Any) -> Callable[[], Reading]:
        """A function that takes one sample of the GPU's sensors, in five NVML calls.

        A failed call gives None, and a call that never worked is not repeated. Power is
        instantaneous if the driver reports it: since Ampere ``nvmlDeviceGetPowerUsage`` averages
        over a second (NVML API reference), longer than a round. Samples of a MIG instance are those
        of the whole GPU.
        """
        sm, memory, power, temperature, events = self._gauges(handle).values()
        bits = {
            reason: getattr(self._module, prefix + constant)
            for prefix in ("nvmlClocksThrottleReason", "nvmlClocksEventReason")
            for reason, constant in _REASONS.items()
            if hasattr(self._module, prefix + constant)
        }

        def sample() -> Reading:
            clocks = sm.read(), memory.read()
            watts, celsius, mask = power.read(), temperature.read(), events.read() or 0
            reasons = frozenset(reason for reason, bit in bits.items() if mask & bit)
            return Reading(None, *clocks, watts, celsius, reasons)

        return sample

    def energy_joules(self, handle: Any) -> float | None:
        """Energy used since the driver was loaded, in joules; None without a counter.

        ``nvmlDeviceGetTotalEnergyConsumption``, Volta and later.
        """
        joules, _ = self._value(_ENERGY, handle)
        return None if joules is None else float(joules)

    def missing_telemetry(self, handle: Any) -> str:
        """One line with the sensors that this GPU does not report and why; empty if it reports all.

        Makes each call of a sample and of ``energy_joules`` once.
        """
        gauges = self._gauges(handle) | {"energy": _Gauge(partial(self._value, _ENERGY, handle))}
        missing: dict[str, list[str]] = {}
        for name, gauge in gauges.items():
            if gauge.read() is None:
                missing.setdefault(gauge.reason, []).append(name)
        return "; ".join(
            f"no {', '.join(names)} reading: {reason}" for reason, names in missing.items()
        )

    def _gauges(self, handle: Any) -> dict[str, _Gauge]:
        return {
            name: _Gauge(*(partial(self._value, query, handle) for query in queries))
            for name, queries in _SENSORS.items()
        }

    def _handles(self) -> list[tuple[Any, str]]:
        """Handle and an empty text for each GPU, or None and the reason for one that is lost."""
        count, _ = self.query("nvmlDeviceGetCount")
        return [self.query("nvmlDeviceGetHandleByIndex", index) for index in range(count or 0)]

    def _ask(self, query: _Query, *handle: Any) -> Fact:
        value, reason = self._value(query, *handle)
        return Fact(value, query.unit, query.function, reason)

    def _value(self, query: _Query, *handle: Any) -> tuple[Any, str]:
        if query is _INSTANT:
            raw, reason = self.field(handle[0], "NVML_FI_DEV_POWER_INSTANT")
        else:
            constants = [self.constant(name) for name in query.constants]
            raw, reason = self.query(query.function, *handle, *constants)
        value = None if reason else query.convert(raw)
        if value is None and not reason:
            reason = f"{query.function}: the driver returns {raw}, which is not a value"
        return value, reason

    def _facts(self, handle: Any | None, reason: str) -> dict[str, Fact]:
        if handle is None:
            facts = {
                name: Fact(None, query.unit, query.function, reason)
                for name, query in _DEVICE_QUERIES.items()
            }
        else:
            facts = {name: self._ask(query, handle) for name, query in _DEVICE_QUERIES.items()}
        for name in _SHARED_UNDER_MIG if facts["mig_mode"].value == "enabled" else ():
            if (fact := facts[name]).value is not None:
                whole = f"{fact.value} {fact.unit}".strip()
                shared = f"{whole} is the whole GPU's, MIG instances share it"
                facts[name] = replace(fact, value=None, reason=f"{fact.source}: {shared}")
        return facts | self.system_facts()
