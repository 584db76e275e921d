"""Fill the generated parts of the docs from results/: ``python docs/generate.py [--check]``."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Set
from dataclasses import replace
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
from _ladder import by_card, newest_first, summary
from terminal import recording

from rooflab.files import kernel_name
from rooflab.fleet import record as fleet_record
from rooflab.fleet.interference import costs
from rooflab.fleet.runs import load_fleet
from rooflab.fleet.text import cost_interval, resource_title, signed
from rooflab.kernels.cuda_file.header import read_header
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.report.html.page import to_html
from rooflab.report.races import races_markdown
from rooflab.report.text import digits
from rooflab.runs.manifest import MANIFEST
from rooflab.runs.races import races
from rooflab.runs.store import Run, load

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
MEASUREMENT = ROOT / "docs" / "measurement.md"
TRANSFERS = ROOT / "docs" / "transfers.md"
ROOFLINE = ROOT / "docs" / "roofline.md"
GALLERY = ROOT / "docs" / "gallery.md"
KERNELS = ROOT / "docs" / "kernels.md"


def reference(kernel: str, *, without: str = "") -> Run:
    """The newest committed run of ``kernel`` on a GPU, and ``without`` another kernel.

    They are called ``WORKLOAD/NAME``.
    """
    fitting = [
        run
        for run in committed()
        if run.manifest.device.kind == "cuda"
        and kernel in run.manifest.kernels
        and without not in run.manifest.kernels
    ]
    return max(fitting, key=lambda run: run.manifest.created)


def size_of(run: Run) -> int:
    """How many rows have figures."""
    return len(run.ok)


@cache
def committed() -> list[Run]:
    """The runs in results/, by folder."""
    return [load(path.parent) for path in sorted((ROOT / "results").glob(f"*/{MANIFEST}"))]


def pays() -> str:
    """The newest GPU run with pageable operands, against the runs of CPUs."""
    pageable = [
        run for run in committed() if any("pageable" in row.problem.about for row in run.ok)
    ]
    cpus = [run for run in committed() if run.manifest.device.kind == "cpu"]
    runs = [*cpus, pageable[-1]]
    folders = ", ".join(f"[`{run.path.name}`](results/{run.path.name})" for run in runs)
    return f"{races_markdown(races(runs))}\nFrom {folders}."


def transfers() -> str:
    """The best share of each workload, as benchmarks/transfers.py judged it, and the pictures."""
    names = {"workload": "", "kernel": "kernel", "size": "size", "what": "what", "found": "share"}
    rows = [row for row in report("transfers") if "roof" in row["what"]]
    lines = [list(names.values()), [":--"] * 4 + ["--:"]]
    lines += [[row[name] for name in names] for row in rows]
    run = reference("spectrum/cublas_cufft")
    pictures = [f"![{PICTURES[name]}]({run.path.relative_to(ROOT)}/{name}.png)" for name in DRAWN]
    return "\n\n".join([markdown(lines), origin(run), *pictures])


DRAWN = ("transfers", "timeline")


def large() -> str:
    """The largest streamed problem."""
    runs = [run for run in committed() if any(row.problem.streamed for row in run.ok)]
    rows = {row.bytes or 0: (row, run) for run in runs for row in run.ok if row.problem.streamed}
    row, run = rows[max(rows)]
    figures = (
        *(digits((row.bytes or 0) / 1e9, 3), digits((row.time_us or 0) / 1e6, 3)),
        *(digits(row.gbps, 3), digits(row.roof_percent, 3)),
    )
    head = ["size", "GB over the link", "seconds", "GB/s", "% of roof"]
    lines = [head, [":--", *["--:"] * 4], [row.problem.size, *figures]]
    return f"{markdown(lines)}\n\n{origin(run)}"


def gpus() -> str:
    """What benchmarks/several_gpus.py found, the rates of the links, and the picture."""
    rows = report("several_gpus")
    lines = [["what", "found", "limit"], [":--", "--:", ":--"]]
    lines += [[row["what"], row["found"], row["limit"]] for row in rows]
    links = (ROOT / "results" / "benchmarks" / "links_two_gpus.txt").read_text(encoding="utf-8")
    run = reference("allreduce/nccl")
    picture = f"![Two GPUs against one]({run.path.relative_to(ROOT)}/scaling.png)"
    told = f"`rooflab devices --links`:\n\n```text\n{links.rstrip()}\n```"
    return "\n\n".join([markdown(lines), told, origin(run), picture])


def phases() -> str:
    """What neighbours cost in the newest committed fleet."""
    folder = max((ROOT / "results").glob("*/fleet.json")).parent
    found = [one for one in costs(load_fleet(folder)) if one.phase == "together"]
    members = fleet_record.load(folder).members.values()
    names = {one.name: f"GPU {one.device.removeprefix('cuda:')}" for one in members}
    order = list(dict.fromkeys(one.resource for one in found))
    found = sorted(found, key=lambda one: (order.index(one.resource), names[one.member]))
    head = ["resource", "member", "time %", "interval %", "MHz", "alone"]
    lines = [head, [":--"] * 2 + ["--:"] * 4]
    for one in found:
        sensors = (one.mhz, one.alone_mhz)
        texts = ["–" if value is None else f"{value:.0f}" for value in sensors]
        change = signed(one.difference)
        name, title = names[one.member], resource_title(one.resource)
        lines.append([title, name, change, cost_interval(one), *texts])
    place = folder.relative_to(ROOT)
    return f"{markdown(lines)}\n\nFrom [`{place}`]({place})."


def roofline(run: Run) -> str:
    name = run.manifest.device.name
    return f"![Rooflines of {name}]({run.path.relative_to(ROOT)}/roofline.png)\n\n{origin(run)}"


def example(run: Run) -> str:
    """Intensity, roof and share of it of cuBLAS in FP32, by size."""
    rows = [row for row in run.ok if (row.kernel, row.problem.precision) == ("cublas", "fp32")]
    lines = [
        ["n", "FLOP/B", "`bound`", "TFLOP/s", "% of roof"],
        ["--:", "--:", ":--", "--:", "--:"],
    ]
    for row in sorted(rows, key=size):
        figures = (digits(row.tflops, 3), digits(row.roof_percent, 3))
        lines.append([row.problem.size, digits(row.intensity, 4), f"`{row.bound}`", *figures])
    ridge = digits(run.manifest.roofline.ridge("fp32"), 3)
    return f"{markdown(lines)}\n\nThe ridge is at {ridge} FLOP/B. {origin(run)}"


PICTURES = {
    "roofline": "Roofline",
    "size": "FLOP/s and GB/s by size",
    "transfers": "GB/s over the host link by the size of a chunk",
    "timeline": "Timeline of one launch",
    "scaling": "Several GPUs",
}


def gallery() -> str:
    """The pictures of every committed run, newest first, and of the reports."""
    newest = sorted(committed(), key=lambda run: run.manifest.created, reverse=True)
    parts = []
    for run in newest:
        folder = run.path.relative_to(ROOT)
        device, workloads = run.manifest.device.name, ", ".join(run.manifest.workloads)
        when = f"{run.manifest.created:%Y-%m-%d %H:%M}"
        parts.append(f"## {workloads} on {device}, {when}\n\n{origin(run)}")
        parts += [
            f"![{title}, {device}]({folder}/{name}.png)"
            for name, title in PICTURES.items()
            if (run.path / f"{name}.png").exists()
        ]
    parts.append("## From counted bytes\n\n`python benchmarks/counters.py`, on one NVIDIA H200.")
    parts.append("![A roof per memory level](results/benchmarks/levels.png)")
    return "\n\n".join(parts)


def origin(run: Run) -> str:
    folder, manifest = run.path.relative_to(ROOT), run.manifest
    count = {1: "one", 2: "two"}[max(row.problem.gpus for row in run.measurements)]
    command = re.sub(r" --out \S+", "", " ".join(manifest.command))  # where it was, not what
    command = command or "rooflab.sweep(…)"  # from Python
    return (
        f"`{command}` on {count} {manifest.device.name}, "
        f"{manifest.created:%Y-%m-%d}; files in [`{folder}`]({folder})."
    )


LADDERS = {
    "simt": ("fp32", range(1, 20)),
    "mma": ("bf16", range(20, 21)),
    "hopper": ("bf16", range(21, 40)),
    "split": ("fp32_3xtf32", range(20, 40)),
    "dmma": ("fp64", range(29, 30)),
}
"""The parts of docs/kernels.md: a precision, and rungs."""

LADDER_SIZES = ("4096", "8192")
LIBRARIES = ("cublas", "cublaslt")
LIBRARY_PRECISION = {"fp32_3xtf32": "fp32"}
"""In which precision the libraries are compared, where they lack the kernel's."""


