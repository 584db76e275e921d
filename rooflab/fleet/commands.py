"""``rooflab fleet``, and ``rooflab sweep --device all``: one sweep on many devices.

The command line loads this file for every command, so each command imports what it needs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from rooflab.cli import app, console
from rooflab.cli.shared_options import RESULTS, takes_a_sweep
from rooflab.errors import UsageError
from rooflab.options import Chosen, listed

if TYPE_CHECKING:
    from rooflab.fleet.launch import Setup

HERE: Final = "here"

fleet = typer.Typer(help="One sweep on every GPU of many hosts.", no_args_is_help=True)
app.add_typer(fleet, name="fleet")


@fleet.command("show")
def show(
    folder: Annotated[Path, typer.Argument(help="The fleet's folder.")],
    threshold: Annotated[
        float, typer.Option(min=0.0, max=100.0, help="Ignore smaller differences, in %.")
    ] = 1.0,
    json: Annotated[bool, typer.Option("--json", help="Write all figures as JSON.")] = False,
    fail_on: Annotated[
        Literal["outlier"] | None, typer.Option(help="Exit with 3 if a member is slow or fast.")
    ] = None,
) -> None:
    """Show which member is slow, on which resource, and by how much.

    Of a program's ranks: whom the others wait for, and in which collective.
    """
    from rooflab import api
    from rooflab.fleet import progress, record
    from rooflab.fleet.ranks import load_ranks
    from rooflab.fleet.runs import assess
    from rooflab.fleet.text import to_json
    from rooflab.report import ranks

    if json and record.load(folder).ranks:
        console.out().print(ranks.to_json(load_ranks(folder)), markup=False, soft_wrap=True)
        return
    found, code = None, 0
    if json or (progress.measured(folder) and not record.load(folder).ranks):
        found = assess(api.load_fleet(folder), threshold)
    if json and found:
        console.out().print(to_json(found), markup=False, soft_wrap=True)
    else:
        code = progress.report(folder, found)
    accused = fail_on and found and (found.outliers or found.outlying_spots)
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
    from rooflab.devices.registry import ALL
    from rooflab.fleet.session import reach

    devices = listed(device) if device else [] if resume else [ALL]
    names = listed(hosts) if hosts != HERE else []
    how = {"phases": tuple(listed(phases)), "repeats": repeats, "mixed": mixed}
    with reach(launch, on, python, devices, names, **how) as members:
        code = measure(members, chosen, out, resume)
    raise typer.Exit(code)


def sweep_here(chosen: Chosen, devices: str, out: Path, *, one_by_one: bool) -> int:
    """Measure on several devices of this machine; returns the exit code."""
    from rooflab.fleet.launch import ALONE, TOGETHER
    from rooflab.fleet.session import reach

    phase = ALONE if one_by_one else TOGETHER
    with reach(None, None, "python3", listed(devices), phases=(phase,)) as members:
        return measure(members, chosen, out)


def measure(members: Setup, chosen: Chosen, out: Path, folder: Path | None = None) -> int:
    """Measure, or the rest of ``folder``, and show the members; returns the exit code."""
    from rooflab import api
    from rooflab.fleet.progress import Members, report

    given = chosen.options
    if "threads" in given:
        if len(given["threads"]) > 1:
            raise UsageError("several devices take one number of --threads")
        (given["threads"],) = given["threads"]
    if folder and (given.keys() - {"kernels"} or chosen.workload or chosen.config != "default"):
        raise UsageError(
            "--resume uses the fleet's settings: the other options are --launch, --on, --hosts, "
            "--python, --device, --mixed, and --kernel with its kernel files"
        )
    command = ["rooflab", *sys.argv[1:]]
    watcher = Members()
    try:
        with watcher:
            api.measure_fleet(members, chosen, out, watcher, folder, command)
    except KeyboardInterrupt:
        console.ignore_interrupts()
        return 130
    return report(watcher.folder) if watcher.folder and watcher.folder.exists() else 1
