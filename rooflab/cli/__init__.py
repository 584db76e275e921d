"""The command line: parses arguments, calls the library, prints the results.

Each command imports what it needs, so that ``rooflab --help`` is fast.
"""

from __future__ import annotations

import errno
import os
import sys
from copy import copy
from functools import cache
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer

from rooflab.errors import RooflabError
from rooflab.version import __version__

app = typer.Typer(
    help="How close is a kernel to what this machine can do, and what holds it back?\n\n"
    "Start with: rooflab sweep --kernel tiled",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line. An error prints one line and sets the exit code.

    0 success, 1 failure, 2 wrong usage, 3 wrong kernel or regression, 130 interrupted.
    """
    from rooflab.cli import console

    arguments = sys.argv[1:] if arguments is None else arguments
    # Figures go to files: no window is opened, whatever a notebook has set for its processes.
    if arguments[:1] != ["profile"]:  # whose program has its own
        os.environ["MPLBACKEND"] = "agg"
    console.prepare()
    console.end_like_ctrl_c()
    try:
        code = _run([word for word in arguments if word != "--debug"])
        sys.stdout.flush()
        if code == 130 and arguments[:1] != ["profile"] and not console.ignores_interrupts():
            raise KeyboardInterrupt  # of which Typer has made a code
    except RooflabError as error:
        if "--debug" in arguments:
            raise
        console.fail(str(error))
        code = error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        console.ignore_interrupts()
        console.fail("interrupted")
        code = 130
    except OSError as error:
        code = 2 if error.errno == errno.ENAMETOOLONG else 1  # a name that was typed
        console.silence("stdout")  # it would fail again when Python exits
        # No message if the reader of stdout (head, less) has ended.
        if not isinstance(error, BrokenPipeError):
            if "--debug" in arguments:
                raise
            console.fail(f"{str(error.filename or 'output')[:200]}: {error.strerror or error}")
    except Exception as error:
        if "--debug" in arguments:
            raise
        console.fail(f"unexpected {type(error).__name__}: {error} (for the traceback add --debug)")
        code = 1
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    from rooflab.cli import console

    command = _command(next((word for word in arguments if not word.startswith("-")), ""))
    try:
        code = command.main(arguments, prog_name="rooflab", standalone_mode=False)
    except Exception as error:
        # Typer's errors have this method; their module has no public name.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # type: ignore[attr-defined]
            return 2
        context = getattr(error, "ctx", None)
        where = f" (see: {context.command_path} --help)" if context else ""
        text = message().rstrip(".").replace("Value error, ", "")  # Pydantic's words
        console.fail(f"{text}{where}")
        return 2
    return code if isinstance(code, int) else 0


@cache
def _command(asked: str) -> Any:
    """The command line, of which only the command that is asked for has its options.

    To make those of all takes longer than to show what there is.
    """
    # Importing adds commands, in this order.
    for module in (
        "cli.sweep",
        "cli.bench",
        "cli.profile",
        "fleet.commands",
        "cli.runs",
        "cli.check",
        "cli.judge",
        "cli.model",
        "cli.machine",
    ):
        import_module(f"rooflab.{module}")
    return typer.main.get_command(_with_options_of(asked, app))


def _with_options_of(asked: str, every: typer.Typer) -> typer.Typer:
    """These commands, each but one without options."""
    shown = copy(every)
    shown.registered_commands = [_shown(one, asked) for one in every.registered_commands]
    shown.registered_groups = [copy(one) for one in every.registered_groups]
    for group in shown.registered_groups:
        if group.name != asked and group.typer_instance:
            group.typer_instance = _with_options_of("", group.typer_instance)
    return shown


def _shown(one: typer.models.CommandInfo, asked: str) -> typer.models.CommandInfo:
    callback = one.callback
    assert callback
    name = one.name or typer.main.get_command_name(callback.__name__)
    if name == asked:
        return one

    def nothing() -> None: ...

    nothing.__doc__ = callback.__doc__
    without = copy(one)
    without.name, without.callback = name, nothing
    return without


def _version(wanted: bool) -> None:
    if wanted:
        print(f"rooflab {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    pass