def rungs(precision: str, numbers: range) -> str:
    """Each rung with its idea, and its figures from the run that has the most rungs.

    A rung that this one lacks has those of another run. A dash without a run.
    """
    head = ["rung", "teaches", *(f"{n}: TFLOP/s" for n in LADDER_SIZES)]
    line = [":--", ":--", *["--:"] * len(LADDER_SIZES)]
    headers = {path: read_header(path) for path in (ROOT / "kernels" / "gemm").rglob("*.cu")}
    ladder = [
        (header.rung, path, header.teaches)
        for path, header in headers.items()
        if header.rung in numbers and precision in header.precisions
    ]
    runs = by_rungs({kernel_name(path) for _, path, _ in ladder}, precision)
    found = []
    for _, path, teaches in sorted(ladder):
        name = kernel_name(path)
        figures = [of_the_library(name, precision, n, tflops, runs) for n in LADDER_SIZES]
        found.append([f"[`{name}`](../{path.relative_to(ROOT)})", teaches, *figures])
    return markdown([head, line, *found])


def by_rungs(kernels: Set[str], precision: str) -> list[Run]:
    """Runs, first those with the most of these kernels in a precision, of them the newest."""

    def most(run: Run) -> int:
        return len({row.kernel for row in run.ok if row.problem.precision == precision} & kernels)

    return sorted(committed(), key=lambda run: (most(run), run.manifest.created), reverse=True)


