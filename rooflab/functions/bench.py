"""``rooflab.bench``: the time of any function, and of several against each other, with roofs."""

from __future__ import annotations

import logging
import random
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from operator import index
from pathlib import Path
from secrets import randbits
from tempfile import TemporaryDirectory
from typing import Any, Final

from rooflab.api import Run
from rooflab.config import SweepConfig, validated
from rooflab.devices.base import Counters, Device
from rooflab.engine import manifest_of
from rooflab.errors import RooflabError, UnavailableError, UsageError
from rooflab.functions import arrays, call
from rooflab.functions.call import Arguments, Call, Function
from rooflab.functions.process import Unwatched, borrowed, device_of, seeds, workplace
from rooflab.functions.results import Judge, copied
from rooflab.functions.subject import Called
from rooflab.kernels.base import Kernel
from rooflab.measure.counting import alike
from rooflab.measure.levels import roofs
from rooflab.measure.protocol import Outcome, Protocol
from rooflab.model.measurement import Measurement
from rooflab.model.problem import MAX_EXTENT
from rooflab.model.roofline import Roofline
from rooflab.recording import record, with_counters
from rooflab.report.terminal import sentences
from rooflab.report.text import digits, half_width, interval_percent
from rooflab.runs.store import UNSAVED, save

_log = logging.getLogger(__name__)

NAME: Final = "function"
"""Of a function without a name of its own."""

OF_FLOPS: Final = ["flops", "tflops", "roof_tflops", "observed_tflops", "intensity", "gflop_per_j"]
"""Columns that are empty if nobody knows the FLOPs."""

StatedWork = int | float | Callable[..., int | float]
"""FLOPs or bytes, or a function of the arguments that says them."""


@dataclass(frozen=True, repr=False)
class Result(Run):
    """What ``bench`` returns: a run that is not on disk until it is saved.

    Its attributes are the columns of its first row: ``time_us``, ``tflops``, ``roof_percent``.
    """

    rounds: tuple[list[list[float]], ...] = ()
    """The samples of each row, in µs, by round."""

    @property
    def row(self) -> Measurement:
        """The first row."""
        return self.measurements[0]

    @property
    def percent(self) -> float | None:
        """``roof_percent`` of the first row."""
        return self.row.roof_percent

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "measurements":
            raise AttributeError(name)
        return getattr(self.row, name)

    def __getitem__(self, name: object) -> Measurement:
        """The first row of a function, by its name."""
        for row in self.measurements:
            if row.kernel == str(name):
                return row
        raise KeyError(f"{name}: there are {', '.join(row.kernel for row in self.measurements)}")

    def renamed(self, name: Callable[[str], str]) -> Result:
        """The same with other names of functions."""
        rows = [replace(row, kernel=name(row.kernel)) for row in self.measurements]
        before = f"{NAME}/"
        kernels = {
            f"{before}{name(known.removeprefix(before))}": one
            for known, one in self.manifest.kernels.items()
        }
        manifest = self.manifest.model_copy(update={"kernels": kernels})
        return replace(self, manifest=manifest, measurements=rows)

    def __str__(self) -> str:
        lines = [line(row) for row in self.measurements]
        if len(self.manifest.kernels) > 1:
            lines += sentences(self.ok)
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """For notebooks: the table, and the roofline if a row has FLOPs."""
        if not any(row.tflops for row in self.ok):
            return super()._repr_html_()
        with TemporaryDirectory() as folder:
            path = Path(folder) / "roofline.png"
            self.plot(path)
            picture = b64encode(path.read_bytes()).decode()
        image = f'<img alt="roofline" style="max-width:100%" src="data:image/png;base64,{picture}">'
        return f"{super()._repr_html_()}{image}"

    def save(self, path: str | Path = "results") -> Run:
        """Write it as a run folder: a new one inside ``results``, or ``path`` if that is new.

        Raises ``RunError`` if it cannot be written.
        """
        folder = save(Path(path), self.manifest, self.measurements, self.rounds)
        return Run(folder, self.manifest, self.measurements)


