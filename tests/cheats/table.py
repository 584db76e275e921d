"""What each kernel of this folder must come to: a status, and words that its row must have.

Honest kernels must be ``ok``. No cheat may be, unless it takes as long as honest work (``pays``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent

WRONG, BROKEN, REFUSED, ANY = "incorrect", "failed", "incorrect|failed|impossible", ".*"

# What a row may say ------------------------------------------------------------------------------

NOT_WRITTEN = r"not written|unwritten|NaN"
ERROR = r"relative error|is off by|are wrong|is wrong|worst at"
OLD = rf"{NOT_WRITTEN}|it has seen|skip|stale|earlier|unchanged|kept|does not write|after a change"
"""The launch did not compute this result."""
OLD_OR_WRONG = rf"{OLD}|{ERROR}"
EARLY = rf"{NOT_WRITTEN}|(return|end)\w* before|too early|when it returns|thread|does not write"
"""It returned before the work was done."""
ELSEWHERE = rf"{EARLY}|outside the given stream"
TOUCHED = r"(chang|wr[io]t|modif|overwr)\w* (\w+ )*(its |an |the )?(input|A\b|B\b|x\b)"
"""It changed an input."""
HARD = r"on (rows|numbers|positive numbers|sums|an image)|NaN"
"""Inputs show it that are not random numbers of ordinary size."""

# The model ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expected:
    """``reason`` is a regular expression for what the row, its flags and the notes on it say.

    ``sizes`` are those at which it is so, all if it is empty; at others the kernel is ``ok``. With
    ``pays`` the kernel may be ``ok`` if it takes as long as the first honest one does.
    """

    reason: str
    status: str = WRONG
    sizes: tuple[str, ...] = ()
    pays: bool = False


@dataclass(frozen=True)
class Sweep:
    """Kernels of one workload: those of a Python file, and .cu files in ``cuda/``."""

    file: str
    workload: str
    cheats: Mapping[str, Expected]
    honest: Sequence[str] = ("honest",)
    shipped: Sequence[str] = ()
    sizes: Sequence[int] = ()
    shapes: Sequence[str] = ()
    device: str = "Quick"
    more: Mapping[str, str | float] = field(default_factory=dict)

    def pattern(self, name: str) -> str:
        """The argument of ``--kernel`` for one of the names above."""
        if name.endswith(".cu"):
            return str(FOLDER / "cuda" / name)
        return f"{FOLDER / self.file}:{name}"


def each(
    reason: str, *kernels: str, status: str = WRONG, pays: bool = False
) -> dict[str, Expected]:
    """The same for some kernels."""
    return dict.fromkeys(kernels, Expected(reason, status, pays=pays))


# On a CPU ----------------------------------------------------------------------------------------

ADD = Sweep(
    "add_cpu.py",
    "add",
    {
        **each(OLD, "prepared", "memo_pointer", "if_poisoned", "first_launches", "every_other"),
        **each(OLD, "nine_of_ten", "skips_at_random", "skips_in_bursts"),
        **each(OLD_OR_WRONG, "skips_in_a_row", pays=True),
        **each(ERROR, "right_for_a_while", "right_until_a_pause"),
        **each(OLD, "all_at_once", pays=True),  # of one copy there is nothing else to do
        **each(OLD, "knows_its_caller", "one_late", "when_collected"),
        **each(OLD, "last_operands", pays=True),
        **each(OLD, "returns_it", "takes_it_from_a_copy", "half_later"),
        **each(OLD, "memo_few", "memo_or_poisoned", pays=True),
        **each(ERROR, "zeros", "constant", "half", "rounded", "band", "one_element"),
        **each(NOT_WRITTEN, "no_last_tile", "no_last_vector", "no_last_element", "no_lane"),
        **each(NOT_WRITTEN, "no_middle"),
        "uninitialised": Expected(OLD_OR_WRONG),
        "adds_to_c": Expected("reads C|adds to"),
    },
    honest=(
        *("honest", "honest_temporary", "honest_steps", "honest_wide", "honest_parts"),
        *("honest_reference", "honest_threads"),
    ),
    shipped=("numpy", "numba"),
    sizes=(20011,),
)

SMALL_ONLY = Sweep(
    "add_cpu.py",
    "add",
    {"small_only": Expected(NOT_WRITTEN, sizes=("20011",))},
    sizes=(1000, 20011),
)

SUM = Sweep(
    "sum_cpu.py",
    "sum",
    {
        **each(ERROR, "one_accumulator", "half_parts", "some", "expected_value"),
        **each(ERROR, "no_last_element", "whole_vectors"),
        "not_set": Expected("reads [Yy]|adds to"),
        "not_reset": Expected(OLD_OR_WRONG),
        "remembers_half": Expected(OLD_OR_WRONG, pays=True),
    },
    honest=("honest", "honest_wide", "honest_parts"),
    shipped=("numpy", "numba"),
    sizes=(2**20 + 7,),
)

SOFTMAX = Sweep(
    "softmax_cpu.py",
    "softmax",
    {
        **each(HARD, "no_maximum", "one_maximum", "first_maximum", "clipped"),
        **each(ERROR, "zeros", "flat", "polynomial", "half"),
        **each(NOT_WRITTEN, "no_last_row"),
        **each(OLD, "tuned_by_halves"),
        "replays": Expected(OLD_OR_WRONG, pays=True),
    },
    honest=("honest", "honest_online", "honest_base_two"),
    shipped=("numpy", "numba"),
    shapes=("37x1003",),
)

RMSNORM = Sweep(
    "rmsnorm_cpu.py",
    "rmsnorm",
    {
        **each(HARD, "no_epsilon", "outer_epsilon", "fixed_epsilon"),
        **each(ERROR, "no_weights", "first_columns", "one_norm", "half"),
        "no_last_column": Expected(NOT_WRITTEN),
        "keeps_norms": Expected(OLD_OR_WRONG, pays=True),
        "keeps_weighted": Expected(OLD_OR_WRONG),
        "in_place": Expected(TOUCHED),
    },
    honest=("honest", "honest_rows"),
    shipped=("numpy", "numba"),
    shapes=("37x1003",),
    more={"epsilon": 2e-6},
)

GEMM = Sweep(
    "gemm_cpu.py",
    "gemm",
    {
        **each(OLD_OR_WRONG, "replays", "replays_alike", "knows_the_inputs", pays=True),
        **each(OLD_OR_WRONG, "third_time", "replays_often", "cools_down", pays=True),
        **each(OLD_OR_WRONG, "remembers_in_rounds", "remembers_small_numbers", pays=True),
        "knows_the_round": Expected(f"{OLD_OR_WRONG}|{NOT_WRITTEN}", REFUSED),
        **each(ERROR, "half", "tf32", "short_sums", "no_corner", "wrong_diagonal", "transposed"),
        "whole_tiles": Expected(NOT_WRITTEN),
    },
    honest=("honest", "honest_packed", "honest_steps"),
    shipped=("blas", "tiled", "naive"),
    sizes=(203,),
    more={"layout": "nn"},
)

NEIGHBOURS = Sweep(
    "gemm_cpu.py",
    "gemm",
    each(OLD_OR_WRONG, "neighbours_memory", pays=True),
    honest=("honest_workspace", "honest"),
    sizes=(203,),
    more={"layout": "nn"},
)

BETA = Sweep(
    "gemm_cpu.py",
    "gemm",
    {
        "only_at_first": Expected(ERROR),
        "no_initial_values": Expected(f"{TOUCHED}|{ERROR}"),
    },
    honest=("honest_onto",),
    sizes=(203,),
    more={"layout": "nn", "beta": 0.5},
)

SAMPLED = Sweep(
    "gemm_cpu.py",
    "gemm",
    each(ERROR, "one_element", "one_tile", "sampled_only"),
    honest=("honest", "honest_steps"),
    shipped=("blas",),
    sizes=(517,),
    device="Sampling",
    more={"layout": "nn"},
)

BATCH = Sweep(
    "gemm_cpu.py",
    "gemm",
    each(ERROR, "skips_one", "half_of_the_batch", "one_tile"),
    honest=("honest", "honest_packed"),
    shipped=("blas",),
    shapes=("96x88x104x9",),
    device="Sampling",
    more={"layout": "nn"},
)

INPUTS = Sweep(
    "add_cpu.py",
    "add",
    each(TOUCHED, "empties_inputs", "works_in_a", "touches_b_later"),
    shipped=("numpy",),
    sizes=(1000,),
)

OUTSIDE = Sweep(
    "outside_cpu.py",
    "add",
    {
        **each(r"past the end of C", "past_end", "a_page_on", "times_one_outside"),
        "before_start": Expected(r"before (the start of )?C|outside (of )?C"),
        "past_input": Expected(r"past the end of A|outside (of )?A|beyond A"),
        "far_away": Expected("SIGSEGV", BROKEN),
        "reads_past_end": Expected("reads past the end of A|outside (of )?A|beyond A"),
        "reads_before": Expected("reads before (the start of )?B|outside (of )?B"),
    },
    shipped=("numpy",),
    sizes=(1024,),
)

THREADS = Sweep(
    "late_cpu.py",
    "add",
    {
        **each(EARLY, "in_thread", "in_pool", "half_in_pool", "by_timer", "by_alarm"),
        **each(EARLY, "in_fork", "in_child"),
    },
    shipped=("numpy",),
    sizes=(200_000,),
)

LATE = Sweep(
    "late_cpu.py",
    "add",
    {
        "by_profiler": Expected(f"{EARLY}|profil", REFUSED),
        "by_trace": Expected(f"{EARLY}|trac", REFUSED),
        "by_monitoring": Expected(f"{EARLY}|monitor|profil", REFUSED),
        "late_array": Expected(f"{EARLY}|operands|replac", REFUSED),
        "late_operands": Expected(f"{EARLY}|operands|replac", REFUSED),
        "from_reference": Expected(f"{EARLY}|{ERROR}"),
    },
    shipped=("numpy",),
    sizes=(200_000,),
)

HIDDEN = Sweep(
    "hidden_cpu.py",
    "add",
    {"when_read": Expected("protects the memory of its results")},
    shipped=("numpy",),
    sizes=(200_000,),
)

PATCHES = Sweep(
    "patches_cpu.py",
    "add",
    {
        "clock_of_time": Expected(r"time\.|clock", REFUSED),
        "clock_of_device": Expected("perf_counter_ns|clock", REFUSED),
        "timing_method": Expected("CpuDevice|clock", REFUSED),
        "kind_median": Expected("median", REFUSED),
        "blind_verify": Expected(f"verdict|unlike|{ERROR}", REFUSED),
        "blind_isnan": Expected(f"isnan|verdict|{NOT_WRITTEN}", REFUSED),
        "own_reference": Expected(f"reference|{ERROR}", REFUSED),
        "own_tolerance": Expected(f"tolerance|{ERROR}", REFUSED),
        "other_precision": Expected(f"precision|problem|{ERROR}", REFUSED),
        "other_pieces": Expected(f"pieces|problem|{ERROR}", REFUSED),
        "other_arrays": Expected(f"operands|{NOT_WRITTEN}", REFUSED),
        "no_second_check": Expected(f"_spoiled|{OLD}", REFUSED),
        "finds_the_protocol": Expected(f"_spoiled|{OLD}", REFUSED),
        "clock_and_back": Expected("perf_counter_ns|clock", REFUSED, pays=True),
        "hides_len": Expected("len", REFUSED),
        "few_rounds": Expected("settings of the sweep", REFUSED),
        "wide_limits": Expected("OUTLIER", REFUSED),
        "no_chance": Expected("randrange", REFUSED),
        "same_inputs": Expected(f"refill|{OLD_OR_WRONG}", REFUSED),
        "never_any": Expected("umr_any", REFUSED),
        "known_numbers": Expected("default_rng", REFUSED),
        "shorter_samples": Expected("changes the times", REFUSED),
        "weak_numbers": Expected(f"default_rng|{OLD_OR_WRONG}", REFUSED),
        "class_of_numpy": Expected("numpy.__class__"),
        "other_numpy": Expected("sys.modules"),
        "other_bases": Expected("__bases__"),
        "other_closure": Expected("Settings.of"),
        "other_codec": Expected("CODECS"),
        "other_epsilon": Expected("Precision fp32"),
        "device_attribute": Expected("methods of the device"),
        "hides_sorted": Expected("statistics.sorted"),
        "undone_at_a_look": Expected("for a while"),
    },
    shipped=("numpy",),
    sizes=(20011,),
)

OWN_ROOT = Sweep(
    "rmsnorm_cpu.py",
    "rmsnorm",
    {"own_root": Expected(f"numpy.sqrt|{ERROR}", REFUSED)},
    shipped=("numpy", "numba"),
    shapes=("37x1003",),
)

AT_IMPORT = Sweep(
    "at_import_cpu.py",
    "add",
    {"slow_clock": Expected("perf_counter_ns|clock", REFUSED)},
    honest=(),
    shipped=("numpy",),
    sizes=(20011,),
)

CRASHES = Sweep(
    "crashes_cpu.py",
    "add",
    {
        **each("exit code 0|SystemExit", "exits", "exits_later", "leaves", status=BROKEN),
        "kills": Expected("SIGKILL", BROKEN),
        "aborts": Expected("SIGABRT", BROKEN),
        "null": Expected("SIGSEGV", BROKEN),
        "interrupts": Expected("KeyboardInterrupt", BROKEN),
        "raises": Expected("ValueError: no such tile", BROKEN),
        "raises_later": Expected("IndexError: out of tiles", BROKEN),
        "stops": Expected("StopIteration", BROKEN),
        "recurses": Expected("RecursionError", BROKEN),
    },
    sizes=(1000,),
)

LEAKS = Sweep(
    "leaks_cpu.py",
    "add",
    {
        **each("seterr|errstate", "errors", "errors_in_launch", status=ANY),
        **each("warnings", "warnings_off", "warnings_raise", status=ANY),
        **each("thread", "blas_threads", "numba_thread", status=ANY),
        "buffers": Expected("bufsize|buffer", ANY),
        "digits": Expected("printoptions", ANY),
        "folder": Expected("folder|directory|chdir", ANY),
        "variable": Expected("OMP_NUM_THREADS|environ", ANY),
        "mask": Expected("umask", ANY),
        "depth": Expected("recursion", ANY),
        "interval": Expected("switch ?interval", ANY),
        "collector": Expected(r"\bgc\b|garbage", ANY),
        "signals": Expected("SIGTERM|signal", ANY),
        "printing": Expected("stdout", ANY),
        "logs": Expected("logging", ANY),
        "one_cpu": Expected("affinity|CPUs", ANY),
        "rounding": Expected("round", ANY),
        "numbers": Expected("random", ANY),
        "profiler": Expected("profil", ANY),
        "decimals": Expected("decimal", ANY),
        "places": Expected(r"sys\.path", ANY),
        "timer": Expected("timer", REFUSED),
        "files": Expected("limit", ANY),
    },
    honest=("before", "after"),
    shipped=("numpy",),
    sizes=(1000,),
)

CPU: dict[str, tuple[Sweep, ...]] = {
    "workloads": (ADD, SUM, SOFTMAX, RMSNORM, GEMM),
    "small only": (SMALL_ONLY,),
    "neighbours": (NEIGHBOURS,),
    "beta": (BETA,),
    "sampled": (SAMPLED,),
    "batch": (BATCH,),
    "inputs": (INPUTS,),
    "outside": (OUTSIDE,),
    "threads": (THREADS,),
    "late": (LATE,),
    "hidden": (HIDDEN,),
    "patches": (PATCHES,),
    "own root": (OWN_ROOT,),
    "at import": (AT_IMPORT,),
    "crashes": (CRASHES,),
    "leaks": (LEAKS,),
}
"""What is measured together."""

FEW = Sweep(
    "add_cpu.py",
    "add",
    {
        name: ADD.cheats.get(name) or INPUTS.cheats[name]
        for name in ("memo_pointer", "memo_few", "half", "no_last_vector", "works_in_a")
    },
    honest=("honest", "honest_threads"),
    shipped=("numpy",),
    sizes=(20011,),
)
"""So few that they are always tried."""

SHIPPED: dict[str, dict[str, object]] = {
    "add": {"sizes": [1, 1003], "shapes": ["3x7x5"], "precisions": ["fp32", "int32"]},
    "copy": {"sizes": [1003]},
    "triad": {"sizes": [1003], "alpha": -1.5},
    "sum": {"sizes": [1, 2**20 + 1], "precisions": ["fp32", "int32"]},
    "gemv": {"shapes": ["33x1003"]},
    "softmax": {"shapes": ["1x1", "33x1003"]},
    "rmsnorm": {"shapes": ["1x1", "33x1003"], "epsilon": 0.1},
    "gemm": {"shapes": ["1x1x1", "17x18x19x5"], "layout": ["nn", "tt"], "beta": [0.0, 0.5]},
    "blur": {"shapes": ["3x17x33"]},
    "fft": {"shapes": ["3x17"]},
    "spectrum": {"shapes": ["3x17"]},
    "filter": {"shapes": ["3x17", "1x16"], "threshold": [0.25, 0.7]},
    "layernorm": {"shapes": ["1x1", "33x1003"]},
    "cross_entropy": {"shapes": ["1x1", "33x1003"]},
    "rmsnorm_backward": {"shapes": ["1x1", "33x1003"]},
    "layernorm_backward": {"shapes": ["1x1", "33x1003"]},
    "cross_entropy_backward": {"shapes": ["1x1", "33x1003"], "scale": 0.01},
    "swiglu": {"sizes": [1, 1003]},
    "rope": {"shapes": ["1x1x2", "13x3x10x2"]},
    "attention": {"shapes": ["1x17x2x1x8", "9x23x16x8x8x3"], "causal": ["on", "off"]},
    "attention_backward": {"shapes": ["1x17x2x1x8", "9x23x4x2x8x3"], "causal": ["on", "off"]},
    "grouped_gemm": {"shapes": ["37x11x13x5"], "spread": ["uniform", "skewed", "single"]},
    "w4a16": {"shapes": ["1x1x1", "17x19x333"]},
    "block_gemm": {"shapes": ["1x1x1", "17x131x333"]},
    "adamw": {"sizes": [1, 1003], "step": [1.0, 10.0], "epsilon": [1e-8, 0.1]},
    "embedding": {"shapes": ["1x1x1", "53x37x21"]},
    "quantize": {"shapes": ["1x1", "33x333"]},
    "route": {"shapes": ["1x1x1", "53x9x3"], "normalised": ["on", "off"]},
    "sort_experts": {"shapes": ["1x1x1", "53x9x3"]},
    "combine": {"shapes": ["1x1x1", "53x37x3"]},
    "linear": {"shapes": ["1x1x1", "17x19x37"], "epilogue": ["bias", "gelu", "swiglu"]},
}
"""All kernels of a CPU must be right on these."""

# On a GPU ----------------------------------------------------------------------------------------

ADD_GPU = Sweep(
    "add_gpu.py",
    "add",
    {
        **each(OLD, "prepared", "memo_pointer", "first_launches", "every_other", "all_at_once"),
        **each(OLD, "knows_its_caller", "last_operands"),
        **each(OLD_OR_WRONG, "skips_in_a_row", pays=True),
        **each(OLD, "only_poisoned.cu", "hundred_launches.cu"),
        **each(OLD, "other_launches.cu", "random_launches.cu"),
        "memo_blocks.cu": Expected(OLD_OR_WRONG, pays=True),
        **each(ELSEWHERE, "on_side_stream", "half_on_side_stream", "forks_without_joining"),
        **each(ELSEWHERE, "on_thread_stream", "in_thread_later", "in_pool"),
        "in_thread": Expected(ELSEWHERE, pays=True),
        "on_the_host": Expected("waits for the device", BROKEN),
        **each(ERROR, "zeros", "half", "element_off.cu", "band_off.cu", "half_sums.cu"),
        **each(NOT_WRITTEN, "whole_blocks.cu", "lane_missing.cu"),
        **each(TOUCHED, "works_in_a", "writes_an_input.cu"),
        **each(
            r"past the end of C|outside (of )?C|beyond C",
            *("past_the_end.cu", "page_past_the_end.cu"),
        ),
        "before_the_start.cu": Expected(r"before (the start of )?C|outside (of )?C"),
        "reads_past_the_end.cu": Expected("reads past the end of A|outside (of )?A|beyond A"),
    },
    honest=(
        *("honest", "honest_temporary", "honest_raw", "honest_fork", "honest_graph"),
        "honest_loop.cu",
    ),
    shipped=("naive", "cupy"),
    sizes=(2**20 + 3,),
)

SUM_GPU = Sweep(
    "",
    "sum",
    {
        "total_of_all_launches.cu": Expected(OLD_OR_WRONG),
        "adds_to_y.cu": Expected("reads [Yy]|adds to"),
    },
    honest=(),
    shipped=("naive", "cupy"),
    sizes=(2**18 + 3,),
)

COPY_GPU = Sweep(
    "",
    "copy",
    {
        "one_more.cu": Expected("past the end of C"),
        **each("subnormal numbers|negative zeros", "times_one.cu", "plus_zero.cu"),
    },
    honest=(),
    shipped=("naive", "memcpy"),
    sizes=(2**20 + 3,),
)

SOFTMAX_GPU = Sweep(
    "",
    "softmax",
    {"without_maximum.cu": Expected(HARD), "fast_exponential.cu": Expected(ERROR)},
    honest=(),
    shipped=("naive", "block"),
    shapes=("1000x1003",),
)

RMSNORM_GPU = Sweep(
    "",
    "rmsnorm",
    {
        "without_epsilon.cu": Expected(HARD),
        "kept_scales.cu": Expected(OLD_OR_WRONG, pays=True),
    },
    honest=("honest_block.cu",),
    shipped=("naive", "block"),
    shapes=("1000x1003",),
)

GEMM_GPU = Sweep(
    "gemm_gpu.py",
    "gemm",
    {
        "cupy_tf32": Expected(rf"type of sums.*{ERROR}|{ERROR}"),
        **each(ERROR, "element_wrong.cu", "tile_zero.cu"),
        "stale_tiles.cu": Expected(f"{ERROR}|{NOT_WRITTEN}", sizes=("100",)),
        "third_skipped.cu": Expected(ERROR, sizes=("256x256x256x125",)),
        "zero_times_c.cu": Expected("reads C"),
    },
    honest=("honest_tiles.cu", "cupy_after"),
    shipped=("naive", "cublas"),
    sizes=(100, 1536),
    shapes=("256x256x256x125",),
    more={"layout": "nn"},
)

CLOCK_GPU = Sweep(
    "clock_gpu.py",
    "add",
    {
        "short_times": Expected("get_elapsed_time|clock", REFUSED),
        "late_start": Expected("cycles", REFUSED, pays=True),
        "later_record": Expected("Event.record", REFUSED),
        "blind_any": Expected("ndarray.any", REFUSED),
    },
    shipped=("cupy",),
    sizes=(2**20 + 3,),
)

LEAKS_GPU = Sweep(
    "leaks_gpu.py",
    "add",
    {
        "own_allocator": Expected("allocator", ANY),
        "small_pool": Expected("memory pool|set_limit", ANY),
        "large_stack": Expected("stack", ANY),
        "keeps_lines": Expected("L2|persist", ANY),
        "errors": Expected("seterr|errstate", ANY),
    },
    honest=("before", "uses_a_stream", "after"),
    shipped=("cupy",),
    sizes=(2**20 + 3,),
)

MEMORY_GPU = Sweep(
    "leaks_gpu.py",
    "add",
    {"keeps_memory": Expected("memory of the device is kept", ANY)},
    honest=("before", "after"),
    sizes=(2**20 + 3,),
)

TORCH = Sweep(
    "torch_gpu.py",
    "gemm",
    {
        **each(f"(?i:tf32)|{ERROR}", "torch_tf32", "torch_new_tf32"),
        "torch_half": Expected(ERROR),
        "torch_side_stream": Expected(ELSEWHERE),
        "torch_threads": Expected("thread", ANY),
        "torch_default": Expected("default_dtype", ANY),
        "torch_deterministic": Expected("deterministic", ANY),
    },
    honest=("torch_before", "torch_events", "torch_after"),
    shipped=("cublas",),
    sizes=(1024,),
    more={"layout": "nn"},
)

GPU: dict[str, tuple[Sweep, ...]] = {
    "add": (ADD_GPU,),
    "workloads": (SUM_GPU, COPY_GPU, SOFTMAX_GPU, RMSNORM_GPU, GEMM_GPU),
    "clock": (CLOCK_GPU,),
    "leaks": (LEAKS_GPU,),
    "torch": (TORCH,),
    "memory": (MEMORY_GPU,),
}

ALONE = ("memory",)
"""Others on the same GPU would have too little memory."""
