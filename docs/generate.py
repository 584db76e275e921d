"""Fill the generated parts of the docs from results/: ``python docs/generate.py [--check]``."""

from __future__ import annotations

import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
from terminal import recording
from traffic import tables

from rooflab.files import kernel_name
from rooflab.fleet import record as fleet_record
from rooflab.fleet.interference import costs
from rooflab.fleet.runs import load_fleet
from rooflab.fleet.text import interval, signed
from rooflab.kernels.cuda_file.header import read_header
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import ProblemRecord
from rooflab.model.traffic import Chip, LongRows, rows_read_again
from rooflab.report.html.page import to_html
from rooflab.report.races import races_markdown
from rooflab.report.text import digits
from rooflab.runs.races import races
from rooflab.runs.store import MANIFEST, RunData, load
from rooflab.workloads import rebuild

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
MEASUREMENT = ROOT / "docs" / "measurement.md"
TRANSFERS = ROOT / "docs" / "transfers.md"
ROOFLINE = ROOT / "docs" / "roofline.md"
GALLERY = ROOT / "docs" / "gallery.md"
KERNELS = ROOT / "docs" / "kernels.md"
MEMORY = ROOT / "docs" / "memory.md"


def reference(kernel: str) -> RunData:
    """The newest committed run of ``WORKLOAD/NAME`` on a GPU."""
    fitting = [
        run
        for run in committed()
        if run.manifest.device.kind == "cuda" and kernel in run.manifest.kernels
    ]
    return max(fitting, key=lambda run: run.manifest.created)


@cache
def committed() -> list[RunData]:
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
    rows = {row.host_bytes or 0: (row, run) for run in runs for row in run.ok if row.host_bytes}
    row, run = rows[max(rows)]
    figures = (
        *(digits((row.host_bytes or 0) / 1e9, 3), digits((row.time_us or 0) / 1e6, 3)),
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
        sensors = (one.sensors["mhz"], one.sensors["alone_mhz"])
        texts = ["–" if value is None else f"{value:.0f}" for value in sensors]
        change = signed(one.difference)
        name, title = names[one.member], one.resource.title
        lines.append([title, name, change, interval(one), *texts])
    place = folder.relative_to(ROOT)
    return f"{markdown(lines)}\n\nFrom [`{place}`]({place})."


def roofline(run: RunData) -> str:
    name = run.manifest.device.name
    return f"![Rooflines of {name}]({run.path.relative_to(ROOT)}/roofline.png)\n\n{origin(run)}"


def example(run: RunData) -> str:
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
    "size": "FLOP/s by size",
    "transfers": "GB/s over the host link by the size of a chunk",
    "timeline": "Timeline of one launch",
    "scaling": "Several GPUs",
}


def gallery(ladder: RunData) -> str:
    """One picture of each kind that a run has."""
    shown = [
        (ladder, ("roofline", "size")),
        (reference("spectrum/cublas_cufft"), DRAWN),
        (reference("allreduce/nccl"), ("scaling",)),
    ]
    parts = []
    for run, names in shown:
        folder = run.path.relative_to(ROOT)
        for name in names:
            parts.append(f"## {PICTURES[name]}\n\n{origin(run)}")
            parts.append(f"![{PICTURES[name]}]({folder}/{name}.png)")
    parts.append(
        "## A roof per memory level\n\n`python benchmarks/counters.py` on one NVIDIA H200.\n"
    )
    parts[-1] += "\n![A roof per memory level](results/benchmarks/levels.png)"
    return "\n\n".join(parts)


