"""A run folder from a stranger: nothing in it runs, writes elsewhere, or reaches a reader raw."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Rooflab, exact_run, joined, only_run

from rooflab import api
from rooflab.devices.cuda import compiler
from rooflab.files import kernels_dir
from rooflab.runs import store
from rooflab.runs.store import MANIFEST

ESCAPE = "\x1b[31mred\x1b[0m\x07"
TURNED = "\u202egnp.exe"
MARKUP = "[bold]big[/bold] :warning: [link=http://evil]"
TEX = r"\input{/etc/passwd} & # $ { } ^ ~ _ %"
MARKDOWN = "| ![x](http://evil/x.png) <script>alert(1)</script> `code`"
FORMULA = "=HYPERLINK(A1)"
HOSTILE = " ".join((ESCAPE, TURNED, MARKUP, TEX, MARKDOWN))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exact_run(tmp_path_factory.mktemp("measured"), ["fast", "wrong"], [48, 64])


@pytest.fixture
def folder(measured: Path) -> Path:
    """A copy of a run with two kernels, of which one is wrong."""
    return Path(shutil.copytree(measured, Path("results") / measured.name))


def rewrite(folder: Path, change: Callable[[Any], None]) -> None:
    """Change the manifest."""
    path = folder / MANIFEST
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def poison(folder: Path) -> None:
    """Put hostile text wherever a run has text."""

    def change(content: Any) -> None:
        content["device"]["name"] = HOSTILE
        content["device"]["facts"]["threads"]["value"] = HOSTILE
        content["command"] = [HOSTILE]
        content["versions"][HOSTILE] = HOSTILE
        content["workloads"]["gemm"]["settings"]["layout"] = "str"
        for record in content["kernels"].values():
            record["title"] = record["sha256"] = HOSTILE
        for ceiling in content["roofline"]["ceilings"]:
            ceiling["formula"] = ceiling["caveat"] = HOSTILE

    rewrite(folder, change)
    path = folder / store.MEASUREMENTS
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    for row in rows:
        row["kernel"] = FORMULA if row["kernel"] == "fast" else f"{row['kernel']} {HOSTILE}"
        row["layout"] = row["variant"] = row["backend"] = HOSTILE
        row["reason"] = row["reason"] and HOSTILE
        row["flags"] = HOSTILE
    with path.open("w") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


STEERING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

# Text --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "RUN"),
        ("show", "RUN", "--plot"),
        ("explain", "RUN"),
        ("explain", "RUN", "--json"),
        ("export", "RUN"),
        ("export", "RUN", "-f", "markdown"),
        ("export", "RUN", "-f", "latex"),
        ("export", "RUN", "-f", "json"),
        ("compare", "RUN", "OTHER"),
        ("compare", "RUN", "OTHER", "-f", "markdown"),
        ("compare", "RUN", "OTHER", "-f", "json"),
        ("compare", "RUN", "OTHER", "-f", "github"),
        ("compare", "RUN", "OTHER", "-f", "junit"),
        ("report", "RUN", "-o", "x.html"),
        ("report", "RUN", "OTHER", "-o", "x.html"),
        ("plot", "RUN", "-o", "x.svg"),
        ("plot", "RUN", "--by-size", "-o", "x.svg"),
    ],
    ids=" ".join,
)
def test_no_text_of_a_run_steers_a_terminal(
    rooflab: Rooflab, folder: Path, measured: Path, arguments: tuple[str, ...]
) -> None:
    poison(folder)
    shutil.copytree(folder, "other")
    places = {"RUN": folder, "OTHER": Path("other")}
    code, out, err = rooflab(*(places.get(word, word) for word in arguments))
    assert code == 0
    assert not STEERING.search(out)
    assert not STEERING.search(err)
    for picture in Path().glob("x.*"):
        assert not STEERING.search(picture.read_text(encoding="utf-8"))


def test_markup_of_a_run_is_text(rooflab: Rooflab, folder: Path) -> None:
    """Neither rich's tags nor its emoji mean anything there."""
    poison(folder)
    _, out, err = rooflab("show", folder)
    for text in (joined(out), joined(err)):
        assert "[bold]big[/bold] :warning: [link=http://evil]" in text


