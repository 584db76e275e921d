"""What holds each kernel of a run back, and what to try: for the terminal and as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from rooflab.devices.registry import class_of
from rooflab.errors import UsageError
from rooflab.kernels.base import Kernel
from rooflab.model import diagnosis
from rooflab.model.diagnosis import Diagnosis, Evidence, Load
from rooflab.model.grouping import grouped
from rooflab.model.measurement import CONTENDED, FLAGS, Measurement, is_possible
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import DRAM, PROGRAM, SFU
from rooflab.model.roofline import COMPUTE
from rooflab.model.units import scaled
from rooflab.report import own_kernels
from rooflab.report.text import (
    as_json,
    count_text,
    digits,
    interval_percent,
    label,
    precision_title,
    time_text,
)
from rooflab.runs import program
from rooflab.runs.evidence import Witness
from rooflab.runs.own_kernels import OwnTimes
from rooflab.runs.store import RunData

TITLES = {
    DRAM: "device memory",
    "l2": "L2",
    "l1": "L1 and shared memory",
    COMPUTE: "arithmetic",
    SFU: "special functions",
}
"""Names of the resources."""

NAMED: Final = 6
"""Sizes that are named; more of them are counted."""

CANDIDATES: Final = 6
"""Kernels that are listed if a part of a name could be each of them."""

NEAR: Final = 1.1
"""Times the least time at which no other kernel of the ladder would be much faster."""

DOUBTFUL_PERCENT: Final = 20.0
"""A time with a wider interval, half of it, is not explained as if it were sure."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The verdict on one row, with its evidence, a faster kernel of the run and a next step."""

    row: Measurement
    evidence: Evidence
    verdict: Diagnosis
    faster: Measurement | None
    step: str
    memories: str
    whole: bool = False
    """Whether the row is of a program without steps."""
    own: str = ""
    """Of a program's group: what a kernel of ours takes for the same, or what measures it."""

    @property
    def gain_us(self) -> float:
        """Time that a better kernel could gain."""
        return self.evidence.time_us - self.verdict.reachable_us

    @property
    def of_program(self) -> bool:
        """Whether the row is a group of launches of a program."""
        return self.row.problem.workload == PROGRAM

    @property
    def saved_us(self) -> float:
        """Time that it could gain, all launches of a program's group in a step."""
        if not self.of_program:
            return self.gain_us
        if self.row.recoverable_us is not None:
            return program.recoverable(self.row)
        return (self.row.launches or 0.0) * self.gain_us

    @property
    def doubt(self) -> str:
        """Why its time says little, empty if it is well known."""
        if self.of_program:
            return ""  # the spread of its launches is no interval of their mean
        if CONTENDED in self.row.flag_names:
            return FLAGS[CONTENDED]
        percent = interval_percent(self.row) or 0.0
        return f"its 95 % interval is ± {percent:.0f} %" if percent > DOUBTFUL_PERCENT else ""


def explanations(
    run: RunData, kernel: str = "", size: str = "", times: OwnTimes | None = None
) -> list[Explanation]:
    """Of all rows with status ok, or those of a kernel and a size; the most time to save first.

    Those whose time says little are last.
    Rows with operands in host memory are left out: their roof is that of the host link; so are
    copies and idle time of a program. ``times`` are of kernels of ours, by default those beside the
    run. Raises ``UsageError`` if there is no row.
    """
    rows = [
        row
        for row in run.ok
        if is_possible(row.time_us)
        and row.problem.resident
        and (row.problem.workload != PROGRAM or program.is_launched(row))
    ]
    if not rows:
        reason = f"no row with status ok in device memory; rooflab show {run.path} says why"
        raise UsageError(f"{run.path} has {reason}")
    of_kernel = _of_kernel(rows, kernel)
    chosen = _only(of_kernel, size, "size", lambda row: row.problem.size)
    fastest: dict[object, Measurement] = {}
    for row in sorted(run.ok, key=lambda row: row.time_us or math.inf):
        fastest.setdefault(row.problem.key, row)
    witness, times = Witness(run.manifest), times or OwnTimes(run)
    found = (_explain(run, row, fastest[row.problem.key], witness, times) for row in chosen)
    return sorted(found, key=lambda one: (bool(one.doubt), -one.saved_us))