def origin(run: RunData) -> str:
    folder, manifest = run.path.relative_to(ROOT), run.manifest
    count = {1: "one", 2: "two"}[max(row.problem.gpus for row in run.measurements)]
    command = re.sub(r" --out \S+", "", " ".join(manifest.command))  # where it was, not what
    command = command or "rooflab.sweep(…)"  # from Python
    shipped = re.search(r"--config (\w+)(?: |$)", command)  # which may be another by now
    of_then = f" with the `{shipped[1]}.toml` of that day" if shipped else ""
    return (
        f"`{command}`{of_then} on {count} {manifest.device.name}, "
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


def by_rungs(kernels: Set[str], precision: str) -> list[RunData]:
    """Runs, first those with the most of these kernels in a precision, of them the newest."""

    def most(run: RunData) -> int:
        return len({row.kernel for row in run.ok if row.problem.precision == precision} & kernels)

    return sorted(committed(), key=lambda run: (most(run), run.manifest.created), reverse=True)


def tflops(row: Measurement) -> float:
    return row.tflops


def of_the_library(
    kernel: str,
    precision: str,
    size: str,
    figure: Callable[[Measurement], float],
    runs: Iterable[RunData],
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
"""Kernels for few rows, and how their shapes in benchmarks/decode.toml begin."""

DECODE_PRECISIONS = ("fp16", "bf16")


def decode() -> str:
    """The shapes of decoding: TB/s of operands, and the ratio to the faster library."""
    config = tomllib.loads((ROOT / "benchmarks" / "decode.toml").read_text(encoding="utf-8"))
    shapes = config["workloads"]["gemm"]["shapes"]
    titles = [f"{PRECISIONS[name].title}: TB/s" for name in DECODE_PRECISIONS]
    lines = [["kernel", "M x N x K", *titles], [":--", ":--", *("--:" for _ in titles)]]
    for kernel, rows in DECODE.items():
        for shape in (one for one in shapes if one.startswith(rows)):
            figures = [
                of_the_library(
                    kernel, name, shape, lambda row: row.gbps / 1000, by_rungs({kernel}, name)
                )
                for name in DECODE_PRECISIONS
            ]
            lines.append([f"`{kernel}`", shape, *figures])
    return markdown(lines)


def attention() -> str:
    """The newest time of each kernel by shape, and its largest error."""
    shapes = {}
    for found in newest_rows({"attention"}).values():
        rows = [row for row, _ in found.values()]
        if rows[0].problem.precision == "bf16" and any(map(is_ours, rows)):
            shapes[rows[0].problem.size] = found
    kernels = list(dict.fromkeys(kernel for found in shapes.values() for kernel in found))
    lines = [
        ["queries x keys", *(f"`{name}`" for name in kernels)],
        [":--", *("--:" for _ in kernels)],
    ]
    for size, found in shapes.items():
        lines.append(
            [size, *(digits(found[k][0].time_us, 3) if k in found else "–" for k in kernels)]
        )
    errors = (
        max(found[k][0].rel_error or 0 for found in shapes.values() if k in found) for k in kernels
    )
    lines.append(["largest error", *(f"{100 * error:.2f} %" for error in errors)])
    return "\n\n".join([markdown(lines), *origins(shapes.values())])


Found = dict[str, tuple[Measurement, RunData]]
"""A row of each kernel, and its run."""


def newest_rows(workloads: Set[str]) -> dict[str, Found]:
    """By problem: the newest row of each kernel on a GPU."""
    problems: dict[str, Found] = defaultdict(dict)
    for run in repeatable():
        for row in run.ok:
            if row.problem.workload in workloads and row.rel_error is not None:
                problems[title_of(row.problem)][row.kernel] = row, run
    return problems


def repeatable() -> list[RunData]:
    """Committed runs on a GPU whose command anybody can give, the newest last."""

    def is_there(run: RunData) -> bool:
        words = run.manifest.command
        files = [after for word, after in pairwise(words) if word == "--config"]
        return all((ROOT / name).is_file() for name in files if name.endswith(".toml"))

    of_gpus = (run for run in committed() if run.manifest.device.kind == "cuda")
    return sorted(filter(is_there, of_gpus), key=lambda run: run.manifest.created)


def origins(problems: Iterable[Found]) -> list[str]:
    return list(dict.fromkeys(origin(run) for found in problems for _, run in found.values()))


LAYERS = (
    *("embedding", "rmsnorm", "rmsnorm_backward", "layernorm", "layernorm_backward", "quantize"),
    *("swiglu", "rope", "cross_entropy", "cross_entropy_backward", "adamw"),
)
MODELS = {*tomllib.loads((ROOT / "configs/llm.toml").read_text(encoding="utf-8"))["workloads"]}
MODELS -= {"gemm"}
"""Workloads of language models; errors of gemm are beside its ladder."""


def is_ours(row: Measurement) -> bool:
    return any((ROOT / "kernels" / row.problem.workload).glob(f"*_{row.kernel}.cu"))


def beside_others(*workloads: str) -> str:
    """Our fastest kernel and the fastest other one of each problem, in the newest run of each."""
    other = ["others", "µs", "error", "speed-up"]
    lines = [["problem", "ours", "µs", "% of its roof", "error", *other]]
    lines.append([":--", ":--", "--:", "--:", "--:", ":--", "--:", "--:", "--:"])
    links = {}
    for problem, (run, rows) in newest(workloads).items():
        ours, other = fastest(rows, ours=True), fastest(rows, ours=False)
        if not ours or not other:
            continue
        links[origin(run)] = None
        roof = digits(ours.roof_percent or 0, 3)
        ratio = digits((other.time_us or 0) / (ours.time_us or 1), 3)
        name, us, error = timed(ours)
        lines.append([problem, name, us, roof, error, *timed(other), ratio])
    return "\n\n".join([markdown(lines), *links])


def errors() -> str:
    """By workload of a language model: the newest error of each kernel, where most of them ran."""
    lines = [["problem", "tolerance", "kernels by error"], [":--", "--:", ":--"]]
    best: dict[str, tuple[str, Found]] = {}
    for title, found in newest_rows(MODELS).items():
        workload = next(iter(found.values()))[0].problem.workload
        if workload not in best or len(found) >= len(best[workload][1]):
            best[workload] = title, found
    for title, found in best.values():
        named: dict[str, list[str]] = defaultdict(list)
        rows = sorted((row for row, _ in found.values()), key=lambda row: row.rel_error or 0.0)
        for row in rows:
            named[f"{row.rel_error:.1e}"].append(f"`{row.kernel}`")
        kernels = "; ".join(f"{error}: {', '.join(names)}" for error, names in named.items())
        lines.append([title, f"{rebuild(rows[0].problem).tolerance:.1e}", kernels])
    return "\n\n".join([markdown(lines), *origins(found for _, found in best.values())])


def newest(workloads: Sequence[str]) -> dict[str, tuple[RunData, list[Measurement]]]:
    """By problem: the newest run of it on a GPU, and its rows there."""
    found: dict[str, tuple[RunData, list[Measurement]]] = {}
    for run in repeatable():
        here: dict[str, list[Measurement]] = defaultdict(list)
        for row in run.ok:
            if row.problem.workload in workloads:
                here[title_of(row.problem)].append(row)
        found |= {problem: (run, rows) for problem, rows in here.items()}
    return found


def title_of(problem: ProblemRecord) -> str:
    about = f", {problem.about}" if problem.about else ""
    return f"`{problem.workload}` {PRECISIONS[problem.precision].title} {problem.size}{about}"


def fastest(rows: Iterable[Measurement], *, ours: bool) -> Measurement | None:
    fitting = (row for row in rows if is_ours(row) == ours and row.time_us)
    return min(fitting, key=lambda row: row.time_us or 0, default=None)


def timed(row: Measurement) -> list[str]:
    """A kernel, its µs and its largest error."""
    error = f"{row.rel_error:.1e}" if row.rel_error is not None else "–"
    return [f"`{row.kernel}`", digits(row.time_us or 0, 3), error]


SOFTMAX = {
    "cunn_SoftMaxForward": ("`log_softmax`: for the maximum, the sum, the result", 2, 2, 2),
    "cunn_SoftMaxBackward": ("its gradient: for the sum, the result", 3, 1, 4),
}
"""By kernel: why a row is read, operands and results, those read again, and blocks at once."""


def training_step() -> RunData:
    """The newest run of a program that has softmax."""
    return next(
        run
        for run in sorted(committed(), key=lambda run: run.manifest.created, reverse=True)
        if run.manifest.program and any(row.kernel.startswith(tuple(SOFTMAX)) for row in run.ok)
    )


NEAR = 0.2
SMALL = 0.003
"""Kernels with so little of the time are not named."""


def expected_bytes() -> str:
    """How much of the time of a training step is that of kernels whose bytes were as expected."""
    times: dict[str, float] = defaultdict(float)
    far: list[list[str]] = []
    run = training_step()
    kernels = [row for row in run.ok if row.launches and row.total_us and row.kernel[0] != "("]
    total = sum(row.total_us or 0 for row in kernels)
    for row in sorted(kernels, key=lambda row: -(row.total_us or 0)):
        expected, counted, us = row.expected_dram_bytes, row.dram_bytes, row.total_us or 0
        if expected and counted and abs(expected / counted - 1) <= NEAR:
            times["within 20 %"] += us
            continue
        known = bool(expected and counted)
        times["further away" if known else "not expected, or not counted"] += us
        if us > SMALL * total:
            amounts = [f"{n / 1e6:.0f}" if n else "" for n in (expected, counted)]
            far.append([f"`{row.kernel.split('<')[0]}`", f"{100 * us / total:.1f}", *amounts])
    shares = ", ".join(f"{name} {100 * us / total:.1f} %" for name, us in times.items())
    head = [["kernel", "% of the kernels' time", "expected, MB", "counted, MB"]]
    return f"{shares}.\n\n" + markdown([*head, [":--", "--:", "--:", "--:"], *far])


def long_rows() -> str:
    """Counted and expected DRAM bytes of softmax in that step."""
    found = training_step()
    chip = Chip.of(found.manifest.device.facts)
    assert chip
    titles = ["operation", "compulsory, MB", "reads again, MB", "counted, MB", "model, MB"]
    lines = [[*titles, "if so many blocks run at once"], [":--", *("--:" for _ in titles)]]
    for kernel, (title, moved, again, blocks) in SOFTMAX.items():
        (row,) = (one for one in found.ok if one.kernel.startswith(kernel))
        assert row.bytes and row.dram_bytes
        each = row.bytes // moved  # all are of one size
        rows = LongRows(
            count := row.problem.extents["blocks"], row.bytes // count, again * each // count
        )
        model = row.bytes + rows_read_again(rows, chip, blocks)
        amounts = (row.bytes, again * each, row.dram_bytes, model)
        lines.append([title, *(f"{amount / 1e6:.0f}" for amount in amounts), str(blocks)])
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


def has_bounds(run: RunData) -> bool:
    return {row.kernel for row in run.ok if bounded(row)} == BOUNDED and run.manifest.own_clock


def sizes_of(run: RunData) -> int:
    return len({row.problem.size for row in filter(bounded, run.ok)})


LARGEST = "16384"


def larger_tile() -> str:
    """``large`` beside the others of its size, in each precision's newest run."""
    newest: dict[str, RunData] = {}
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


def size(row: Measurement) -> int:
    """The extent of a square problem."""
    return int(row.problem.size)


CARD = "## On one "


def ladder() -> str:
    """Geometric mean, least and greatest ratio of each precision and card, from ladder.md.

    The first table of a card there has a row for each size and a column for each precision and
    layout; a cell has the ratio at settled power, then that in bursts. A star is a run without
    CUTLASS's kernels.
    """
    page = (ROOT / "results" / "benchmarks" / "ladder.md").read_text(encoding="utf-8")
    cutlass = {
        run.path.name for run in committed() if "gemm/cutlass_heuristics" in run.manifest.kernels
    }
    cells: dict[str, dict[str, str]] = {}
    cards = page.split(CARD)[1:]
    for part in cards:
        card = part.partition("\n")[0]
        of = dict(re.findall(r"^### (\S+(?: by \S+)?)\b[^#]*From ([\w-]+)\.", part, re.M))
        heads, _, *rows = [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in part.split("\n\n")[1].splitlines()
        ]
        for name, *column in list(zip(heads, *rows, strict=True))[1:]:
            *ratios, mean = (cell.partition(" ")[0] for cell in column)
            name_of_run = of[name.rpartition(" ")[0]]
            sizes = sorted(float(cell) for cell in ratios if cell != "–")
            limits = f"{sizes[0]:.2f} to {sizes[-1]:.2f}"
            star = "" if name_of_run in cutlass else "\\*"
            cells.setdefault(name, {})[card] = f"**{float(mean):.2f}** ({limits}){star}"
    names = [part.partition("\n")[0] for part in reversed(cards)]
    lines = [["precision, layout", *names], [":--"] + ["--:"] * len(names)]
    lines += [[name, *(found.get(card, "–") for card in names)] for name, found in cells.items()]
    order = [one.title for one in PRECISIONS.values()]
    lines[2:] = sorted(lines[2:], key=lambda line: order.index(line[0].rpartition(" ")[0]))
    return markdown(lines)


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


def decoding(name: str = "decoding") -> str:
    """What the operators of a model take together, and the model itself."""
    columns = ("step", "batch", "roof ms", "operators ms", "program ms", "difference %")
    named = ["step", "batch", "roof ms", "sum of the operators ms", "transformers ms"]
    table = [[*named, "difference %"], [":--", *["--:"] * 5]]
    return markdown(table + [[row[name] for name in columns] for row in report(name)])


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


def memory(run: RunData) -> str:
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
    default = reference("gemm/naive")
    in_readme = {"roofline": roofline(reference("gemm/champion")), "ladder": ladder()}
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
        ROOT / "docs" / "llm.md": {
            "decoding": decoding(),
            "decoding_experts": decoding("decoding_qwen3-30b-a3b"),
            "errors": errors(),
        },
        ROOT / "docs" / "gpus.md": {"gpus": gpus()},
        KERNELS: {
            **{name: rungs(*part) for name, part in LADDERS.items()},
            "decode": decode(),
            "attention": attention(),
            "attention_gradients": beside_others("attention_backward"),
            "layers": beside_others(*LAYERS),
            "experts": beside_others("grouped_gemm"),
            "around_experts": beside_others("route", "sort_experts", "combine"),
            "few_bits": beside_others("w4a16"),
            "block_scales": beside_others("block_gemm"),
            "epilogues": beside_others("linear"),
            "bounds": bounds(),
            "larger_tile": larger_tile(),
            "early": early(),
        },
        ROOFLINE: {"roofline": roofline(default), "example": example(default)},
        MEMORY: {"memory": memory(reference("softmax/torch_softmax"))},
        GALLERY: {"gallery": gallery(default)},
        ROOT / "docs" / "lab" / "traffic.md": {
            **tables(),
            "expected_bytes": expected_bytes(),
            "long_rows": long_rows(),
        },
    }
    stale = [fill(page, blocks) for page, blocks in pages.items()]
    kernels = [run for run in committed() if not run.manifest.program]
    counted = [run for run in kernels if any(row.counted_flops for row in run.ok)]
    stale += [report_page("ladder", [default]), report_page("counted", counted)]
    stale.append(write(ROOT / "docs" / "gallery" / "terminal.svg", recording(commands(), ROOT)))
    return int(any(stale) and "--check" in sys.argv)


def report_page(name: str, runs: list[RunData]) -> bool:
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
