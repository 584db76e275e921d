"""What a rank does when its program has ended: it writes its run, and one of all tells the rest."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rooflab.errors import RooflabError
from rooflab.runs.store import MEMBERS

if TYPE_CHECKING:
    from rooflab.programs.peers import Peers
    from rooflab.programs.profile import Profile


def finish(
    peers: Peers, found: Callable[[], Profile], code: int, show: Callable[[Path], object]
) -> None:
    """Write what this rank has found, wait for the others, and ``show`` all if no other rank does.

    ``code`` is the exit code of the program. Raises ``RooflabError`` if nothing was found.
    """
    reason = f"it ended with exit code {code}" if code else ""
    try:
        found().save_rank(peers.folder, peers.place.number, peers.place.size)
    except RooflabError as error:
        reason = ", ".join(filter(None, [reason, str(error)]))
        raise
    finally:
        peers.left(reason)
        if peers.answers(failed=code != 0) and not _empty(peers.folder):
            show(peers.folder)


def give_up(peers: Peers, reason: str) -> None:
    """Leave, because nothing can be recorded."""
    peers.left(reason)
    if peers.answers(failed=True):
        _empty(peers.folder)


def _empty(folder: Path) -> bool:
    """Whether no rank has written a run; then the folder is removed."""
    if (folder / MEMBERS).is_dir():
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return True
