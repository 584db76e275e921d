"""Random mutants of the core: does a default test notice each change?

    pip install cosmic-ray
    python benchmarks/mutants.py --count 300 --seed 1 --out results/benchmarks/mutants.md

Draws places in the modules of ``mutants.toml`` at random and one of cosmic-ray's operators for each
(a number, an operator, a condition, a decorator, a loop), and applies it in a copy of the tree. It
runs the tests beside the module and, if they pass, the wider set: a mutant that passes both has
survived. ``mutants.toml`` explains survivors that are equivalent or not worth a test: they count as
such, and do not run again. ``--state`` keeps results, so that an interrupted run goes on where it
was.

PASS: at least 92 % are killed, and every survivor is explained.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SETTINGS = Path(__file__).with_suffix(".toml")
WANTED_PERCENT = 92.0
LIMIT_S = 600.0

Position = tuple[int, int]


@dataclass(frozen=True)
class Mutant:
    """One change: ``before`` and ``after`` are the lines that it changes."""

    module: str
    operator: str
    line: int
    before: str
    after: str


@dataclass(frozen=True)
class Settings:
    """The tests beside each module, the wider set, and the survivors that are explained.

    ``exclude`` matches the names of operators that are not drawn.
    """

    modules: dict[str, list[str]]
    wider: list[str]
    exclude: str
    explained: dict[tuple[str, str, str], str] = field(default_factory=dict)

    @classmethod
    def load(cls) -> Settings:
        data = tomllib.loads(SETTINGS.read_text(encoding="utf-8"))
        reasons = {
            (entry["module"], entry["before"], after): entry["why"]
            for entry in data.get("explained", ())
            for after in entry["after"]
        }
        return cls(data["modules"], data["wider"], data["exclude"], reasons)

    def why(self, mutant: Mutant) -> str:
        return self.explained.get((mutant.module, mutant.before, mutant.after), "")


# Drawing -----------------------------------------------------------------------------------------


def never_run(source: str) -> list[tuple[Position, Position]]:
    """Annotations: ``from __future__ import annotations`` leaves them text."""
    spans = []
    for node in ast.walk(ast.parse(source)):
        for name in ("annotation", "returns"):
            if isinstance(hint := getattr(node, name, None), ast.expr):
                assert hint.end_lineno is not None and hint.end_col_offset is not None
                start, end = (hint.lineno, hint.col_offset), (hint.end_lineno, hint.end_col_offset)
                spans.append((start, end))
    return spans


def places(source: str, exclude: str) -> dict[Position, list[tuple[Any, int]]]:
    """By place: the operators that can change it, each with the number of its occurrence."""
    from cosmic_ray import plugins
    from cosmic_ray.ast import ast_nodes, get_ast

    tree, hints = get_ast(source), never_run(source)
    found: dict[Position, list[tuple[Any, int]]] = {}
    for name in sorted(plugins.operator_names()):
        kind = plugins.get_operator(name)
        if kind.arguments() or re.fullmatch(exclude, kind.__name__):
            continue
        operator = kind()
        positions = [
            start for node in ast_nodes(tree) for start, _ in operator.mutation_positions(node)
        ]
        for occurrence, start in enumerate(positions):
            if not any(first <= start < last for first, last in hints):
                found.setdefault(start, []).append((operator, occurrence))
    return found


def changed(source: str, operator: Any, occurrence: int) -> str:
    """The new source; empty if it would be no program, as with ``2**not 6``."""
    from cosmic_ray.mutating import mutate_code

    with suppress(AttributeError, SyntaxError):  # it cannot replace ``module.Error``
        made = str(mutate_code(source, operator, occurrence))
        ast.parse(made)
        return made
    return ""


def draw(
    modules: Sequence[str], exclude: str, count: int, seed: int
) -> Iterator[tuple[Mutant, str]]:
    """``count`` mutants with the module's new source, each at another place."""
    sources = {module: (ROOT / module).read_text(encoding="utf-8") for module in modules}
    known = {module: places(source, exclude) for module, source in sources.items()}
    everywhere = [(module, place) for module in modules for place in sorted(known[module])]
    chance = random.Random(seed)
    chance.shuffle(everywhere)
    for module, place in everywhere:
        operator, occurrence = chance.choice(known[module][place])
        source = changed(sources[module], operator, occurrence)
        if count and source:
            count -= 1
            before, after = difference(sources[module], source)
            yield Mutant(module, type(operator).__name__, place[0], before, after), source


def difference(before: str, after: str) -> tuple[str, str]:
    """The lines that differ, each side as one line."""
    lines = list(difflib.ndiff(before.splitlines(), after.splitlines()))
    sides = ([line[2:].strip() for line in lines if line.startswith(mark)] for mark in "-+")
    gone, came = (" ".join(side) for side in sides)
    return gone, came


# Running -----------------------------------------------------------------------------------------


def copy_tree(target: Path) -> None:
    """What git knows, and what is new and not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name)


def passes(tree: Path, tests: Iterable[str]) -> bool:
    """Whether all tests pass in time, in the copy."""
    environment = os.environ | {"PYTHONPATH": str(tree), "ROOFLAB_CACHE_DIR": str(tree / "cache")}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    with subprocess.Popen(
        [*command, "--timeout", "60", *tests],
        cwd=tree,
        env=environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            return process.wait(LIMIT_S) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            stop(process.pid)


def stop(group: int) -> None:
    """End what a broken program may have left behind."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def check_tests(tree: Path, settings: Settings, quick: bool) -> None:
    """Exit if a test fails without a mutant."""
    beside = [test for tests in settings.modules.values() for test in tests]
    if not passes(tree, dict.fromkeys([*beside, *([] if quick else settings.wider)])):
        sys.exit("tests fail without a mutant")