def test_latex_of_a_run_is_text(rooflab: Rooflab, folder: Path) -> None:
    poison(folder)
    _, out, _ = rooflab("export", folder, "-f", "latex")
    assert r"\input" not in out
    assert (
        r"\textbackslash{}input\{/etc/passwd\} \& \# \$ \{ \} \textasciicircum{} "
        r"\textasciitilde{} \_ \%" in out
    )


@pytest.mark.parametrize("command", ["export", "compare"])
def test_markdown_of_a_run_is_text(rooflab: Rooflab, folder: Path, command: str) -> None:
    poison(folder)
    other = [folder] if command == "compare" else []
    _, out, _ = rooflab(command, folder, *other, "-f", "markdown")
    assert r"\!\[x\](http://evil/x.png)" in out
    assert "<script>" not in re.sub(r"\\.", "", out)
    rows = [re.sub(r"\\.", "", line) for line in out.splitlines() if line.startswith("|")]
    assert len({row.count("|") for row in rows}) == 1


def test_a_cell_is_no_formula(rooflab: Rooflab, folder: Path) -> None:
    poison(folder)
    _, out, _ = rooflab("export", folder)
    rows = list(csv.DictReader(io.StringIO(out)))
    assert {row["kernel"] for row in rows if "HYPERLINK" in row["kernel"]} == {f"'{FORMULA}"}
    assert not [cell for row in rows for cell in row.values() if cell[:1] in "=+@\t" and cell]


def test_html_of_a_run_is_text(folder: Path) -> None:
    poison(folder)
    html = api.load(folder)._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


