"""CUDA source → cubin, by NVRTC or nvcc, with a cache on disk.

NVRTC compiles one program at a time in a process: its threads wait for each other. If it is busy, a
thread compiles in a child process.

For NVRTC no CUDA toolkit, host compiler or GPU is needed: it and CUDA's headers are packages.
CuPy's compilation is not used because it always targets ``sm_90``, which lacks Hopper's wgmma and
setmaxnreg, and puts its copy of CCCL before all other include folders.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from time import time
from typing import Final, NamedTuple

from rooflab.devices.cuda import install
from rooflab.devices.cuda.install import first_line
from rooflab.devices.cuda.nvcc import Nvcc, word
from rooflab.errors import KernelError, RooflabError
from rooflab.files import cache_dir, kernel_name, kernels_dir, private_folder, write_atomic

_log = logging.getLogger(__name__)

COMMON_OPTIONS: Final = ("-std=c++17", "--ptxas-options=-v")

INCLUDE: Final = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.MULTILINE)

COMMENT: Final = re.compile(
    rb""""(?:\\.|[^"\\\n])*"|(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])*'|//[^\n]*|/\*.*?\*/""", re.DOTALL
)
"""A comment, or a string or character literal, which contains no comments."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel's machine code and what ptxas reports about it.

    ``registers`` per thread; ``spill_bytes`` stored per thread; ``static_shared_bytes`` per block,
    without dynamic shared memory. ``log`` is the compiler's, with warnings. ``grid_barrier`` says
    that the kernel waits for all blocks of the grid, by cooperative groups. ``entry`` is its name
    in the machine code, ``cluster`` the extents of the clusters that its source fixes, if it does,
    and ``dynamic_bytes`` the shared memory that was to be found. Of host code ``cubin`` is the
    shared library, and the others are the most of any kernel in it.
    """

    cubin: Path
    compiler: str
    arch: str
    registers: int
    spill_bytes: int
    static_shared_bytes: int
    log: str
    grid_barrier: bool
    entry: str
    cluster: tuple[int, ...]
    dynamic_bytes: int


@dataclass(frozen=True, slots=True)
class Library:
    """Headers of a library: ``folders`` are searched, and ``version`` identifies their content."""

    name: str
    version: str
    folders: tuple[Path, ...]


@cache
def unavailable() -> str:
    """Why nothing can be compiled here, with the command that fixes it; empty if it can."""
    try:
        import cupy  # noqa: F401
    except ModuleNotFoundError as error:
        return f"the package {error.name} is not installed: {_install()}"
    except ImportError as error:
        return f"CuPy cannot be imported ({first_line(error)}): {_install()}"
    try:
        version()
    except (ImportError, OSError, RuntimeError) as error:
        return f"NVRTC cannot be loaded ({first_line(error)}): {_install()}"
    return ""


def _install() -> str:
    return f"{install.line(install.extra())} (or {install.line('nvrtc')} to only compile)"


def arch_for(compute_capability: str) -> str:
    """NVRTC's name for a device: ``"8.9"`` → ``sm_89``, ``"9.0"`` → ``sm_90a``.

    From 9.0 on it is the architecture-specific target: only that has wgmma (9.0) or tcgen05 (10.0).
    """
    major, minor = compute_capability.split(".")
    return f"sm_{major}{minor}{'a' if int(major) >= 9 else ''}"


def capability_of(arch: str) -> str:
    """The opposite of ``arch_for``: ``sm_90a`` → ``"9.0"``."""
    digits = re.sub(r"\D", "", arch)
    return f"{digits[:-1]}.{digits[-1]}"


