"""The main job, whole, on a device with an exact clock."""

from __future__ import annotations

from pathlib import Path

import fake
import pytest

from rooflab import run
from rooflab.cli import main

QUICK = ["--precision", "fp32", "--sizes", "32:64:x2"]


def rooflab(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


@pytest.fixture(autouse=True)
def device(fake_device: fake.FakeDevice, monkeypatch: pytest.MonkeyPatch) -> fake.FakeDevice:
    monkeypatch.setenv("COLUMNS", "80")
    return fake_device


def test_the_whole_job(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rooflab("sweep", "-k", "fast", "-k", "slow", *QUICK) == 0
    printed = capsys.readouterr()
    assert (
        printed.out
        == (
            "FP32, layout nn                                                         \n"
            "                                                                        \n"
        )
        or "FP32, layout nn" in printed.out
    )
    assert "fast reached" in printed.out
    assert "4.00 ± 0.00 times as fast as slow" in printed.out
    assert max(map(len, printed.out.splitlines())) <= 80

    (folder,) = (elsewhere / "results").iterdir()
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "manifest.json",
        "measurements.csv",
        "samples.jsonl",
        "roofline.png",
        "size.png",
    }
    loaded = run.load(folder)
    assert [(row.kernel, row.m) for row in loaded.measurements] == [
        ("fast", 32),
        ("slow", 32),
        ("fast", 64),
        ("slow", 64),
    ]
    fast = loaded.measurements[2]
    attainable = min(fake.PEAK, 64 / 6 * fake.BANDWIDTH)
    assert fast.roof_tflops == pytest.approx(attainable / 1e12)
    assert fast.roof_percent == pytest.approx(80)
    assert fast.time_us == pytest.approx(2 * 64**3 / (0.8 * attainable) * 1e6)
    assert fast.bound == "compute"
    assert loaded.manifest.finished is not None
    assert loaded.manifest.config["sizes"] == [32, 64]
