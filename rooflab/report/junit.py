"""Two runs side by side as JUnit XML, a test case per point: for GitLab, Jenkins and others.

The order of elements and the required attributes are those of Apache Ant's report (JUnit.xsd), the
strictest description of the format; Jenkins's junit-10.xsd accepts it too. Such a test case has no
output of its own: why points are AMBIGUOUS is in the suite's output.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree

from rooflab.model.measurement import Measurement
from rooflab.report.text import digits
from rooflab.report.verdicts import headings, reasons, sentence, statuses, times_text, why
from rooflab.runs.compare import Comparison, Point, Verdict, environment

_FORBIDDEN: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 does not allow, even as references."""


@dataclass(frozen=True, slots=True)
class _Case:
    """One point: its row, and a ``failure`` or a reason why it is ``skipped``."""

    row: Measurement
    type: str = ""
    failure: str = ""
    details: str = ""
    skipped: str = ""


def comparison_junit(comparison: Comparison) -> str:
    """A failure is a point that is SLOW or broken; without a partner a point is skipped."""
    cases = list(_cases(comparison))
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(root, "testsuite", _attributes(comparison, cases))
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in _environment(comparison):
        ElementTree.SubElement(properties, "property", name=_allowed(name), value=_allowed(value))
    for case in cases:
        _add(suite, case)
    lines = [*headings(comparison), *reasons(comparison), sentence(comparison)]
    ElementTree.SubElement(suite, "system-out").text = _allowed("\n".join(lines))
    ElementTree.SubElement(suite, "system-err")
    ElementTree.indent(root, " ")
    # Other characters become references, so that the text is right in any encoding of stdout.
    text = ElementTree.tostring(root, encoding="us-ascii").decode("ascii")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _allowed(text: str) -> str:
    return _FORBIDDEN.sub("", text)


def _attributes(comparison: Comparison, cases: list[_Case]) -> dict[str, str]:
    created = comparison.new.manifest.created
    return {
        "id": "0",
        "package": "rooflab",
        "name": "rooflab compare",
        "hostname": "localhost",
        "timestamp": created.isoformat(timespec="seconds")[:19],  # the format has no time zone
        "tests": str(len(cases)),
        "failures": str(sum(bool(case.failure) for case in cases)),
        "errors": "0",
        "skipped": str(sum(bool(case.skipped) for case in cases)),
        "time": _seconds(case.row.time_us for case in cases),
    }


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


def _cases(comparison: Comparison) -> Iterator[_Case]:
    for point in comparison.points:
        slow = point.verdict == Verdict.SLOW
        yield _failed(point) if slow else _Case(point.new)
    for change in comparison.status_changes:
        what = ": ".join(filter(None, [statuses(change), why(change)]))
        if change.broken:
            yield _Case(change.new, type=change.new.status, failure=what)
        else:
            yield _Case(change.new, skipped="" if change.new.status == "ok" else what)
    for row in _unmeasured(comparison):
        yield _Case(row, skipped=f"{row.status} in both")
    for side, rows in (("BASE", comparison.only_base), ("NEW", comparison.only_new)):
        for row in rows:
            yield _Case(row, skipped=f"only in {side}")


def _failed(point: Point) -> _Case:
    intervals = [
        f"{name}: {digits(row.time_us, 5)} µs, 95 % interval "
        f"{digits(row.time_lo_us, 5)} to {digits(row.time_hi_us, 5)} µs"
        for name, row in (("BASE", point.base), ("NEW", point.new))
    ]
    return _Case(
        point.new,
        type=point.verdict,
        failure=f"{point.verdict}: {times_text(point)}",
        details="\n".join(intervals),
    )


def _unmeasured(comparison: Comparison) -> Iterator[Measurement]:
    """The rows of NEW whose status is the same in BASE, and not ``ok``."""
    others = [
        *(point.new for point in comparison.points),
        *(change.new for change in comparison.status_changes),
        *comparison.only_new,
    ]
    rows = {row.key: row for row in comparison.new.measurements}
    judged = {row.key for row in others}
    yield from (row for key, row in rows.items() if key not in judged)


def _add(suite: ElementTree.Element, case: _Case) -> None:
    problem = case.row.problem
    element = ElementTree.SubElement(
        suite,
        "testcase",
        classname=_allowed(f"{problem.workload}.{problem.precision}"),
        name=_allowed(
            ", ".join(filter(None, [f"{case.row.kernel} {problem.size}", problem.about]))
        ),
        time=_seconds([case.row.time_us]),
    )
    if case.failure:
        failure = ElementTree.SubElement(
            element, "failure", type=_allowed(case.type), message=_allowed(case.failure)
        )
        failure.text = _allowed(case.details)
    elif case.skipped:
        ElementTree.SubElement(element, "skipped", message=_allowed(case.skipped))