def compile_file(
    source: Path,
    entry: str,
    options: Sequence[str],
    arch: str,
    libraries: tuple[Library, ...] = (),
    nvcc: Nvcc | None = None,
    *,
    shared_bytes: str = "",
) -> Compiled:
    """The machine code of the kernel ``entry`` in ``source``, for ``arch``.

    ``entry`` is the name of an ``extern "C"`` kernel, or what C++ calls it: ``ns::f<float>``.
    ``shared_bytes`` is an expression of C++ whose value is to be found.
    It is compiled by NVRTC, or by ``nvcc`` if that is given. ``options`` are those that both have;
    include folders are added here: the source's folder, kernels/include, the ``libraries``' and
    CUDA's. The result comes from the cache on disk if no input has changed.
    Safe to call from several threads and processes at once.

    Raises ``KernelError`` with the compiler's message; its first line is the first error.
    """
    if not nvcc and (reason := unavailable()):
        raise KernelError(f"{source} cannot be compiled: {reason}")
    more = [_variable(_SHARED_BYTES, "unsigned long long", shared_bytes)] if shared_bytes else []
    if nvcc and not entry.isidentifier():
        more.append(_variable(_ENTRY, "const void*", f"(const void*)({entry})"))
    return _compiled(
        _Job(source, entry, tuple(options), arch, libraries, nvcc, "\n".join(more)), "cubin"
    )


def compile_host(
    source: Path,
    more: str,
    options: Sequence[str],
    arch: str,
    libraries: tuple[Library, ...],
    nvcc: Nvcc,
) -> Compiled:
    """A shared library of ``source``, with its host code, and of the text ``more`` after it.

    ``options`` are any of nvcc's, relative to the source's folder. The driver need not be linked:
    a process that launches has loaded it. Raises ``KernelError`` if nothing defines a function.
    """
    options = tuple(option for option in options if option != "-lcuda")
    return _compiled(_Job(source, "", options, arch, libraries, nvcc, more, host=True), "so")


_ENTRY: Final = "rooflab_entry"
_SHARED_BYTES: Final = "rooflab_shared_bytes"
"""Variables whose values are read from the PTX."""


def _variable(name: str, kind: str, value: str) -> str:
    return f'extern "C" __device__ {kind} {name} = {value};'


def _compiled(job: _Job, suffix: str) -> Compiled:
    source, nvcc = job.source, job.nvcc
    folder = _writable(cache_dir() / "cubins")
    try:
        cubin = folder / f"{_key(job)}.{suffix}"
    except OSError as error:
        raise KernelError(f"{source} cannot be read: {error.strerror}") from error
    with _being_made.setdefault(cubin, threading.Lock()):  # if it compiles, only once
        if cached := _load(cubin):
            return cached
        if nvcc:
            return _compile(job, cubin)
        if not _nvrtc_is_free.acquire(blocking=False):
            if compiled := _compile_elsewhere(job, cubin):
                return compiled
            _nvrtc_is_free.acquire()
        try:
            return _compile(job, cubin)
        finally:
            _nvrtc_is_free.release()


_nvrtc_is_free: Final = threading.Lock()
_being_made: Final[dict[Path, threading.Lock]] = {}


@dataclass(frozen=True, slots=True)
class _Job:
    """What ``compile_file`` is asked for."""

    source: Path
    entry: str
    options: tuple[str, ...]
    arch: str
    libraries: tuple[Library, ...]
    nvcc: Nvcc | None
    more: str = ""
    host: bool = False


def _compile(job: _Job, cubin: Path) -> Compiled:
    """Compile in this process and store the result."""
    code, log, ptx = (_run_nvcc if job.nvcc else _run_nvrtc)(job)
    if code is None:
        raise KernelError(_explain(job.source, log))
    compiler = job.nvcc.title if job.nvcc else title()
    entry = _value(ptx, _ENTRY) or job.entry
    usage = _usage(log, job.source, entry)
    text = _text_of(ptx, entry)
    compiled = Compiled(
        *(cubin, compiler, job.arch, *usage, log, _waits_for_grid(text), entry),
        _fixed_cluster(text),
        int(_value(ptx, _SHARED_BYTES) or 0),
    )
    record = asdict(compiled) | {"sha256": hashlib.sha256(code).hexdigest()}
    del record["cubin"]
    try:
        write_atomic(cubin, code)
        write_atomic(cubin.with_suffix(".json"), json.dumps(record).encode())  # makes it valid
    except OSError as error:
        raise KernelError(f"{cubin} cannot be written: {error.strerror}") from error
    return compiled


