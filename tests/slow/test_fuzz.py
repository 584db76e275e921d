"""Two thousand hostile inputs: whatever comes in, one line goes out, and a known exit code.

Most run in this process, where a call takes milliseconds. What is found here deserves a test of its
own beside the code that it concerns.
"""

from __future__ import annotations

import copy
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fake  # noqa: F401  registers kernels
import pytest
from commands import exact_run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rooflab import workloads
from rooflab.cli import main
from rooflab.runs import store
from rooflab.runs.store import MANIFEST

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Glyph"),  # a font cannot have everything
]

CODES = {0, 1, 2, 3, 130}
LONGEST = 600
EXACT = ("--device", "fake:FakeDevice")


def fuzz(examples: int) -> Callable[..., Any]:
    """So many examples, new ones in each run; no time limit for one."""
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


# What must hold ----------------------------------------------------------------------------------


def called(*words: object, unexpected: bool = False) -> tuple[int, str, str]:
    """A command line in this process; checks what holds for all of them.

    ``unexpected`` allows errors that rooflab does not know, because a user's code raised them.
    """
    before = folders()
    written = io.BytesIO(), io.BytesIO()
    streams = [io.TextIOWrapper(one, encoding="utf-8") for one in written]
    with redirect_stdout(streams[0]), redirect_stderr(streams[1]):
        try:
            main([str(word) for word in words if word != "--debug"])  # which shows tracebacks
        except SystemExit as end:
            code = end.code
    for stream in streams:
        stream.flush()
    out, err = (one.getvalue().decode() for one in written)
    assert isinstance(code, int)
    check(code, out, err, unexpected)
    if code == 2:
        assert folders() == before, "a failed usage has left a folder behind"
    return code, out, err


def check(code: int, out: str, err: str, unexpected: bool = False) -> None:
    assert code in CODES, (code, err)
    assert "Traceback" not in out + err
    assert unexpected or "error: unexpected " not in err, err
    last = err.splitlines()[-1:] or [""]
    assert len(last[0]) <= LONGEST, last


def folders() -> set[Path]:
    return set(Path("results").iterdir()) if Path("results").exists() else set()


# What comes in -----------------------------------------------------------------------------------

NASTY = [
    "",
    " ",
    "-",
    "--",
    "-1",
    "0",
    "1e400",
    "-1e-400",
    "nan",
    "inf",
    "0x10",
    "1_000",
    "\u0661\u0662",
    "\u00b2",
    "9" * 5000,
    "2^99999999999",
    "2^" + "9" * 70,
    "8:16:x1.0000001",
    "8:16:+0",
    "8:16:x1e400",
    "1:2147483648:+1",
    ",",
    ",,",
    "=",
    "a=",
    "alpha=1,alpha=2",
    "alpha=" + "9" * 400,
    "m=3",
    ":",
    "x" * 5000,
    "x" * 300,
    "/" * 300,
    "../../..",
    "/",
    "/dev/null",
    "/dev/full",
    "/proc/self/mem",
    "~",
    "*",
    "[",
    "[!",
    "[[bold]]",
    "\x1b[31mred",
    "\u202egnp",
    "\udcff\udcfe",
    "\U0001d54f",
    "a\nb",
    "a\rb",
    "os:abort",
    "fake:FakeDevice",
    "fake:exact",
    "..:X",
    "a.py",
    "a.py:",
    "a.cu",
    "./",
    ".py",
    ".cu",
    "a.py:b,c.cu",
    "1x1x1",
    "1x1x1x1x1",
    "2147483648x2147483648x2147483648",
    "\u00d7",
    "cuda:99999999999999999999",
    "cuda:-1",
    "cpu",
    "all",
    "fast",
    "nn,nt,",
]
"""Texts that have broken something somewhere."""

texts = st.sampled_from(NASTY) | st.text(
    st.characters(exclude_characters="\0", exclude_categories=()), max_size=20
)

