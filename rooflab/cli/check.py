"""The command ``rooflab check``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from rooflab.cli import app, console
from rooflab.errors import UsageError
from rooflab.files import kernels_dir

if TYPE_CHECKING:
    from rooflab.kernels.cuda_file.check import Build
    from rooflab.kernels.cuda_file.kernel import CudaFile


@app.command()
def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help=".cu files.")],
    arch: Annotated[
        str | None,
        typer.Option(help="Architectures such as 9.0,sm_80. Default: 8.0, 9.0, 10.0, 12.0."),
    ] = None,
    compiler: Annotated[str, typer.Option(help="nvrtc, nvcc, or auto: nvcc if there is one.")] = (
        "auto"
    ),
) -> None:
    """Compile .cu files without a GPU; show registers, spills, occupancy and launch errors."""
    from rooflab.devices.cuda.nvcc import CompilerSetting, choose
    from rooflab.kernels.cuda_file.check import open_file

    settings = get_args(CompilerSetting)
    if compiler not in settings:
        raise UsageError(
            f"--compiler {compiler[:40]!r}: type {', '.join(settings[:-1])} or {settings[-1]}"
        )
    for file in files:
        if file.suffix != ".cu":
            raise UsageError(
                f"{str(file)[:200]} is not a .cu file: give the path of one (those of rooflab are "
                f"in {kernels_dir()})"
            )
    choice = choose(cast("CompilerSetting", compiler), None)
    opened = [open_file(file, choice.users) for file in files]
    if choice.note and not all(file.header.needs for file in opened):
        console.note(choice.note)
    good = [_print(file, arch) for file in opened]
    if not all(good):
        raise typer.Exit(1)
    console.out().print("Spills per thread and shared memory per block are in bytes.")


def _print(file: CudaFile, arch: str | None) -> bool:
    """Compile a file and print what the compiler says.

    Returns whether all of it compiles, and a variant for each precision can be launched.
    """
    from rooflab.kernels.cuda_file.check import builds, capabilities

    out, header = console.out(), file.header
    archs = capabilities(file, arch.split(",") if arch else [])
    entry = f"launcher {header.launcher}" if header.launcher else ""
    entry = f"entry {header.entry}" if header.entry else entry
    facts = filter(None, (header.workload, entry, file.compiler_title(), *header.options))
    out.print(f"{file.source}: {', '.join(facts)}", markup=False, soft_wrap=True)
    errors: dict[str, None] = {}
    usable = True
    for capability in archs:
        with console.err().status(f"compiling for {capability}"):
            found = list(builds(file, capability))
        good = [build for build in found if not build.error]
        for variant in dict.fromkeys(build.variant for build in good):
            title = f"compute capability {capability}{f', {variant}' if variant else ''}"
            out.print(_table(title, [build for build in good if build.variant == variant]))
        for text in dict.fromkeys(text for build in found for text in build.warnings):
            out.print(text, markup=False, soft_wrap=True)
        errors |= dict.fromkeys(build.error for build in found if build.error)
        usable &= {build.precision for build in good} == {build.precision for build in found}
        usable &= all(build.compiled for build in found)
    for text in errors:
        out.print(text, markup=False, soft_wrap=True)
    return usable


def _table(title: str, found: Sequence[Build]) -> Table:
    from rooflab.report.fitting import Fitting

    spare = ("limit", "warps", "threads", "blocks/SM")
    table = Fitting(spare=spare, box=box.SIMPLE_HEAD, title=escape(title), title_justify="left")
    table.add_column("precision", no_wrap=True)
    for name in ("threads", "regs", "spills", "shared", "blocks/SM", "warps"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("limit", no_wrap=True)
    for build in found:
        fits = build.occupancy
        table.add_row(
            *(build.precision, str(build.threads or "–"), str(build.registers)),
            f"[yellow]{build.spill_bytes}[/]" if build.spill_bytes else "0",
            str(build.shared_bytes),
            *((str(fits.blocks), f"{fits.percent:.0f} %", fits.limit) if fits else ("–", "–", "")),
        )
    return table
