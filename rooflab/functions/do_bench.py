"""Triton's ``do_bench``, with its signature and units, and times that are those of the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from statistics import fmean, median
from time import perf_counter
from typing import Any, Final, Literal

from rooflab.errors import UsageError
from rooflab.functions import arrays, call
from rooflab.functions.call import Arguments
from rooflab.functions.process import borrowed, device_of, seeds, workplace
from rooflab.functions.subject import Called

Mode = Literal["min", "max", "mean", "median", "all"]

AT_A_TIME: Final = 8
MOST_MS: Final = 1e9
SHORT_MS: Final = 20.0
"""Calls that are timed before the clock is looked at, if they are short."""

_MODES: Final[dict[str, Callable[[Sequence[float]], float]]] = {
    "min": min,
    "max": max,
    "mean": fmean,
    "median": median,
}


def do_bench(
    fn: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    grad_to_none: Sequence[Any] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: Mode = "mean",
) -> Any:
    """The time of ``fn()`` in milliseconds, as ``triton.testing.do_bench`` gives it.

    ``warmup`` and ``rep`` are milliseconds of calls before and while it is timed, with the flush of
    the cache before each call. ``grad_to_none`` are tensors whose gradients are dropped before each
    call. ``quantiles`` are returned as a list (one alone as a number), else what ``return_mode``
    says. A call's kernels wait behind a gate until all of them are queued, so that the host's time
    is not in it; calls that wait for the device are timed by the host.

    Raises ``UsageError`` for a mode that there is not, and for other numbers.
    """
    for name, value in {"warmup": warmup, "rep": rep}.items():
        if not call.is_amount(value, MOST_MS):
            raise UsageError(f"{name}={value!r}: give milliseconds, from 0 to {MOST_MS:g}")
    quantiles = None if quantiles is None else _shares(quantiles)
    if return_mode not in (*_MODES, "all"):
        raise UsageError(f"return_mode={return_mode!r}: choose from {', '.join(_MODES)}, all")
    call.checked("fn", fn, Arguments())
    with seeds():
        times = _times(fn, warmup, rep, () if grad_to_none is None else grad_to_none)
    return _summary(times, quantiles, return_mode)


def _shares(quantiles: Any) -> list[float]:
    found: list[Any] = list(quantiles) if isinstance(quantiles, Iterable) else [None]
    if not all(call.is_amount(one, 1) for one in found):
        raise UsageError(f"quantiles={quantiles!r}: give numbers from 0 to 1, as in [0.2, 0.8]")
    return found


def _times(
    fn: Callable[[], Any], warmup: float, rep: float, grad_to_none: Sequence[Any]
) -> list[float]:
    """Milliseconds of each call."""
    first = arrays.leaves(fn())  # it may compile
    found = call.named_arrays(fn) or first
    device = device_of(call.place([*found, *first]) or workplace([fn]))
    with borrowed(device):
        problem = call.Call(n=1, counts="", arrays=call.operands(found, first))
        subject = Called(device, problem, fn, Arguments(), cold=True)
        (launch,), flush = subject.launches, subject.flush

        def before() -> None:
            for tensor in grad_to_none:
                tensor.grad = None
            if flush:
                flush()

        def timed(milliseconds: float, last: float) -> list[float]:
            times: list[float] = []
            until = perf_counter() + milliseconds / 1e3
            while not times or perf_counter() < until:
                count = AT_A_TIME if (times or [last])[-1] < SHORT_MS else 1
                times += [us / 1e3 for us in device.time([launch] * count, before).times_us]
            return times

        try:
            return timed(rep, timed(warmup, inf)[-1])
        finally:
            subject.release()


def _summary(times: list[float], quantiles: Sequence[float] | None, mode: Mode) -> Any:
    if quantiles is not None:
        import numpy

        values = [float(value) for value in numpy.quantile(times, quantiles)]
        return values[0] if len(values) == 1 else values
    return times if mode == "all" else _MODES[mode](times)
