"""What hardware counters say of a kernel: executed FLOPs, bytes per level, cycles. Pure.

The metrics are chosen from those that the chip has, because names differ between chips.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from rooflab.devices.base import Counters

FORBIDDEN: Final = (
    "the driver does not permit reading counters: load the kernel module nvidia with "
    "NVreg_RestrictProfilingToAdminUsers=0, or run as root "
    "(https://developer.nvidia.com/ERR_NVGPUCTRPERM)"
)

_TENSOR: Final = re.compile(r"sm__ops_path_tensor_src_(?!int)(\w+?)(_dst_(fp16|fp32))?")
"""Tensor operations by input type. Those with ``_op_``, ``sparsity`` and ``realtime`` are parts."""

_INSTRUCTIONS: Final = {
    "fp32": {"fadd": 1, "fmul": 1, "ffma": 2},
    "fp64": {"dadd": 1, "dmul": 1, "dfma": 2},
    "fp16": {"hadd": 2, "hmul": 2, "hfma": 4},
}
"""Operations of one thread's instruction; those of FP16 work on two numbers."""

_VECTOR: Final = {
    pipe: {f"smsp__sass_thread_inst_executed_op_{name}_pred_on.sum": n for name, n in each.items()}
    for pipe, each in _INSTRUCTIONS.items()
}

_CLOCK: Final = "sm__cycles_elapsed.avg.per_second"
_BOTH_WAYS: Final = "dram__bytes.sum"
"""Of chips that do not count reading and writing apart."""

_OTHERS: Final = {
    "dram": {"dram__bytes_read.sum": 1, "dram__bytes_write.sum": 1, _BOTH_WAYS: 1},
    "l2": {"lts__t_sectors_srcunit_tex.sum": 32},
    "l1": {"l1tex__data_pipe_lsu_wavefronts.sum": 128},
    "l1_from_l2": {"l1tex__m_xbar2l1tex_read_bytes.sum": 1},
    "cycles": {"sm__cycles_elapsed.max": 1},
}
"""Metrics and bytes of one: a sector; what the data pipe of L1 and shared memory moves in a cycle,
of which bank conflicts use less."""


def choose(available: Collection[str]) -> list[str]:
    """The metrics to measure, from the counters that a chip has."""
    others = [name for each in (*_VECTOR.values(), *_OTHERS.values()) for name in each]
    if "dram__bytes_read" in available:
        others.remove(_BOTH_WAYS)
    tensor = [f"{name}.sum" for name in _tensor(available)]
    there = [name for name in (*others, _CLOCK) if name.partition(".")[0] in available]
    return tensor + there


def _tensor(available: Collection[str]) -> list[str]:
    """Tensor counters that do not count an operation twice."""
    found = {name: match for name in available if (match := _TENSOR.fullmatch(name))}
    whole = [name for name, match in found.items() if not match[2]]
    parts = [name for name in found if not any(name.startswith(f"{one}_dst") for one in whole)]
    return sorted(name for name in parts if not re.search(r"sparsity|realtime", name))


def interpret(values: Mapping[str, float], launches: int) -> Counters:
    """The counters of one of ``launches`` launches."""

    def per_launch(weights: Mapping[str, int]) -> float | None:
        known = [weight * values[name] for name, weight in weights.items() if name in values]
        return sum(known) / launches if known else None

    flops: dict[str, float] = {}
    for name, value in values.items():
        if match := _TENSOR.fullmatch(name.partition(".")[0]):
            pipe = f"tensor_{match[1]}"
            flops[pipe] = flops.get(pipe, 0.0) + value / launches
    flops |= {pipe: per_launch(weights) or 0.0 for pipe, weights in _VECTOR.items()}
    found = {what: per_launch(weights) for what, weights in _OTHERS.items()}
    near = [each for what in ("l1", "l1_from_l2") if (each := found[what]) is not None]
    clock = values.get(_CLOCK)
    return Counters(
        flops={pipe: value for pipe, value in flops.items() if value},
        dram_bytes=found["dram"],
        l2_bytes=found["l2"],
        l1_bytes=max(near, default=None),
        cycles=found["cycles"],
        mhz=clock / 1e6 if clock else None,
    )
