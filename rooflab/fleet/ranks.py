"""The folder of a program's ranks: a fleet whose members are the processes of one launch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rooflab.errors import RooflabError, UsageError
from rooflab.fleet.record import DONE, LOST, MemberRecord, Record, load
from rooflab.fleet.runs import load_fleet
from rooflab.runs.ranks import Ranks, ranks_of
from rooflab.runs.store import FLEET, MEMBERS, create_folder

PROFILE: Final = "profile"
"""How the members of such a fleet are started: by the program's own launcher."""

DEVICE: Final = "cuda"


def name_of(number: int) -> str:
    """The name of a rank's member."""
    return f"rank-{number}"


def create(out: Path, size: int, key: str, command: Sequence[str]) -> Path:
    """A new folder for so many ranks: ``out`` if it is new, else one in it.

    ``key`` is what the launch is known by. Raises ``UsageError`` if it cannot be created.
    """
    if out.exists() or out == Path("results"):
        folder = create_folder(out, "ranks", datetime.now(UTC))
    else:
        folder = _made(out)
    _begin(folder, size, key, command)
    return folder


def _made(folder: Path, *, exist_ok: bool = False) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=exist_ok)
    except OSError as error:
        raise UsageError(f"cannot write to {str(folder)[:200]}: {error.strerror}") from error
    return folder


def _begin(folder: Path, size: int, key: str, command: Sequence[str]) -> None:
    """Say what the folder will have; raises ``RunError`` if it cannot be written."""
    record = Record(
        created=datetime.now(UTC),
        command=list(command),
        launch=PROFILE,
        hosts=[],
        device=DEVICE,
        ranks=size,
        key=key,
        members={name_of(number): _rank(number) for number in range(size)},
    )
    record.write(folder)


def _rank(number: int) -> MemberRecord:
    return MemberRecord(name=name_of(number), host="", device=DEVICE)


def of_launch(out: Path, size: int, key: str) -> Iterator[Path]:
    """The folders of a launch at ``out`` or in it, the newest first."""
    inside = sorted(out.glob(f"*-ranks*/{FLEET}"), reverse=True) if out.is_dir() else []
    for path in (out / FLEET, *inside):
        with suppress(RooflabError):
            if path.is_file():
                record = load(path.parent)
                if (record.ranks, record.key) == (size, key):
                    yield path.parent


def shared(folder: Path, size: int, command: Sequence[str]) -> None:
    """Make a folder that each rank names; raises ``UsageError`` if it is one of something else."""
    if (folder / FLEET).is_file():
        if load(folder).ranks != size:
            raise UsageError(f"{str(folder)[:200]} has other ranks: name a new folder")
        return
    if folder.exists() and any(not one.name.startswith(".") for one in folder.iterdir()):
        raise UsageError(f"{str(folder)[:200]} has other files: name a new folder for the ranks")
    _begin(_made(folder, exist_ok=True), size, "", command)


def member_path(folder: Path, number: int) -> Path:
    """Where a rank writes its run; raises ``UsageError`` if it has one."""
    path = folder / MEMBERS / name_of(number)
    if path.exists():
        raise UsageError(f"{str(path)[:200]} is there already: name a new folder for the ranks")
    return path


def conclude(folder: Path, reasons: dict[int, str]) -> None:
    """Store why ranks have no run, or did not end well, by number."""
    record = load(folder)
    for number in range(record.ranks):
        name = name_of(number)
        there = (folder / MEMBERS / name).is_dir()
        known = record.members.get(name, _rank(number))
        status = known.but(reason=reasons.get(number, ""), status=DONE if there else LOST)
        record.members[name] = status
    record.finished = datetime.now(UTC)
    record.write(folder)


def load_ranks(folder: Path) -> Ranks:
    """The ranks of a program, with what is missing.

    Raises ``UsageError`` if the folder is that of another fleet, or no rank has written its run.
    """
    record = load(folder)
    if not record.ranks:
        raise UsageError(f"{str(folder)[:200]} is no folder of a program's ranks")
    if not (folder / MEMBERS).is_dir():
        raise UsageError(f"no rank of {str(folder)[:200]} has written a run")
    found = {one.name: one for one in load_fleet(folder, map(name_of, range(record.ranks))).members}
    runs, remarks = {}, []
    for number in range(record.ranks):
        member = found[name_of(number)]
        known = record.members.get(member.name)
        reason = known.reason if known else ""
        if member.runs:
            runs[number] = member.runs[0]
            if reason and known and known.status == DONE:  # else it wrote its run later
                remarks.append(f"Rank {number}: {reason}.")
        else:
            remarks.append(f"Rank {number} is missing: {reason or 'it has not written a run'}.")
    if not runs:
        raise UsageError(f"no rank of {str(folder)[:200]} has written a run")
    return ranks_of(runs, record.ranks, remarks)
