"""Runs that were measured once, for tests that need real figures: manifest and rows, no samples."""

from __future__ import annotations

from pathlib import Path

MEASURED = Path(__file__).resolve().parent / "data" / "measured"

LADDER = MEASURED / "ladder"
"""GEMM from ``naive`` to cuBLAS in every precision."""
COUNTED = MEASURED / "counted"
"""GEMM and copies, with hardware counters."""
COUNTED_LADDER = MEASURED / "counted_ladder"
"""GEMM at one size, with hardware counters."""
COUNTED_LARGE = MEASURED / "counted_large"
"""cuBLAS at 8192, with hardware counters."""
CHAMPION = MEASURED / "champion"
"""Large products of ``champion`` and cuBLASLt, with hardware counters."""
WAVE = MEASURED / "wave"
"""A product whose tiles need a second wave of two blocks, with hardware counters."""
CUTLASS = MEASURED / "cutlass"
MEMORY_BOUND = MEASURED / "memory_bound"
HOST_MEMORY = MEASURED / "host_memory"
"""GEMM with operands in device memory, in pinned and in pageable host memory."""
STREAMED = MEASURED / "streamed"
"""Problems whose operands are streamed from host memory."""
CPU = MEASURED / "cpu_one_thread"
CPUS = [CPU, MEASURED / "cpu_all_threads"]

FLEET = MEASURED.parent / "fleet"
"""Two GPUs, alone and beside each other."""

ALL = sorted(path.parent for path in MEASURED.glob("*/manifest.json"))
