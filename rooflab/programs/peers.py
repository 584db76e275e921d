"""What the ranks of one launch know of each other: a journal of each in the folder of all.

A journal is locked as long as its process lives, so that the others need not wait for a dead one.
It says when the rank's launches were counted: the others wait for it then, and cut that time out.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final, Self

from rooflab.devices.records import Cut
from rooflab.errors import UsageError
from rooflab.fleet import ranks
from rooflab.programs.collectives import clock, epoch_ns
from rooflab.programs.place import RankPlace

JOURNALS: Final = "journals"
LOOK_S: Final = 0.1

JOIN_S: Final = 30.0
"""All ranks of a launch have begun after so long; rank 0, which makes the folder, too."""

PATIENCE_S: Final = 30.0
"""How long a rank that has ended waits for others that live: the last of them answers."""

FAILED_S: Final = 3.0
"""How long one waits that has failed: its launcher ends the others only when it is gone."""

FOREVER: Final = 2**62
"""The end of a time that has not ended, in nanoseconds."""

Journal = list[dict[str, Any]]


class Peers:
    """This rank among the others of its launch."""

    def __init__(self, folder: Path, place: RankPlace) -> None:
        self.folder, self.place = folder, place
        self._since, self._reason = monotonic(), ""
        self._clock, self._epoch_ns = clock(), epoch_ns()
        self._file = _claimed(folder / JOURNALS / f"{place.number}.jsonl")
        self._write({"clock": self._clock, "epoch": self._epoch_ns})

    @classmethod
    def join(cls, out: Path, place: RankPlace, command: Sequence[str]) -> Self:
        """The ranks whose folder is at ``out``, or in it; rank 0 makes it.

        Raises ``UsageError`` if it cannot be written, or rank 0 makes none.
        """
        if place.number == 0:
            folder = ranks.create(out, place.size, place.launch, command)
            (folder / JOURNALS).mkdir()
            return cls(folder, place)
        end = monotonic() + JOIN_S
        while monotonic() < end:
            for folder in ranks.of_launch(out, place.size, place.launch):
                with suppress(FileExistsError, FileNotFoundError):
                    if _lives(folder / JOURNALS / "0.jsonl"):
                        return cls(folder, place)
            sleep(LOOK_S)
        raise UsageError(
            f"rank 0 has made no folder in {str(out)[:200]} for {JOIN_S:.0f} s: all ranks need the "
            "same --out, on a disk that their hosts share, and rooflab profile"
        )

    def begin(self, ns: int) -> None:
        """This rank's launches are counted from now on."""
        self._write({"begin": ns})

    def end(self, ns: int) -> None:
        """They are not counted any more."""
        self._write({"end": ns})

    def cuts(self) -> list[Cut]:
        """When other ranks were counted, on this rank's clock."""
        journals = (self._read(i) for i in range(self.place.size) if i != self.place.number)
        return [cut for journal in journals if journal for cut in self._cuts(journal)]

    def left(self, reason: str) -> None:
        """This rank has written its run, unless there is a reason for having none."""
        self._reason = reason
        self._write({"left": reason})

    def answers(self, *, failed: bool) -> bool:
        """Wait for the others; whether this rank is the one that says what all have found."""
        end = monotonic() + (FAILED_S if failed else PATIENCE_S)
        while (self.folder / JOURNALS).is_dir():
            waited = monotonic() > end
            states = [self._state(i) for i in range(self.place.size)]
            if None not in states or (waited and (failed or not self._others_live())):
                return self._claim(states)
            if waited:
                return False
            sleep(LOOK_S)
        return False

    def _claim(self, states: Sequence[str | None]) -> bool:
        """Whether no other rank was first; it stores what became of all."""
        try:
            done = (self.folder / JOURNALS).rename(self.folder / f".{JOURNALS}")
        except OSError:
            return False
        told = ("it was still running" if one is None else one for one in states)
        ranks.conclude(self.folder, {i: text for i, text in enumerate(told) if text})
        shutil.rmtree(done, ignore_errors=True)
        return True

    def _others_live(self) -> bool:
        others = (i for i in range(self.place.size) if i != self.place.number)
        return any(_lives(self._path(i)) for i in others)

    def _state(self, number: int) -> str | None:
        """Why a rank has no run, empty if it has one; None if it may still write one."""
        if number == self.place.number:
            return self._reason
        lives = _lives(self._path(number))  # first: what has ended has written everything
        journal = self._read(number)
        if not journal:  # a file is there before it is locked
            early = monotonic() < self._since + JOIN_S
            return None if early else "it has not begun to record"
        if reasons := [str(line["left"]) for line in journal if "left" in line]:
            return reasons[-1]
        return None if lives else "its process was ended"

    def _cuts(self, journal: Journal) -> Iterator[Cut]:
        behind = 0
        if journal[:1] and journal[0].get("clock") != self._clock:
            behind = int(journal[0].get("epoch", self._epoch_ns)) - self._epoch_ns
        begun: int | None = None
        for line in journal:
            begun = line["begin"] + behind if "begin" in line else begun
            if "end" in line and begun is not None:
                yield begun, line["end"] + behind
                begun = None
        if begun is not None:
            yield begun, FOREVER

    def _path(self, number: int) -> Path:
        return self.folder / JOURNALS / f"{number}.jsonl"

    def _read(self, number: int) -> Journal | None:
        """The whole lines of a rank's journal; None without one."""
        try:
            lines = self._path(number).read_text(encoding="utf-8").splitlines(keepends=True)
        except OSError:
            return None
        found = []
        for line in lines:
            with suppress(ValueError):
                found.append(json.loads(line))
        return found

    def _write(self, content: dict[str, Any]) -> None:
        with suppress(OSError):  # it is only worse known then
            os.write(self._file, f"{json.dumps(content)}\n".encode())


def _claimed(path: Path) -> int:
    """A new file, locked as long as this process lives; raises ``FileExistsError``.

    A lock of this kind is not inherited: children that outlive the process do not keep it.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    file = os.open(path, flags, 0o666)
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return file


def _lives(path: Path) -> bool:
    """Whether the process of a journal lives, or may do so; not before there is one."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        try:
            import fcntl

            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (ImportError, OSError):
            return True
    return False
