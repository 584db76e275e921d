"""The devices with their ceilings, the method, and how to repeat the runs."""

from __future__ import annotations

import shlex
from typing import Final

from rooflab.model.measurement import FLAGS
from rooflab.model.roofline import Ceiling, Roofline
from rooflab.report.html.content import Report
from rooflab.report.html.markup import Markup, element, section, table
from rooflab.report.text import fact_cells
from rooflab.runs.store import RunData

METHOD: Final = (
    "Every kernel was verified against a float64 reference before and after it was timed; a wrong "
    "one has no figures. The kernels of a problem took turns in rounds. A time is the median of "
    "the rounds' medians, with a 95 % interval; no sample was removed.",
    "FLOPs follow from the workload's formula, and bytes are compulsory traffic: each input read "
    "once, each output written once. A roof is a time, the largest of FLOPs over the compute "
    "ceiling and bytes over the bandwidth; % of roof is that time in percent of the measured one.",
    "Derived ceilings are computed from the driver's values. Measured ones were reached by a "
    "microkernel or a library on this device. Observed ones are derived ones at the clock that was "
    "counted during the measurement, here the lowest.",
)


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
    return section("method", "Method", *(element("p", text) for text in METHOD), *listed)


def again(report: Report) -> Markup:
    """The commands that made the runs, as they recorded them."""
    commands = [
        part
        for run, name in zip(report.runs, report.names, strict=True)
        for part in (
            element("p", f"{name}: {run.path.name}, made by the command"),
            element("pre", shlex.join(run.manifest.command), tabindex=0),
        )
    ]
    return section("reproduce", "Reproduce", *commands)