def tflops(row: Measurement) -> float:
    return row.tflops


def of_the_library(
    kernel: str,
    precision: str,
    size: str,
    figure: Callable[[Measurement], float],
    runs: Iterable[Run],
) -> str:
    """A figure of the first run that has the kernel, and the ratio to the run's faster library."""
    of_library = LIBRARY_PRECISION.get(precision, precision)
    for run in runs:
        rows = {
            (row.kernel, row.problem.precision): row
            for row in sorted(run.ok, key=lambda row: -(row.time_us or 0))  # the fastest stays
            if (row.problem.workload, row.problem.size) == ("gemm", size)
        }
        libraries = [row for n in LIBRARIES if (row := rows.get((n, of_library)))]
        best = min((row.time_us or 0 for row in libraries), default=None)
        if (row := rows.get((kernel, precision))) and row.time_us:
            share = best / row.time_us if best else None
            ratio = f" ({share:.{2 + (share > 1)}g} of the library)" if share else ""
            return f"{digits(figure(row), 3)}{ratio}"
    return "–"


DECODE = {"few_rows": "1x", "skinny": "64x"}
"""Kernels for few rows, and how their shapes in configs/llm.toml begin."""

DECODE_PRECISIONS = ("fp16", "bf16")


def decode() -> str:
    """The shapes of decoding: TB/s of operands, and the ratio to the faster library."""
    config = tomllib.loads((ROOT / "configs" / "llm.toml").read_text(encoding="utf-8"))
    titles = [f"{PRECISIONS[name].title}: TB/s" for name in DECODE_PRECISIONS]
    lines = [["kernel", "M x N x K", *titles], [":--", ":--", *("--:" for _ in titles)]]
    for kernel, rows in DECODE.items():
        for shape in (one for one in config["shapes"] if one.startswith(rows)):
            figures = [
                of_the_library(
                    kernel, name, shape, lambda row: row.gbps / 1000, by_rungs({kernel}, name)
                )
                for name in DECODE_PRECISIONS
            ]
            lines.append([f"`{kernel}`", shape, *figures])
    return markdown(lines)


