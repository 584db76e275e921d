"""Whether Numba's CUDA target works on this machine: each version is for some versions of NumPy."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any


@cache
def lacks() -> str:
    """Why it cannot compile an empty kernel, empty if it can."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from numba import cuda

            jit: Any = cuda.jit
            jit("void(float32[:])")(lambda x: None)
    except Exception as error:  # whatever it is, rooflab is not the cause
        return f"numba.cuda does not work here: {type(error).__name__}: {error}"
    return ""
