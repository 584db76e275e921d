from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflab import config
from rooflab.config import Selection, SweepConfig, Timing
from rooflab.errors import UsageError
from rooflab.model.problem import MAX_EXTENT
from rooflab.options import parse_shape, parse_sizes
from rooflab.workloads import catalogue


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("512", [512]),
        ("256,512", [256, 512]),
        ("256:2048", [256, 512, 1024, 2048]),
        ("256:8192:x2", [256, 512, 1024, 2048, 4096, 8192]),
        ("256:1024:+256", [256, 512, 768, 1024]),
        ("256:1024:256", [256, 512, 768, 1024]),
        ("100:1000:x3", [100, 300, 900]),
        ("1:3:x1.4", [1, 2, 3]),
        ("8,16:64:x2", [8, 16, 32, 64]),
        ("2^20", [2**20]),
        ("2^3:2^5", [8, 16, 32]),
        ([8, "16,32", 64], [8, 16, 32, 64]),
    ],
)
def test_sizes(text: Any, sizes: list[int]) -> None:
    assert parse_sizes(text) == sizes


@given(st.integers(1, MAX_EXTENT), st.integers(1, MAX_EXTENT), st.floats(1.2, 8))
def test_sizes_rise_from_first_to_at_most_last(first: int, last: int, factor: float) -> None:
    low, high = sorted((first, last))
    sizes = parse_sizes(f"{low}:{high}:x{factor:.3f}")
    assert sizes[0] == low
    assert sizes[-1] <= high
    assert sizes == sorted(set(sizes))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0", "size 0 is out of range: give 1 to"),
        ("-4", "size -4 is out of range"),
        (str(MAX_EXTENT + 1), f"size {MAX_EXTENT + 1} is out of range"),
        ("2^32", "is out of range"),
        ("2^999999999", "is out of range"),
        ("9" * 5000, "cannot read sizes"),
        ([8, [9]], "cannot read sizes"),
        (1.5, "cannot read sizes"),
        ("256;512", "cannot read sizes '256;512': write 512, or"),
        ("", "cannot read sizes ''"),
        ("1e3", "cannot read sizes"),
        ("512:256", "run backwards: write 256:512"),
        ("256:512:x1", "do not increase"),
        ("256:512:+0", "do not increase"),
        ("1:1000000:+1", "are more than 1000: use a larger step"),
    ],
)
def test_bad_sizes(text: Any, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_sizes(text)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 250


def test_shapes() -> None:
    assert parse_shape("4096x14336X8", "gemm") == {"m": 4096, "n": 14336, "k": 8}
    assert parse_shape("8×9×2^3", "gemm") == {"m": 8, "n": 9, "k": 8}
    assert parse_shape("8x9x10x2", "gemm") == {"m": 8, "n": 9, "k": 10, "batch": 2}
    for text in ("4096", "1x2", "1x2x3x4x5", "axbxc", "1.5x2x3", "x".join("1" * 60)):
        with pytest.raises(UsageError, match=r"of gemm: write MxNxK.*, such as 64x64x64"):
            parse_shape(text, "gemm")
    with pytest.raises(UsageError, match="N = 0 is out of range"):
        parse_shape("1x0x1", "gemm")


@pytest.mark.parametrize(
    ("workload", "text", "extents"),
    [
        ("gemv", "8x9", {"m": 8, "n": 9}),
        ("add", "2x100", {"rows": 2, "columns": 100}),
        ("add", "2x100x3", {"rows": 2, "columns": 100, "batch": 3}),
        ("sum", "2^10", {"elements": 1024}),
        ("softmax", "4x8", {"rows": 4, "columns": 8}),
    ],
)
def test_each_workload_has_shapes_of_its_own(
    workload: str, text: str, extents: dict[str, int]
) -> None:
    assert parse_shape(text, workload) == extents
    with pytest.raises(UsageError, match=f"cannot read shape '' of {workload}: write "):
        parse_shape("", workload)


# Selections --------------------------------------------------------------------------------------


def sizes_of(selection: Selection, precision: str = "fp32") -> list[str]:
    return [problem.size for problem in selection.build(precision)]


def test_problems_are_squares_then_shapes_each_once() -> None:
    selection = Selection(sizes=[8, 16, 8], shapes=["8x8x8", "1x2x3"], kernels=["*"])
    assert sizes_of(selection) == ["8", "16", "1x2x3"]


def test_values_of_parameters_are_combined() -> None:
    selection = Selection.model_validate(
        {"sizes": "8,16", "parameters": {"layout": ["nn", "nt", "nn"], "alpha": "1,0.5"}}
    )
    made = [(p.size, p.settings["layout"], p.settings["alpha"]) for p in selection.build("fp32")]
    assert len(made) == len(set(made)) == 2 * 2 * 2
    assert selection.parameters == {"layout": ["nn", "nt", "nn"], "alpha": [1.0, 0.5]}
    everything = Selection.model_validate({"sizes": 8, "parameters": {"layout": "all"}})
    assert [p.settings["layout"] for p in everything.build("fp32")] == ["nn", "nt", "tn", "tt"]


def test_an_extent_that_no_size_sets_may_be_given() -> None:
    selection = Selection.model_validate(
        {"workload": "add", "sizes": 8, "parameters": {"rows": "2,3"}}
    )
    assert sizes_of(selection) == ["2x8", "3x8"]
    batched = Selection.model_validate({"shapes": "8x8x8", "parameters": {"batch": [2]}})
    assert sizes_of(batched) == ["8x8x8x2"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"workload": "softmax", "sizes": 8, "parameters": {"rows": 4}}, "rows is set by sizes"),
        ({"workload": "add", "shapes": "4x8", "parameters": {"rows": 4}}, "rows is set by shapes"),
        ({"shapes": "8x8x8x2", "parameters": {"batch": 2}}, "batch is set by shapes"),
    ],
)
def test_an_extent_cannot_be_given_twice(given: dict[str, Any], told: str) -> None:
    """One of the two would be ignored without a word."""
    with pytest.raises(ValueError, match=told):
        Selection.model_validate(given)


