"""NVML answers, refuses, lacks functions or is not there: facts say which."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from rooflab.devices.base import Reading
from rooflab.devices.cuda.nvml import Nvml, normalise_bus_id


class NVMLError(Exception):
    pass


NOT_SUPPORTED = NVMLError("Not Supported")
NO_PERMISSION = NVMLError("Insufficient Permissions")
FUNCTION_NOT_FOUND = NVMLError("Function Not Found")

H200: dict[str, Any] = {
    "nvmlDeviceGetName": "NVIDIA H200",
    "nvmlDeviceGetUUID": "GPU-8f1a6f0e-0000-4000-8000-0123456789ab",
    "nvmlDeviceGetPciInfo": SimpleNamespace(busId="00000000:1B:00.0"),
    "nvmlDeviceGetCudaComputeCapability": (9, 0),
    "nvmlDeviceGetNumGpuCores": 16896,
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=150_754_820_096),
    "nvmlDeviceGetMemoryBusWidth": 6016,
    "nvmlDeviceGetDefaultApplicationsClock": {"SM": 1980},
    "nvmlDeviceGetMaxClockInfo": {"SM": 1980, "MEM": 3201},
    "nvmlDeviceGetClockInfo": {"SM": 345, "MEM": 3201},
    "nvmlDeviceGetEnforcedPowerLimit": 700_000,
    "nvmlDeviceGetPowerUsage": 76_543,
    "nvmlDeviceGetTemperature": {"GPU": 0},
    "nvmlDeviceGetEccMode": [1, 1],
    "nvmlDeviceGetMigMode": [0, 0],
    "nvmlDeviceGetMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetPersistenceMode": 1,
    "nvmlDeviceGetComputeMode": 0,
}


def fields(milliwatts: int, refusal: int = 0) -> list[SimpleNamespace]:
    """What ``nvmlDeviceGetFieldValues`` gives for one field."""
    return [SimpleNamespace(nvmlReturn=refusal, value=SimpleNamespace(uiVal=milliwatts))]


BUSY: dict[str, Any] = H200 | {
    "nvmlDeviceGetClockInfo": {"SM": 1425, "MEM": 3201},
    "nvmlDeviceGetFieldValues": fields(698_750),
    "nvmlDeviceGetTemperature": {"GPU": 52},
    "nvmlDeviceGetCurrentClocksEventReasons": 0x4,
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0x4,
    "nvmlDeviceGetTotalEnergyConsumption": 123_456_789,
}
EVENT_REASONS = "nvmlDeviceGetCurrentClocksEventReasons"
THROTTLE_REASONS = "nvmlDeviceGetCurrentClocksThrottleReasons"
REASON_BITS = {
    "GpuIdle": 0x1,
    "ApplicationsClocksSetting": 0x2,
    "SwPowerCap": 0x4,
    "HwSlowdown": 0x8,
    "SyncBoost": 0x10,
    "SwThermalSlowdown": 0x20,
    "HwThermalSlowdown": 0x40,
    "HwPowerBrakeSlowdown": 0x80,
    "DisplayClockSetting": 0x100,
}


def fake_nvml(*gpus: dict[str, Any]) -> SimpleNamespace:
    """A module that answers from ``gpus`` and counts ``calls``.

    An exception among the answers is raised.
    """
    calls: Counter[str] = Counter()

    def give(answer: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    def query(function: str) -> Any:
        def call(gpu: dict[str, Any], constant: Any = None) -> Any:
            calls[function] += 1
            answer = gpu[function]
            return give(answer[constant] if isinstance(answer, dict) else answer)

        return call

    def by_uuid(wanted: str) -> dict[str, Any]:
        for gpu in gpus:
            if wanted in (gpu["nvmlDeviceGetUUID"], gpu.get("instance")):
                return gpu
        raise NVMLError("Not Found")

    return SimpleNamespace(
        calls=calls,
        NVMLError=NVMLError,
        NVML_FI_DEV_POWER_INSTANT=186,
        NVML_CLOCK_SM="SM",
        NVML_CLOCK_MEM="MEM",
        NVML_TEMPERATURE_GPU="GPU",
        nvmlInit=lambda: None,
        nvmlSystemGetDriverVersion=lambda: "580.95.05",
        nvmlSystemGetCudaDriverVersion=lambda: 13000,
        nvmlDeviceGetCount=lambda: len(gpus),
        nvmlDeviceGetHandleByIndex=lambda index: give(gpus[index].get("lost", gpus[index])),
        nvmlDeviceGetHandleByUUID=by_uuid,
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle=lambda instance: instance,
        **{f"nvmlClocksEventReason{name}": bit for name, bit in REASON_BITS.items()},
        **{f"nvmlClocksThrottleReason{name}": bit for name, bit in REASON_BITS.items()},
        **{function: query(function) for function in BUSY},
    )


def values(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: fact.value for name, fact in facts.items()}


def test_a_full_h200_reports_every_fact() -> None:
    [facts] = Nvml(fake_nvml(H200)).devices()
    assert values(facts) == {
        "name": "NVIDIA H200",
        "uuid": "GPU-8f1a6f0e-0000-4000-8000-0123456789ab",
        "pci_bus_id": "00000000:1B:00.0",
        "compute_capability": "9.0",
        "cores": 16896,
        "memory_total": 150_754_820_096,
        "memory_bus_width": 6016,
        "sm_clock_default": 1980,
        "sm_clock_max": 1980,
        "memory_clock_max": 3201,
        "sm_clock": 345,
        "memory_clock": 3201,
        "power_limit": 700.0,
        "power": 76.543,
        "temperature": 0,
        "ecc_mode": "enabled",
        "mig_mode": "disabled",
        "pcie_generation": 5,
        "pcie_width": 16,
        "persistence_mode": "enabled",
        "compute_mode": "default",
        "driver_version": "580.95.05",
        "cuda_driver_version": "13.0",
    }
    assert all(fact.reason == "" for fact in facts.values())
    assert facts["cores"].source == "nvmlDeviceGetNumGpuCores"
    assert (facts["sm_clock_max"].unit, facts["memory_bus_width"].unit) == ("MHz", "bit")


def test_bytes_of_older_packages_are_read_as_text() -> None:
    gpu = H200 | {"nvmlDeviceGetName": b"Tesla T4"}
    assert Nvml(fake_nvml(gpu)).devices()[0]["name"].value == "Tesla T4"


@pytest.mark.parametrize("refusal", [NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND])
def test_a_refused_query_costs_its_own_fact_only(refusal: NVMLError) -> None:
    gpu = H200 | {"nvmlDeviceGetNumGpuCores": refusal}
    [facts] = Nvml(fake_nvml(gpu)).devices()
    assert facts["cores"].value is None
    assert facts["cores"].reason == f"nvmlDeviceGetNumGpuCores: {refusal}"
    assert facts["memory_bus_width"].value == 6016


def test_a_function_that_the_package_lacks_is_named() -> None:
    module = fake_nvml(H200)
    del module.nvmlDeviceGetNumGpuCores
    [facts] = Nvml(module).devices()
    assert facts["cores"].value is None
    assert "nvmlDeviceGetNumGpuCores" in facts["cores"].reason
    assert "nvidia-ml-py" in facts["cores"].reason


def test_zeros_and_refusals_of_a_gb10_are_no_values() -> None:
    gb10 = H200 | {
        "nvmlDeviceGetName": "NVIDIA GB10",
        "nvmlDeviceGetCudaComputeCapability": (12, 1),
        "nvmlDeviceGetMemoryInfo": NOT_SUPPORTED,
        "nvmlDeviceGetMemoryBusWidth": 0,
        "nvmlDeviceGetMaxClockInfo": {"SM": 3003, "MEM": NOT_SUPPORTED},
        "nvmlDeviceGetDefaultApplicationsClock": {"SM": 0},
        "nvmlDeviceGetEnforcedPowerLimit": 2**32 - 1,
        "nvmlDeviceGetMigMode": NOT_SUPPORTED,
    }
    [facts] = Nvml(fake_nvml(gb10)).devices()
    for name in (
        "memory_total", "memory_bus_width", "memory_clock_max", "sm_clock_default",
        "power_limit", "mig_mode",
    ):  # fmt: skip
        assert facts[name].value is None, name
        assert facts[name].reason, name
    assert facts["sm_clock_max"].value == 3003


def test_under_mig_clocks_hold_and_the_whole_gpus_size_does_not() -> None:
    [facts] = Nvml(fake_nvml(H200 | {"nvmlDeviceGetMigMode": [1, 1]})).devices()
    assert facts["sm_clock_max"].value == 1980
    for name in ("cores", "memory_total", "memory_bus_width"):
        assert facts[name].value is None
        assert "MIG" in facts[name].reason
    assert "16896" in facts["cores"].reason


def test_cuda_devices_are_found_by_bus_id_whatever_nvmls_order() -> None:
    first = H200 | {"nvmlDeviceGetPciInfo": SimpleNamespace(busId="00000000:C1:00.0")}
    second = H200 | {
        "nvmlDeviceGetPciInfo": SimpleNamespace(busId="00000000:0A:00.0"),
        "nvmlDeviceGetName": "NVIDIA L4",
    }
    nvml = Nvml(fake_nvml(first, second))
    assert nvml.facts_of("0000:0a:00.0")["name"].value == "NVIDIA L4"
    assert nvml.facts_of("0000:c1:00.0")["name"].value == "NVIDIA H200"


def test_a_lost_gpu_hides_no_other() -> None:
    nvml = Nvml(fake_nvml({"lost": NVMLError("GPU is lost")}, H200))
    assert nvml.facts_of("0000:1b:00.0")["name"].value == "NVIDIA H200"
    lost, _ = nvml.devices()
    assert "GPU is lost" in lost["name"].reason


def test_the_uuid_serves_where_no_bus_id_matches() -> None:
    gpu = H200 | {"nvmlDeviceGetPciInfo": NOT_SUPPORTED}
    facts = Nvml(fake_nvml(gpu)).facts_of("0000:01:00.0", "8f1a6f0e-0000-4000-8000-0123456789ab")
    assert facts["name"].value == "NVIDIA H200"


def test_a_mig_instance_is_found_through_its_uuid() -> None:
    gpu = H200 | {
        "nvmlDeviceGetPciInfo": NOT_SUPPORTED,
        "nvmlDeviceGetMigMode": [1, 1],
        "instance": "MIG-11111111-2222-3333-4444-555555555555",
    }
    facts = Nvml(fake_nvml(gpu)).facts_of("0000:01:00.0", "11111111-2222-3333-4444-555555555555")
    assert facts["sm_clock_max"].value == 1980
    assert facts["cores"].value is None


def test_an_unknown_device_has_no_facts_and_a_reason() -> None:
    facts = Nvml(fake_nvml(H200)).facts_of("0000:99:00.0", "00000000-0000-0000-0000-000000000000")
    assert facts["cores"].value is None
    assert facts["cores"].reason == "NVML lists no GPU at 0000:99:00.0"
    assert facts["driver_version"].value == "580.95.05"


def test_without_a_driver_everything_is_missing_with_one_line() -> None:
    module = fake_nvml()

    def refuse() -> None:
        raise NVMLError("NVML Shared Library Not Found")

    module.nvmlInit = refuse
    nvml = Nvml(module)
    assert "Shared Library Not Found" in nvml.reason
    assert "\n" not in nvml.reason
    assert nvml.devices() == []
    assert nvml.facts_of("0000:01:00.0")["cores"].reason == nvml.reason
    assert nvml.system_facts()["driver_version"].reason == nvml.reason


def test_without_the_package_the_reason_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert Nvml().reason == "nvidia-ml-py is not installed: pip install nvidia-ml-py"


@pytest.mark.parametrize("spelling", ["0000:1b:00.0", "00000000:1B:00.0", " 0000:1B:00.0 "])
def test_bus_ids_have_one_spelling(spelling: str) -> None:
    assert normalise_bus_id(spelling) == "00000000:1b:00.0"


def sample(gpu: dict[str, Any], *without: str) -> Reading:
    module = fake_nvml(gpu)
    for name in without:
        delattr(module, name)
    return Nvml(module).sampler(gpu)()


def test_a_busy_h200_gives_a_full_reading_in_five_calls() -> None:
    module = fake_nvml(BUSY)
    nvml = Nvml(module)
    read = nvml.sampler(BUSY)
    assert read() == Reading(None, 1425, 3201, 698.75, 52, frozenset({"sw_power_cap"}))
    assert module.calls.total() == 5
    assert nvml.energy_joules(BUSY) == 123_456.789
    assert nvml.missing_telemetry(BUSY) == ""


def test_a_sampler_sees_what_changes() -> None:
    gpu = dict(BUSY)
    read = Nvml(fake_nvml(gpu)).sampler(gpu)
    assert read().power_w == 698.75
    gpu["nvmlDeviceGetFieldValues"] = fields(412_000)
    assert read().power_w == 412


@pytest.mark.parametrize("refusal", [NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND])
@pytest.mark.parametrize(
    ("function", "lost", "called"),
    [
        ("nvmlDeviceGetClockInfo", {"nvml_mhz": None, "mem_mhz": None}, "SM clock, memory clock"),
        ("nvmlDeviceGetPowerUsage", {"power_w": None}, "power"),
        ("nvmlDeviceGetTemperature", {"temp_c": None}, "temperature"),
        (THROTTLE_REASONS, {"reasons": frozenset()}, "clock event"),
        ("nvmlDeviceGetTotalEnergyConsumption", {}, "energy"),
    ],
)
def test_a_refused_function_costs_its_own_reading_and_one_call(
    function: str, lost: dict[str, Any], called: str, refusal: NVMLError
) -> None:
    gpu = BUSY | {
        "nvmlDeviceGetFieldValues": NOT_SUPPORTED,
        EVENT_REASONS: NOT_SUPPORTED,
        function: refusal,
    }
    module = fake_nvml(gpu)
    nvml = Nvml(module)
    read = nvml.sampler(gpu)
    full: dict[str, Any] = {
        "nvml_mhz": 1425,
        "mem_mhz": 3201,
        "power_w": 76.543,
        "temp_c": 52,
        "reasons": frozenset({"sw_power_cap"}),
    }
    for _ in range(3):
        assert read() == Reading(**full | lost)
    assert module.calls[function] == len(lost)
    assert nvml.missing_telemetry(gpu) == f"no {called} reading: {function}: {refusal}"


@pytest.mark.parametrize(
    ("without", "lost"),
    [
        ("nvmlDeviceGetClockInfo", {"nvml_mhz", "mem_mhz"}),
        ("nvmlDeviceGetTemperature", {"temp_c"}),
    ],
)
def test_a_function_that_the_package_lacks_costs_its_own_reading(
    without: str, lost: set[str]
) -> None:
    reading = sample(BUSY, without)
    names = {"nvml_mhz", "mem_mhz", "power_w", "temp_c"}
    assert {name for name in names if getattr(reading, name) is None} == lost


@pytest.mark.parametrize(
    "instant", [NOT_SUPPORTED, fields(0, refusal=3), fields(0), fields(2**32 - 1)]
)
def test_power_falls_back_to_the_average_and_stays_there(instant: Any) -> None:
    gpu = BUSY | {"nvmlDeviceGetFieldValues": instant}
    module = fake_nvml(gpu)
    nvml = Nvml(module)
    read = nvml.sampler(gpu)
    assert [read().power_w, read().power_w] == [76.543, 76.543]
    assert module.calls["nvmlDeviceGetFieldValues"] == 1
    assert nvml.missing_telemetry(gpu) == ""


@pytest.mark.parametrize("without", ["NVML_FI_DEV_POWER_INSTANT", "nvmlDeviceGetFieldValues"])
def test_power_falls_back_where_the_package_knows_no_instant(without: str) -> None:
    assert sample(BUSY, without).power_w == 76.543


def test_zero_power_and_clocks_are_no_values_and_zero_degrees_is_one() -> None:
    gpu = BUSY | {
        "nvmlDeviceGetFieldValues": fields(0),
        "nvmlDeviceGetPowerUsage": 0,
        "nvmlDeviceGetClockInfo": {"SM": 1425, "MEM": 0},
        "nvmlDeviceGetTemperature": {"GPU": 0},
        "nvmlDeviceGetTotalEnergyConsumption": 0,
    }
    nvml = Nvml(fake_nvml(gpu))
    assert nvml.sampler(gpu)() == Reading(None, 1425, None, None, 0, frozenset({"sw_power_cap"}))
    assert nvml.energy_joules(gpu) is None
    missing = nvml.missing_telemetry(gpu)
    assert "no power reading: nvmlDeviceGetPowerUsage: the driver returns 0" in missing
    assert "\n" not in missing


@pytest.mark.parametrize(
    ("bit", "name"),
    [
        (0x1, "idle"),
        (0x2, "applications_clocks"),
        (0x4, "sw_power_cap"),
        (0x8, "hw_slowdown"),
        (0x10, "sync_boost"),
        (0x20, "sw_thermal"),
        (0x40, "hw_thermal"),
        (0x80, "hw_power_brake"),
        (0x100, "display_clocks"),
    ],
)
def test_reasons_have_short_names(bit: int, name: str) -> None:
    assert sample(BUSY | {EVENT_REASONS: bit}).reasons == {name}


def test_several_reasons_are_told_apart_and_unknown_bits_ignored() -> None:
    gpu = BUSY | {EVENT_REASONS: 0x44 | 0x400 | 2**40}
    assert sample(gpu).reasons == {"sw_power_cap", "hw_thermal"}
    assert sample(BUSY | {EVENT_REASONS: 0}).reasons == frozenset()


@pytest.mark.parametrize(("kept", "gone"), [("Event", "Throttle"), ("Throttle", "Event")])
def test_either_generation_of_reasons_serves(kept: str, gone: str) -> None:
    absent = [f"nvmlClocks{gone}Reason{name}" for name in REASON_BITS]
    gpu = BUSY | {f"nvmlDeviceGetCurrentClocks{kept}Reasons": 0x80}
    reading = sample(gpu, f"nvmlDeviceGetCurrentClocks{gone}Reasons", *absent)
    assert reading.reasons == {"hw_power_brake"}


def test_a_driver_older_than_the_package_is_asked_for_throttle_reasons_once_and_for_all() -> None:
    gpu = BUSY | {EVENT_REASONS: FUNCTION_NOT_FOUND, THROTTLE_REASONS: 0x20}
    module = fake_nvml(gpu)
    read = Nvml(module).sampler(gpu)
    assert [read().reasons for _ in range(3)] == [{"sw_thermal"}] * 3
    assert (module.calls[EVENT_REASONS], module.calls[THROTTLE_REASONS]) == (1, 3)


def test_a_call_that_fails_in_passing_is_asked_again() -> None:
    gpu = dict(BUSY)
    read = Nvml(fake_nvml(gpu)).sampler(gpu)
    assert read().power_w == 698.75
    gpu["nvmlDeviceGetFieldValues"] = NVMLError("Timeout")
    assert read().power_w is None
    gpu["nvmlDeviceGetFieldValues"] = fields(700_000)
    assert read().power_w == 700


def test_without_an_energy_counter_there_are_no_joules() -> None:
    module = fake_nvml(BUSY)
    del module.nvmlDeviceGetTotalEnergyConsumption
    nvml = Nvml(module)
    assert nvml.energy_joules(BUSY) is None
    assert nvml.missing_telemetry(BUSY) == (
        "no energy reading: nvmlDeviceGetTotalEnergyConsumption: not in the installed nvidia-ml-py"
    )


def test_without_the_package_readings_are_empty_for_one_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    nvml = Nvml()
    assert nvml.sampler(object())() == Reading()
    assert nvml.energy_joules(object()) is None
    assert nvml.missing_telemetry(object()) == (
        "no SM clock, memory clock, power, temperature, clock event, energy reading: "
        "nvidia-ml-py is not installed: pip install nvidia-ml-py"
    )


def test_the_installed_package_has_the_names_that_are_asked_for() -> None:
    pynvml = pytest.importorskip("pynvml")
    assert pynvml.NVML_FI_DEV_POWER_INSTANT == 186
    for name, bit in REASON_BITS.items():
        assert getattr(pynvml, f"nvmlClocksEventReason{name}") == bit
    for function in BUSY.keys() - {THROTTLE_REASONS}:
        assert hasattr(pynvml, function), function
