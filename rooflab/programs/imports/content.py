"""The text of a file that another profiler wrote: unpacked and decoded, with a bound."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Final

from rooflab.errors import RunError

MAX_BYTES: Final = 2**30
"""Of text after unpacking; JSON needs several times as much memory."""

_GZIP: Final = b"\x1f\x8b"


def head(path: Path, size: int = 64) -> bytes:
    """The first bytes of a file. Raises ``RunError`` if it is none or cannot be read."""
    if path.exists() and not path.is_file():
        raise RunError(f"{path}: not a file")
    try:
        with path.open("rb") as file:
            return file.read(size)
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def text(path: Path) -> str:
    """The text of a file, which may be compressed by gzip. Raises ``RunError``."""
    opened = gzip.open if head(path).startswith(_GZIP) else open
    try:
        with opened(path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise RunError(f"{path}: damaged gzip ({error}); copy or record the file again") from error
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}") from error
    if len(content) > MAX_BYTES:
        raise RunError(
            f"{path}: larger than {MAX_BYTES >> 20} MiB of text; record fewer steps of the program"
        )
    return decoded(content)


def decoded(content: bytes) -> str:
    """UTF-8, or UTF-16 with a mark as a shell of Windows writes it; other bytes are replaced."""
    marked = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    return content.decode("utf-16" if marked else "utf-8-sig", errors="replace")
