"""What hardware counters say of a kernel: executed FLOPs, bytes per level, cycles. Pure.

The metrics are chosen from those that the chip has, because names differ between chips.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from rooflab.devices.base import Counters
from rooflab.model.measurement import COLUMNS

SECTOR_BYTES: Final = 32

WAVEFRONT_BYTES: Final = 128
"""What the data pipe of L1 and shared memory moves in a cycle; with bank conflicts less is used."""

_TENSOR: Final = re.compile(r"sm__ops_path_tensor_src_(?!int)(\w+?)(_dst_(fp16|fp32))?")
"""Tensor operations by input type. Those with ``_op_``, ``sparsity`` and ``realtime`` are parts."""

_SASS: Final = "smsp__sass_thread_inst_executed_op_{}_pred_on"

_VECTOR: Final = {
    "fp32": {"fadd": 1, "fmul": 1, "ffma": 2},
    "fp64": {"dadd": 1, "dmul": 1, "dfma": 2},
    "fp16": {"hadd": 2, "hmul": 2, "hfma": 4},
}
"""Operations of one thread's instruction; those of FP16 work on two numbers."""

_OTHERS: Final = {
    "dram": ("dram__bytes_read.sum", "dram__bytes_write.sum"),
    "l2": ("lts__t_sectors_srcunit_tex.sum",),
    "l1": ("l1tex__data_pipe_lsu_wavefronts.sum",),
    "l1_from_l2": ("l1tex__m_xbar2l1tex_read_bytes.sum",),
    "cycles": ("sm__cycles_elapsed.max",),
    "clock": ("sm__cycles_elapsed.avg.per_second",),
}


def choose(available: Collection[str]) -> list[str]:
    """The metrics to measure, from the counters that a chip has."""
    names = [f"{name}.sum" for name in _tensor(available)]
    names += [
        f"{_SASS.format(instruction)}.sum"
        for instructions in _VECTOR.values()
        for instruction in instructions
    ]
    dram = _OTHERS["dram"]
    if not _there("dram__bytes_read.sum", available):
        dram = ("dram__bytes.sum",)
    names += [*dram, *(name for key in list(_OTHERS)[1:] for name in _OTHERS[key])]
    names += [name for column in COLUMNS.values() for name in column.metrics]
    return [name for name in dict.fromkeys(names) if _there(name, available)]


def _there(metric: str, available: Collection[str]) -> bool:
    return metric.partition(".")[0] in available


def _tensor(available: Collection[str]) -> list[str]:
    """Tensor counters that do not count an operation twice."""
    found = {name: match for name in available if (match := _TENSOR.fullmatch(name))}
    whole = [name for name, match in found.items() if not match[2]]
    parts = [name for name in found if not any(name.startswith(f"{one}_dst") for one in whole)]
    return sorted(name for name in parts if not re.search(r"sparsity|realtime", name))


def interpret(values: Mapping[str, float], launches: int) -> Counters:
    """The counters of one of ``launches`` launches."""

    def per_launch(*names: str) -> float | None:
        known = [values[name] for name in names if name in values]
        return sum(known) / launches if known else None

    flops: dict[str, float] = {}
    for name, value in values.items():
        if match := _TENSOR.fullmatch(name.partition(".")[0]):
            pipe = f"tensor_{match[1]}"
            flops[pipe] = flops.get(pipe, 0.0) + value / launches
    for pipe, instructions in _VECTOR.items():
        executed = [
            weight * values.get(f"{_SASS.format(instruction)}.sum", 0.0) / launches
            for instruction, weight in instructions.items()
        ]
        flops[pipe] = sum(executed)
    sectors = per_launch(*_OTHERS["l2"])
    wavefronts = per_launch(*_OTHERS["l1"])
    near = [
        None if wavefronts is None else wavefronts * WAVEFRONT_BYTES,
        per_launch(*_OTHERS["l1_from_l2"]),
    ]
    clock = values.get(_OTHERS["clock"][0])
    return Counters(
        flops={pipe: value for pipe, value in flops.items() if value},
        dram_bytes=per_launch("dram__bytes.sum", *_OTHERS["dram"]),
        l2_bytes=None if sectors is None else sectors * SECTOR_BYTES,
        l1_bytes=max((value for value in near if value is not None), default=None),
        cycles=per_launch(*_OTHERS["cycles"]),
        mhz=clock / 1e6 if clock else None,
        others={
            name: found
            for name, column in COLUMNS.items()
            if (found := per_launch(*column.metrics)) is not None
        },
    )
