"""FlashAttention-4: Dao et al., in CuTe."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from rooflab.kernels.libraries.packages import HALVES, Package
from rooflab.kernels.libraries.pytorch import aligned

FA4: Final = Package(
    "flash-attn-4", "flash_attn.cute", "FlashAttention-4", others=("cutlass", "quack")
)


def _attention(torch: Any, problem: Any, *tensors: Any) -> Any:
    """Tokens come before heads, by strides. Causal queries are the last ones, as here."""
    from flash_attn.cute.interface import _flash_attn_fwd

    *given, out = (one.transpose(1, 2) for one in tensors)
    causal = problem.masked and problem.queries > 1
    return partial(_flash_attn_fwd, *given, causal=causal, out=out)


FA4.add(
    *("fa4", "FlashAttention-4, in CuTe", "attention", _attention, *HALVES),
    plans=True,
    unsupported=aligned(256),
)