OPTIONS = [
    *("--kernel", "-k", "--sizes", "--shape", "--precision", "-p", "--set", "--device"),
    *("--threads", "--config", "--out", "--seed", "--fill", "--cache", "--rounds"),
    *("--precision-percent", "--max-time", "--resume", "--layout", "--alpha", "--beta"),
    *("--epsilon", "--nothing", "-x", "--help", "--version"),
]
pairs = st.tuples(st.sampled_from(OPTIONS), texts).map(list)
WORKLOADS = ["gemm", "add", "softmax", "sum", "gem"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is whole, with a row that is wrong and one that is fast."""
    return exact_run(tmp_path_factory.mktemp("swept"), ["fast", "wrong"], [48, 64])


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the user who runs the tests."""
    monkeypatch.setenv("ROOFLAB_CACHE_DIR", str(Path("cache").absolute()))


# Arguments ---------------------------------------------------------------------------------------


@fuzz(45)
@given(st.lists(pairs, max_size=3), st.sampled_from([*WORKLOADS, None]) | texts)
def test_options_of_a_sweep(options: list[list[str]], workload: str | None) -> None:
    words = [word for pair in options for word in pair]
    named = [workload] if workload is not None else []
    device = [] if "--device" in words else EXACT
    called("sweep", *named, "--dry-run", *words, *device)


@fuzz(30)
@given(
    st.sampled_from(["show", "export", "plot", "compare", "kernels", "workloads", "devices", ""]),
    st.lists(texts, max_size=3),
)
def test_arguments_of_other_commands(command: str, words: list[str]) -> None:
    if command == "devices":
        words = [f"x{word}" for word in words] or ["x"]  # never all of this machine
    called(*([command] if command else []), *words)


@fuzz(30)
@given(st.lists(texts, max_size=4))
def test_any_words_at_all(words: list[str]) -> None:
    if words[:1] not in (["devices"], ["doctor"], ["selftest"], ["sweep"]):
        called(*words)


# Configurations ----------------------------------------------------------------------------------

numbers = st.sampled_from(
    ["0", "-1", "1e400", "nan", "-inf", "true", "9" * 4000, "9" * 4400, "1e-320", "0x7f", "2.5"]
)
words = st.sampled_from(["fast", "nn", "fp32", "all", "8", "8:9", "", "x" * 700, "\\u001b[1m", "*"])
values = st.recursive(
    numbers
    | words.map(lambda text: f'"{text}"')
    | st.sampled_from(["1979-05-27", "''", "[]", "{}", "0001-01-01T00:00:00-23:59"]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda parts: f"[{', '.join(parts)}]")
        | inner.map(lambda part: f"{{ a = {part} }}")
    ),
    max_leaves=4,
)
KEYS = [
    *("kernels", "sizes", "shapes", "precisions", "seed", "fill", "cache", "threads"),
    *("max_time_s", "timing", "layouts", "layout", "alpha", "alphas", "m", "workload"),
    *("workloads", "cpu", "cuda", "exact", "timing.max_s", "timing.contexts", "nothing", '""'),
    *("workloads.add.sizes", "workloads.gemm", "cpu.timing", "exact.workloads", '"a.b"'),
]
TABLES = ["", "[timing]", "[cpu]", "[exact]", "[workloads.add]", "[workloads]", "[exact.timing]"]
lines = st.tuples(st.sampled_from(KEYS), values).map(" = ".join)
files = st.lists(st.tuples(st.sampled_from(TABLES), st.lists(lines, max_size=3)), max_size=3)


@fuzz(45)
@given(files, st.binary(max_size=4))
def test_configurations(tables: list[tuple[str, list[str]]], noise: bytes) -> None:
    text = "".join(f"{head}\n" + "".join(f"{line}\n" for line in body) for head, body in tables)
    Path("mine.toml").write_bytes(text.encode() + (noise if len(noise) > 2 else b""))
    called("sweep", "--config", "mine.toml", "--dry-run", *EXACT)


# Runs --------------------------------------------------------------------------------------------