def _of_kernel(rows: Sequence[Measurement], wanted: str) -> list[Measurement]:
    """The rows of the kernel with this name, or with the only name that contains it."""
    names = dict.fromkeys(row.kernel for row in rows)
    having = [name for name in names if wanted.casefold() in name.casefold()]
    if wanted in names or not having:
        return _only(rows, wanted, "kernel", lambda row: row.kernel)
    if wanted and len(having) > 1:
        count, listed = len(having), ", ".join(having[:CANDIDATES])
        more = f" and {count - CANDIDATES} more" if count > CANDIDATES else ""
        raise UsageError(
            f"{wanted[:40]!r} is a part of {count} kernels' names: give more of {listed}{more}"
        )
    return [row for row in rows if not wanted or row.kernel == having[0]]


def _only(
    rows: Sequence[Measurement], wanted: str, what: str, name: Callable[[Measurement], str]
) -> list[Measurement]:
    found = [row for row in rows if wanted in ("", name(row))]
    if not found:
        there = ", ".join(dict.fromkeys(map(name, rows)))
        raise UsageError(f"the run has no {what} {wanted[:40]!r}; it has {there[:200]}")
    return found


def _explain(
    run: RunData, row: Measurement, best: Measurement, witness: Witness, times: OwnTimes
) -> Explanation:
    given = witness.evidence(row)
    verdict = diagnosis.diagnose(given)
    other_work = row.problem.workload == PROGRAM  # two kernels with one grid
    faster = best if not other_work and (best.time_us or 0.0) < 0.95 * given.time_us else None
    memories = class_of(run.manifest.device.kind).memories
    if other_work:
        step = _step_of_program(row, given, verdict)
    else:
        step = _step(run, row, given, verdict, witness.next_rung(row))
    whole = bool(run.manifest.program.get("whole"))
    own = own_kernels.of_group(row, times) if other_work else ""
    return Explanation(row, given, verdict, faster, step, memories, whole, own)


def alike(found: Sequence[Explanation]) -> list[list[Explanation]]:
    """Groups of rows of which the same can be said, all in the order of ``found``."""
    return list(grouped(found, gist).values())


def gist(one: Explanation) -> object:
    """What is said of a row, without its size and numbers: the kernel, the cause, the advice."""
    problem, verdict = one.row.problem, one.verdict
    if one.of_program:  # each has a time of its own in the step
        return one.row.key
    # Advice on the grid has the numbers of its row.
    step = "" if verdict.bound in (diagnosis.SMALL_GRID, diagnosis.WAVE) else one.step
    same = (problem.workload, problem.precision, problem.about, one.row.kernel)
    return (*same, verdict.bound, verdict.firm, step)


# What to try -------------------------------------------------------------------------------------


def _step(
    run: RunData, row: Measurement, given: Evidence, verdict: Diagnosis, rung: Kernel | None
) -> str:
    """One thing to do next; ``rung`` is the next one of the ladder."""
    device = run.manifest.device
    ladder = f"the next rung of the ladder, {rung.name}: {rung.teaches}" if rung else ""
    counted = any(load.counted for load in given.loads)
    grid = given.grid
    if verdict.bound == diagnosis.LAUNCH:
        return "put more work into a launch: a batch, or several launches as one CUDA graph"
    if verdict.bound == diagnosis.SMALL_GRID and grid:
        return f"make at least {grid.multiprocessors} blocks: smaller tiles, or split the sum"
    if verdict.bound == diagnosis.WAVE and grid:
        full = grid.multiprocessors * min(grid.resident, max(1, int(grid.per_multiprocessor)))
        return f"choose tiles or a size with a multiple of {full} blocks; it has {grid.blocks}"
    if _off_tensor_cores(row):
        return "use the tensor cores, which have a higher peak in this precision"
    if verdict.bound == diagnosis.LATENCY:
        if "sm_count" in device.facts and not counted and not ladder:
            if row.problem.workload == "function":  # which only its own process can call
                return "count its traffic: rooflab.bench(…, counters=True)"
            return f"count its traffic: rooflab counters {run.path}"
        return ladder or class_of(device.kind).parallelism
    if verdict.bound == DRAM:
        if "traffic" in verdict.flags:
            return (
                ladder or "reuse what was loaded: larger tiles, or an order of tiles that fits L2"
            )
        return "move fewer bytes: fuse it with its neighbours, or use a narrower type"
    if verdict.bound in ("l2", "l1"):
        return ladder or "load each value once and use it more often: larger tiles in registers"
    if verdict.bound in (COMPUTE, SFU):
        far = given.time_us >= NEAR * verdict.reachable_us
        return (far and ladder) or _faster_arithmetic(verdict, far=far)
    return "it is near two ceilings: fewer FLOPs and fewer bytes"