CYCLES = ("µs", "MHz", "thousand cycles", "% of the roof at that clock")


def cycles(row: Measurement) -> list[str]:
    """A kernel, and what ``CYCLES`` names."""
    assert row.time_us and row.sm_mhz
    figures = (row.time_us, row.sm_mhz, row.time_us * row.sm_mhz / 1e3, row.observed_percent)
    return [f"`{row.kernel}`", row.variant, *(digits(figure, 4) for figure in figures)]


def cycle_table(problem: list[str], rows: list[list[str]]) -> str:
    """``rows`` of what names a problem, and of ``cycles``."""
    titles = [*problem, "kernel", "variant"]
    return markdown([[*titles, *CYCLES], [":--"] * len(titles) + ["--:"] * len(CYCLES), *rows])


def bounds() -> str:
    """What products need: ``champion`` and the library in the newest run of all sizes, BF16, nt."""
    runs = filter(has_bounds, committed())
    run = max(runs, key=lambda run: (sizes_of(run), run.manifest.created))
    rows = [[row.problem.size, *cycles(row)] for row in filter(bounded, run.ok)]
    return f"{cycle_table(['size'], rows)}\n\n{origin(run)}"


def has_bounds(run: Run) -> bool:
    return {row.kernel for row in run.ok if bounded(row)} == BOUNDED and run.manifest.own_clock


def sizes_of(run: Run) -> int:
    return len({row.problem.size for row in filter(bounded, run.ok)})


LARGEST = "16384"


def larger_tile() -> str:
    """``large`` beside the others of its size, in each precision's newest run."""
    newest: dict[str, Run] = {}
    for run in sorted(committed(), key=lambda run: run.manifest.created):
        newest |= {row.problem.precision: run for row in run.ok if is_largest(row, "large")}
    rows = [
        [PRECISIONS[name].title, str(row.problem.settings["layout"]), *cycles(row)]
        for name, run in sorted(newest.items())
        for row in sorted(run.ok, key=lambda row: (row.problem.settings["layout"], row.time_us))
        if is_largest(row) and row.problem.precision == name
    ]
    origins = dict.fromkeys(origin(run) for run in newest.values())
    return "\n\n".join([cycle_table(["precision", "layout"], rows), *origins])


def early() -> str:
    """``early`` beside the others of its newest run."""
    runs = (run for run in committed() if any(row.kernel == "early" for row in run.ok))
    run = max(runs, key=lambda run: run.manifest.created)
    rows = [[row.problem.size, *cycles(row)] for row in run.ok]
    return f"{cycle_table(['size'], rows)}\n\n{origin(run)}"


def is_largest(row: Measurement, kernel: str = "") -> bool:
    return row.problem.size == LARGEST and kernel in ("", row.kernel)


BOUNDED = {"champion", "cublas", "cublaslt"}


def bounded(row: Measurement) -> bool:
    precision, layout = row.problem.precision, row.problem.settings.get("layout")
    return row.kernel in BOUNDED and (precision, layout) == ("bf16", "nt")


GAP_SIZE = 4096