_CHILD: Final = "from rooflab.devices.cuda.compiler import compile_for_parent; compile_for_parent()"

_REFUSED: Final = 3
"""Exit status of a child that has written the compiler's message."""


def _compile_elsewhere(job: _Job, cubin: Path) -> Compiled | None:
    """``_compile`` in a child process; None if the child cannot run or fails for another reason."""
    command, request = [sys.executable, "-c", _CHILD], pickle.dumps((job, cubin))
    try:
        child = subprocess.run(command, input=request, capture_output=True, check=False)
    except OSError:
        return None
    if child.returncode == _REFUSED:
        raise KernelError(child.stdout.decode(errors="replace").strip("\n"))
    return _load(cubin) if child.returncode == 0 else None


def compile_for_parent() -> None:
    """The child's end of ``_compile_elsewhere``."""
    try:
        _compile(*pickle.load(sys.stdin.buffer))
    except KernelError as error:
        sys.stdout.buffer.write(str(error).encode())
        sys.stdout.flush()
        sys.exit(_REFUSED)


# Includes ---------------------------------------------------------------------------------------


def _own_folders(source: Path) -> tuple[Path, Path]:
    """The folders of rooflab's and the user's headers: the source's own, and kernels/include."""
    return source.resolve().parent, kernels_dir() / "include"


_HEADERS: Final = {
    "cudart": "cuda_runtime_api.h",
    "nvcc": "crt/mma.h",
    "cccl": "cuda/std/type_traits",
}
"""The parts of CUDA's headers, by cuda-pathfinder's name, and a file that each must contain."""


@cache
def cuda_headers() -> Library | None:
    """CUDA's headers of NVRTC's major version, None if there are none.

    Each part is searched by cuda-pathfinder, in all packages of NVIDIA, in CUDA_PATH and CUDA_HOME,
    then in /usr/local/cuda: packages of two CUDA versions may be installed. Other versions are
    skipped: headers of CUDA 13, installed for another package, break NVRTC 12.
    """
    major, _ = version()
    folders: dict[Path, None] = {}
    for part, file in _HEADERS.items():
        for folder in _header_candidates(part):
            another = any(re.fullmatch(r"cu\d+", p) and p != f"cu{major}" for p in folder.parts)
            if another or not (folder / file).is_file():
                continue
            if part == "cudart" and _cudart_version(folder) // 1000 != major:
                continue
            folders[folder] = None
            break
        if not folders:  # without the first part nothing can be compiled
            return None
    return Library("CUDA", str(_cudart_version(next(iter(folders)))), tuple(folders))


def _header_candidates(part: str) -> Iterator[Path]:
    yield from install.in_packages("find_nvidia_header_directory", part)
    for entry in sys.path:
        yield from sorted(Path(entry).glob("nvidia/*/include"))
    roots = [os.environ.get(variable) for variable in ("CUDA_PATH", "CUDA_HOME")]
    for root in (*filter(None, roots), "/usr/local/cuda"):
        yield Path(root) / "include"
        yield Path(root) / "include" / "cccl"


def _cudart_version(folder: Path) -> int:
    """``CUDART_VERSION``: 12090 is 12.9."""
    text = (folder / "cuda_runtime_api.h").read_text(encoding="utf-8", errors="replace")
    found = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", text)
    return int(found[1]) if found else 0


# The compiler -----------------------------------------------------------------------------------


def oldest() -> str:
    """The oldest compute capability that NVRTC compiles for, such as ``"5.0"``."""
    from cupy.cuda import nvrtc

    least = min(nvrtc.getSupportedArchs())
    return f"{least // 10}.{least % 10}"


def version() -> tuple[int, int]:
    """NVRTC's version."""
    from cupy.cuda import nvrtc

    major, minor = nvrtc.getVersion()
    return major, minor


def title() -> str:
    """NVRTC's name and version."""
    return f"NVRTC {'.'.join(map(str, version()))}"


