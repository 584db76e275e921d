"""``rooflab judge``: code that nobody trusts."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from rooflab.cli import app, console
from rooflab.cli.shared_options import OutFile, takes_problems
from rooflab.options import Chosen


@app.command()
@takes_problems
def judge(
    submission: Annotated[
        str, typer.Argument(metavar="SUBMISSION", help="A .py or .cu file, or mine.py:NAME.")
    ],
    *,
    chosen: Chosen,
    against: Annotated[
        str, typer.Option(help="Compare with this kernel, or with that of a file you trust.")
    ] = "",
    device: Annotated[str, typer.Option(help="auto, cuda:N or cpu.")] = "auto",
    timeout: Annotated[
        float, typer.Option(min=1, max=86400, help="Seconds in which each request must be done.")
    ] = 60.0,
    max_time: Annotated[
        float, typer.Option(min=1, max=864000, help="Seconds in which all must be judged.")
    ] = 1800.0,
    out: OutFile = "-",
) -> None:
    """Run a kernel that nobody trusts in a process of its own; say whether it is accepted, in JSON.

    Exit code 0: accepted; 3: refused, with the reason.
    """
    from rooflab import api
    from rooflab.cli.runs import refuse_unwritable, write_text

    refuse_unwritable(out)
    found = api.judge(
        submission,
        chosen.workload or "",
        device,
        against=against,
        timeout_s=timeout,
        max_time_s=max_time,
        note=console.note,
        **chosen.options,
    )
    if lacking := found.refused.lacking:
        console.warn(f"this system does not keep a submission from {', '.join(lacking)}")
    write_text(out, json.dumps(found.document, indent=2, allow_nan=False) + "\n")
    if not found.accepted:
        console.fail(f"refused: {found.reason}")
        raise typer.Exit(3)
