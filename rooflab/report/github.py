"""Two runs side by side on GitHub: a job's summary, and annotations of a workflow run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from rooflab.report import markdown, verdicts
from rooflab.report.markdown import escape_for_github
from rooflab.report.program_comparison import programs_markdown
from rooflab.report.text import label
from rooflab.report.verdicts import statuses, times_text, why
from rooflab.runs.compare import Comparison, Verdict
from rooflab.runs.compare_programs import ProgramComparison

LONGEST_CELL: Final = 300
"""Characters of a cell; longer text is cut."""

MOST_ANNOTATIONS: Final = 10
"""GitHub shows as many per step of each level."""

_CHANGED: Final = [verdict for verdict in Verdict if verdict != Verdict.SAME]


def comparison_github(comparison: Comparison) -> str:
    """For ``$GITHUB_STEP_SUMMARY``: the counts, what changed, the rest folded, the commands."""
    if isinstance(comparison, ProgramComparison):
        text = programs_markdown(comparison, _cell)
        return f"{text}\n{_folded('Commands', _commands(comparison))}"
    changed = verdicts.cells(comparison, _CHANGED)
    same = verdicts.point_cells(comparison, [Verdict.SAME])
    alone = [f"{what}: {'; '.join(rows)}" for what, rows in verdicts.unmatched(comparison)]
    blocks = [
        f"### {verdicts.sentence(comparison)}\n",
        markdown.bullets(verdicts.headings(comparison), escape_for_github),
        _table(changed) if changed else "Nothing changed.\n",
        markdown.bullets(alone, escape_for_github),
        _folded(f"{len(same)} unchanged", _table(same)) if same else "",
        verdicts.differing_markdown(comparison, _cell)
        if comparison.differences
        else "The environments are the same.\n",
        _folded("Commands", _commands(comparison)),
    ]
    return "\n".join(filter(None, blocks))


def _table(body: Sequence[Sequence[str]]) -> str:
    return markdown.table(verdicts.COLUMNS, verdicts.ALIGNED, body, _cell, markdown.MOST_LINES)


def _cell(text: str) -> str:
    """Cut, and without a place for a line break inside of an interval."""
    return escape_for_github(_cut(text).replace("…", "\u2060…\u2060"))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 1]}…"


def _folded(summary: str, content: str) -> str:
    return f"<details>\n<summary>{summary}</summary>\n\n{content}\n</details>\n"


def _commands(comparison: Comparison) -> str:
    base, new = comparison.base, comparison.new
    compared = ["rooflab", "compare", str(base.path), str(new.path)]
    commands = [base.manifest.command, new.manifest.command]
    commands.append([*compared, "--threshold", f"{comparison.threshold_percent:g}"])
    # Neither tags, nor workflow commands if a log shows it.
    special = re.compile(r"[^\w ./=,+-]")
    lines = (special.sub(lambda it: f"&#{ord(it[0])};", shlex.join(words)) for words in commands)
    return "<pre>{}</pre>\n".format("\n".join(lines))


# Annotations -------------------------------------------------------------------------------------


def workflow_commands(comparison: Comparison, level: str, ambiguous: bool) -> list[str]:
    """Annotations, a line each: what broke, what is SLOW, and AMBIGUOUS if it counts.

    ``level`` is ``error`` or ``warning``. The last line counts those that GitHub would not show.
    """
    found = list(_findings(comparison, ambiguous))
    if len(found) > MOST_ANNOTATIONS:
        rest = len(found) - MOST_ANNOTATIONS + 1
        found = [*found[: MOST_ANNOTATIONS - 1], ("and more", f"{rest} more points")]
    return [f"::{level} title={_property(title)}::{_data(text)}" for title, text in found]


def _findings(comparison: Comparison, ambiguous: bool) -> Iterator[tuple[str, str]]:
    for change in comparison.status_changes:
        if change.broken:
            yield statuses(change), _cut(f"{label(change.base)}: {why(change)}")
    for verdict in (Verdict.SLOW, Verdict.AMBIGUOUS)[: 1 + ambiguous]:
        for point in comparison.points:
            if point.verdict == verdict:
                reason = f" ({point.reason})" if point.reason else ""
                yield verdict, _cut(f"{label(point.base)}: {times_text(point)}{reason}")


def _data(text: str) -> str:
    """A message, escaped as GitHub's toolkit does."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
