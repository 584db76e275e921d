"""Where kernels/ and configs/ are, and where compiled kernels may be kept."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def _data_root() -> Path:
    """The checkout, so that an editable install sees live files; else the package's own copy."""
    package = Path(__file__).resolve().parent
    checkout = package.parent
    if (checkout / "pyproject.toml").is_file() and (checkout / "kernels").is_dir():
        return checkout
    return package / "data"


def kernels_dir() -> Path:
    """The folder of the CUDA kernels, one .cu each."""
    return _data_root() / "kernels"


def configs_dir() -> Path:
    """The folder of the sweep configurations and the table of devices."""
    return _data_root() / "configs"


def cache_dir() -> Path:
    """Where to keep what can be built again; ``ROOFLAB_CACHE_DIR`` moves it."""
    if chosen := os.environ.get("ROOFLAB_CACHE_DIR"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return Path(base or Path.home() / ".cache") / "rooflab"


def replace_file(path: Path, content: bytes) -> None:
    """Write ``path`` in one step: whoever reads it finds the old content or the new."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).replace(path)