def test_an_absurd_number_of_problems_is_refused() -> None:
    many = SweepConfig(
        workloads=[
            Selection.model_validate(
                {"sizes": "1:1000:+1", "parameters": {"alpha": [str(i) for i in range(101)]}}
            )
        ]
    )
    with pytest.raises(UsageError, match="101000 problems are too many: a sweep can have 100000"):
        config.points(many)
    few = SweepConfig(workloads=[Selection(sizes=[8, 16], shapes=["1x2x3"])] * 2)
    assert config.points(few) == 6


def test_timing_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="max_rounds = 10 is below min_rounds = 20"):
        Timing(min_rounds=20, max_rounds=10)
    with pytest.raises(ValueError, match=r"timeout_s = 0\.1 must be above"):
        Timing(timeout_s=0.1)


# Files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
@pytest.mark.parametrize("name", config.shipped())
def test_shipped_configurations_are_valid(name: str, kind: str) -> None:
    settings = config.load(name, None, kind, {})
    assert config.points(settings) > 0
    for selection in settings.workloads:
        assert selection.build("fp32")


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
@pytest.mark.parametrize("workload", catalogue())
def test_every_workload_has_default_sizes(workload: str, kind: str) -> None:
    (selection,) = config.load("default", workload, kind, {}).workloads
    assert selection.workload == workload
    assert selection.build("fp32")


def test_shipped_names_leave_out_the_device_table() -> None:
    names = config.shipped()
    assert {"cutlass", "default", "full", "llm", "memory", "quick"} <= set(names)
    assert "devices" not in names


def test_device_section_and_options_win(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'kernels = "tiled"\nsizes = "64:128"\nprecisions = "fp32"\n[timing]\nmax_s = 3\n'
        "[cpu]\nsizes = 32\n[cpu.timing]\nmin_rounds = 4\n"
    )

    def load(kind: str, options: dict[str, Any]) -> tuple[Selection, Timing]:
        settings = config.load(str(path), None, kind, options)
        (selection,) = settings.workloads
        return selection, settings.timing

    on_gpu, timing = load("cuda", {})
    assert (on_gpu.sizes, timing.max_s, timing.min_rounds) == ([64, 128], 3, 8)
    on_cpu, timing = load("cpu", {})
    assert (on_cpu.sizes, timing.max_s, timing.min_rounds) == ([32], 3, 4)
    with_options, timing = load(
        "cpu", {"shapes": ["1x2x3"], "kernels": ["naive"], "timing": {"max_s": 1}}
    )
    assert list(with_options.problems()) == [{"m": 1, "n": 2, "k": 3}]
    assert with_options.kernels == ["naive"]
    assert (timing.max_s, timing.min_rounds) == (1, 4)


