"""Races of devices, a sentence each: for the terminal, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from rooflab.model.problem import NOWHERE
from rooflab.report import markdown
from rooflab.report.export import values
from rooflab.report.text import as_json, digits, precision_title
from rooflab.runs.races import Duel, Race

MOST_SIZES: Final = 8
"""Sizes that a sentence names one by one."""


def sentence(race: Race) -> str:
    """``gemm FP32, layout nn, without transfers: H200 beats EPYC (2 threads) from 512 on; …``."""
    where = "without transfers" if race.host == NOWHERE else f"with {race.host} host memory"
    problem = f"{race.workload} {precision_title(race.precision)}"
    title = ", ".join(filter(None, [problem, race.about, where if race.host else ""]))
    parts = [_claim(race), _even(race), _at_the_largest(race)]
    return f"{title}: {'; '.join(filter(None, parts))}."


def _claim(race: Race) -> str:
    duels, wins, names = race.duels, race.wins, f"{race.new} beats {race.base}"
    largest, everywhere = duels[-1].size, _everywhere(duels)
    if all(duel.even for duel in duels):
        return f"{race.new} and {race.base} are even {everywhere}"
    if all(duel.slower for duel in duels):
        return f"{race.new} is slower than {race.base} {everywhere}"
    if len(wins) == len(duels):
        return f"{names} {everywhere}"
    if not wins:
        return f"{names} at none of the sizes measured on both ({duels[0].size} to {largest})"
    if start := race.faster_from:
        return f"{names} " + (
            f"only at {largest}, the largest size" if len(wins) == 1 else f"from {start.size} on"
        )
    return f"{names} only at {_sizes(wins)}"


def _everywhere(duels: Sequence[Duel]) -> str:
    first, last = duels[0].size, duels[-1].size
    if len(duels) == 1:
        return f"at {first}, the only size measured on both"
    return f"at every size measured on both ({first} to {last})"


def _sizes(duels: Sequence[Duel]) -> str:
    """``64, 128 and 512``; the smallest ones if there are too many."""
    names = [duel.size for duel in duels[:MOST_SIZES]]
    if rest := len(duels) - len(names):
        return f"{', '.join(names)} and {rest} larger size{'s' * (rest != 1)}"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _even(race: Race) -> str:
    even = [duel for duel in race.duels if duel.even]
    return f"they are even at {_sizes(even)}" if 0 < len(even) < len(race.duels) else ""


def _at_the_largest(race: Race) -> str:
    """By how much NEW is faster or slower at the largest size."""
    last = race.duels[-1]
    if last.even:
        return ""
    where = "" if len(race.duels) == 1 else f"at {last.size} "
    if last.faster:
        return f"{where}it is {_times(last.ratio)} times as fast"
    return f"{where}it takes {_times(1 / last.ratio)} times as long"


def _times(ratio: float) -> str:
    return digits(ratio, 2 if ratio >= 1.1 else 4)


def races_text(races: Sequence[Race]) -> str:
    """A sentence per line."""
    return "".join(f"{sentence(race)}\n" for race in races)


def races_markdown(races: Sequence[Race], escape: markdown.Escape = markdown.escape) -> str:
    """A list of sentences."""
    return markdown.bullets(map(sentence, races), escape)


def races_json(races: Sequence[Race]) -> str:
    """Every figure, for programs: whole rows of both devices at each size, unrounded."""
    content: list[dict[str, Any]] = [
        {
            "base": race.base,
            "new": race.new,
            "workload": race.workload,
            "precision": race.precision,
            "about": race.about,
            "host": race.host,
            "sentence": sentence(race),
            "faster_from": start.size if (start := race.faster_from) else None,
            "sizes": [
                {
                    "size": duel.size,
                    "verdict": "faster" if duel.faster else "slower" if duel.slower else "even",
                    "ratio": duel.ratio,
                    "base": values(duel.base),
                    "new": values(duel.new),
                }
                for duel in race.duels
            ],
        }
        for race in races
    ]
    return as_json(content)


RACE_EXPORTERS: Final[dict[str, Callable[[Sequence[Race]], str]]] = {
    "markdown": races_markdown,
    "json": races_json,
    "github": partial(races_markdown, escape=markdown.escape_for_github),
}
