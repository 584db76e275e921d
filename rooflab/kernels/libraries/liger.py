"""Liger's kernels in Triton: Hsu et al., "Liger Kernel: Efficient Triton Kernels", 2024.

Those of its functions that compute what a workload does, and do not wait for the host. Rotary
embeddings are not among them: Liger's have tokens before heads, and are made in place.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from rooflab.kernels.libraries.packages import FLOATS, Computation, Package
from rooflab.model.problem import Problem

LIGER: Final = Package("liger-kernel", "liger_kernel", "Liger", others=("triton",))

WIDEST: Final = 65536
"""Elements of a row that is one block of Triton's."""

IN_FP32: Final = 1
"""The casting mode ``gemma``: one rounding, at the end. ``llama`` also rounds before weights."""


def _rmsnorm(torch: Any, problem: Any, x: Any, w: Any) -> Any:
    from liger_kernel.ops.rms_norm import rms_norm_forward

    return rms_norm_forward(x, w, problem.epsilon, 0.0, IN_FP32, None)[:1]


def _rmsnorm_backward(torch: Any, problem: Any, x: Any, dy: Any, w: Any, rstd: Any) -> Any:
    from liger_kernel.ops.rms_norm import rms_norm_backward
    from liger_kernel.ops.utils import calculate_settings

    settings = calculate_settings(problem.columns)
    return rms_norm_backward(dy, x, w, rstd, 0.0, IN_FP32, *settings, False, None)


def _layernorm(torch: Any, problem: Any, x: Any, w: Any, b: Any) -> Any:
    from liger_kernel.ops.layer_norm import layer_norm_forward

    return layer_norm_forward(x, w, b, problem.epsilon)[:1]


def _layernorm_backward(
    torch: Any, problem: Any, x: Any, dy: Any, w: Any, mean: Any, rstd: Any
) -> Any:
    from liger_kernel.ops.layer_norm import layer_norm_backward

    return layer_norm_backward(dy, x, w, w, mean, rstd)


def _swiglu(torch: Any, problem: Any, gate: Any, up: Any) -> Any:
    from liger_kernel.ops.swiglu import swiglu_forward

    return swiglu_forward(gate, up)[2:]


def _cross_entropy(torch: Any, problem: Any, x: Any, targets: Any, y: Any) -> partial[Any]:
    """The kernel itself: the function around it waits for the number of targets."""
    from liger_kernel.ops.cross_entropy import MAX_FUSED_SIZE, liger_cross_entropy_kernel

    absent = ("weight_ptr", "z_loss_ptr", "token_accuracy_ptr", "predicted_tokens_ptr", "softcap")
    wanted = ("RETURN_Z_LOSS", "RETURN_TOKEN_ACCURACY", "RETURN_PREDICTED_TOKENS")
    present = ("HAS_WEIGHT", "HAS_SOFTCAPPING", "HAS_GRADIENTS")
    zeros = ("token_accuracy_stride", "predicted_tokens_stride")
    scales = ("weight_sum", "lse_square_scale", "label_smoothing")
    rows, columns = problem.rows, problem.columns
    words = {"X_ptr": x, "X_stride": columns, "Y_ptr": targets, "Y_stride": 1}
    words |= {"loss_ptr": y, "loss_stride": 1, "n_cols": columns, "n_non_ignore": rows}
    words |= {"sum_non_ignore_weight": rows, "ignore_index": -100, "reduction": "none"}
    words |= dict.fromkeys(absent) | dict.fromkeys((*wanted, *present), False)
    words |= dict.fromkeys(zeros, 0) | dict.fromkeys(scales, 0.0)
    words["BLOCK_SIZE"] = min(MAX_FUSED_SIZE, 1 << (columns - 1).bit_length())
    return partial(liger_cross_entropy_kernel[(rows,)], **words, num_warps=32)


def _wide(problem: Problem) -> str:
    """Why rows do not fit, empty if they do."""
    columns = problem.extents["columns"]
    return f"liger takes rows of up to {WIDEST} elements" if columns > WIDEST else ""


WORKS: Final[dict[str, Computation]] = {
    "rmsnorm": _rmsnorm,
    "rmsnorm_backward": _rmsnorm_backward,
    "layernorm": _layernorm,
    "layernorm_backward": _layernorm_backward,
    "swiglu": _swiglu,
}

for _workload, _work in WORKS.items():
    LIGER.add("liger", "Liger, in Triton", _workload, _work, *FLOATS, unsupported=_wide)
LIGER.add("liger", "Liger, in Triton", "cross_entropy", _cross_entropy, *FLOATS, plans=True)