def test_several_workloads_have_tables_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'precisions = "fp32"\nseed = 7\n'
        "[workloads.add]\nsizes = 8\nprecisions = ['fp64', 'int32']\n"
        "[workloads.softmax]\nshapes = '4x8'\n"
        "[cpu.workloads.add]\nsizes = 16\n"
    )
    add, softmax = config.load(str(path), None, "cpu", {}).workloads
    assert (add.workload, add.sizes, add.precisions) == ("add", [16], ["fp64", "int32"])
    assert (softmax.shapes, softmax.precisions) == (["4x8"], ["fp32"])
    (alone,) = config.load(str(path), "softmax", "cuda", {"sizes": "4"}).workloads
    assert (alone.workload, alone.sizes, alone.shapes) == ("softmax", [4], [])
    assert config.load(str(path), None, "cuda", {}).workloads[0].sizes == [8]
    assert config.load(str(path), None, "cuda", {}).seed == 7
    with pytest.raises(UsageError, match="has no sizes for gemm: add --sizes"):
        config.load(str(path), "gemm", "cpu", {})


def test_a_parameter_may_be_given_by_its_plural(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('sizes = 8\nlayouts = "nn, nt"\nalpha = [1, "0.5"]\nbatch = 2\n')
    (selection,) = config.load(str(path), None, "cpu", {}).workloads
    assert selection.parameters == {"layout": ["nn", "nt"], "alpha": [1.0, 0.5], "batch": [2]}
    (other,) = config.load(str(path), None, "cpu", {"layout": ["tt"]}).workloads
    assert other.parameters["layout"] == ["tt"]


def test_several_names_with_commas() -> None:
    options = {"kernels": ["naive,tiled", "./a,b.cu"], "layout": ["nn, nt"], "precisions": "fp32"}
    (selection,) = config.load("default", "gemm", "cuda", options).workloads
    assert selection.kernels[:2] == ["naive", "tiled"]
    assert selection.parameters["layout"] == ["nn", "nt"]
    assert selection.precisions == ["fp32"]


def test_errors_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(
        'kernel = "tiled"\nsizes = "0"\nprecisions = ["fp32", "fb16"]\nlayouts = "nm"\n'
        "[timing]\nmax_round = 4\n"
    )
    with pytest.raises(UsageError) as caught:
        config.load(str(path), None, "cuda", {})
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    for part in (
        "unknown key 'kernel', did you mean kernels?",
        "size 0 is out of range",
        "unknown precision 'fb16': did you mean",
        "unknown layout 'nm': choose from nn, nt, tn, tt",
        "unknown key 'timing.max_round', did you mean max_rounds",
    ):
        assert part in message


def test_sections_of_other_devices_are_checked_too(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(
        "sizes = 8\n[timing]\nmin_rounds = 1\n[cpu]\nbatsh = 2\n"
        "[cuda.workloads.add]\nlayout = 'nn'\n"
    )
    with pytest.raises(UsageError) as caught:
        config.load(str(path), "gemm", "exact", {})
    for part in (
        "timing.min_rounds: Input should be greater than or equal to 3 (given: '1')",
        "[cpu] unknown key 'batsh', did you mean batch",
        "[cuda] ",
        "unknown key 'layout'",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("workload = 3\nsizes = 8", "workload = '3' must be a name"),
        ("max_rounds = 9", r"unknown key 'max_rounds', write max_rounds under \[timing\]"),
        ("rounds = 9", r"unknown key 'rounds', write min_rounds under \[timing\]"),
        ('workload = "gem"', "no workload 'gem': did you mean"),
        ("[workloads.gem]\nsizes = 3", "no workload 'gem': did you mean"),
        ("workloads = 3", r"workloads must hold sections: \[workloads.gemm\]"),
        ("[workloads]\ngemm = 3", r"workloads must hold sections"),
        ("cpu = 3", r"cpu must be a section: \[cpu\]"),
        ("sizes = 8\nkernels = []", "kernels: "),
        ("sizes = 8\nprecisions = 3", "precisions: "),
        ("shapes = 3", "shapes: "),
        ("sizes = 8\nfill = 'odd'", "fill: Input should be 'uniform', 'normal', 'zeros' or"),
        ("sizes = 8\nalpha = 'much'", "alpha = 'much' is not a number"),
        ("sizes = 8\nbatch = 0", "batch = 0 is out of range"),
        ("sizes = 8\nalpha = []", "alpha has no value: give one or more"),
        ("sizes = 8\ntiming = 3", "timing must be a section"),
        ("shapes = '8x8'", "cannot read shape '8x8' of gemm"),
        ("workload = 'sum'\nsizes = 8\nlayout = 'nn'", "unknown key 'layout'"),
        ("sizes = 8\n[timing]\nsettle_s = 3", "unknown key 'timing.settle_s'"),
        ("sizes = 8\n[timing]\nmax_s = nan", "timing.max_s: "),
    ],
)
def test_one_mistake_is_named(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=told) as caught:
        config.load(str(path), None, "cpu", {})
    assert str(caught.value).startswith(f"{path}: ")


def test_mistakes_in_options_do_not_blame_the_file() -> None:
    with pytest.raises(UsageError, match=r"^unknown layout 'xy': choose from nn, nt, tn, tt$"):
        config.load("default", "gemm", "cpu", {"layout": ["xy"]})
    with pytest.raises(UsageError, match=r"^sum has no parameter 'layout': there are elements"):
        config.load("default", "sum", "cpu", {"layout": ["nn"]})


def test_unreadable_files(tmp_path: Path) -> None:
    for name in ("defalt", "x" * 5000, "a\0b", str(tmp_path)):
        with pytest.raises(UsageError, match=r"no configuration .*: name a TOML file or one of"):
            config.load(name, None, "cpu", {})
    path = tmp_path / "torn.toml"
    path.write_text("sizes = ")
    with pytest.raises(UsageError, match=r"torn.toml: Invalid value"):
        config.load(str(path), None, "cpu", {})
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"torn.toml: it is not UTF-8 text"):
        config.load(str(path), None, "cpu", {})
    path.write_text("a = " + "[" * 50_000)
    with pytest.raises(UsageError, match=r"torn.toml: "):
        config.load(str(path), None, "cpu", {})
    path.write_text("kernels = 'tiled'")
    with pytest.raises(UsageError, match="has no sizes for gemm: add --sizes"):
        config.load(str(path), None, "cpu", {})


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xef\xbb\xbfsizes = 8\n")
    assert config.load(str(path), None, "cpu", {}).workloads[0].sizes == [8]


