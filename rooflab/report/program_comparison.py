"""Two runs of a program side by side: the step, then what changed in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rooflab.model.grouping import grouped
from rooflab.model.measurement import Measurement
from rooflab.report import markdown
from rooflab.report.export import values
from rooflab.report.kernel_names import spoken
from rooflab.report.program import GroupTable, listed
from rooflab.report.text import digits, share_text, time_text
from rooflab.report.verdicts import (
    change_texts,
    differing_markdown,
    differing_table,
    headings,
    signed,
)
from rooflab.runs.compare_programs import NEGLIGIBLE_PERCENT, ProgramComparison
from rooflab.runs.program import IDLE, Program, endings, total

NAMED: Final = 4
"""Kernels that a sentence names."""

SHOWN: Final = 20
"""Changes of the table in a terminal; a file has all."""

_STYLES: Final = {"SLOW": "red", "AMBIGUOUS": "yellow", "FAST": "green"}

COLUMNS: Final = ("kernel", "grid", "base µs", "new µs", "change %", "% step", "verdict")
ALIGNED: Final = (":--", ":--", "--:", "--:", "--:", "--:", ":--")


class Change:
    """What became of a group, of copies or of idle time: in both runs, or in only one."""

    def __init__(
        self, verdict: str, base: Measurement | None, new: Measurement | None, percent: str = ""
    ) -> None:
        self.verdict, self.base, self.new, self.percent = verdict, base, new, percent
        rows = [row for row in (base, new) if row]
        self.row, self.kernels = rows[-1], list(dict.fromkeys(row.kernel for row in rows))

    @property
    def spoken(self) -> str:
        """Its kernel in a sentence, or both if another one does the same in NEW."""
        return " → ".join(dict.fromkeys(spoken(kernel).strip("()") for kernel in self.kernels))

    @property
    def replaced(self) -> bool:
        """Whether another kernel does the same in NEW."""
        return len(self.kernels) > 1

    @property
    def us(self) -> float:
        """How much more of a step it takes in NEW."""
        return (total(self.new) if self.new else 0.0) - (total(self.base) if self.base else 0.0)


def changes(comparison: ProgramComparison) -> list[Change]:
    """All of them, those that change the step most first."""
    found = [
        Change(point.verdict, point.base, point.new, signed(point.change_percent))
        for point in comparison.groups
    ]
    found += [Change("gone", row, None) for row in comparison.only_base]
    found += [Change("new", None, row) for row in comparison.only_new]
    return sorted(found, key=lambda change: -abs(change.us))


# Sentences ---------------------------------------------------------------------------------------


def step_sentence(comparison: ProgramComparison) -> str:
    """``One step takes 30.4 ms in BASE and 28.1 ms in NEW, -7.6 % (-9.1…-6.0): FAST.``"""
    step = comparison.step
    was, now = (Program.of(run) for run in (comparison.base, comparison.new))
    it = "The program" if was.whole else "One step"
    change, interval = change_texts(step)
    between = f" ({interval})" if interval else ""
    reason = f", {step.reason}" if step.reason else ""
    return (
        f"{it} takes {time_text(was.step_us)} in BASE and {time_text(now.step_us)} in NEW, "
        f"{change} %{between}: {step.verdict}{reason}."
    )


def parts_sentence(comparison: ProgramComparison) -> str:
    """``Kernels take 28.5 ms in BASE and 27.0 ms in NEW; the GPU idles 1.89 ms and 1.90 ms.``"""
    was, now = (Program.of(run) for run in (comparison.base, comparison.new))
    text = (
        f"Kernels take {time_text(was.kernels_us)} in BASE and {time_text(now.kernels_us)} in NEW"
    )
    idle = [program.other(IDLE) for program in (was, now)]
    if idle[0] and idle[1]:
        text += f"; the GPU idles {time_text(total(idle[0]))} and {time_text(total(idle[1]))}"
    return f"{text}."


def change_sentences(comparison: ProgramComparison) -> Iterator[str]:
    """What became faster and slower, what is new and what is gone; kernels of a name together."""
    step_us = Program.of(comparison.base).step_us
    found = changes(comparison)
    for verdict, word in (("FAST", "Faster"), ("SLOW", "Slower"), ("new", "New"), ("gone", "Gone")):
        by_name = grouped((one for one in found if one.verdict == verdict), lambda one: one.spoken)
        times = {name: sum(abs(one.us) for one in some) for name, some in by_name.items()}
        names = sorted(times, key=lambda name: -times[name])
        by = "" if word in ("New", "Gone") else "by "
        parts = [
            f"{name} {by}{time_text(times[name])} ({share_text(times[name], step_us)} of the step)"
            for name in names[:NAMED]
        ]
        if more := len(names) - NAMED if len(names) > NAMED else 0:
            rest = sum(times[name] for name in names[NAMED:])
            parts.append(f"{more} more {by}{time_text(rest)}")
        if parts:
            yield f"{word}: {listed(parts)}."


def counts_sentence(comparison: ProgramComparison) -> str:
    """``44 groups in both: 1 FAST, 43 SAME; 2 only in BASE.``"""
    verdicts = [f"{count} {name}" for name, count in comparison.group_counts.items() if count]
    sides = (("only in BASE", comparison.only_base), ("only in NEW", comparison.only_new))
    others = [f"{len(rows)} {what}" for what, rows in sides if rows]
    common = len(comparison.groups)
    parts = [", ".join(part) for part in (verdicts, others) if part]
    text = "; ".join(parts) or "nothing"
    return f"{common} {'group' if common == 1 else 'groups'} in both: {text}."


def sentences(comparison: ProgramComparison) -> list[str]:
    """All of them, the step first."""
    return [
        step_sentence(comparison),
        parts_sentence(comparison),
        *change_sentences(comparison),
        counts_sentence(comparison),
    ]


# Outputs -----------------------------------------------------------------------------------------


def print_programs(comparison: ProgramComparison, console: Console) -> None:
    """The step, what else differs, the largest changes, the counts; fits 80 columns."""
    first, *others = sentences(comparison)
    wrap = not console.is_terminal  # whole lines for other programs
    for line in (*headings(comparison), first, *others[:-1]):
        console.print(line, markup=False, soft_wrap=wrap)
    if comparison.differences:
        console.print(differing_table(comparison))
    else:
        console.print("The environments are the same.", markup=False)
    console.print(_table(comparison))
    if any(change.replaced for change in changes(comparison)):
        console.print("* Another kernel in BASE.", markup=False)
    console.print(others[-1], markup=False, soft_wrap=wrap)


def _table(comparison: ProgramComparison) -> Table:
    found = changes(comparison)
    step_us = Program.of(comparison.base).step_us
    made = GroupTable(("change %", "base µs", "new µs"))
    for name in COLUMNS[2:-1]:
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("verdict", no_wrap=True)
    least = NEGLIGIBLE_PERCENT / 100 * step_us
    shown = [change for change in found if abs(change.us) >= least][:SHOWN]
    ends = endings(change.row for change in shown)
    for change in shown:
        style = _STYLES.get(change.verdict)
        verdict = f"[{style}]{change.verdict}[/]" if style else change.verdict
        *figures, _ = _figures(change, step_us)
        name = change.row.kernel.strip("()") if change.row.kernel[:1] == "(" else change.row.kernel
        ending = f"{ends[id(change.row)]}{'*' * change.replaced}"
        made.add_group(name, ending, *map(escape, figures), verdict)
    if rest := found[len(shown) :]:
        was, now = (
            sum(total(row) for change in rest if (row := getattr(change, side)))
            for side in ("base", "new")
        )
        cells = (digits(was, 4), digits(now, 4), "", _of_step(now - was, step_us))
        what = "other" if shown else "group"
        name = f"{len(rest)} {what}{'s' * (len(rest) != 1)}"
        made.add_group(name, "", *map(escape, cells), "")
    return made


def _of_step(us: float, step_us: float) -> str:
    return signed(100 * us / step_us) if step_us else ""


def _figures(change: Change, step_us: float) -> list[str]:
    return [
        digits(total(change.base), 4) if change.base else "–",
        digits(total(change.new), 4) if change.new else "–",
        change.percent,
        _of_step(change.us, step_us),
        change.verdict,
    ]


def lines_of(comparison: ProgramComparison) -> list[list[str]]:
    """A line of text for each change, below ``COLUMNS``."""
    step_us = Program.of(comparison.base).step_us
    return [
        [" → ".join(change.kernels), change.row.problem.size, *_figures(change, step_us)]
        for change in changes(comparison)
    ]


def programs_markdown(
    comparison: ProgramComparison, escape_cell: markdown.Escape = markdown.escape
) -> str:
    """For a comment on a change: the step, what changed, all groups."""
    first, *others = sentences(comparison)
    blocks = [
        f"### {escape_cell(first)}\n",
        markdown.bullets([*headings(comparison), *others], escape_cell),
    ]
    if comparison.differences:
        blocks.append(differing_markdown(comparison, escape_cell))
    body = lines_of(comparison)
    blocks.append(markdown.table(COLUMNS, ALIGNED, body, escape_cell, markdown.MOST_LINES))
    return "\n".join(blocks)


def programs_content(comparison: ProgramComparison) -> dict[str, Any]:
    """What JSON has beside the points: groups with whole rows of both runs, unrounded."""
    return {
        "groups": [
            {
                "verdict": point.verdict,
                "reason": point.reason,
                "change_us": total(point.new) - total(point.base),
                "change_percent": point.change_percent,
                "base": values(point.base),
                "new": values(point.new),
            }
            for point in comparison.groups
        ],
        "group_counts": {str(name): count for name, count in comparison.group_counts.items()},
    }
