"""Every command of README, docs/commands.md and docs/start.md runs on a GPU, small and briefly."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numba_here
import pytest
import ranked
from documents import commands

from rooflab import engine
from rooflab.cli import main
from rooflab.files import kernels_dir
from rooflab.judging.trial import Arena
from rooflab.worker.client import Worker
from rooflab.worker.messages import Job

pytestmark = pytest.mark.gpu

DATA = Path(__file__).resolve().parents[1] / "data"
RUNS = ("RUN", "ONE", "OTHER", "BASE", "NEW", "GPU")
SMALL = {"512:4096:x2": "512", "4096x14336x4096": "512x256x128", "8192x32768": "512x1024"}
MAKING_S = 300.0
BRIEF = ("--max-time", "2", "--rounds", "3")
ELSEWHERE = ("fleet",)
"""Commands for other machines than this one."""


def cases() -> list[list[str]]:
    """The words of each command; continued runs are continued in the end."""
    pages = ("README.md", "docs/commands.md", "docs/start.md")
    found = {tuple(words): None for page in pages for words in commands(page)}
    return [list(words) for words in found if words[0] not in ELSEWHERE]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run under each name that the pages use: one process makes it for all."""
    own = tmp_path_factory.mktemp("pages")
    together = own if "PYTEST_XDIST_WORKER" not in os.environ else own.parents[1]
    made, ready = together / "made", together / "ready"
    try:
        made.mkdir()
    except FileExistsError:
        until = monotonic() + MAKING_S
        while not ready.exists():
            assert monotonic() < until, "another process has not made the runs"
            sleep(0.5)
    else:
        make_runs(made)
        ready.touch()
    return Path(shutil.copytree(made, own / "runs"))


def make_runs(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        begins_soon(patch)
        run("sweep -k tiled -k cublas -p fp32 --sizes 512,2048 --out gpu --rounds 3")
        run(
            "sweep -k tiled -k blas -p fp32 --sizes 512,1024 --device cpu --threads 1 --out cpu",
            *BRIEF,
        )
        (gpu,), (cpu,) = Path("gpu").iterdir(), Path("cpu").iterdir()
        run(f"counters {gpu}")
        for name in RUNS:
            shutil.copytree(gpu, f"results/{name}")
        shutil.copytree(cpu, "results/CPU")
        programs()
        shutil.copytree(gpu, "BASE")
        shutil.copytree(gpu, "NEW")
        source = (kernels_dir() / "gemm" / "03_tiled.cu").read_text()
        Path("mine.cu").write_text(source)
        examples = Path(__file__).resolve().parents[2] / "examples"
        shutil.copytree(examples, "examples")


def programs() -> None:
    """Runs of a program: of one process, twice, and of two ranks."""
    run(["profile", "--out", "results/PROGRAM", str(DATA / "programs" / "torch.json")])
    shutil.copytree("results/PROGRAM", "results/X")
    assert all(code == 0 for code, *_ in ranked.ranks(ranked.STEPS, out="results/RANKS"))


def begins_soon(patch: pytest.MonkeyPatch) -> None:
    """One process measures, on a device as it is and in company: times do not matter here."""
    patch.setattr(engine, "Job", lambda **given: Job(**(given | {"candidates": 1})))
    patch.setattr(Worker, "warm_up", lambda *step: {})
    patch.setattr(Arena, "disturbed", lambda self: False)  # other tests use the GPU too


def run(text: str | list[str], *more: str) -> None:
    words = text if isinstance(text, list) else shlex.split(text)
    with pytest.raises(SystemExit) as ended:
        main([*words, *more])
    # A machine beside others may not be fit to compare kernels, which the self-test says, and no
    # kernel may have had the GPU to itself for as long as energy takes.
    allowed = {"selftest": (0, 1), "plot --energy": (0, 2)}
    known = next(
        (codes for start, codes in allowed.items() if " ".join(words).startswith(start)), (0,)
    )
    assert ended.value.code in known


@pytest.mark.parametrize("words", cases(), ids=" ".join)
def test_a_command_of_the_pages(
    runs: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs)
    begins_soon(monkeypatch)
    if "examples/numba_cuda.py" in words and (reason := numba_here.lacks()):
        pytest.skip(reason)
    words = [name for word in words for name in expanded(SMALL.get(word, word))]
    more: tuple[Any, ...] = BRIEF if words[0] == "sweep" and "--dry-run" not in words else ()
    run(words, *(more[:2] if "--resume" in words else more))


def expanded(word: str) -> list[str]:
    """What a shell makes of a word without quotes."""
    return sorted(map(str, Path().glob(word))) if "/*" in word else [word]
