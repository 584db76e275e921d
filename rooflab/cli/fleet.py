"""``rooflab fleet``, and ``rooflab sweep --device all``: one sweep on many devices."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from rooflab.cli import app, console
from rooflab.cli.options import RESULTS, takes_a_sweep
from rooflab.options import Chosen, listed

HERE: Final = "here"

fleet = typer.Typer(help="One sweep on every GPU of many hosts.", no_args_is_help=True)
app.add_typer(fleet, name="fleet")


class FailOn(StrEnum):
    """What makes ``show`` fail."""

    outlier = "outlier"


@fleet.command("show")
def show(
    folder: Annotated[Path, typer.Argument(help="The fleet's folder.")],
    threshold: Annotated[
        float, typer.Option(min=0.0, max=100.0, help="Ignore smaller differences, in %.")
    ] = 1.0,
    json: Annotated[bool, typer.Option("--json", help="Write all figures as JSON.")] = False,
    fail_on: Annotated[
        FailOn | None, typer.Option(help="Exit with 3 if a member is slow or fast.")
    ] = None,
) -> None:
    """Show which member is slow, on which resource, and by how much."""
    from rooflab.cli import members
    from rooflab.fleet.text import to_json

    if not json and not members.measured(folder):
        raise typer.Exit(members.report(folder, threshold))
    found = members.judged(folder, threshold)
    if json:
        console.out().print(to_json(found), markup=False, soft_wrap=True)
        code = 0
    else:
        code = members.report(folder, threshold)
    accused = fail_on is not None and (found.outliers or found.outlying_spots)
    raise typer.Exit(3 if accused else code)


@fleet.command("sweep")
@takes_a_sweep
def sweep(
    *,
    chosen: Chosen,
    hosts: Annotated[str, typer.Option(help="Host names, separated by commas.")] = HERE,
    launch: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="How to reach a host: 'ssh {host}', for example."),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="A Ray cluster: ray://HOST:PORT, HOST:PORT, auto, or ray to start one here.",
        ),
    ] = None,
    python: Annotated[
        str, typer.Option(help="Python on the hosts; it must have rooflab.")
    ] = "python3",
    device: Annotated[
        str | None,
        typer.Option(help="all, cuda:N or cpu; several with commas.", show_default="all"),
    ] = None,
    phases: Annotated[
        str,
        typer.Option(
            help="alone (one device of a host at a time), together, pairs; several, with commas, "
            "show what neighbours cost."
        ),
    ] = "together",
    repeats: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=9,
            help="Processes on each device in the first phase; 3 or more show the noise.",
            show_default="1, or 3 alone before other phases",
        ),
    ] = None,
    mixed: Annotated[
        bool, typer.Option("--mixed", help="Allow other versions of rooflab on the hosts.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Parent of the fleet's folder.")] = RESULTS,
    resume: Annotated[
        Path | None, typer.Option(help="Measure what is left of this fleet's folder.")
    ] = None,
) -> None:
    """Measure the same kernels on every GPU of many hosts.

    Without --launch and --on, measure the devices of this machine. --launch starts processes only
    on the hosts of --hosts, --on on all nodes of the cluster or only on those of --hosts.
    """
    from rooflab.cli import members
    from rooflab.devices.open import ALL
    from rooflab.fleet.reach import reach

    command = ["rooflab", *sys.argv[1:]]
    devices = listed(device) if device else [] if resume else [ALL]
    names = listed(hosts) if hosts != HERE else []
    how = {"phases": listed(phases), "repeats": repeats, "mixed": mixed}
    with reach(launch, on, python, devices, names, **how) as wanted:
        code = members.measure(wanted, chosen, out, command, resume)
    raise typer.Exit(code)
