"""The ranks of a program in words: whom the others wait for, in which collective, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from rooflab.report import program
from rooflab.report.fitting import FigureTable
from rooflab.report.kernel_names import spoken
from rooflab.report.program import NEGLIGIBLE, listed
from rooflab.report.text import as_json, digits, share_text, time_text
from rooflab.runs.program import COUNTED, known_by
from rooflab.runs.ranks import CollectiveTime, Ranks, RankStep

NAMED: Final = 3
"""Ranks that are named in sentences."""

COLUMNS: Final = 4
"""Collectives with a column of their own."""

SHOWN: Final = 16
"""Ranks of the table: of more, those that are waited for most."""


def sentences(found: Ranks) -> Iterator[str]:
    """The most important first."""
    yield _first(found)
    yield from found.remarks
    yield from _waiting(found)
    yield from _exposed(found)
    for one in found.collectives:
        if one.reason:
            yield f"Who is waited for in {one.title} cannot be told: {one.reason}."
    if not any(known_by(row) == COUNTED for one in found.ranks for row in one.program.groups):
        yield "Nothing was counted: in programs of several processes --counters does."


def _first(found: Ranks) -> str:
    name = found.ranks[0].program.about.get("name") or "a program"
    here = len(found.ranks)
    count = f"{here}" if here == found.size else f"{here} of {found.size}"
    least, most = (pick(found.ranks, key=lambda one: one.step_us) for pick in (min, max))
    what = "The program" if most.program.whole else "One step"
    text = f"{count} ranks of {name}. {what} takes {time_text(found.step_us)}"
    if most.step_us - least.step_us > NEGLIGIBLE * most.step_us:
        ends = (f"{time_text(one.step_us)} on rank {one.number}" for one in (least, most))
        text += f" ({' to '.join(ends)})"
    return f"{text}."


def _waiting(found: Ranks) -> Iterator[str]:
    """Whom the others wait for, the one with most of the time first."""
    known = [one for one in found.collectives if one.waits_us]
    if not known:
        return
    least = NEGLIGIBLE * found.step_us
    ranked = found.most_waited_for(NAMED)
    late = [one for one in ranked if found.caused_us(one.number) > least]
    for one in late:
        yield _waited_for(found, known, one)
        yield from _why(found, one)
    if not late:
        most = max(found.waits_us(one.number) for one in found.ranks)
        yield f"No rank is waited for: none waits more than {time_text(most)} of a step."


def _waited_for(found: Ranks, known: Sequence[CollectiveTime], rank: RankStep) -> str:
    whole = found.caused_us(rank.number)
    parts = [(one.title, one.caused_us.get(rank.number, 0.0)) for one in known]
    parts = [(title, us) for title, us in parts if us > 0.05 * whole]
    places = [title if len(parts) == 1 else f"{title} ({time_text(us)})" for title, us in parts]
    others = [f"rank {one.number} waits" for one in found.ranks if one.number != rank.number]
    waiting = others[0] if len(others) == 1 else "the others wait"
    return (
        f"Rank {rank.number} is waited for: {waiting} {time_text(whole)} of "
        f"{time_text(found.step_us)} ({share_text(whole, found.step_us)}) in {listed(places)}."
    )


def _why(found: Ranks, rank: RankStep) -> Iterator[str]:
    """What the rank does while the others wait: longer kernels, or nothing."""
    others = [one for one in found.ranks if one.number != rank.number]
    whose = f"rank {others[0].number}" if len(others) == 1 else "the others"
    kernels_us = median(one.kernels_us for one in others)
    idle_us = median(one.idle_us for one in others)
    longer, idler = rank.kernels_us - kernels_us, rank.idle_us - idle_us
    least = NEGLIGIBLE * found.step_us
    if longer > max(least, idler):
        yield (
            f"Its own kernels take {time_text(rank.kernels_us)}, those of {whose} "
            f"{time_text(kernels_us)}{_mostly(rank, others, longer)}."
        )
    elif idler > least:
        yield (
            f"It idles {time_text(rank.idle_us)}, {whose} {time_text(idle_us)}: its host comes "
            "late, with data or with launches."
        )


def _mostly(rank: RankStep, others: Sequence[RankStep], longer: float) -> str:
    theirs = [one.by_kernel for one in others]
    more = {
        name: us - median(them.get(name, 0.0) for them in theirs)
        for name, us in rank.by_kernel.items()
    }
    most = max(more, key=lambda name: more[name], default="")
    if not most or more[most] < longer / 3:
        return ""
    return f"; {spoken(most)} alone takes {time_text(more[most])} more"


def _exposed(found: Ranks) -> Iterator[str]:
    with_some = [one for one in found.ranks if one.collectives_us]
    if not with_some:
        yield "No rank launches a collective of NCCL or NVSHMEM."
        return
    us = median(one.collectives_us for one in with_some)
    exposed = median(one.exposed_us for one in with_some)
    yield (
        f"Collectives run for {time_text(us)} of a step ({share_text(us, found.step_us)}), "
        f"{time_text(exposed)} of it beside no other kernel."
    )


# The table ---------------------------------------------------------------------------------------


def table(found: Ranks) -> Table:
    """A row for each rank: what its step consists of; times in microseconds or milliseconds."""
    unit, scale = ("ms", 1e3) if found.step_us >= 1e4 else ("µs", 1.0)
    titles = [one.title for one in found.collectives[:COLUMNS]]
    made = FigureTable("", ["steps", *reversed(titles[1:]), "exposed"])
    columns = ("steps", f"step {unit}", "kernels", *titles, "exposed", "idle")
    made.add_column("rank", justify="right")
    for heading in (*columns, "waits", "waited for"):
        made.add_column(heading, justify="right", no_wrap=True)
    shown = sorted(found.most_waited_for(SHOWN), key=lambda one: one.number)
    for rank in shown:
        made.add_row(str(rank.number), *_cells(found, rank, scale))
    if len(shown) < len(found.ranks):
        made.add_row("…", f"{len(found.ranks) - len(shown)} more")
    return made


def _cells(found: Ranks, rank: RankStep, scale: float) -> Iterator[str]:
    def time(us: float | None) -> str:
        return "" if us is None else digits(us / scale, 4)

    yield str(rank.program.steps)
    yield time(rank.step_us)
    yield time(rank.kernels_us)
    for one in found.collectives[:COLUMNS]:
        yield time(one.us.get(rank.number))
    yield time(rank.exposed_us if rank.collectives_us else None)
    yield time(rank.idle_us)
    known = any(rank.number in one.waits_us for one in found.collectives)
    yield time(found.waits_us(rank.number)) if known else "–"
    yield time(found.caused_us(rank.number)) if known else "–"


def show(found: Ranks, screen: Console) -> None:
    """Print the sentences and the table, then the program as the rank that is waited for ran it."""
    for line in sentences(found):
        screen.print(line, markup=False, soft_wrap=not screen.is_terminal)
    if len(found.ranks) > 1:
        screen.print(table(found))
    rank = found.slowest
    screen.print(f"Rank {rank.number}:", markup=False)
    program.show(rank.run, screen)


# JSON --------------------------------------------------------------------------------------------


def to_json(found: Ranks) -> str:
    """Everything, for programs: times of one step in microseconds, unrounded."""
    content = {
        "sentences": list(sentences(found)),
        "size": found.size,
        "ranks": [_rank(found, one) for one in found.ranks],
        "collectives": [_collective(one) for one in found.collectives],
    }
    return as_json(content)


def _rank(found: Ranks, one: RankStep) -> dict[str, Any]:
    names = ("step_us", "kernels_us", "collectives_us", "exposed_us", "idle_us")
    figures = {name: getattr(one, name) for name in names}
    waiting = {"waits_us": found.waits_us(one.number), "caused_us": found.caused_us(one.number)}
    return {"rank": one.number, "steps": one.program.steps, **figures, **waiting}


def _collective(one: CollectiveTime) -> dict[str, Any]:
    names = ("launches", "us", "exposed_us", "waits_us", "caused_us")
    return {"title": one.title, "reason": one.reason, **{n: getattr(one, n) for n in names}}
