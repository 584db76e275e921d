"""The devices with their ceilings, the method, and how to repeat the runs."""

from __future__ import annotations

import shlex
from typing import Final

from rooflab.model.measurement import FLAGS
from rooflab.model.problem import PROGRAM
from rooflab.model.roofline import Ceiling, Roofline
from rooflab.report.html.content import Report
from rooflab.report.html.markup import Markup, element, section, table
from rooflab.report.text import fact_cells
from rooflab.runs.store import RunData

ROUNDS: Final = (
    " The rows of a problem took turns in rounds. A time is the median of the rounds' medians, "
    "with a 95 % interval; no sample was removed. "
)
OF_SWEEPS: Final = (
    "Every kernel was verified against a float64 reference before and after it was timed; a wrong "
    f"one has no figures.{ROUNDS}FLOPs follow from the workload's formula, and bytes are "
    "compulsory traffic: each input read once, each output written once."
)
OF_FUNCTIONS: Final = (
    "Functions of a race were compared with one of them before, while and after they were timed; "
    f"one alone has the flag unverified.{ROUNDS}Bytes are those of arguments and results, if they "
    "are not stated; the column settings says where FLOPs come from."
)
OF_PROGRAMS: Final = (
    "Launches of a program were timed while it ran; their results are not verified. A time is the "
    "mean of all launches of a group, and its interval has 90 % of them. FLOPs and bytes are "
    "counted, or modelled from the shapes of operations."
)
ROOFS: Final = (
    "A roof is a time, the largest of FLOPs over the compute ceiling and bytes over the bandwidth; "
    "% of roof is that time in percent of the measured one.",
    "Derived ceilings are computed from the driver's values. Measured ones were reached by a "
    "microkernel or a library on this device. Observed ones are derived ones at the clock that was "
    "counted during the measurement, here the lowest.",
)


METHODS: Final = {"function": OF_FUNCTIONS, PROGRAM: OF_PROGRAMS}
"""How a row of a workload was measured; of all others as in a sweep."""


def devices(report: Report) -> Markup:
    """The section with a part for each run."""
    return section("devices", "Devices and ceilings", *map(_device, report.runs))


def _device(run: RunData) -> Markup:
    device, created = run.manifest.device, run.manifest.created
    return element(
        "div",
        element("h3", f"{device.name}, {created:%Y-%m-%d %H:%M} UTC"),
        _ceilings(run.manifest.roofline, device.name),
        element(
            "details",
            element("summary", "Facts and versions"),
            table(("fact", "value", "source"), fact_cells(device.facts), "Facts", "Facts"),
            table(("part", "version"), run.manifest.versions.items(), "Versions", "Versions"),
        ),
    )


def _ceilings(roofline: Roofline, device: str) -> Markup:
    known: list[tuple[str, str, str, str]] = [
        (one.key, one.amount, one.provenance, _formula(one, roofline)) for one in roofline.ceilings
    ]
    missing = [(one.key, "–", "missing", one.reason) for one in roofline.missing]
    headings = ("ceiling", "value", "provenance", "formula")
    return table(headings, known + missing, "Ceilings", f"Ceilings of {device}")


def _formula(one: Ceiling, roofline: Roofline) -> str:
    datasheet = f"datasheet: {one.show(one.datasheet)}" if one.datasheet else ""
    passed = roofline.passed(one.key) if one.provenance == "derived" else ""
    return "; ".join(filter(None, (one.formula, datasheet, one.caveat, passed)))


def method(report: Report) -> Markup:
    """The method, and the meanings of the flags that rows have."""
    flags = dict.fromkeys(flag for one in report.rows for flag in one.row.flag_names)
    meanings = [
        part
        for flag in flags
        for part in (element("dt", flag), element("dd", FLAGS.get(flag, "unknown flag")))
    ]
    listed = [element("h3", "Flags of these rows"), element("dl", *meanings)] if flags else []
    workloads = (one.row.problem.workload for one in report.rows)
    texts = dict.fromkeys(METHODS.get(workload, OF_SWEEPS) for workload in workloads)
    return section("method", "Method", *(element("p", text) for text in (*texts, *ROOFS)), *listed)


def again(report: Report) -> Markup:
    """The commands that made the runs, as they recorded them; nothing without one."""
    commands = [
        part
        for run, name in zip(report.runs, report.names, strict=True)
        if run.manifest.command
        for part in (
            element("p", f"{name}: {run.path.name}, made by the command"),
            element("pre", shlex.join(run.manifest.command), tabindex=0),
        )
    ]
    return section("reproduce", "Reproduce", *commands) if commands else Markup()
