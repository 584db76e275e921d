"""The main job on a GPU, with a user's own files among the kernels."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rooflab.cli import main
from rooflab.files import kernels_dir
from rooflab.runs import store

pytestmark = pytest.mark.gpu


def test_own_files_beside_ours(capsys: pytest.CaptureFixture[str]) -> None:
    good = (kernels_dir() / "gemm" / "03_tiled.cu").read_text()
    Path("mine.cu").write_text(good)
    Path("broken.cu").write_text(good.replace("Accumulate sum = 0;", "Accumulate sum = zero;"))
    Path("wrong.cu").write_text(good.replace("k < TILE;", "k < TILE - 1;"))
    names = ("mine", "broken", "wrong")
    with pytest.raises(SystemExit) as ended:
        main(
            ["sweep", "--config", "quick", "--sizes", "256,300", "-k", "cublas"]
            + [argument for name in names for argument in ("-k", f"./{name}.cu")]
        )
    assert ended.value.code == 3
    (folder,) = Path("results").iterdir()
    one = store.load(folder)
    statuses = {(row.kernel, row.status) for row in one.measurements}
    assert statuses == {
        ("cublas", "ok"),
        ("mine", "ok"),
        ("broken", "failed"),
        ("wrong", "incorrect"),
    }
    printed = capsys.readouterr().err
    assert "broken.cu(" in printed
    assert '"zero" is undefined' in printed
    assert one.manifest.kernels["gemm/mine"].compiled[0]["registers"] > 0
    assert {path.suffix for path in folder.iterdir()} >= {".png", ".csv", ".json"}


def test_every_row_is_verified_and_below_its_roof() -> None:
    with pytest.raises(SystemExit) as ended:
        main(["sweep", "--config", "quick", "-p", "all", "--sizes", "1000", "--layout", "all"])
    assert ended.value.code == 0
    rows = store.load(store.newest(Path("results"))).measurements
    layouts, precisions = 4, {"naive": 2, "coalesced": 2, "tiled": 6, "cublas": 6}
    assert Counter(row.kernel for row in rows) == {
        kernel: layouts * count for kernel, count in precisions.items()
    }
    for row in rows:
        assert row.status == "ok", row.reason
        assert row.roof_percent is not None
        assert 0 < row.roof_percent < 100
