"""What a rank does when its program has ended: it writes its run, and one of all tells the rest."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from rooflab.errors import RooflabError

if TYPE_CHECKING:
    from rooflab.programs.peers import Peers
    from rooflab.programs.profile import Profile


def finish(
    peers: Peers, found: Callable[[], Profile], code: int, show: Callable[[Peers], object]
) -> None:
    """Write what this rank has found, wait for the others, and ``show`` it if nobody else does.

    ``code`` is the exit code of the program. Raises ``RooflabError`` if nothing was found.
    """
    reason = f"it ended with exit code {code}" if code else ""
    try:
        save(peers, found())
    except RooflabError as error:
        reason = ", ".join(filter(None, [reason, str(error)]))
        raise
    finally:
        peers.left(reason)
        if peers.answers(failed=code != 0):
            with suppress(RooflabError):
                show(peers)


def save(peers: Peers, found: Profile) -> None:
    """Write a rank's run as a member of the folder."""
    found.manifest.program |= {"rank": peers.place.number, "ranks": peers.place.size}
    found.save(peers.path)