def gap(run: Run) -> str:
    """TFLOP/s of the CUTLASS kernels and the ladder, and their share of cuBLAS's."""
    rows = {
        (row.kernel, row.problem.precision): row
        for row in run.ok
        if row.problem.size == str(GAP_SIZE) and not row.kernel.startswith("cute_")
    }
    precisions = [name for name in PRECISIONS if any(name == precision for _, precision in rows)]
    lines = [
        [
            f"TFLOP/s at {GAP_SIZE}, layout nt (of cuBLAS)",
            *(PRECISIONS[name].title for name in precisions),
        ],
        [":--", *("--:" for _ in precisions)],
    ]
    order = [name.removeprefix("gemm/") for name in run.manifest.kernels]
    for kernel in sorted({kernel for kernel, _ in rows}, key=order.index):
        cells = []
        for precision in precisions:
            row, base = rows.get((kernel, precision)), rows.get(("cublas", precision))
            cell = digits(row.tflops, 3) if row else ""
            if row and base and row is not base and row.tflops and base.tflops:
                cell += f" ({row.tflops / base.tflops:.2f})"
            cells.append(cell)
        lines.append([f"`{kernel}`", *cells])

    def shares(*kernels: str) -> str:
        """The range of the share of cuBLAS, over its precisions except FP32."""
        found = [
            row.tflops / base.tflops
            for (kernel, precision), row in rows.items()
            if kernel.startswith(kernels) and precision != "fp32"
            if (base := rows.get(("cublas", precision))) and base.tflops and row.tflops
        ]
        return span(found)

    return f"{markdown(lines)}\n\n{origin(run)}\n\n" + STORY.format(
        cores=shares("tiled"),
        warps=shares("cutlass_tf32", "cutlass_fp16", "cutlass_bf16"),
        groups=shares("cutlass_hopper"),
    )


STORY = """\
`tiled` computes on CUDA cores: {cores} of cuBLAS in the precisions where cuBLAS uses the tensor
cores. CUTLASS 2.x uses the tensor cores through `mma.sync` and reaches {warps}.
`cutlass_hopper` uses Hopper's own instruction, `wgmma`, on tiles that TMA loads: {groups}."""


def alone(run: Run) -> str:
    """cuBLAS's time over each other kernel's, by size."""
    rows = {
        (row.kernel, row.problem.precision, row.problem.settings["layout"], size(row)): row
        for row in run.ok
    }
    sizes = sorted({size(row) for row in run.ok})
    lines = [
        ["of cuBLAS", "layout", *map(str, sizes)],
        [":--", ":--", *("--:" for _ in sizes)],
    ]
    for kernel, precision, layout in dict.fromkeys(key[:3] for key in rows if key[0] != "cublas"):
        cells = []
        for extent in sizes:
            row = rows.get((kernel, precision, layout, extent))
            base = rows.get(("cublas", precision, layout, extent))
            known = row and base and row.time_us and base.time_us
            cells.append(f"{base.time_us / row.time_us:.2f}" if known else "")
        lines.append([f"`{kernel}`, {PRECISIONS[precision].title}", layout, *cells])
    return f"{markdown(lines)}\n\n{origin(run)}"


def size(row: Measurement) -> int:
    """The extent of a square problem."""
    return int(row.problem.size)


def against_libraries() -> str:
    """By card how many times as fast as NVIDIA's kernels ours are (benchmarks/ladder.py)."""
    tables = by_card(newest_first(committed()))
    return "\n\n".join(f"On one {card}:\n\n{summary(runs)}" for card, runs in tables.items())


def report(name: str) -> list[dict[str, str]]:
    """The rows of a table in results/benchmarks/."""
    page = ROOT / "results" / "benchmarks" / f"{name}.md"
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    headings, _, *rows = cells
    return [dict(zip(headings, row, strict=True)) for row in rows]


def ncu() -> str:
    """Nsight Compute's durations and our headline."""
    columns = ("size", "ncu µs", "rooflab µs", "difference %")
    table = [["n", "Nsight Compute", "rooflab `time_us`", "difference %"], ["--:"] * 4]
    return markdown(table + [[row[name] for name in columns] for row in report("ncu_agreement")])


