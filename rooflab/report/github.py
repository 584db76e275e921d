"""Two runs side by side on GitHub: a job's summary, and annotations of a workflow run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from rooflab.report import markdown
from rooflab.report.markdown import escape_for_github
from rooflab.report.program_comparison import programs_markdown
from rooflab.report.text import label
from rooflab.report.verdicts import (
    ALIGNED,
    COLUMNS,
    cells,
    headings,
    point_cells,
    sentence,
    statuses,
    times_text,
    unmatched,
    why,
)
from rooflab.runs.compare import Comparison, Verdict
from rooflab.runs.compare_programs import ProgramComparison

MOST_LINES: Final = 1000
"""Lines of a table: GitHub refuses a summary of more than 1 MiB."""

LONGEST_CELL: Final = 300
"""Characters of a cell; longer text is cut."""

MOST_ANNOTATIONS: Final = 10
"""GitHub shows as many per step of each level."""

_CHANGED: Final = [verdict for verdict in Verdict if verdict != Verdict.SAME]


def comparison_github(comparison: Comparison) -> str:
    """For ``$GITHUB_STEP_SUMMARY``: the counts, what changed, the rest folded, the commands."""
    if isinstance(comparison, ProgramComparison):
        text = programs_markdown(comparison, lambda cell: escape_for_github(_whole(_cut(cell))))
        return f"{text}\n{_folded('Commands', _commands(comparison))}"
    changed = cells(comparison, _CHANGED)
    same = point_cells(comparison, [Verdict.SAME])
    differing = [[each.name, each.base, each.new] for each in comparison.differences]
    blocks = [
        f"### {sentence(comparison)}\n",
        _list(headings(comparison)),
        _table(COLUMNS, ALIGNED, changed) if changed else "Nothing changed.\n",
        _list([f"{what}: {'; '.join(rows)}" for what, rows in unmatched(comparison)]),
        _folded(f"{len(same)} unchanged", _table(COLUMNS, ALIGNED, same)) if same else "",
        _table(["what differs", "BASE", "NEW"], [":--"] * 3, differing)
        if differing
        else "The environments are the same.\n",
        _folded("Commands", _commands(comparison)),
    ]
    return "\n".join(filter(None, blocks))


def _list(lines: Sequence[str]) -> str:
    return "".join(f"- {escape_for_github(line)}\n" for line in lines)


def _table(columns: Sequence[str], aligned: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    shown = [[_whole(_cut(cell)) for cell in line] for line in body[:MOST_LINES]]
    text = markdown.table(columns, aligned, shown, escape_for_github)
    rest = len(body) - len(shown)
    return text + (f"\nand {rest} more\n" if rest else "")


def _whole(text: str) -> str:
    """Without a place for a line break inside of an interval."""
    return text.replace("…", "\u2060…\u2060")


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 1]}…"


def _folded(summary: str, content: str) -> str:
    return f"<details>\n<summary>{summary}</summary>\n\n{content}\n</details>\n"


def _commands(comparison: Comparison) -> str:
    """The sweeps and the comparison, to copy."""
    base, new = comparison.base, comparison.new
    compared = ["rooflab", "compare", str(base.path), str(new.path)]
    commands = [base.manifest.command, new.manifest.command]
    commands.append([*compared, "--threshold", f"{comparison.threshold_percent:g}"])
    lines = "\n".join(_as_entities(shlex.join(words)) for words in commands)
    return f"<pre>{lines}</pre>\n"


def _as_entities(text: str) -> str:
    """Text for ``<pre>``: neither tags, nor workflow commands if a log shows it."""
    return re.sub(r"[^\w ./=,+-]", lambda found: f"&#{ord(found[0])};", text)


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
    """Title and message."""
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
