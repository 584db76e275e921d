"""QuACK's kernels in CuTe: Dao et al., "QuACK: A Quirky Assortment of CuTe Kernels", 2025."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from rooflab.kernels.libraries.packages import FLOATS, Computation, Package
from rooflab.workloads.gradients import CrossEntropyBackward
from rooflab.workloads.transformer import Rope

QUACK: Final = Package("quack-kernels", "quack", "QuACK", others=("cutlass",))


def _softmax(torch: Any, problem: Any, x: Any, y: Any) -> Any:
    from quack.softmax import _softmax_fwd

    return partial(_softmax_fwd, x, y)


def _rmsnorm(torch: Any, problem: Any, x: Any, w: Any, y: Any) -> Any:
    from quack.rmsnorm import _rmsnorm_fwd

    return partial(_rmsnorm_fwd, x, w, y, eps=problem.epsilon)


def _layernorm(torch: Any, problem: Any, x: Any, w: Any, b: Any, y: Any) -> Any:
    from quack.rmsnorm import _rmsnorm_fwd

    return partial(_rmsnorm_fwd, x, w, y, b, eps=problem.epsilon, is_layernorm=True)


def _norm_backward(torch: Any, given: Any, w: Any, mean: Any, dx: Any, sums: Any) -> Any:
    """Each block adds up the rows that it has, and PyTorch the blocks, as in ``rmsnorm_bwd``."""
    from quack.rmsnorm import _rmsnorm_bwd, get_sm_count

    (x, dy, rstd), columns = given, dx.shape[1]
    shape = (get_sm_count(columns, dx.device), columns)
    parts = [torch.empty(shape, device=dx.device, dtype=torch.float32) for _ in sums]
    words = {"db_partial": parts[1] if len(parts) > 1 else None, "sm_count": shape[0]}
    words |= {"mean": mean, "is_layernorm": mean is not None}

    def launch() -> None:
        _rmsnorm_bwd(x, w, dy, rstd, dx, parts[0], **words)
        for total, part in zip(sums, parts, strict=True):
            total.copy_(torch.sum(part, 0))

    return launch


def _rmsnorm_backward(
    torch: Any, problem: Any, x: Any, dy: Any, w: Any, rstd: Any, dx: Any, dw: Any
) -> Any:
    return _norm_backward(torch, (x, dy, rstd), w, None, dx, [dw])


def _layernorm_backward(
    torch: Any, problem: Any, x: Any, dy: Any, w: Any, mean: Any, rstd: Any, dx: Any, *sums: Any
) -> Any:
    return _norm_backward(torch, (x, dy, rstd), w, mean, dx, sums)


def _cross_entropy(torch: Any, problem: Any, x: Any, targets: Any, y: Any) -> Any:
    """Losses are in FP32 first."""
    from quack.cross_entropy import cross_entropy_fwd_out

    losses = torch.empty(problem.rows, device=x.device, dtype=torch.float32)

    def launch() -> None:
        cross_entropy_fwd_out(x, targets, None, losses, None, None, None)
        y.copy_(losses)

    return launch


def _cross_entropy_backward(torch: Any, problem: Any, x: Any, targets: Any, dx: Any) -> Any:
    """One kernel computes losses and gradients."""
    from quack.cross_entropy import cross_entropy_fwd_out

    losses = torch.empty(problem.rows, device=x.device, dtype=torch.float32)
    return partial(cross_entropy_fwd_out, x, targets, None, losses, None, dx, None)


def _rope(torch: Any, problem: Any, x: Any, cos: Any, sin: Any, y: Any) -> Any:
    """Heads come after tokens, by strides."""
    from quack.rotary import _rotary_fwd_out

    x, y = x.transpose(1, 2), y.transpose(1, 2)
    return partial(_rotary_fwd_out, x, cos, sin, None, None, y, problem.tokens, False, False)


def _unsupported(problem: Any) -> str:
    """What QuACK lacks."""
    if isinstance(problem, CrossEntropyBackward) and problem.scale != 1:
        return "quack has gradients of each row's loss: scale must be 1"
    if isinstance(problem, Rope) and problem.head_size % 8:
        return f"quack needs head_size to be a multiple of 8, not {problem.head_size}"
    return ""


WORKS: Final[dict[str, Computation]] = {
    "softmax": _softmax,
    "rmsnorm": _rmsnorm,
    "layernorm": _layernorm,
    "rmsnorm_backward": _rmsnorm_backward,
    "layernorm_backward": _layernorm_backward,
    "cross_entropy": _cross_entropy,
    "cross_entropy_backward": _cross_entropy_backward,
    "rope": _rope,
}

for _workload, _work in WORKS.items():
    QUACK.add(
        *("quack", "QuACK, in CuTe", _workload, _work, *FLOATS),
        plans=True,
        unsupported=_unsupported,
    )
