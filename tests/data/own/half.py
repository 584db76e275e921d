"""A precision of a user's own: FP16 that is summed in FP16."""

import rooflab
from rooflab.model.precision import FP16, Precision

rooflab.PRECISIONS["fp16_sum16"] = Precision("fp16_sum16", "FP16 in FP16", FP16, FP16, FP16, FP16)


@rooflab.kernel(device="exact", workload="add", precisions=("fp16_sum16",))
def halves(operands, stream):
    a, b, c = operands["a"], operands["b"], operands["c"]
    return lambda: c.__setitem__(..., a + b)