leaves: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from([0, -0.0, 1e308, 1e-320, 10**400, "9" * 5000, "\ud800", "0001-01-01"])
    | texts
)
anything = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2)
)


def places(content: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything within a JSON value."""
    items: Iterable[tuple[Any, Any]] = content.items() if isinstance(content, dict) else ()
    items = enumerate(content) if isinstance(content, list) else items
    for key, value in items:
        yield (*at, key)
        yield from places(value, (*at, key))


def read(folder: Path, swept: Path, how: int) -> None:
    """Use a run in one of many ways; drawing, which takes long, seldom."""
    ways: list[tuple[object, ...]] = [
        ("show", folder),
        ("explain", folder),
        ("explain", folder, "--json"),
        ("export", folder),
        ("export", folder, "-f", "json"),
        ("export", folder, "-f", "markdown"),
        ("export", folder, "-f", "latex"),
        ("compare", folder, swept),
        ("compare", swept, folder, "-f", "json", "--fail-on", "slow"),
        ("compare", folder, folder, "-f", "markdown"),
        ("sweep", "--resume", folder),
        ("sweep", "--resume", folder, "--dry-run"),
    ]
    if how % 16 == 0:
        ways = [("plot", folder, "-o", "x.png"), ("plot", folder, "--by-size", "-o", "x.svg")]
    if how % 12 == 1:
        ways = [("sweep", "--resume", folder, *EXACT)]
    called(*ways[how // 16 % len(ways)])


def copied(swept: Path) -> Path:
    shutil.rmtree("run", ignore_errors=True)
    return Path(shutil.copytree(swept, "run"))


@fuzz(45)
@given(st.data(), st.integers(0, 10_000))
def test_manifests(swept: Path, data: st.DataObject, how: int) -> None:
    folder = copied(swept)
    content = json.loads((swept / MANIFEST).read_text())
    everywhere = list(places(content))
    for _ in range(data.draw(st.integers(1, 3))):
        *path, last = data.draw(st.sampled_from(everywhere))
        inner = content
        try:
            for key in path:
                inner = inner[key]
            if data.draw(st.booleans()):
                inner[last] = data.draw(anything)
            else:
                inner[data.draw(texts)] = copy.deepcopy(inner.pop(last))
        except (KeyError, IndexError, TypeError):  # an earlier change has taken it away
            continue
    (folder / MANIFEST).write_text(json.dumps(content))
    read(folder, swept, how)


@fuzz(35)
@given(st.integers(0, 5000), st.binary(max_size=8), st.integers(0, 5000), st.integers(0, 10_000))
def test_bytes_of_a_run(swept: Path, at: int, noise: bytes, cut: int, how: int) -> None:
    folder = copied(swept)
    path = folder / (MANIFEST, store.MEASUREMENTS, store.SAMPLES)[how % 3]
    whole = path.read_bytes()
    at %= len(whole)
    path.write_bytes(whole[:at] + noise + whole[at + len(noise) + (cut if how % 5 == 0 else 0) :])
    read(folder, swept, how)


CELLS = ["nan", "-inf", "1e308", "1e-320", "-1", "0", "9" * 5000, "=1+1", '"', '"a', "a,b", "\0"]


@fuzz(35)
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 60), st.sampled_from(CELLS) | texts),
        max_size=4,
    ),
    st.integers(0, 10_000),
)
def test_tables(swept: Path, cells: list[tuple[int, int, str]], how: int) -> None:
    folder = copied(swept)
    path = folder / store.MEASUREMENTS
    rows = [line.split(",") for line in path.read_text().splitlines()]
    for line, column, cell in cells:
        row = rows[line % len(rows)]
        row[column % len(row)] = cell
    text = "".join(",".join(row) + "\n" for row in rows)
    path.write_bytes(text.encode(errors="surrogatepass" if how % 2 else "replace"))
    read(folder, swept, how)


# Kernel files ------------------------------------------------------------------------------------

HEADER_KEYS = [
    *("entry", "precisions", "block", "tile", "workload", "layouts", "variants", "constraints"),
    *(
        "limits",
        "rung",
        "shared_bytes",
        "blocks_per_sm",
        "blocks_per_tile",
        "launch",
        "title",
        "teaches",
        "needs",
    ),
    *("compute_capability", "min_compute_capability", "batched", "k_major", "nothing"),
]
HEADER_VALUES = [
    *("[]", "{}", '""', "0", "-1", "true", "nan", "9" * 30, '"mine"', '["fp32"]', "[32, 32]"),
    *('["M // 0"]', '["1 if"]', '["' + "(" * 200 + '"]', '["' + "1+" * 5000 + '1"]', '["2 ** 9"]'),
    *("[{ A = 1 }]", "[{ A = 1 }, { A = 1 }]", "{ K = 8 }", "{ Q = 8 }", '"9.0"', '"99.9"'),
    *('["min(M, 2, 3)"]', '"plan"', '["cutlass"]', '"add"', '"x\\u001b"', "[[1]]", '["K % K"]'),
]
header_lines = st.tuples(st.sampled_from(HEADER_KEYS), st.sampled_from(HEADER_VALUES) | values)
GOOD = {
    "entry": '"mine"',
    "precisions": '["fp32"]',
    "block": "[32, 32]",
    "tile": "[32, 32]",
}


@fuzz(30)
@given(st.lists(header_lines, max_size=4), st.sampled_from(["/*", "//", "", "\ufeff/*", "/* /*"]))
def test_headers(given_lines: list[tuple[str, str]], start: str) -> None:
    header = "".join(f"{key} = {value}\n" for key, value in (GOOD | dict(given_lines)).items())
    Path("mine.cu").write_text(f"{start}\n{header}*/\nint x(", encoding="utf-8")
    called("sweep", "-k", "mine.cu", "--sizes", "8", "--dry-run", *EXACT)


ARGUMENTS = ["workload", "precisions", "device", "name", "title", "choices", "requires"]
PYTHON = [
    *(
        "None",
        "5",
        "''",
        "'x' * 5000",
        "[]",
        "['fp32']",
        "['fp99']",
        "'fp32'",
        "{'layout': ['nn']}",
    ),
    *(
        "{'layout': 5}",
        "{'m': ['1']}",
        "'exact'",
        "'cpu'",
        "object()",
        "'add'",
        "'a/b'",
        "'\\x1b[1m'",
    ),
    *("'../x'", "['no_such_module']", "[None]", "b'x'", "'*'", "float('nan')", "'fast'"),
]
BODIES = [
    "pass",
    "return 5",
    "raise KeyError",
    "raise Exception('x' * 5000)",
    "raise SystemExit(9)",
    "return lambda: 1 / 0",
    "return lambda: operands.c.fill(float('inf'))",
    "operands['nothing']",
    "return lambda: setattr(operands, 'c', None)",
]


@fuzz(35)
@given(
    st.lists(st.tuples(st.sampled_from(ARGUMENTS), st.sampled_from(PYTHON)), max_size=3),
    st.sampled_from([*PYTHON, "raise KeyError(5)", "import x", "(", "\x00", "raise SystemExit"]),
    st.sampled_from(BODIES),
    st.integers(0, 20),
)
def test_python_files(
    arguments: list[tuple[str, str]], statement: str, body: str, how: int
) -> None:
    options = {"device": "'exact'", "name": "'mine'"} | dict(arguments)
    given_options = ", ".join(f"{name}={value}" for name, value in options.items())
    Path("mine.py").write_text(
        f"import rooflab\n{statement}\n"
        f"@rooflab.kernel({given_options})\ndef mine(operands, stream):\n    {body}\n"
    )
    plan = [] if how == 7 else ["--dry-run"]
    words = ("-k", "mine.py", "--sizes", "64", "-p", "fp32")
    called("sweep", *words, *plan, *EXACT, unexpected=True)


FIELDS = ["workload", "title", "formula", "work", "sizes", "roles", "arguments", "index_type"]
METHODS = ["operands", "flops", "tolerance", "size", "traffic", "key", "extents", "bytes"]


@fuzz(30)
@given(
    st.dictionaries(st.sampled_from(FIELDS), st.sampled_from(PYTHON), max_size=2),
    st.dictionaries(st.sampled_from(METHODS), st.sampled_from(PYTHON), max_size=2),
)
def test_workloads_of_users(fields: dict[str, str], methods: dict[str, str]) -> None:
    """Their code may raise anything: that is not unexpected."""
    named = {"workload": "'own'", "title": "''", "formula": "''", "work": "''", "sizes": "('n',)"}
    attributes = "".join(f"    {name} = {value}\n" for name, value in (named | fields).items())
    operands = "(rooflab.Operand('y', (self.n,), self.precision.output, 'out'),)"
    stated = {"operands": operands, "flops": "1", "tolerance": "0.0"} | methods
    properties = "".join(
        f"    @property\n    def {name}(self):\n        return {value}\n"
        for name, value in stated.items()
    )
    Path("own.py").write_text(
        "import rooflab\n"
        "@rooflab.workload\n"
        "class Own(rooflab.Problem):\n"
        f"{attributes}    n: int = rooflab.extent('')\n{properties}"
        "    def reference(self, arrays, inputs):\n        return {}\n"
        "@rooflab.kernel(workload='own', device='exact')\n"
        "def mine(operands, stream):\n    pass\n"
    )
    words = ("-k", "own.py", "--sizes", "8", "--dry-run")
    with patch.dict(workloads._known):
        called("sweep", "own", *words, *EXACT, unexpected=True)


# Environment and streams -------------------------------------------------------------------------

VARIABLES = ["COLUMNS", "LINES", "TERM", "NO_COLOR", "FORCE_COLOR", "ROOFLAB_CACHE_DIR", "HOME"]


def _encodable(text: str) -> str:
    """What an environment can hold."""
    return text.encode(errors="ignore").decode()


@fuzz(30)
@given(
    st.dictionaries(st.sampled_from(VARIABLES), texts.map(_encodable), min_size=1),
    st.sampled_from([("kernels",), ("show",), ("workloads",), ("sweep", "--dry-run", *EXACT)]),
)
def test_environments(swept: Path, environment: dict[str, str], words: tuple[str, ...]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        for name, value in environment.items():
            patched.setenv(name, value)
        called(*words, *([swept] if words == ("show",) else []))


COMMANDS = [
    ("--help",),
    ("--version",),
    ("kernels",),
    ("show", "RUN"),
    ("export", "RUN"),
    ("sweep", "--dry-run", *EXACT),
    ("sweep", "-k", "fast", "-p", "fp32", "--sizes", "64", *EXACT),
    ("nothing",),
]
STREAMS = [
    *("> /dev/full", ">&-", "| true", "2> /dev/full", "2>&-", ">&- 2>&-", "< /dev/null >&-"),
    "2>&1 | true",
]


PAIRS = [
    (words, streams)
    for (i, words), (j, streams) in product(enumerate(COMMANDS), enumerate(STREAMS))
    if (i + j) % 3 == 0
]


@pytest.mark.parametrize(
    ("words", "streams"), PAIRS, ids=[f"{' '.join(words)} {streams}" for words, streams in PAIRS]
)
def test_streams(swept: Path, words: tuple[str, ...], streams: str) -> None:
    """A full or closed stdout is a failure in one line; a reader that has left is none at all."""
    line = " ".join(str(swept) if word == "RUN" else word for word in words)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m rooflab {line} {streams}"],
        capture_output=True,
        text=True,
        env=environment,
    )
    check(done.returncode, done.stdout, done.stderr)
    assert "Exception ignored" not in done.stderr
    if streams == "> /dev/full" and words != ("nothing",):
        assert done.returncode == 1
        assert "No space left on device" in done.stderr
