"""Files are replaced in one step, and what holds code belongs to its user."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rooflab.errors import UsageError
from rooflab.files import (
    cache_dir,
    configs_dir,
    kernels_dir,
    private_folder,
    write_atomic,
    write_named,
)


@pytest.fixture(params=[0o022, 0o077, 0o002])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    mask = int(request.param)
    before = os.umask(mask)
    yield mask
    os.umask(before)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# write_named -------------------------------------------------------------------------------------


def test_a_pipe_and_a_link_are_written_through(elsewhere: Path) -> None:
    """As are devices: a page written to /dev/null once replaced it."""
    pipe, target, link = elsewhere / "pipe", elsewhere / "target", elsewhere / "link"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_named(pipe, "text")
    assert os.read(reader, 9) == b"text"
    os.close(reader)
    assert pipe.is_fifo()
    link.symlink_to(target)
    write_named(link, "text")
    assert link.is_symlink()
    assert target.read_text() == "text"


def test_a_file_is_kept_if_the_new_one_does_not_fit(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = elsewhere / "file"
    write_named(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="No space left on device; name another file"):
        write_named(path, "new")
    assert path.read_text() == "old"
    assert names(elsewhere) == ["file"]


# write_atomic ------------------------------------------------------------------------------------


def test_a_file_has_the_mode_that_any_new_file_has(elsewhere: Path, umask: int) -> None:
    path = elsewhere / "file"
    for content in (b"old", b"new"):
        write_atomic(path, content)
        assert path.read_bytes() == content
        assert path.stat().st_mode & 0o777 == 0o666 & ~umask
    assert os.umask(umask) == umask  # which is as it was
    assert names(elsewhere) == ["file"]


def test_a_reader_keeps_what_it_has_opened(elsewhere: Path) -> None:
    path = elsewhere / "file"
    write_atomic(path, b"old")
    with path.open("rb") as reader:
        write_atomic(path, b"new")
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new"


def test_a_link_is_replaced_and_not_followed(elsewhere: Path) -> None:
    target, link = elsewhere / "target", elsewhere / "link"
    target.write_bytes(b"precious")
    link.symlink_to(target)
    write_atomic(link, b"new")
    assert target.read_bytes() == b"precious"
    assert not link.is_symlink()
    assert link.read_bytes() == b"new"
    dangling = elsewhere / "dangling"
    dangling.symlink_to(elsewhere / "nowhere")
    write_atomic(dangling, b"new")
    assert not (elsewhere / "nowhere").exists()


def test_a_failure_leaves_the_old_file_and_nothing_else(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = elsewhere / "file"
    path.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(elsewhere) == ["file"]


def test_an_interrupt_leaves_nothing_either(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(elsewhere / "file", b"new")
    assert names(elsewhere) == []


def test_a_folder_cannot_be_replaced(elsewhere: Path) -> None:
    (elsewhere / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_atomic(elsewhere / "folder", b"new")
    assert names(elsewhere) == ["folder"]
    with pytest.raises(FileNotFoundError):
        write_atomic(elsewhere / "nowhere" / "file", b"new")


def test_names_as_long_as_a_file_may_have_are_written(elsewhere: Path) -> None:
    path = elsewhere / ("x" * 255)
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"


# private_folder ----------------------------------------------------------------------------------


def test_a_new_folder_is_this_users_alone(tmp_path: Path, umask: int) -> None:
    folder = private_folder(tmp_path / "a" / "b")
    assert folder == tmp_path / "a" / "b"
    assert folder.stat().st_mode & 0o077 == 0
    assert private_folder(folder) == folder


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o500])
def test_a_folder_that_only_its_owner_writes_is_taken_as_it_is(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(mode)
    assert private_folder(folder) == folder
    assert folder.stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777, 0o1777])
def test_a_folder_that_others_write_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(UsageError, match=r"chmod go-w .*folder, or set ROOFLAB_CACHE_DIR"):
        private_folder(folder)


def test_a_folder_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = private_folder(tmp_path / "folder")
    # Whoever owns it is now somebody else, and not the administrator.
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    if folder.stat().st_uid == 0:
        os.chown(folder, 12345, -1)
    with pytest.raises(UsageError, match="can be written by other users"):
        private_folder(folder)


def test_what_is_no_folder_is_an_error_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        private_folder(tmp_path / "file")
    with pytest.raises(OSError, match="file"):
        private_folder(tmp_path / "file" / "below")


# Where things are --------------------------------------------------------------------------------


def test_the_cache_can_be_moved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROOFLAB_CACHE_DIR", str(tmp_path / "mine"))
    assert cache_dir() == tmp_path / "mine"
    monkeypatch.delenv("ROOFLAB_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir().name == "rooflab"


def test_tests_have_a_cache_of_their_own() -> None:
    """Else the roofs that they imitate would be taken for this machine's ever after."""
    assert cache_dir().name == "tests"


def test_a_user_without_a_home_has_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(*_: object, **__: object) -> Path:
        raise RuntimeError("could not determine the home directory")

    monkeypatch.delenv("ROOFLAB_CACHE_DIR", raising=False)
    monkeypatch.setattr("platformdirs.user_cache_path", homeless)
    assert cache_dir() == Path(tempfile.gettempdir()) / f"rooflab-{os.getuid()}"


def test_kernels_and_configurations_are_there() -> None:
    assert (kernels_dir() / "include" / "types.cuh").is_file()
    assert (configs_dir() / "default.toml").is_file()
