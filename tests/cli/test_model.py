"""rooflab model: a language model's time, from files alone or with measured kernels."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from commands import Rooflab, joined, only_run

from rooflab.llm.config import read
from rooflab.llm.estimate import problems
from rooflab.llm.operators import PHASES, ModelStep
from rooflab.model.precision import PRECISIONS
from rooflab.options import parse_shape
from rooflab.report.llm import commands
from rooflab.workloads import build

FACTS = Path(__file__).resolve().parents[1] / "data" / "runs" / "two_gpus"
TINY = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.fixture
def tiny() -> Path:
    path = Path("tiny.json")
    path.write_text(json.dumps(TINY))
    return path


def test_roofs_of_a_run(rooflab: Rooflab) -> None:
    code, out, err = rooflab("model", "llama-3.1-8b", "--device-facts", FACTS)
    assert (code, err) == (0, "")
    assert out.startswith(
        "llama-3.1-8b: 8.03 billion parameters, 16.1 GB; cache 131 kB for a token"
    )
    assert "NVIDIA H200: bf16 1071 TFLOP/s (derived), HBM 4.81 TB/s (derived)" in out
    for said in (
        "prefill BF16, prompt 2048\n",
        "decode BF16, context 2048, batch 64: operators",
        "1 16.3 GB 3.18 315 dram 100 %",
        "gate, up gemm 64x28672x4096 32 1589 23.2 dram",
        "products with weights meet the ridge at batch 244; memory has room for batch 499",
    ):
        assert joined(said) in joined(out)


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3"])
def test_tables_fit_80_columns(rooflab: Rooflab, name: str) -> None:
    _, out, _ = rooflab("model", name, "--device-facts", FACTS, "--batch", "1,64")
    tables = [line for line in out.splitlines() if line.startswith(" ")]
    assert max(map(len, tables)) <= 80
    assert "…" not in out
    own = "argmax" if name == "mixtral-8x7b" else "attention, argmax"
    assert f"* no workload yet ({own}): " in out and "each token chose at random" in out


def test_a_batch_that_does_not_fit_keeps_its_row_and_says_what_it_needs(rooflab: Rooflab) -> None:
    words = ("--device-facts", FACTS, "--batch", "64,512", "--prompt", "128")
    code, out, err = rooflab("model", "llama-3.1-8b", *words)
    assert code == 0
    assert "512 153 GB no 36.5 14034" in joined(out)
    assert "decode BF16, context 2048, batch 64: operators" in out
    assert joined(err) == (
        "warning: decode BF16, context 2048, batch 512 does not fit: weights and cache need "
        "153 GB, NVIDIA H200 has 150 GB"
    )


def test_the_smallest_batch_that_does_not_fit_is_told_once(rooflab: Rooflab) -> None:
    words = ("--device-facts", FACTS, "--batch", "1024,512,1024", "--prompt", "1")
    code, out, err = rooflab("model", "llama-3.1-8b", *words)
    assert code == 0 and joined(err).count("does not fit") == 1
    assert "batch 512 does not fit: weights and cache need 153 GB" in joined(err)
    assert joined(out).count(" 1024 291 GB no ") == 1


def test_json_has_every_operator(rooflab: Rooflab) -> None:
    words = ("--device-facts", FACTS, "--batch", "8", "-p", "fp8", "--json")
    code, out, _ = rooflab("model", "llama-3.1-8b", *words)
    content = json.loads(out)
    assert code == 0 and content["parameters"] == 8030261248
    assert not content["modelled"]
    prefill, decode = content["steps"]
    assert (prefill["phase"], decode["phase"]) == PHASES
    assert decode["ridge_batch"] == 258 and prefill["ridge_batch"] is None
    total = sum(one["times"] * one["roof_us"] for one in decode["operators"])
    assert decode["roof_us"] == pytest.approx(total)
    (down,) = (one for one in decode["operators"] if one["name"] == "down")
    assert (down["workload"], down["precision"], down["times"]) == ("gemm", "fp8", 32)
    assert down["parameters"]["layout"] == "nt" and not down["modelled"]


def test_several_gpus_are_modelled_and_need_a_link(rooflab: Rooflab) -> None:
    words = ("model", "llama-3.1-8b", "--batch", "8", "--tensor-parallel", "2")
    code, out, _ = rooflab(*words, "--device-facts", FACTS)
    assert code == 0
    assert "on each GPU 4.28 billion parameters" in out and "PEER 396 GB/s (measured)" in out
    assert "all-reduce" in out and "several GPUs: modelled" in out
    alone = FACTS.parents[1] / "measured" / "champion"
    code, out, err = rooflab(*words, "--device-facts", alone)
    assert (code, out) == (2, "")
    assert err == "error: no link between GPUs is known of NVIDIA H200: give --link GB/s"
    code, out, _ = rooflab(*words, "--device-facts", alone, "--link", "450")
    assert code == 0 and "PEER 450 GB/s (given)" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "no configuration 'nothing': there are deepseek-v3, llama-3.1-8b"),
        (["llama-3.1-8b", "-p", "int32"], "choose from bf16, fp16, fp8, fp32"),
        (["llama-3.1-8b", "--batch", "0"], "--batch: size 0 is out of range"),
        (["llama-3.1-8b", "--stack", "torch"], "give them by --with RUN"),
        (["llama-3.1-8b", "--batch", "2^31"], "batch 2147483648 times prompt 2048 are more than"),
        (["llama-3.1-8b", "--with", str(FACTS), "--stack", "torch,"], "give names"),
        (["llama-3.1-8b", "--with", str(FACTS), "--stack", "best"], "give names"),
        (["llama-3.1-8b", "--device", "cpu"], "both say whose roofs: leave out one"),
        (["llama-3.1-8b", "--link", "0"], "give 0.001 to 1e+06 GB/s"),
        (["llama-3.1-8b", "--link", "nan"], "give 0.001 to 1e+06 GB/s"),
        (["llama-3.1-8b", "-o", ""], "name a .png, .svg, .pdf or .json file"),
        (["llama-3.1-8b", "-o", "plan.txt"], "name a .png, .svg, .pdf or .json file"),
        (["llama-3.1-8b", "-o", "a.png", "-c", "1:17:+1"], "has room for 16 panels, these are 17"),
        (["llama-3.1-8b", "--problems", "--json"], "leave out --json and --out"),
        (["llama-3.1-8b", "-o", "no/plan.png"], "cannot write no/plan.png"),
        (["llama-3.1-8b", "--tensor-parallel", "3"], "32 heads cannot be divided among 3 GPUs"),
        (["llama-3.1-8b", "--device-facts", "none"], "No such file or directory: give a run's"),
        (["llama-3.1-8b", "--device-facts", "."], "manifest.json: No such file or directory"),
    ],
)
def test_an_error_is_one_line(rooflab: Rooflab, words: list[str], said: str) -> None:
    facts = [] if "--device-facts" in words else ["--device-facts", str(FACTS)]
    code, out, err = rooflab("model", *words, *facts)
    assert code == 2 and out == ""
    assert err.startswith("error: ") and "\n" not in err
    assert said in err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "gpt2"}, 'tiny.json: model_type "gpt2" is not known: there are llama'),
        ({"vocab_size": None}, "tiny.json: missing: vocab_size"),
        ({"num_key_value_heads": 3}, "heads = 4 is not a multiple of num_key_value_heads = 3"),
    ],
)
def test_a_wrong_configuration(
    rooflab: Rooflab, tiny: Path, changes: dict[str, Any], said: str
) -> None:
    tiny.write_text(json.dumps(TINY | changes))
    code, out, err = rooflab("model", tiny, "--device-facts", FACTS)
    assert (code, out) == (2, "")
    assert said in err and "\n" not in err


def test_unknown_keys_are_named(rooflab: Rooflab, tiny: Path) -> None:
    tiny.write_text(json.dumps(TINY | {"hue": 1, "max_position_embeddings": 512}))
    code, _, err = rooflab("model", tiny, "--device-facts", FACTS)
    assert code == 0
    assert "tiny: unknown keys, taken to change nothing: hue" in err
    assert "warning: tiny was made for 512 tokens, not for 2048" in err


def test_the_swept_problems_are_those_of_the_model(rooflab: Rooflab) -> None:
    code, out, _ = rooflab("model", "llama-3.1-8b", "--batch", "1,64", "--problems")
    assert code == 0
    steps = [
        ModelStep(phase, batch, 2048, PRECISIONS["bf16"]) for phase in PHASES for batch in (1, 64)
    ]
    wanted = problems(read("llama-3.1-8b"), steps)
    assert out.splitlines() == commands(wanted)
    keys = set()
    for line in out.splitlines():
        _, _, workload, *words = shlex.split(line)
        given = dict(zip(words[::2], words[1::2], strict=True))
        cached = given.pop("--cache", "cold")
        assert cached == (
            "warm" if workload in ("rmsnorm", "rope", "swiglu", "add", "copy") else "cold"
        )
        settings = {key[2:]: value for key, value in given.items() if key not in ("-p", "--shape")}
        for shape in given["--shape"].split(","):
            extents = parse_shape(shape, workload)
            keys.add(build(workload, given["-p"], {**extents, **settings}).key)
    assert keys == {one.key for one in wanted}


def test_measured_kernels(rooflab: Rooflab, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("model", tiny, "-p", "fp32", "--batch", "2", "--context", "4", "--prompt", "4")
    _, out, _ = rooflab(*words, "--problems")
    (sweep,) = (line for line in out.splitlines() if " gemm " in line)
    code, _, _ = rooflab(*shlex.split(sweep)[1:], "-k", "fast", "-k", "slow")
    assert code == 0
    run = only_run().path
    code, out, err = rooflab(*words, "--with", run, "--stack", "slow")
    assert (code, err) == (0, "")
    assert "best ms" in out and "slow ms" in out and "owes µs" in out
    assert max(map(len, (line for line in out.splitlines() if line.startswith(" ")))) <= 80
    assert "…" not in out
    assert "Exact 1000: fp32 1 GFLOP/s (measured)" in out
    assert "best is a lower bound: embedding; norm; rope of queries; and" in out
    _, out, _ = rooflab(*words, "-b", "3", "--with", run)
    assert "batch 2: operators" in out and "batch 3: operators" not in out  # 2 has rows
    assert len(re.findall(r"^ +3 .* –\s*$", out, re.MULTILINE)) == 2  # a prefill and a decode
    content = json.loads(rooflab(*words, "--with", run, "--stack", "slow", "--json")[1])
    decode = content["steps"][1]
    (down,) = (one for one in decode["operators"] if one["name"] == "down")
    kernels = {name: one["kernel"] for name, one in down["measured"].items()}
    assert kernels == {"best": "fast", "slow": "slow"}
    best, slow = (decode["stacks"][name] for name in ("best", "slow"))
    assert decode["roof_us"] < best["us"] < slow["us"]
    _, out, _ = rooflab(*words, "--with", run, "--stack", "slow,fast")
    assert "slow ms" in out and "slow: the fastest of slow,fast" in out
    code, out, err = rooflab(*words, "--with", run, "--stack", "slow,torch")
    assert (code, out) == (2, "") and "--stack torch: no row of the runs is of it" in err
    code, out, err = rooflab(*words[:4], "-b", "3", "-c", "5", "--with", run)
    assert (code, out) == (2, "")
    assert "no row of the runs is of an operator here: measure the sweeps of --problems" in joined(
        err
    )
    assert best["lower_bound"] and best["tokens_per_s"] == pytest.approx(2e6 / best["us"])
    for width in (40, 60):  # columns are left out, and no figure is cut
        monkeypatch.setenv("COLUMNS", str(width))
        _, out, _ = rooflab(*words, "-b", "100000", "--with", run, "--stack", "slow")
        assert "slow ms" in out and "…" not in out


def test_ctrl_c_is_told(rooflab: Rooflab, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rooflab.llm.config.read", interrupted)
    code, out, err = rooflab("model", tiny, "--device-facts", FACTS)
    assert (code, out, err) == (130, "", "error: interrupted")


def test_runs_of_another_device_are_refused(rooflab: Rooflab) -> None:
    cpu = FACTS.parent / "cpu"
    code, _, err = rooflab("model", "llama-3.1-8b", "--with", cpu, "--device-facts", FACTS)
    assert code == 2
    assert "the runs are of Intel(R) Xeon(R) Processor, the roofs of NVIDIA H200" in err
    code, _, err = rooflab("model", "llama-3.1-8b", "--with", FACTS, "--with", cpu)
    assert code == 2 and "give those of one device" in err
    code, _, err = rooflab("model", "llama-3.1-8b", "--with", FACTS, "--stack", "torch")
    assert code == 2 and "--stack torch: no row of the runs is of it" in err


def test_this_machine(rooflab: Rooflab, tiny: Path) -> None:
    words = ("-p", "fp32", "--device", "fake:FakeDevice", "--batch", "2")
    code, out, _ = rooflab("model", tiny, *words)
    assert code == 0 and "Exact 1000" in out
    assert "memory has room" not in out


def test_files_beside_the_output(rooflab: Rooflab) -> None:
    words = ("model", "llama-3.1-8b", "--device-facts", FACTS, "--batch", "1,64")
    code, out, err = rooflab(*words, "-o", "tokens.svg", "--style", "dark")
    assert code == 0 and err == "tokens.svg"
    assert Path("tokens.svg").is_file()
    code, _, err = rooflab(*words, "-o", "plan.json")
    assert code == 0 and err.split() == ["plan.json", "plan.png"]
    assert Path("plan.png").is_file()
    assert json.loads(Path("plan.json").read_text())["device"] == "NVIDIA H200"
    assert out.startswith("llama-3.1-8b: ")
    Path("other.png").mkdir()
    code, out, err = rooflab(*words, "-o", "other.json")
    assert (code, out) == (2, "") and "cannot write other.png: it is a folder" in err
    assert not Path("other.json").exists()
