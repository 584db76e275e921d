"""nvcc and a host compiler, if they are installed.

nvcc and NVRTC generate different machine code from the same source. A file that reads shared memory
through plain pointers has 64-bit addresses with NVRTC and 32-bit ones with nvcc, and can be a
quarter slower for it. So a user's file is compiled as its author's build would compile it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rooflab.devices.base import Device
from rooflab.devices.cuda import install
from rooflab.errors import UnavailableError

Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Nvcc:
    """One nvcc. ``host`` is the C++ compiler that it uses."""

    path: Path
    version: Version
    host: Path

    @property
    def title(self) -> str:
        """Name and version."""
        return f"nvcc {'.'.join(map(str, self.version))}"

    def build(
        self,
        source: Path,
        options: Sequence[str],
        arch: str,
        folders: Sequence[Path],
        *,
        more: str = "",
        host: bool = False,
    ) -> tuple[bytes | None, str, str]:
        """The cubin, None after an error; the log; and the PTX.

        ``more`` is text that follows the source. With ``host`` code it is a shared library for
        this process, and the ``options`` are any of nvcc's, relative to the source's folder.
        """
        kind = ["-cubin", f"-arch={arch}"]
        if host:  # with -arch nvcc 13 also compiles for compute_90, which lacks wgmma
            code = f"-gencode=arch={arch.replace('sm', 'compute')},code={arch}"
            kind = ["-shared", "-Xcompiler=-fPIC", code]
        with tempfile.TemporaryDirectory(prefix="rooflab-") as folder:
            built, compiled = Path(folder) / "built", source
            if more:
                compiled = Path(folder) / f"{source.stem}.cu"
                first = f'#include "{source.resolve()}"\n#line 1 "{source}: header"\n'
                compiled.write_text(f"{first}{more}\n")
            command = [
                *(str(self.path), *kind, "-ccbin", str(self.host)),
                *("--keep", f"--keep-dir={folder}"),
                *(f"-I{included}" for included in folders),
                *(*options, "-o", str(built), word(compiled)),
            ]
            place = source.resolve().parent if host else None
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", cwd=place
            )
            log = (done.stdout + done.stderr).replace(str(source.resolve()), str(source))
            ptx = "".join(path.read_text(errors="replace") for path in Path(folder).glob("*.ptx"))
            return (built.read_bytes() if done.returncode == 0 else None), log, ptx


def word(source: Path) -> str:
    """A file's name as a compiler takes it: one that begins with a dash would be an option."""
    return f"./{source}" if str(source).startswith("-") else str(source)


CompilerSetting = Literal["auto", "nvcc", "nvrtc"]
"""Values of ``--compiler``."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Compilers of users' files and of rooflab's ``own``: None is NVRTC. A note for the user."""

    users: Nvcc | None = None
    own: Nvcc | None = None
    note: str = ""


def choose(setting: CompilerSetting, driver: str | None) -> Choice:
    """The compilers for a ``driver``'s CUDA version, such as ``"13.0"``.

    ``""`` means that there is no GPU, hence nothing to compile for; None that nothing will run, so
    that any version will do. ``auto`` is nvcc for users' files if there is one, else NVRTC with a
    note. Raises ``UnavailableError`` for ``nvcc`` if there is none.
    """
    if setting == "nvrtc" or driver == "":
        return Choice()
    try:
        major, minor = map(int, (driver or "0.0").split("."))
        nvcc = find_nvcc((major, minor) if driver else None)
    except UnavailableError as error:
        if setting == "nvcc":
            raise
        return Choice(note=f"NVRTC compiles your .cu files: {error}")
    return Choice(nvcc, nvcc if setting == "nvcc" else None)


def driver_version(device: Device) -> str:
    """The driver's CUDA version, empty if the device has none."""
    return str(device.fact("cuda_driver_version") or "")


def find_nvcc(driver: Version | None) -> Nvcc:
    """The first nvcc whose major version is at most that of the ``driver``; any if that is None.

    A driver loads cubins of newer minor versions (CUDA Compatibility, "Minor Version
    Compatibility"). nvcc is searched in CUDA_PATH and CUDA_HOME, in PATH, in packages and in
    /usr/local/cuda. Raises ``UnavailableError`` with the command that installs what is missing.
    """
    refused = ""
    for path in dict.fromkeys(_candidates()):
        version = _version(path)
        if version is None:
            continue
        if driver and version[0] > driver[0]:
            newest = ".".join(map(str, driver))
            refused = refused or f"{path} is newer than the driver, which supports CUDA {newest}"
            continue
        host = os.environ.get("NVCC_CCBIN") or shutil.which("g++") or shutil.which("clang++")
        if not host:
            raise UnavailableError("nvcc needs a C++ compiler: install g++ (apt install g++)")
        return Nvcc(path, version, Path(host))
    raise UnavailableError(refused or f"there is no nvcc: set CUDA_PATH, or {install.line('nvcc')}")


def _candidates() -> Iterator[Path]:
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        if root := os.environ.get(variable):
            yield Path(root) / "bin" / "nvcc"
    if found := shutil.which("nvcc"):
        yield Path(found)
    yield from install.in_packages("find_nvidia_binary_utility", "nvcc")
    yield Path("/usr/local/cuda/bin/nvcc")


def _version(path: Path) -> Version | None:
    """``(13, 0)``; None if there is no working nvcc."""
    try:
        done = subprocess.run([str(path), "--version"], capture_output=True, text=True)
    except OSError:
        return None
    found = re.search(r"release (\d+)\.(\d+)", done.stdout)
    return (int(found[1]), int(found[2])) if found else None
