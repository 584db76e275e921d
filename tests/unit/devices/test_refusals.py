"""Why CUDA does not launch a kernel, or ends it, in words."""

from __future__ import annotations

import pytest

from rooflab.devices.cuda.launches import BARRIER, Bounds, Launched, likely_cause, refusal

HOPPER = "9.0"


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        (
            Launched((1024,), Bounds((256, 1, 1))),
            "a block of 1024 threads, and __launch_bounds__ allow 256: make the block smaller or "
            "raise the bounds",
        ),
        (
            Launched((32, 32), Bounds((256, 1, 1))),
            "a block of 32x32 = 1024 threads, and __launch_bounds__ allow 256: make the block "
            "smaller or raise the bounds",
        ),
        (
            Launched((16, 8), Bounds((8, 16, 1), exact=True)),
            "a block of 16x8 = 128 threads, and the source fixes it to 8x16x1: make them the same",
        ),
        (
            Launched((256,), static_bytes=1024, dynamic_bytes=232_448, compute_capability=HOPPER),
            "233472 bytes of shared memory per block, 1024 of them static, and compute capability "
            "9.0 has 232448: use less",
        ),
        (
            Launched((1024,), registers=72),
            "1024 threads of 72 registers each need more than the 65536 of a multiprocessor: write "
            "__launch_bounds__(1024) or make the block smaller",
        ),
        (Launched((256,), barrier=True), BARRIER),
    ],
)
def test_a_launch_that_cannot_succeed(kernel: Launched, says: str) -> None:
    assert refusal(kernel) == says


@pytest.mark.parametrize(
    "kernel",
    [
        Launched(),
        Launched((32, 8), Bounds((16, 16, 1))),
        Launched((8, 16), Bounds((8, 16, 1), exact=True)),
        Launched((1024,), Bounds((1024, 1, 1)), 64, 0, 232_448, compute_capability=HOPPER),
        Launched((256,), dynamic_bytes=10**9, compute_capability="99.0"),
        Launched(dynamic_bytes=4, registers=255),
    ],
)
def test_a_launch_that_may_succeed(kernel: Launched) -> None:
    assert refusal(kernel) == ""


LARGE = Launched((256,), dynamic_bytes=300_000, compute_capability=HOPPER)


@pytest.mark.parametrize("name", ["CUDA_ERROR_INVALID_VALUE", "cudaErrorInvalidValue"])
def test_a_refused_launch_has_its_cause(name: str) -> None:
    assert likely_cause(f"{name}: invalid argument", LARGE).startswith(
        f"{name}: invalid argument: 300000 bytes of shared memory per block, and compute"
    )
    assert likely_cause(f"{name}: invalid argument").endswith(
        "probably block, grid or shared memory are beyond a limit"
    )


def test_a_barrier_explains_a_launch_failure_and_no_wrong_address() -> None:
    waits = Launched((256,), barrier=True)
    failed = "CUDA on cuda:0: cudaErrorLaunchFailure: unspecified launch failure"
    assert likely_cause(failed, waits) == f"{failed}: {BARRIER}"
    assert "as a grid-wide barrier does without a cooperative launch" in likely_cause(failed)
    wrong = "cudaErrorIllegalAddress: an illegal memory access was encountered"
    assert likely_cause(wrong, waits) == (
        f"{wrong}: probably it accessed memory outside its arrays: find the line with "
        "compute-sanitizer --tool memcheck"
    )


@pytest.mark.parametrize("text", ["out of memory", "cudaErrorMemoryAllocation: out of memory", ""])
def test_other_messages_stay_as_they_are(text: str) -> None:
    assert likely_cause(text, LARGE) == text