def _step_of_program(row: Measurement, given: Evidence, verdict: Diagnosis) -> str:
    """What helps a kernel of a program: most are a library's, and nobody changes their code."""
    counted = any(load.counted for load in given.loads)
    if program.known_by(row) and not (row.roof_us or given.loads):
        return "give the roofs of its GPU: rooflab profile --roofs RUN FILE"
    if verdict.bound == diagnosis.LATENCY and not counted:
        return "count its work: rooflab profile, with the program on that GPU"
    if verdict.bound in diagnosis.IDLE and given.time_us < program.SHORT_US:
        return "do more in a launch: a larger batch, or fuse it with its neighbours"
    if verdict.bound == diagnosis.SMALL_GRID and given.grid:
        return (
            f"make at least {given.grid.multiprocessors} blocks: a larger batch, or another kernel"
        )
    if verdict.bound == diagnosis.LATENCY and row.bound == DRAM:
        return "fuse it with its neighbours, or take another kernel or layout that streams memory"
    if verdict.bound in (diagnosis.LATENCY, diagnosis.BALANCED_BOUND):
        return "another kernel for the same work, or shapes that suit this one better"
    if verdict.bound == DRAM:
        return "move fewer bytes: fuse it with its neighbours, or use a narrower type"
    if verdict.bound in ("l2", "l1"):
        return "another kernel for the same work, with larger tiles"
    if row.problem.precision in ("fp32", "tf32"):
        return "a narrower precision, if its accuracy suffices"
    far = given.time_us >= NEAR * verdict.reachable_us
    return _faster_arithmetic(verdict, far=False) if not far else "shapes with fuller tiles"


def _faster_arithmetic(verdict: Diagnosis, *, far: bool) -> str:
    """What helps a kernel that arithmetic limits, ``far`` from that limit or not."""
    if "power-capped" in verdict.flags:  # time is energy
        return "save energy: fewer bytes moved, fewer instructions, or a narrower precision"
    if verdict.bound == SFU and not far:
        return "compute some of the exponentials by multiply-adds, as a polynomial"
    if far:
        return "keep the units busier: more independent work per thread, or larger tiles"
    return "little is left: only fewer FLOPs or a faster precision would help"


def _off_tensor_cores(row: Measurement) -> bool:
    known = PRECISIONS.get(row.problem.precision)
    return bool(row.fp32_flops and not row.tensor_flops and known and known.tensor_cores)


# Text --------------------------------------------------------------------------------------------


def paragraphs(one: Explanation) -> Iterator[str]:
    """Lines about one row, the first is its heading."""
    yield from _of_program(one) if one.of_program else _of_sweep(one)
    yield verdict_sentence(one)
    known, us = one.verdict.bound != diagnosis.LATENCY, one.evidence.time_us
    # A launch takes some time in any case.
    short = one.verdict.bound in diagnosis.IDLE and us < program.SHORT_US
    if (known and not short) if one.of_program else (known or one.evidence.loads):
        yield _without(one)
    for flag in one.verdict.flags:
        yield f"{flag}: {_flag(flag, one)}."
    if one.faster and one.faster.time_us:
        times = digits(us / one.faster.time_us, 3)
        best = time_text(one.faster.time_us)
        yield f"{one.faster.kernel} is {times} times as fast here ({best})."
    yield f"Try: {one.step}."
    if one.own:
        yield one.own


def _of_sweep(one: Explanation) -> Iterator[str]:
    row = one.row
    name = f"{row.problem.workload} {precision_title(row.problem.precision)} {row.problem.size}"
    about = ", ".join(filter(None, [name, row.problem.about]))
    share = "" if row.roof_percent is None else f", {digits(row.roof_percent, 3)} % of its roof"
    yield f"{row.kernel}, {about}: {time_text(one.evidence.time_us)}{share}"
    if one.doubt:
        yield f"Its time says little: {one.doubt}."


