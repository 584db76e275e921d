"""``rooflab profile``: the roofline of a whole program."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from rooflab.cli import app, console
from rooflab.errors import UsageError

if TYPE_CHECKING:
    from rooflab.programs.profile import Profile


@app.command(context_settings={"allow_extra_args": True, "allow_interspersed_args": False})
def profile(
    context: typer.Context,
    program: Annotated[
        str,
        typer.Argument(
            metavar="PROGRAM [ARGUMENTS]",
            help="A Python script; torchrun and one, for a run of each rank; another program, "
            "which needs ncu; or what torch.profiler, nsys or ncu wrote.",
        ),
    ] = "",
    module: Annotated[
        bool, typer.Option("-m", help="PROGRAM is a module, as for python -m.")
    ] = False,
    steps: Annotated[int, typer.Option(min=0, help="Steps to use; 0: all that are found.")] = 0,
    skip: Annotated[int, typer.Option(min=0, help="Steps to leave out before them.")] = 0,
    inside: Annotated[
        str,
        typer.Option("--range", metavar="NAME", help="Only what is launched inside of this range."),
    ] = "",
    kernels: Annotated[
        str, typer.Option(metavar="REGEX", help="Count only kernels whose name contains this.")
    ] = "",
    counters: Annotated[
        bool | None,
        typer.Option(
            "--counters/--no-counters",
            help="Count FLOPs and bytes.",
            show_default="on; of several processes off",
        ),
    ] = None,
    roofs: Annotated[
        Path | None, typer.Option(metavar="RUN", help="For a file: a run of the GPU it is from.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the run folder is written.")] = Path("results"),
) -> None:
    """Show what a program's kernels could take at their roofs, and which owe the difference.

    A script runs as with python; its output and its exit code are its own.

    All kernels are timed, and when they repeat one launch of each is counted.
    """
    from rooflab.programs.launchers import launches_ranks, start_ranks
    from rooflab.programs.script import start

    try:
        re.compile(kernels)
    except re.error as error:
        raise UsageError(f"--kernels {kernels[:80]!r} is no regular expression: {error}") from None
    if module and not program:
        raise UsageError("name a module: rooflab profile -m MODULE")
    _writable(out)
    if launches_ranks(program):
        start_ranks(context.args, _own_words(context))
    if module or _is_python(program):
        options = {"module": module, "out": str(out), "counters": counters}
        options |= {"steps": steps, "skip": skip, "kernels": kernels, "inside": inside}
        start(program, context.args, options)
    from rooflab.api import load
    from rooflab.programs.imported import binary, imported

    known = load(roofs) if roofs else None
    if shutil.which(program) or shutil.which(str(Path(program).absolute())):
        if inside:
            raise UsageError("--range is for scripts and files: of other programs none is known")
        found, code = binary([program, *context.args], known)
    elif context.args:  # nobody else reads them
        raise UsageError(f"{' '.join(context.args)[:80]}: options stand before {program[:80]}")
    elif steps or skip or kernels or counters is False:
        raise UsageError(
            "--steps, --skip, --kernels and --no-counters are not for files, only for scripts"
        )
    else:
        found, code = imported(Path(program), known, inside), 0
    show(found, out)
    raise typer.Exit(code)


def show(found: Profile, out: Path) -> None:
    """Print what was found on stderr, where the program's own output is not, and write the run."""
    from rooflab.report.program import lines, table

    screen = console.err()
    screen.print()
    for line in lines(found):
        screen.print(line, markup=False, soft_wrap=True)
    screen.print(table(found))
    console.note(f"{found.save(out).path}/")


def show_ranks(folder: Path) -> None:
    """Print what all ranks of a program have found, in one piece."""
    from rooflab.fleet.ranks import load_ranks
    from rooflab.report import ranks

    screen = console.err()
    with screen:
        screen.print()
        ranks.show(load_ranks(folder), screen)
    console.note(f"{folder}/")


def _own_words(context: typer.Context) -> list[str]:
    """The options as they were typed, before the program."""
    flags = {"steps": "--steps", "skip": "--skip", "inside": "--range", "kernels": "--kernels"}
    flags["out"] = "--out"
    given = [name for name in flags if str(context.get_parameter_source(name)).endswith("LINE")]
    words = [word for name in given for word in (flags[name], str(context.params[name]))]
    counted = {True: ["--counters"], False: ["--no-counters"]}
    return [*words, *counted.get(context.params["counters"], [])]


def _writable(out: Path) -> None:
    """Raises ``UsageError`` if no folder can be made there: before the program runs."""
    there = next(one for one in (out, *out.absolute().parents) if one.exists())
    try:
        with TemporaryDirectory(dir=there):
            pass
    except OSError as error:
        raise UsageError(
            f"cannot write to {str(out)[:200]}: {error.strerror}; name a folder of yours"
        ) from None


def _is_python(program: str) -> bool:
    """Whether it is a script. Raises ``UsageError`` if it is nothing."""
    path = Path(program)
    if not program:
        raise UsageError("name a program: rooflab profile SCRIPT.py, or -m MODULE")
    if path.suffix == ".py":
        return True
    if not path.is_file():
        if shutil.which(program):
            return False
        what = "is no ordinary file" if path.exists() else "does not exist"
        raise UsageError(f"{program[:200]} {what}: name a script, a program or a profiler's file")
    with path.open("rb") as file:
        first = file.readline(200)
    return first.startswith(b"#!") and b"python" in first