def clock() -> str:
    """The clock by stamps and by CUPTI."""
    table = [["load", "CUPTI", "`sm_mhz`", "difference %"], [":--", "--:", "--:", "--:"]]
    columns = ("workload", "reference", "rooflab", "difference %")
    rows = [row for row in report("counters") if row["what"].startswith("SM clock")]
    return markdown(table + [[row[name] for name in columns] for row in rows])


def ceilings() -> str:
    """The measured ceilings, as rates and as shares."""
    table = [["ceiling", "value", "share of the limit %"], [":--", "--:", "--:"]]
    for row in report("ceilings"):
        share = row["value"] if row["unit"].startswith("%") else ""
        table.append([f"`{row['ceiling']}`", row["how"].partition(":")[0], share])
    return markdown(table)


def compilers() -> str:
    """The file with plain pointers, and the range of our own kernels."""
    rows = [row for row in report("compilers") if row["new"] == "NVRTC"]
    table = [["kernel", "NVRTC over nvcc"], [":--", "--:"]]
    ratio = {row["kernel"]: 1 + float(row["time %"]) / 100 for row in rows}
    users = [name for name in ratio if "/" not in name]
    table += [[f"`{name}`, plain pointers", f"{ratio[name]:.2f}"] for name in users]
    own = [value for name, value in ratio.items() if name not in users]
    table.append([f"rooflab's own, {len(own)} kernels", span(own)])
    return markdown(table)


def table(run: Run) -> str:
    """TFLOP/s and % of roof of each kernel at the largest square size."""
    squares = [row for row in run.ok if row.problem.size.isdigit()]
    largest = max(map(size, squares))
    rows = {(row.kernel, row.problem.precision): row for row in squares if size(row) == largest}
    precisions = [name for name in PRECISIONS if any(name == precision for _, precision in rows)]
    kernels = list(dict.fromkeys(kernel for kernel, _ in rows))
    lines = [
        [f"TFLOP/s at {largest} (% of roof)", *(PRECISIONS[name].title for name in precisions)],
        [":--", *("--:" for _ in precisions)],
    ]
    for kernel in kernels:
        cells = [
            f"{digits(row.tflops, 3)} ({digits(row.roof_percent, 2)} %)"
            if (row := rows.get((kernel, precision)))
            else ""
            for precision in precisions
        ]
        lines.append([f"`{kernel}`", *cells])
    return markdown(lines)


def memory(run: Run) -> str:
    """For each workload: the rate of our fastest kernels, of memcpy and of the fastest library."""
    copy = max(row.gbps for row in run.ok if row.kernel == "memcpy")
    rows: dict[str, dict[tuple[str, str], dict[bool, Measurement]]] = {}
    for row in run.ok:
        point = (row.problem.precision, row.problem.size)
        fastest = rows.setdefault(row.problem.workload, {}).setdefault(point, {})
        ours = row.backend == "cuda"
        if ours not in fastest or row.gbps > fastest[ours].gbps:
            fastest[ours] = row
    lines = [
        ["", "our fastest kernels", "TB/s", "of a copy", "of the fastest library"],
        [":--", ":--", "--:", "--:", "--:"],
    ]
    for workload, points in rows.items():
        best = [fastest[True] for fastest in points.values()]
        names = dict.fromkeys(f"`{row.kernel}`" for row in best)
        ratios = [fastest[True].gbps / fastest[False].gbps for fastest in points.values()]
        rates = [row.gbps for row in best]
        lines.append(
            [
                f"`{workload}`",
                ", ".join(names),
                span(rate / 1000 for rate in rates),
                span(rate / copy for rate in rates),
                span(ratios),
            ]
        )
    return f"{markdown(lines)}\n\n{origin(run)}"


def span(values: Iterable[float]) -> str:
    """The least and the greatest, with two decimals."""
    found = list(values)
    least, most = f"{min(found):.2f}", f"{max(found):.2f}"
    return least if least == most else f"{least} to {most}"