def verdict(tree: Path, mutant: Mutant, source: str, settings: Settings, quick: bool) -> str:
    """``beside`` or ``wider``, which tests killed it, or ``survived``."""
    path = tree / mutant.module
    original = path.read_text(encoding="utf-8")
    # A file of the same size and second would run as it was compiled before.
    compiled = Path(importlib.util.cache_from_source(str(path)))
    try:
        path.write_text(source, encoding="utf-8")
        compiled.unlink(missing_ok=True)
        if not passes(tree, settings.modules[mutant.module]):
            return "beside"
        if quick or passes(tree, settings.wider):
            return "survived"
        return "wider"
    finally:
        path.write_text(original, encoding="utf-8")
        compiled.unlink(missing_ok=True)


# Reporting ---------------------------------------------------------------------------------------


def commit(settings: Settings) -> str:
    """The last commit that changed a module: the places of other commits may differ."""
    command = ["git", "log", "-1", "--format=%h", "--", *settings.modules]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def report(found: Mapping[Mutant, str], settings: Settings, seed: int) -> tuple[str, bool]:
    """The page, and whether the tests are good enough."""
    killed = sum(outcome != "survived" for outcome in found.values())
    share = 100 * killed / len(found)
    survivors = [mutant for mutant, outcome in found.items() if outcome == "survived"]
    unexplained = [mutant for mutant in survivors if not settings.why(mutant)]
    lines = [
        "# Mutants of the core",
        "",
        f"`python benchmarks/mutants.py --count {len(found)} --seed {seed}`",
        f"with the modules as they are since commit {commit(settings)}",
        "",
        "| module | mutants | killed by the tests beside it | by others | survived |",
        "| :-- | --: | --: | --: | --: |",
    ]
    for module in dict.fromkeys(mutant.module for mutant in found):
        mine = [outcome for mutant, outcome in found.items() if mutant.module == module]
        counts = [mine.count(outcome) for outcome in ("beside", "wider", "survived")]
        lines.append(f"| {module} | {len(mine)} | {' | '.join(map(str, counts))} |")
    lines += ["", "## Survivors", "", "| module | line | before | after | why |"]
    lines += ["| :-- | --: | :-- | :-- | :-- |"]
    for one in sorted(survivors, key=lambda mutant: (mutant.module, mutant.line)):
        before, after = (
            f"`{text.replace('|', chr(92) + '|')}`" for text in (one.before, one.after)
        )
        lines.append(f"| {one.module} | {one.line} | {before} | {after} | {settings.why(one)} |")
    passed = share >= WANTED_PERCENT and not unexplained
    lines += [
        "",
        f"{'PASS' if passed else 'FAIL'}: {killed} of {len(found)} mutants killed, {share:.1f} %; "
        f"{len(survivors)} survived, {len(unexplained)} of them unexplained.",
    ]
    return "\n".join(lines) + "\n", passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=300, help="mutants to draw")
    parser.add_argument("--seed", type=int, default=1, help="of the draw")
    parser.add_argument("--module", action="append", help="only these modules of mutants.toml")
    parser.add_argument("--quick", action="store_true", help="only the tests beside the module")
    parser.add_argument("--state", type=Path, help="a file that keeps results, to go on with")
    parser.add_argument("--out", type=Path, help="the page to write")
    given = parser.parse_args()
    settings = Settings.load()
    modules = given.module or list(settings.modules)
    drawn = list(draw(modules, settings.exclude, given.count, given.seed))
    known = recall(given.state)
    # As they did when they were explained.
    known |= {mutant: "survived" for mutant, _ in drawn if settings.why(mutant)}
    found: dict[Mutant, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copy_tree(tree)
        if any(mutant not in known for mutant, _ in drawn):
            check_tests(tree, settings, given.quick)
        for number, (mutant, source) in enumerate(drawn, 1):
            if mutant not in known:
                known[mutant] = verdict(tree, mutant, source, settings, given.quick)
                remember(given.state, mutant, known[mutant])
            found[mutant] = known[mutant]
            print(
                f"{number}/{len(drawn)} {found[mutant]}: {mutant.module}:{mutant.line} "
                f"{mutant.before} → {mutant.after}",
                file=sys.stderr,
                flush=True,
            )
    page, passed = report(found, settings, given.seed)
    if given.out:
        given.out.write_text(page, encoding="utf-8")
    print(page)
    sys.exit(not passed)


def recall(state: Path | None) -> dict[Mutant, str]:
    if state is None or not state.exists():
        return {}
    entries = [json.loads(line) for line in state.read_text(encoding="utf-8").splitlines()]
    return {Mutant(**entry["mutant"]): entry["outcome"] for entry in entries}


def remember(state: Path | None, mutant: Mutant, outcome: str) -> None:
    if state is not None:
        with state.open("a", encoding="utf-8") as file:
            print(json.dumps({"mutant": asdict(mutant), "outcome": outcome}), file=file)


if __name__ == "__main__":
    main()