_OF_THE_DRIVER: Final = re.compile(r"cu[A-Z]\w*$")
_DRIVERS: Final = re.compile(r"^.*undefined references? to [`']cu[A-Z]\w*'.*\n?", re.MULTILINE)


def _run_nvcc(job: _Job) -> tuple[bytes | None, str, str]:
    assert job.nvcc
    options = [*COMMON_OPTIONS, *job.options]
    if job.host and any("std=" in option for option in job.options):  # nvcc refuses a second one
        options.remove(COMMON_OPTIONS[0])
    if job.host:
        options += ("-Xlinker=--no-undefined", "-Xlinker=--warn-unresolved-symbols")
    code, log, ptx = job.nvcc.build(
        job.source, options, job.arch, _folders(job), more=job.more, host=job.host
    )
    undefined = dict.fromkeys(re.findall(r"undefined references? to [`']([^`']+)'", log))
    if code and (missing := [name for name in undefined if not _OF_THE_DRIVER.match(name)]):
        raise KernelError(
            f"{job.source}: nothing defines {', '.join(missing)[:200]}: name its library in "
            'libraries, or in options as in "-lcublas", and declare it extern "C" if it is of C'
        )
    return code, _DRIVERS.sub("", log), ptx


def _run_nvrtc(job: _Job) -> tuple[bytes | None, str, str]:
    """The cubin, None after an error; the log; and the PTX."""
    from cupy.cuda import nvrtc

    supported = nvrtc.getSupportedArchs()
    if int(re.sub(r"\D", "", job.arch)) not in supported:
        raise KernelError(
            f"{job.source}: {title()} compiles for "
            f"sm_{min(supported)} to sm_{max(supported)} and not for {job.arch}; "
            "install a CUDA version that supports this device"
        )
    options = [*COMMON_OPTIONS, f"-arch={job.arch}", *(f"-I{one}" for one in _folders(job))]
    options += job.options
    if version() >= (12, 9):  # NVRTC has its own cache, which returns cubins without ptxas' log
        options.append("--no-cache")
    text = job.source.read_text(encoding="utf-8", errors="replace")
    text += f"\n{job.more}" if job.more else ""
    program = nvrtc.createProgram(text, word(job.source), (), ())
    named = not job.entry.isidentifier()
    try:
        if named:
            nvrtc.addNameExpression(program, job.entry)
        nvrtc.compileProgram(program, options)
        # CuPy drops the last byte as if it ended a string; nvdisasm needs it.
        code, ptx = nvrtc.getCUBIN(program) + b"\0", nvrtc.getPTX(program)
        entry = f"\n{_ENTRY} = {nvrtc.getLoweredName(program, job.entry)};" if named else ""
        return code, nvrtc.getProgramLog(program), ptx.decode(errors="replace") + entry
    except nvrtc.NVRTCError as error:
        return None, nvrtc.getProgramLog(program) or str(error), ""
    finally:
        nvrtc.destroyProgram(program)


def _folders(job: _Job) -> list[Path]:
    return [*_own_folders(job.source), *(one for each in _libraries(job) for one in each.folders)]


def _libraries(job: _Job) -> list[Library]:
    """What is included beside the own folders; nvcc has CUDA's headers."""
    headers = None if job.nvcc else cuda_headers()
    return [*job.libraries, *([headers] if headers else [])]


def _explain(source: Path, log: str) -> str:
    """The log from its first error on, without the warnings before it."""
    lines = log.strip("\n\0 ").splitlines()
    wrong = re.compile(r"\b(error|fatal)\b", re.IGNORECASE)
    first = next((i for i, line in enumerate(lines) if wrong.search(line)), 0)
    message = "\n".join([lines[first] + _way_out(source, lines[first:]), *lines[first + 1 :]])
    if str(source) not in lines[first]:  # errors in options and errors of ptxas name no file
        message = f"{source}: {message}"
    return message


_BUILT_IN: Final = ("stdio.h", "math.h", "cstdio", "cmath", "cuda_runtime.h")
"""Headers without which NVRTC has what kernels use of them: printf, mathematical functions."""


