"""Two runs side by side as JUnit XML, a test case per point: for GitLab, Jenkins and others.

The order of elements and the required attributes are those of Apache Ant's report (JUnit.xsd), the
strictest description of the format; Jenkins's junit-10.xsd accepts it too. Such a test case has no
output of its own: why points are AMBIGUOUS is in the suite's output.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from rooflab.model.measurement import Measurement
from rooflab.report.program_comparison import sentences
from rooflab.report.text import digits
from rooflab.report.verdicts import headings, reasons, sentence, statuses, times_text, why
from rooflab.runs.compare import Comparison, Verdict, environment
from rooflab.runs.compare_programs import ProgramComparison

_FORBIDDEN: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 does not allow, even as references."""

CaseOutcome = dict[str, str]
"""Empty for a success; what was ``skipped``, or a ``failure`` with its type and details."""


def comparison_junit(comparison: Comparison) -> str:
    """A failure is a point that is SLOW or broken; without a partner a point is skipped."""
    cases = list(_cases(comparison))
    created = comparison.new.manifest.created
    root = Element("testsuites")
    suite = _add(
        root,
        "testsuite",
        id="0",
        package="rooflab",
        name="rooflab compare",
        hostname="localhost",
        timestamp=created.isoformat(timespec="seconds")[:19],  # the format has no time zone
        tests=str(len(cases)),
        failures=str(sum("failure" in outcome for _, outcome in cases)),
        errors="0",
        skipped=str(sum("skipped" in outcome for _, outcome in cases)),
        time=_seconds(row.time_us for row, _ in cases),
    )
    properties = _add(suite, "properties")
    for name, value in _environment(comparison):
        _add(properties, "property", name=name, value=value)
    for row, outcome in cases:
        problem = row.problem
        name = ", ".join(filter(None, [f"{row.kernel} {problem.size}", problem.about]))
        of = f"{problem.workload}.{problem.precision}".rstrip(".")
        case = _add(suite, "testcase", classname=of, name=name, time=_seconds([row.time_us]))
        if "failure" in outcome:
            about = {"type": outcome["type"], "message": outcome["failure"]}
            _add(case, "failure", outcome.get("details", ""), **about)
        elif "skipped" in outcome:
            _add(case, "skipped", message=outcome["skipped"])
    said = [*reasons(comparison), sentence(comparison)]
    if isinstance(comparison, ProgramComparison):
        said = sentences(comparison)
    lines = [*headings(comparison), *said]
    _add(suite, "system-out", "\n".join(lines))
    _add(suite, "system-err")
    indent(root, " ")
    # Other characters become references, so that the text is right in any encoding of stdout.
    text = tostring(root, encoding="us-ascii").decode("ascii")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _add(parent: Element, tag: str, text: str | None = None, /, **attributes: str) -> Element:
    """A new element, without the characters that are not allowed."""
    allowed = {name: _FORBIDDEN.sub("", value) for name, value in attributes.items()}
    added = SubElement(parent, tag, allowed)
    added.text = text if text is None else _FORBIDDEN.sub("", text)
    return added


def _seconds(times_us: Iterable[float | None]) -> str:
    """The sum of possible times, to the picosecond; a kernel takes microseconds."""
    total = sum(us for us in times_us if us is not None and 0 < us < 1e15)
    return f"{total / 1e6:.12f}"


def _environment(comparison: Comparison) -> Iterator[tuple[str, str]]:
    yield "threshold_percent", f"{comparison.threshold_percent:g}"
    for side, run in (("BASE", comparison.base), ("NEW", comparison.new)):
        manifest = run.manifest
        about = {"path": str(run.path), "created": manifest.created.isoformat()}
        about |= {"device": manifest.device.name, "command": " ".join(manifest.command)}
        for name, value in (about | environment(manifest)).items():
            yield f"{side} {name}", value


def _cases(comparison: Comparison) -> Iterator[tuple[Measurement, CaseOutcome]]:
    judged = {row.key for row in comparison.only_new}
    if isinstance(comparison, ProgramComparison):  # only the step decides; the output has the rest
        for point in comparison.groups:
            judged |= {point.base.key, point.new.key}
            yield point.new, {}
        judged |= {row.key for row in comparison.new.measurements}
    for point in comparison.points:
        judged.add(point.new.key)
        slow = {"type": point.verdict, "failure": f"{point.verdict}: {times_text(point)}"}
        intervals = [
            f"{name}: {digits(row.time_us, 5)} µs, 95 % interval "
            f"{digits(row.time_lo_us, 5)} to {digits(row.time_hi_us, 5)} µs"
            for name, row in (("BASE", point.base), ("NEW", point.new))
        ]
        slow["details"] = "\n".join(intervals)
        yield point.new, slow if point.verdict == Verdict.SLOW else {}
    for change in comparison.status_changes:
        judged.add(change.new.key)
        what = ": ".join(filter(None, [statuses(change), why(change)]))
        if change.broken:
            yield change.new, {"type": change.new.status, "failure": what}
        else:
            yield change.new, {"skipped": what} if change.new.status != "ok" else {}
    rows = {row.key: row for row in comparison.new.measurements}
    for row in (row for key, row in rows.items() if key not in judged):
        yield row, {"skipped": f"{row.status} in both"}
    for side, only in (("BASE", comparison.only_base), ("NEW", comparison.only_new)):
        for row in only:
            yield row, {"skipped": f"only in {side}"}