def line(row: Measurement) -> str:
    """A row in one line."""
    start = f"{row.kernel} {row.problem.size} {row.problem.precision}".replace("  ", " ")
    if row.status != "ok":
        return f"{start}: {row.status}: {row.reason}"
    clocks = [
        f"{row.sm_mhz:.0f} MHz" if row.sm_mhz else "",
        f"{row.power_w:.0f} W" if row.power_w else "",
        f"burst {digits(row.burst_us, 4)} µs" if row.burst_us else "",
        f"host {digits(row.host_us, 3)} µs" if "launch_bound" in row.flag_names else "",
    ]
    parts = [
        f"{digits(row.time_us, 4)} µs ± {half_width(interval_percent(row))} %",
        _flops(row.tflops) if row.tflops else "",
        f"{digits(row.gbps, 4)} GB/s" if row.bytes else "",
        f"{digits(row.roof_percent, 3)} % of its roof ({row.bound})" if row.roof_percent else "",
        *clocks,
        row.cache,
        *row.flag_names,
    ]
    return f"{start}: {', '.join(filter(None, parts))}"


def _flops(tflops: float) -> str:
    return f"{digits(tflops, 4)} TFLOP/s" if tflops >= 1 else f"{digits(1e3 * tflops, 4)} GFLOP/s"