# Code --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["exact", "cpu", "cuda"])
@pytest.mark.parametrize("device", ["os:abort", "payload:Device"])
def test_a_run_cannot_name_a_device_class(
    rooflab: Rooflab,
    folder: Path,
    elsewhere: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    device: str,
) -> None:
    Path("payload.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    monkeypatch.syspath_prepend(elsewhere)

    def change(content: Any) -> None:
        content["device"] |= {"id": device, "kind": kind}

    rewrite(folder, change)
    code, out, err = rooflab("sweep", "--resume", folder, "--device", "auto")
    assert (code, out) == (2, "")
    assert joined(err) == (
        f"error: this run used a device class, {device}: "
        "if you trust it, add --device with that name"
    )
    assert not Path("ran").exists()


@pytest.mark.parametrize("name", ["payload.py", "./payload.py:kernel", "sub/payload.cu"])
def test_a_run_cannot_name_a_kernel_file(rooflab: Rooflab, folder: Path, name: str) -> None:
    Path("payload.py").write_text("from pathlib import Path\nPath('ran').touch()\n")

    def change(content: Any) -> None:
        content["config"]["workloads"][0]["kernels"] = [name]

    rewrite(folder, change)
    code, out, err = rooflab("sweep", "--resume", folder)
    assert (code, out) == (2, "")
    assert "this run has kernel files; if you trust them, add: --kernel" in joined(err)
    assert not Path("ran").exists()


def test_a_cache_that_others_can_write_is_not_used(
    rooflab: Rooflab, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code is loaded from there."""
    if compiler.unavailable():
        pytest.skip("there is no compiler")
    cache = elsewhere / "cache" / "cubins"
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    monkeypatch.setenv("ROOFLAB_CACHE_DIR", str(cache.parent))
    kernel = shutil.copy(kernels_dir() / "gemm" / "01_naive.cu", elsewhere / "mine.cu")
    code, _, err = rooflab("sweep", "-k", kernel, "--sizes", "8")
    assert code == 2
    assert "can be written by other users, who could put code into it" in joined(err)
    assert not list(cache.iterdir())


# Links -------------------------------------------------------------------------------------------

PICTURES = ("roofline.png", "size.png")


@pytest.mark.pictures
def test_pictures_are_not_written_through_links(rooflab: Rooflab, folder: Path) -> None:
    victim = Path("victim")
    victim.write_text("precious")
    for name in PICTURES:
        (folder / name).symlink_to(victim.resolve())
    assert rooflab("plot", folder)[0] == 0
    assert victim.read_text() == "precious"
    for name in PICTURES:
        assert not (folder / name).is_symlink()
        assert (folder / name).stat().st_size > 1000


@pytest.mark.parametrize("name", [MANIFEST, store.MEASUREMENTS, store.SAMPLES])
def test_a_continued_run_is_not_written_through_links(
    rooflab: Rooflab, folder: Path, name: str
) -> None:
    """The link stands for a file of the user that happens to look right."""
    table = folder / store.MEASUREMENTS
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:-2]))
    victim = Path("victim")
    (folder / name).replace(victim)
    (folder / name).symlink_to(victim.resolve())
    before = victim.read_bytes()
    code, _, err = rooflab("sweep", "--resume", folder)
    assert victim.read_bytes() == before
    if name == MANIFEST:
        assert code == 3  # one kernel is wrong
        assert not (folder / name).is_symlink()
    else:
        assert code == 1
        assert f"cannot write {folder / name}: " in joined(err)
        assert "remove the link" in joined(err)


def test_names_of_temporary_files_cannot_be_guessed(rooflab: Rooflab, folder: Path) -> None:
    victim = Path("victim")
    victim.write_text("precious")
    for name in (MANIFEST, store.SAMPLES, store.MEASUREMENTS):
        for guess in (f"{name}.new", f".{name}", f"{name}.tmp"):
            (folder / guess).symlink_to(victim.resolve())
    assert rooflab("sweep", "--resume", folder)[0] == 3
    assert victim.read_text() == "precious"


# What cannot be read -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a rooflab manifest"),
        ("[]", "it is not a JSON object"),
        ("{}", "it has no schema number"),
        ('{"schema": 99}', "was written by a newer rooflab (schema 99"),
        ('{"schema": true}', "not a rooflab manifest"),
        ('{"schema": NaN}', "NaN is not a number in JSON"),
        ('{"schema": 3}', "Field required"),
        ("[" * 100_000, "not a rooflab manifest"),
        ('{"a":' * 100_000, "not a rooflab manifest"),
        (f'{{"schema": {"9" * 5000}}}', "not a rooflab manifest"),
        ('{"schema": 3, "created": "\\ud800"}', "created"),
        ("\x00\xff", "not a rooflab manifest"),
    ],
    ids=lambda value: "",
)
def test_a_manifest_that_is_none_is_one_line(
    rooflab: Rooflab, folder: Path, text: str, says: str
) -> None:
    (folder / MANIFEST).write_text(text, encoding="latin-1")
    code, out, err = rooflab("show", folder)
    assert (code, out) == (1, "")
    assert err.startswith(f"error: {folder / MANIFEST}")
    assert says in err
    assert len(err) < 600


@pytest.mark.parametrize("name", [MANIFEST, store.MEASUREMENTS])
def test_a_pipe_in_place_of_a_file_does_not_block(
    rooflab: Rooflab, folder: Path, name: str
) -> None:
    import os

    (folder / name).unlink()
    os.mkfifo(folder / name)
    code, _, err = rooflab("show", folder)
    assert code in (1, 2)
    assert err.startswith("error: ")


@pytest.mark.parametrize("value", [0, -0.0, 1e308, -1, 1e-320, 5e-324])
def test_impossible_roofs_are_drawn_without(rooflab: Rooflab, folder: Path, value: float) -> None:
    def change(content: Any) -> None:
        for ceiling in content["roofline"]["ceilings"]:
            ceiling["value"] = value

    rewrite(folder, change)
    code, _, err = rooflab("plot", folder, "-o", "x.png")
    assert code in (0, 2)
    assert "unexpected" not in err
    assert "Traceback" not in err
    assert rooflab("show", folder)[0] == 0


def test_the_run_itself_is_left_alone(rooflab: Rooflab, folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for arguments in (("show",), ("export",), ("compare", folder)):
        rooflab(arguments[0], folder, *arguments[1:])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert only_run().path == folder