# Settings in a manifest --------------------------------------------------------------------------


def test_a_runs_settings_come_back() -> None:
    settings = config.load("default", "gemm", "cpu", {"layout": ["all"], "alpha": ["0.5"]})
    assert config.of_run(settings.model_dump(mode="json")) == settings


@pytest.mark.parametrize(
    "content",
    [
        {"workloads": [{"workload": "gem", "sizes": [8]}]},
        {"novelty": 1},
        {"workloads": 3},
        {"timing": {"settle_s": 3}},
        {"workloads": [{"parameters": {"nothing": [1]}}]},
    ],
)
def test_settings_of_another_version_are_refused(content: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="another"):
        config.of_run(content)


def test_a_step_that_is_probably_a_factor_is_refused() -> None:
    with pytest.raises(UsageError, match=r"sizes '256:1024:2': write the step as x2 or \+2"):
        parse_sizes("256:1024:2")
    assert parse_sizes("256:1024:+256") == parse_sizes("256:1024:256")


def test_only_names_of_kernels_are_files(tmp_path: Path) -> None:
    """Loading the configuration tells what is wrong with them."""
    file = tmp_path / "c.toml"
    file.write_text("kernels = [[], 1, 'mine.cu']\n[cuda]\nkernels = [{}]")
    assert config.kernel_files(str(file), ["cuda"]) == ["mine.cu"]