def markdown(lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> int:
    ladder = max((run for run in committed() if "gemm/naive" in run.manifest.kernels), key=size_of)
    in_readme = {
        "roofline": roofline(ladder),
        "table": table(ladder),
        "gap": gap(reference("gemm/cutlass_tf32")),
        "cute": alone(reference("gemm/cute_gemm", without="gemm/cutlass_hopper")),
        "memory": memory(reference("softmax/torch_softmax")),
        "ladder": against_libraries(),
        "alone": alone(reference("gemm/cutlass_hopper", without="gemm/cute_gemm")),
    }
    in_measurement = {
        "ncu": ncu(),
        "clock": clock(),
        "ceilings": ceilings(),
        "compilers": compilers(),
    }
    pages = {
        README: in_readme,
        MEASUREMENT: in_measurement,
        TRANSFERS: {"pays": pays(), "transfers": transfers(), "large": large()},
        ROOT / "docs" / "fleet.md": {"phases": phases()},
        ROOT / "docs" / "gpus.md": {"gpus": gpus()},
        KERNELS: {
            **{name: rungs(*part) for name, part in LADDERS.items()},
            "decode": decode(),
            "bounds": bounds(),
            "larger_tile": larger_tile(),
            "early": early(),
        },
        ROOFLINE: {"roofline": roofline(ladder), "example": example(ladder)},
        GALLERY: {"gallery": gallery()},
    }
    stale = [fill(page, blocks) for page, blocks in pages.items()]
    counted = [run for run in committed() if any(row.counted_flops for row in run.ok)]
    stale += [report_page("ladder", [ladder]), report_page("counted", counted)]
    stale.append(write(ROOT / "docs" / "gallery" / "terminal.svg", recording(commands(), ROOT)))
    return int(any(stale) and "--check" in sys.argv)


def report_page(name: str, runs: list[Run]) -> bool:
    """The report of ``runs`` in docs/gallery; returns whether the page changes."""
    page = ROOT / "docs" / "gallery" / f"{name}.html"
    return write(page, to_html([replace(run, path=run.path.relative_to(ROOT)) for run in runs]))


def commands() -> list[list[str]]:
    """The command lines of the recording: the ladder at one size with its chart, a diagnosis."""
    run = next(
        run for run in committed() if len(run.ok) == 4 and "gemm/naive" in run.manifest.kernels
    )
    folder = str(run.path.relative_to(ROOT))
    return [
        ["rooflab", "show", "--plot", folder],
        ["rooflab", "explain", folder, "tiled"],
    ]


def write(page: Path, new: str) -> bool:
    """Write a whole file, or with ``--check`` only say so; returns whether it changes."""
    changes = not page.exists() or page.read_text(encoding="utf-8") != new
    if changes and "--check" in sys.argv:
        print(f"{page} is out of date: run python docs/generate.py")
    elif changes:
        page.parent.mkdir(exist_ok=True)
        page.write_text(new, encoding="utf-8")
    return changes


def fill(page: Path, blocks: dict[str, str]) -> bool:
    """Put ``blocks`` at their marks in ``page``; returns whether the page changes.

    Their links are relative to the root of the repository.
    """
    up = "../" * (len(page.relative_to(ROOT).parts) - 1)
    text = new = page.read_text(encoding="utf-8")
    for name, written in blocks.items():
        content = written.replace("](results/", f"]({up}results/")
        block = rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)"
        new, count = re.subn(block, lambda m, c=content: f"{m[1]}{c}\n{m[2]}", new, flags=re.DOTALL)
        if count != 1:
            raise SystemExit(f"{page}: {count} places marked 'generated: {name}', not one")
    if new != text and "--check" in sys.argv:
        print(f"{page} is out of date: run python docs/generate.py")
    elif new != text:
        page.write_text(new, encoding="utf-8")
    return new != text


if __name__ == "__main__":
    sys.exit(main())
