"""FlashInfer's kernels: Ye et al., "FlashInfer: Efficient and Customizable Attention", 2025.

nvcc compiles them when they are first used. Those that want another layout are left out: SwiGLU of
one array with gates and ups, and rotary embeddings of queries and keys together.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any, Final

from rooflab.kernels.libraries.packages import HALVES, Package

FLASHINFER: Final = Package("flashinfer-python", "flashinfer", "FlashInfer", others=("tvm_ffi",))

HEAD_SIZES: Final = (64, 128, 256)

WORKSPACE_BYTES: Final = 128 * 2**20
"""As FlashInfer recommends."""


def _rmsnorm(torch: Any, problem: Any, x: Any, w: Any, y: Any) -> Any:
    import flashinfer

    return partial(flashinfer.rmsnorm, x, w, problem.epsilon, out=y)


@cache
def _workspace(torch: Any, device: Any) -> Any:
    """One for all launches, which run one after the other."""
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)


def _attention(torch: Any, problem: Any, q: Any, k: Any, v: Any, o: Any) -> Any:
    """Keys of a sequence are one page. Tokens come before heads: of one query nothing is copied, of
    several the result, and of several sequences also the queries."""
    import flashinfer

    batch, queries, heads = problem.batch, problem.queries, problem.heads
    starts = torch.arange(batch + 1, dtype=torch.int32)
    pages = torch.arange(batch, dtype=torch.int32, device=q.device)
    filled = torch.full((batch,), problem.keys, dtype=torch.int32)
    sizes = (heads, problem.kv_heads, problem.head_size, problem.keys)
    given = (_workspace(torch, q.device), "HND")
    if queries == 1:
        decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            *given, use_tensor_cores=problem.group > 1
        )
        decode.plan(starts, pages, filled, *sizes, q_data_type=q.dtype)
        shape = (batch, heads, problem.head_size)
        return partial(decode.run, q.view(shape), (k, v), out=o.view(shape))
    prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(*given)
    words = {"causal": problem.masked, "q_data_type": q.dtype}
    prefill.plan(starts * queries, starts, pages, filled, *sizes, **words)

    def launch() -> None:
        asked = q.transpose(1, 2).reshape(batch * queries, heads, problem.head_size)
        found = prefill.run(asked, (k, v))
        o.copy_(found.view(batch, queries, heads, problem.head_size).transpose(1, 2))

    return launch


def _heads(problem: Any) -> str:
    """Why heads do not fit, empty if they do."""
    fits = problem.head_size in HEAD_SIZES
    return "" if fits else f"flashinfer has head_size {', '.join(map(str, HEAD_SIZES))} only"


FLASHINFER.add("flashinfer", "FlashInfer", "rmsnorm", _rmsnorm, *HALVES, plans=True)
FLASHINFER.add(
    "flashinfer",
    "FlashInfer, and a copy of the result if there are several queries",
    "attention",
    _attention,
    *HALVES,
    plans=True,
    unsupported=_heads,
)
