"""NVML answers, refuses, lacks functions or is not there: facts say which."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rooflab.devices.nvml import Nvml, normalise_bus_id


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


def fake_nvml(*gpus: dict[str, Any]) -> SimpleNamespace:
    """A module that answers from ``gpus``; an exception among the answers is raised."""

    def give(answer: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    def query(function: str) -> Any:
        def call(gpu: dict[str, Any], constant: str | None = None) -> Any:
            answer = gpu[function]
            return give(answer[constant] if isinstance(answer, dict) else answer)

        return call

    def by_uuid(wanted: str) -> dict[str, Any]:
        for gpu in gpus:
            if wanted in (gpu["nvmlDeviceGetUUID"], gpu.get("instance")):
                return gpu
        raise NVMLError("Not Found")

    return SimpleNamespace(
        NVMLError=NVMLError,
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
        **{function: query(function) for function in H200},
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