def _way_out(source: Path, lines: Sequence[str]) -> str:
    """What to do without a header that NVRTC has not found, empty for other errors."""
    missing = re.search('cannot open source file "([^"]+)"', lines[0])
    if not missing:
        return ""
    headers = cuda_headers()
    if headers is None:
        return f": CUDA's headers are not installed: {_install()}"
    if not re.match(r"\s*#\s*include\s*<", lines[1] if len(lines) > 1 else ""):
        return ""  # a header of the user's
    name, instead = missing[1], []
    if lines[0].startswith(str(source)):  # not a header of CUDA, which nobody will change
        plain = name.removesuffix(".h")
        names = (f"cuda/std/{found}" for found in (plain, f"c{plain}"))
        there = (n for n in names if any((folder / n).is_file() for folder in headers.folders))
        instead += [f"include <{found}>" for found in there][:1]
        instead += ["leave it out (printf and mathematics are built in)"] * (name in _BUILT_IN)
    instead += [f"use --compiler nvcc ({install.line('nvcc')})"]
    return f": NVRTC has no headers of a host compiler: {', or '.join(instead)}"


def _usage(log: str, source: Path, entry: str) -> tuple[int, int, int]:
    """(registers, spill bytes, static shared bytes) of ``entry`` in ptxas' verbose log."""
    parts = re.split(r"Compiling entry function '([^']+)'", log)
    entries = dict(zip(parts[1::2], parts[2::2], strict=True))
    if entry and entry not in entries:
        names = ", ".join(entries) or "none"
        raise KernelError(
            f'{source}: no kernel is called {entry!r} (found: {names}); declare it extern "C" '
            "__global__, or write the header's entry as C++ calls it, such as ns::mine<float>"
        )
    of = entries[entry] if entry else log
    used, spilled, shared = (
        max(map(int, re.findall(pattern, of)), default=0)
        for pattern in (r"Used (\d+) registers", r"(\d+) bytes spill stores", r"(\d+) bytes smem")
    )
    return used, spilled, shared


def _text_of(ptx: str, entry: str) -> str:
    """The PTX of the kernel ``entry``, empty if it is not there."""
    pattern = rf"\.entry\s+{re.escape(entry)}\b(.*?)(?=\.entry\b|\Z)"
    found = re.search(pattern, ptx, re.DOTALL) if entry else None
    return found[1] if found else ""


def _value(ptx: str, variable: str) -> str:
    """What a variable is initialized with, empty if there is no such variable."""
    found = re.search(rf"\b{variable} = (\w+);", ptx)
    return found[1] if found else ""


def _fixed_cluster(ptx: str) -> tuple[int, ...]:
    """The extents of ``__cluster_dims__``."""
    found = re.search(r"\.reqnctapercluster\s+([\d, ]+)", ptx)
    return tuple(map(int, found[1].split(","))) if found else ()


def _waits_for_grid(ptx: str) -> bool:
    """Whether the barrier of cooperative groups for a whole grid is in a kernel's ``ptx``.

    It takes the address of its counter from two registers of the environment, and ends the kernel
    if they are 0, as they are after an ordinary launch.
    """
    return "%envreg" in ptx and bool(re.search(r"\btrap\s*;", ptx))


# The cache --------------------------------------------------------------------------------------


def source_sha256(source: Path, *, comments: bool = True) -> str:
    """One hash of ``source``, of the files that it includes from ``_own_folders`` and of those that
    its header names, such as libraries.

    Without ``comments`` it is a hash of the code alone. The number of a rung does not count.
    """
    own = _own_folders(source)
    key = (source, comments, own)
    known = _hashed.get(key)
    if known and known.stamps == _stamps(known.stamps):
        return known.sha256
    linked = [path for path in _named(source) if path.is_file()]
    files = [source, *_included(source), *linked]
    stamps = _stamps([*files, *(file.parent for file in files), *own])
    digest = hashlib.sha256()
    for file in files:
        content = file.read_bytes()
        if not comments and file not in linked:
            content = _code(content)
        digest.update(os.fsencode(f"{kernel_name(file)}{file.suffix} {len(content)}\0") + content)
    sha256 = digest.hexdigest()
    if time() - max(stamp.mtime for stamp in stamps.values()) > SETTLED_S:
        _hashed[key] = _Hashed(sha256, stamps)
    return sha256


