"""The folders of kernels, configurations and the cache, and atomic writing of files."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from rooflab.errors import UsageError


def package_root() -> Path:
    """The folder from which ``import rooflab`` imports the package."""
    return Path(__file__).resolve().parent.parent


def _data_root() -> Path:
    """The checkout, if there is one, so that edits take effect; else the package's copy."""
    checkout = package_root()
    if (checkout / "pyproject.toml").is_file() and (checkout / "kernels").is_dir():
        return checkout
    return checkout / "rooflab" / "data"


def kernels_dir() -> Path:
    """The folder of the CUDA kernels, a subfolder for each workload."""
    return _data_root() / "kernels"


def kernel_name(source: Path) -> str:
    """The name of a kernel from its file: the stem.

    Files in ``kernels_dir()`` begin with the number of their rung, so that a folder is in reading
    order. It is not part of the name: ``03_tiled.cu`` is ``tiled``. Other files keep their digits.
    """
    if not source.resolve().is_relative_to(kernels_dir().resolve()):
        return source.stem
    return re.sub(r"^\d+_", "", source.stem)


def configs_dir() -> Path:
    """The folder of the sweep configurations and the table of devices."""
    return _data_root() / "configs"


def cache_dir() -> Path:
    """The folder for files that can be built again; ``ROOFLAB_CACHE_DIR`` changes it.

    A user without a home has one among the temporary files.
    """
    if chosen := os.environ.get("ROOFLAB_CACHE_DIR"):
        return Path(chosen)
    from platformdirs import user_cache_path

    try:
        return user_cache_path("rooflab", appauthor=False)
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"rooflab-{os.getuid()}"


def private_folder(folder: Path) -> Path:
    """``folder``, created for this user alone if it does not exist.

    Code is loaded from the cache: raises ``UsageError`` if other users could write to it.
    Raises ``OSError`` if it cannot be created.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if not hasattr(os, "getuid"):
        return folder
    if status.st_uid not in (os.getuid(), 0) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(
            f"{folder} can be written by other users, who could put code into it: "
            f"type chmod go-w {folder}, or set ROOFLAB_CACHE_DIR to a folder of yours"
        )
    return folder


def write_atomic(path: Path, content: bytes) -> None:
    """Write ``path`` atomically: a reader gets the old content or the new one.

    A link at ``path`` is replaced, not followed. Raises ``OSError``, and then leaves no files.
    """
    temporary = path.with_name(f".{path.name[:40]}.{token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_named(path: Path, text: str) -> None:
    """Write the file that a user named; raises ``UsageError``.

    A file keeps its old content if the new one cannot be written. A device, a pipe or a link is
    written through: it is not replaced.
    """
    content = text.encode(errors="replace")
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            path.write_bytes(content)
        else:
            write_atomic(path, content)
    except (OSError, ValueError) as error:
        raise unwritable(path, error) from error


def unwritable(path: str | Path, error: OSError | ValueError) -> UsageError:
    """The error of a user who named a file that cannot be written."""
    if os.path.isdir(path):  # noqa: PTH112  for a name that is too long it is False
        return UsageError(f"cannot write {str(path)[:200]}: it is a folder; name a file in it")
    reason = getattr(error, "strerror", None) or str(error)
    return UsageError(f"cannot write {str(path)[:200]}: {reason}; name another file")


def lock(descriptor: int, folder: Path) -> None:
    """Lock ``folder`` by an open file; raises ``UsageError`` if another process has locked it."""
    try:
        import fcntl
    except ImportError:  # Windows has no such lock
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        raise UsageError(
            f"{folder} is in use by another rooflab: wait for it, or sweep into another folder"
        ) from None