def _of_program(one: Explanation) -> Iterator[str]:
    row, us = one.row, one.evidence.time_us
    step = "the program" if one.whole else "a step"
    share = "" if row.share_percent is None else f" ({digits(row.share_percent, 2)} % of it)"
    yield f"{label(row)}: {time_text(program.total(row))} of {step}{share}"
    if row.launches != 1 and row.launches is not None:
        low, high = row.time_p05_us, row.time_p95_us
        spread = f" ({digits(low, 3)} to {digits(high, 3)})" if low and high else ""
        yield f"{count_text(row.launches)} launches of {time_text(us)}{spread}."
    words = {program.COUNTED: "by counters", program.MODELLED: "modelled from shapes"}
    how = words.get(program.known_by(row), "")
    if row.roof_us:
        reached = digits(row.observed_percent or row.roof_percent, 3)
        above = time_text(one.saved_us)
        yield (
            f"{reached} % of its roof ({', '.join(filter(None, [row.bound, how]))}): "
            f"{above} of {step} is above it."
        )
    elif how:
        yield f"Its work is known ({how}), and its roof is not."
    else:
        yield "Its work is not known."
    yield from _traffic(row)


def _traffic(row: Measurement) -> Iterator[str]:
    """What a launch is expected to read again; it is no bound and was not counted."""
    least, expected = row.bytes, row.expected_dram_bytes
    if not least or not expected or expected <= least:
        return
    found = f"; {scaled(row.dram_bytes)}B were counted" if row.dram_bytes else ""
    yield (
        f"A launch moves {scaled(least)}B of device memory at least, and by a model of its shape "
        f"about {scaled(expected)}B, because some of it is read again{found}."
    )


def others(group: Sequence[Explanation]) -> str:
    """At which sizes the same can be said as of the first row; empty if it is alone."""
    rows = sorted((one.row for one in group[1:]), key=lambda r: (r.flops or 0, r.link_bytes or 0))
    sizes = list(dict.fromkeys(row.problem.size for row in rows))
    if len(sizes) > NAMED:
        sizes = [f"{len(sizes)} other sizes, from {sizes[0]} to {sizes[-1]}"]
    return f"The same cause and advice at {', '.join(sizes)}." if sizes else ""


def verdict_sentence(one: Explanation) -> str:
    """The verdict and its reason: ``Limited by arithmetic: 33.6 MFLOP at …``."""
    return f"{title(one)} {_because(one)}"


def title(one: Explanation) -> str:
    """``Limited by arithmetic:``, the start of the verdict."""
    verdict = one.verdict
    if verdict.bound == diagnosis.LATENCY:
        return "Latency, not proven:" if one.evidence.loads else "Not known:"
    if verdict.bound in TITLES:
        return f"{'Limited' if verdict.firm else 'Mostly limited'} by {TITLES[verdict.bound]}:"
    return f"{verdict.bound.capitalize()}:"


def _because(one: Explanation) -> str:
    given, verdict = one.evidence, one.verdict
    if verdict.bound == diagnosis.LAUNCH:
        return (
            f"an empty launch takes {time_text(given.launch_us or 0.0)}, "
            f"{_percent((given.launch_us or 0.0) / given.time_us)} of the time."
        )
    if verdict.bound in (diagnosis.SMALL_GRID, diagnosis.WAVE) and given.grid:
        grid = given.grid
        fit = "" if one.of_program else f", {grid.resident} fit on each"
        return (
            f"{grid.blocks} {'block' if grid.blocks == 1 else 'blocks'} on "
            f"{grid.multiprocessors} multiprocessors{fit}; they are busy "
            f"{_percent(min(1.0, grid.efficiency))} of the time at most."
        )
    shares = ", ".join(_share(one, load) for load in given.ranked)
    if not shares:
        return "there is no work with a roof that its time could be compared with."
    if verdict.bound == diagnosis.LATENCY:
        counted = any(load.counted for load in given.loads)
        unknown = "" if counted else f"{one.memories}, "
        return (
            f"nothing that is known is busy ({shares}); {unknown}the issue of instructions and "
            "waiting are not counted."
        )
    if verdict.bound == diagnosis.BALANCED_BOUND:
        return f"{shares}."
    top = next(load for load in given.ranked if load.resource == verdict.bound)
    if top.us > given.time_us:
        near = "is at" if top.us < NEAR * given.time_us else "is faster than"
        return f"{top.amount} would take {time_text(top.us)}: it {near} this ceiling ({shares})."
    return f"{top.amount} takes {time_text(top.us)} at least ({shares})."