def bench(
    functions: Function | Mapping[Any, Function] | Sequence[Function],
    *args: Any,
    flops: StatedWork | None = None,
    bytes: StatedWork | None = None,  # noqa: A002  as the columns are called
    precision: str | None = None,
    reference: object = None,
    tolerance: float | None = None,
    cache: str = "cold",
    modules: bool = False,
    counters: bool = False,
    device: str | None = None,
    make: Callable[..., Any] | None = None,
    sizes: Sequence[int] = (),
    timing: Mapping[str, Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Result:
    """Time a function with these arguments, or race several, in this process.

    ``functions`` is one, or several by name, which take the same ``args`` and ``kwargs``. All are
    compared with ``reference``, by default the first one, within ``tolerance``: the largest
    ‖difference‖ / ‖reference‖, by default that of a sum as long as the longest axis in the
    precision of the largest argument. ``flops`` and ``bytes`` are those of a call, or functions of
    its arguments; without them FLOPs are counted by PyTorch's operations if it is in use, and bytes
    are those of all arguments and results. ``counters``: after timing, hardware counters are read
    too where they may be; they say the FLOPs if nothing else does. ``precision`` chooses the roof.
    ``cache``: ``cold`` (each call finds its arguments in memory) or ``warm``. ``modules``: copies
    are made of PyTorch's modules among the arguments too, with their parameters. ``make(size)``
    returns the arguments for each of ``sizes``. ``timing`` holds keys of ``config.Timing``.

    Nothing of the process changes: streams, flags, seeds. Raises ``UsageError`` for wrong
    arguments, and what a function raises the first time it is called.
    """
    named = _named(functions)
    judged_by = _reference(named, reference)
    if cache not in ("cold", "warm"):
        raise UsageError(f"cache={cache!r}: choose cold or warm")
    wanted = _sizes(sizes)
    if bool(wanted) != bool(make):
        raise UsageError("make and sizes belong together: make(size) returns the arguments")
    if not isinstance(kwargs or {}, Mapping):
        raise UsageError("kwargs are a mapping of names to arguments: kwargs={'axis': 0}")
    config = _config(cache, timing)
    one = Arguments(args, dict(kwargs or {}), modules)
    given: list[tuple[int | None, Arguments]] = [(None, one)]
    if make:
        if args or kwargs:
            raise UsageError("arguments are given and made: leave out one of them")
        given = [(size, _made(make(size), modules)) for size in wanted]
    if tolerance is not None and not call.is_amount(tolerance, 1):
        raise UsageError(f"tolerance={tolerance!r}: give a relative error from 0 to 1")
    asked = _Asked(
        named,
        judged_by,
        config,
        flops,
        bytes,
        precision,
        tolerance,
        None if device is None else str(device),
        counters=counters,
    )
    with seeds():
        results = [_Point(asked, one, size).run() for size, one in given]
    return joined(results)


def joined(results: Sequence[Result]) -> Result:
    """All rows in one; what the manifest says of the device is that of the first."""
    kernels = {name: one for result in results for name, one in result.manifest.kernels.items()}
    rows = [row for one in results for row in one.measurements]
    update = {"kernels": kernels, "points": len(rows)}
    return replace(
        results[0],
        manifest=results[0].manifest.model_copy(update=update),
        measurements=rows,
        rounds=tuple(rounds for one in results for rounds in one.rounds),
    )


@dataclass(frozen=True)
class _Asked:
    """Functions by name, the one that they are compared with, and what the caller says of them."""

    functions: Mapping[str, Function]
    reference: str
    config: SweepConfig
    flops: StatedWork | None
    bytes: StatedWork | None
    precision: str | None
    tolerance: float | None
    device: str | None
    counters: bool

    @property
    def first(self) -> str:
        """The function that says what is computed."""
        return self.reference or next(iter(self.functions))


def _named(functions: Any) -> dict[str, Function]:
    if isinstance(functions, Mapping):
        named = {str(name) or NAME: function for name, function in functions.items()}
        if len(named) < len(functions):
            raise UsageError("two functions have one name: " + ", ".join(map(repr, functions)))
    else:
        several = functions if isinstance(functions, (list, tuple)) else [functions]
        named = {}
        for function in several:
            name = getattr(function, "__name__", "") or type(function).__name__
            name = NAME if name == "<lambda>" else name
            count = sum(known.partition(" ")[0] == name for known in named)
            named[f"{name} {count + 1}" if count else name] = function
    if not named:
        raise UsageError("no function is given: bench(f, x), or bench({'name': f}, x)")
    return named


def _reference(named: Mapping[str, Function], wanted: object) -> str:
    if wanted is None:
        return next(iter(named)) if len(named) > 1 else ""
    wanted = str(wanted)
    if wanted not in named:
        raise UsageError(f"no function {wanted[:40]!r} to refer to: {', '.join(named)}")
    return wanted if len(named) > 1 else ""  # alone it would be compared with itself


def _config(cache: str, timing: Mapping[str, Any] | None) -> SweepConfig:
    given = dict(timing) if isinstance(timing, Mapping) else timing or {}
    return validated({"cache": cache, "timing": given})


def _sizes(given: Any) -> list[int]:
    with suppress(TypeError):
        found = [*map(index, given)]
        if all(1 <= size <= MAX_EXTENT for size in found):
            return found
    raise UsageError(f"sizes={given!r}: give whole numbers from 1 to {MAX_EXTENT}, as in [64, 512]")


def _made(made: Any, modules: bool) -> Arguments:
    args = tuple(made) if isinstance(made, (tuple, list)) else (made,)
    return Arguments(args, modules=modules)


class _Point:
    """All functions with the same arguments."""

    def __init__(self, asked: _Asked, arguments: Arguments, size: int | None) -> None:
        named = asked.functions
        for name, function in named.items():
            call.checked(name, function, arguments)
        self._asked, self._given, self._size = asked, arguments, size
        self._subjects: dict[str, Called] = {}
        of_all = [call.named_arrays(one) for one in named.values()]
        self._named_arrays = arrays.leaves(of_all)
        self._arrays = arrays.leaves([arguments.every, call.named_arrays(named[asked.first])])

    def run(self) -> Result:
        """One row for each function."""
        results = self._called()
        returned = set(map(id, results))  # a buffer that is named, and only written
        self._arrays = [one for one in self._arrays if id(one) not in returned]
        found = self._arrays or results
        place = call.place([*self._given.every, *self._named_arrays, *results])
        calls = (partial(copied(self._given).call, one) for one in self._asked.functions.values())
        asked = self._asked.device
        device = device_of(place or workplace(calls) if asked is None else asked)
        if place and place != device.id:
            raise UsageError(f"device={device.id!r}, and the arrays are on {place}: move them")
        with borrowed(device):
            problem = self._problem(found, results)
            kernels = [
                Kernel(name, NAME, device.kind, "", (problem.precision.name,), _unused, NAME)
                for name in self._asked.functions
            ]
            roofline = roofs(device)
            draw = random.Random(randbits(64))
            subject = partial(self._subject, device, problem, draw)
            protocol = Protocol(device, self._asked.config, settings=Unwatched(), subject=subject)
            try:
                outcomes = protocol.measure(problem, kernels)
                counted = self._counted(device, outcomes) if self._asked.counters else {}
            finally:
                for one in self._subjects.values():
                    one.release()
            if (first := counted.get(self._asked.first)) and not problem.flops and first.all_flops:
                said = problem.counts.replace("no FLOPs", "counted FLOPs")
                problem = replace(problem, work_flops=int(first.all_flops), counts=said)
            rows = [
                self._row(problem, kernel, outcome, roofline, device, counted.get(kernel.name))
                for kernel, outcome in zip(kernels, outcomes, strict=True)
            ]
        manifest = manifest_of(device, self._asked.config, kernels, [NAME], len(rows))
        manifest.roofline, manifest.finished = roofline, datetime.now(UTC)
        rounds = tuple(outcome.rounds for outcome in outcomes)
        return Result(UNSAVED, manifest, rows, [], rounds)

    def _subject(
        self, device: Device, problem: Call, draw: random.Random, kernel: Kernel
    ) -> Called:
        asked, judge = self._asked, None
        if asked.reference:
            allowed = problem.tolerance if asked.tolerance is None else asked.tolerance
            judge = Judge(asked.reference, asked.functions[asked.reference], allowed)
        function, cold = asked.functions[kernel.name], asked.config.cache == "cold"
        subject = Called(device, problem, function, self._given, judge, draw, cold=cold)
        self._subjects[kernel.name] = subject
        return subject

    def _counted(self, device: Device, outcomes: Sequence[Outcome]) -> dict[str, Counters]:
        """Counters of each function whose outcome is ``ok``; a warning if there are none here."""
        found: dict[str, Counters] = {}
        try:
            for one in outcomes:
                if one.status == "ok":
                    launches = self._subjects[one.kernel].launches
                    counters = device.count(alike(device, launches))
                    if counters is None:
                        raise UnavailableError(f"{device.name} has no counters")
                    found[one.kernel] = counters
        except UnavailableError as error:
            _log.warning("%s", error)
        device.time([device.nothing])  # which ends the counting
        return found

    def _row(
        self,
        problem: Call,
        kernel: Kernel,
        outcome: Outcome,
        roofline: Roofline,
        device: Device,
        counters: Counters | None,
    ) -> Measurement:
        if outcome.status == "ok" and outcome.rel_error is None:
            outcome.flags.append("unverified")
        elif outcome.status == "ok" and not self._subjects[kernel.name].varies:
            outcome.flags.append("same_inputs")
        row = record(problem, kernel, outcome, roofline, device)
        row = with_counters(row, counters) if counters else row
        if problem.flops:
            return row
        unknown: dict[str, Any] = dict.fromkeys(OF_FLOPS)
        return replace(row, **unknown)

    def _called(self) -> list[Any]:
        """Call each function once, which may compile and raise anything; the first one's arrays."""
        results: list[Any] = []
        for name, function in self._asked.functions.items():
            try:
                found = arrays.leaves(copied(self._given).call(function))
            except Exception as error:
                error.add_note(f"rooflab.bench called {name} for the first time")
                raise
            results = found if name == self._asked.first else results
        return results

    def _problem(self, found: list[Any], results: list[Any]) -> Call:
        precision = call.precision_of(found, self._asked.precision)
        flops, said = self._flops(self._asked.functions[self._asked.first], [*found, *results])
        shown = self._given.every or self._arrays
        stated = self._asked.bytes
        if stated is not None:
            stated = self._said("bytes", stated)
            said += ", stated bytes"
        return Call(
            precision=precision,
            n=self._size or call.elements(shown),
            counts=said,
            arrays=call.operands(self._arrays, results),
            work_flops=flops,
            stated_bytes=stated,
            label=str(self._size) if self._size else call.label(shown),
        )

    def _flops(self, function: Function, found: list[Any]) -> tuple[int, str]:
        if self._asked.flops is not None:
            return self._said("flops", self._asked.flops), "stated FLOPs"
        torch = any(arrays.of(one).name == "torch" for one in found)
        counted = call.torch_flops(function, copied(self._given)) if torch else 0
        return counted, "PyTorch's FLOPs" if counted else "no FLOPs"

    def _said(self, what: str, work: StatedWork) -> int:
        value: Any = self._given.call(work) if callable(work) else work
        if not call.is_amount(value, 1e30):
            raise UsageError(f"{what}={value!r}: give a number from 0 on, for one call")
        return int(value)


def _unused(*_: Any) -> Any:
    raise RooflabError("a function has no other way to be prepared")