class _Stamp(NamedTuple):
    """What differs once a file, or the list of files in a folder, is another."""

    mtime: float
    bytes: int
    number: int


class _Hashed(NamedTuple):
    """The hash of a source while its files and their folders have these stamps."""

    sha256: str
    stamps: Mapping[Path, _Stamp]


SETTLED_S: Final = 1.0
"""A file that changed less long ago may change again and keep its time: such clocks tick."""

_hashed: Final[dict[tuple[object, ...], _Hashed]] = {}


def _stamps(paths: Iterable[Path]) -> dict[Path, _Stamp]:
    found = {}
    for path in dict.fromkeys(paths):
        with suppress(OSError):  # it is gone
            status = path.stat()
            found[path] = _Stamp(status.st_mtime, status.st_size, status.st_ino)
    return found


def _code(text: bytes) -> bytes:
    """``text`` without comments and empty lines; unchanged if it has raw strings."""
    if b'R"' in text:
        return text
    bare = COMMENT.sub(lambda found: found[0] if found[0][:1] in b"\"'" else b" ", text)
    return b"\n".join(line.rstrip() for line in bare.splitlines() if line.strip())


def _key(job: _Job) -> str:
    """A hash of everything that can change the cubin or its record."""
    digest = hashlib.sha256()
    for part in (
        *(job.entry, *COMMON_OPTIONS, *job.options, job.arch, job.nvcc or version()),
        *((library.name, library.version) for library in _libraries(job)),
    ):
        digest.update(repr(part).encode() + b"\0")
    if job.more or job.host:
        digest.update(repr((job.more, job.host)).encode())
    digest.update(source_sha256(job.source, comments=False).encode())
    return digest.hexdigest()[:32]


def _included(source: Path) -> list[Path]:
    """The files that ``source`` includes, directly or indirectly, from ``_own_folders`` and from
    folders that its header names.

    Conditions and the order of folders are ignored, so the list may have files that are not used.
    CUDA's headers are not followed: their version identifies them.
    """
    found: list[Path] = []
    queue = [source]
    named = [path for path in _named(source) if path.is_dir()]
    while queue:
        file = queue.pop()
        folders = (file.resolve().parent, *_own_folders(source), *named)
        for name in INCLUDE.findall(file.read_bytes()):
            for folder in dict.fromkeys(folders):
                header = folder / os.fsdecode(name)
                if header.is_file() and header not in found:
                    found.append(header)
                    queue.append(header)
    return found


def _named(source: Path) -> list[Path]:
    """Files and folders that the header names: in ``-Ifolder``, or as a library to link."""
    comment = source.read_bytes().partition(b"*/")[0]
    words = {os.fsdecode(word) for word in re.findall(rb'"(?:-I)?([^"\n\0]{1,200})"', comment)}
    paths = (source.resolve().parent / word for word in sorted(words))
    return [path for path in paths if path.exists()]


@cache
def _writable(folder: Path) -> Path:
    """``folder``, or, with a warning, a temporary folder if that cannot be written."""
    try:
        with tempfile.TemporaryFile(dir=private_folder(folder)):
            return folder
    except (OSError, RooflabError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        temporary = Path(tempfile.mkdtemp(prefix="rooflab-"))
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        _log.warning(
            "compiled kernels cannot be kept in %s (%s) and will be built again next time: "
            "set ROOFLAB_CACHE_DIR to a folder that you can write",
            folder,
            reason,
        )
        return temporary


def _load(cubin: Path) -> Compiled | None:
    """An entry of the cache, None if there is none or it is damaged."""
    try:
        record = json.loads(cubin.with_suffix(".json").read_bytes())
        if record.pop("sha256") != hashlib.sha256(cubin.read_bytes()).hexdigest():
            return None
        record["cluster"] = tuple(record["cluster"])
        return Compiled(cubin=cubin, **record)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