def _share(one: Explanation, load: Load) -> str:
    least = "" if load.counted or load.us > one.evidence.time_us else "at least "
    return f"{TITLES[load.resource]} {least}{_percent(load.us / one.evidence.time_us)}"


def _without(one: Explanation) -> str:
    """What the kernel would gain."""
    verdict, given = one.verdict, one.evidence
    best = f"{time_text(verdict.without_us)}{gain(given.time_us, verdict.without_us)}"
    limit = TITLES.get(verdict.next_limit, verdict.next_limit and "the launch")
    if verdict.bound in diagnosis.IDLE:
        then = f"; then {limit} limits it" if limit else ""
        return f"Without that it takes {best} at best{then}."
    if verdict.bound == diagnosis.BALANCED_BOUND:
        limit = ""
    reached = f"{time_text(verdict.reachable_us)}{gain(given.time_us, verdict.reachable_us)}"
    other = f" If that were free, {limit} would limit it to {best}." if limit else ""
    return f"At that ceiling it takes {reached}.{other}"


def gain(before_us: float, after_us: float) -> str:
    """``, 1.25 times as fast``; empty if nothing is known to take time then."""
    return "" if after_us <= 0 else f", {digits(before_us / after_us, 3)} times as fast"


def _flag(flag: str, one: Explanation) -> str:
    given, row = one.evidence, one.row
    clock, nominal, nvml = (
        digits(mhz or 0.0, 4) for mhz in (given.clock_mhz, given.nominal_mhz, given.nvml_mhz)
    )
    texts = {
        "power-capped": f"the power limit lowered the clock, {clock} of {nominal} MHz"
        + (f"; in a burst after a rest it takes {time_text(row.burst_us)}" if row.burst_us else "")
        + (f" at {digits(row.burst_mhz, 4)} MHz" if row.burst_us and row.burst_mhz else ""),
        "tensor clock": f"{clock} MHz were counted while busy tensor cores slow the clock; NVML "
        f"reports {nvml} MHz",
        "padding": f"{digits(given.executed or 0.0, 3)} times the FLOPs of the formula are "
        "executed: tiles go over the edge",
        "traffic": f"{digits(given.moved or 0.0, 3)} times the bytes of the formula move from or "
        "to device memory",
    }
    return texts[flag]


def _percent(share: float) -> str:
    return f"{digits(100 * share, 2)} %"


def to_json(found: Sequence[Explanation]) -> str:
    """Everything, for programs."""
    content = [
        {
            "kernel": one.row.kernel,
            "workload": one.row.problem.workload,
            "precision": one.row.problem.precision,
            "parameters": dict(one.row.problem.parameters),
            "time_us": one.evidence.time_us,
            "gain_us": one.gain_us,
            **asdict(one.verdict),
            "shares": {load.resource: one.evidence.share(load) for load in one.evidence.ranked},
            "counted": sorted(load.resource for load in one.evidence.loads if load.counted),
            "grid": _grid(one),
            "faster": one.faster.kernel if one.faster else None,
            "step": one.step,
            **(_in_step(one) if one.of_program else {}),
        }
        for one in found
    ]
    return as_json(content)


def _grid(one: Explanation) -> dict[str, int] | None:
    """Blocks and multiprocessors; how many fit on one is not known of a program's."""
    grid = asdict(one.evidence.grid) if one.evidence.grid else None
    return {k: v for k, v in grid.items() if k != "resident"} if grid and one.of_program else grid


def _in_step(one: Explanation) -> dict[str, float | str | None]:
    row = one.row
    columns = ("launches", "total_us", "share_percent", "recoverable_us", "expected_dram_bytes")
    return {
        **{name: getattr(row, name) for name in columns},
        "work": program.known_by(row),
        "same_as": str(row.problem.settings.get("same_as", "")),
        "own_kernels": one.own,
    }
