"""Runs a Python program as ``python`` does, and records it: what ``rooflab profile`` starts.

The program has its own interpreter, arguments, streams, signals and exit code.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from rooflab.devices.cuda.cupti import find
from rooflab.devices.cuda.markers import INJECTION
from rooflab.errors import RooflabError, UnavailableError, UsageError
from rooflab.programs import ranks
from rooflab.programs.place import RankPlace, place_of

if TYPE_CHECKING:
    from rooflab.programs.peers import Peers
    from rooflab.programs.whole import Whole

OPTIONS: Final = "ROOFLAB_PROFILE"
"""The variable that carries the options."""


def start(program: str, arguments: list[str], options: dict[str, Any]) -> None:
    """Become that program. Raises ``UsageError`` if there is none."""
    if not options["module"] and not Path(program).is_file():
        raise UsageError(f"there is no file {program[:200]}")
    sys.stdout.flush()
    command = [sys.executable, "-m", "rooflab.programs.script", program, *arguments]
    environment = {**os.environ, OPTIONS: json.dumps(options)}
    with suppress(UnavailableError):  # which is said where it is needed
        environment.setdefault(INJECTION, str(find()))
    os.execve(sys.executable, command, environment)


def main() -> int:
    """Run it; the exit code is the program's own."""
    options = json.loads(os.environ.pop(OPTIONS))
    program, *arguments = sys.argv[1:]
    from rooflab.programs.whole import Whole

    place = place_of(os.environ)
    recorder: Whole | None = None
    try:
        recorder = Whole(
            program,
            counters=_counted(options["counters"], place),
            only=options["kernels"],
            inside=options["inside"],
            steps=options["steps"],
            skip=options["skip"],
            narrate=_narrate if not place or place.number == 0 else str,
        )
        recorder.peers = _join(place, options, [program, *arguments])
        recorder.start()
    except RooflabError as error:
        _say(f"error: {error}" if not place else f"error: rank {place.number}: {error}")
        if recorder and recorder.peers:
            ranks.give_up(recorder.peers, str(error))
        return error.exit_code
    own = os.getpid()
    code = _run(program, arguments, module=options["module"])
    if os.getpid() != own:  # a fork of the program
        return code
    _wait_for_threads()
    try:
        _tell(recorder, options, [program, *arguments], code)
    except RooflabError as error:
        _narrate(str(error) if not place else f"rank {place.number}: {error}")
    return code


def _run(program: str, arguments: list[str], *, module: bool) -> int:
    sys.argv = [program, *arguments]
    try:
        if module:
            _first_on_path(Path.cwd())
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            _first_on_path(Path(program).resolve().parent)
            runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        _print_error()
        return 130
    except BaseException:
        _print_error()
        return 1
    return 0


def _wait_for_threads() -> None:
    """Python waits for them too."""
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()


def _first_on_path(folder: Path) -> None:
    """In the place of the folder that Python found this module from; ``-P`` puts none there."""
    if not sys.flags.safe_path:
        sys.path[0] = str(folder)


def _print_error() -> None:
    """As Python prints it, or the program's own hook: from its own first frame on."""
    kind, error, trace = sys.exc_info()
    assert kind and error
    while trace and _ours(trace.tb_frame):
        trace = trace.tb_next
    sys.excepthook(kind, error.with_traceback(trace), trace)


def _ours(frame: FrameType) -> bool:
    return frame.f_globals is globals() or frame.f_globals is vars(runpy)


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _narrate(text: str) -> None:
    _say(f"rooflab: {text}")


def _counted(given: bool | None, place: RankPlace | None) -> bool:
    """Whether to count. A replay restores memory, to which other GPUs may have written meanwhile:
    in ranks it has to be asked for."""
    return place is None if given is None else given


def _join(place: RankPlace | None, options: dict[str, Any], command: list[str]) -> Peers | None:
    """The other ranks of the launch; None if there are none."""
    if not place:
        return None
    from rooflab.programs.peers import Peers

    return Peers.join(Path(options["out"]), place, ("rooflab", "profile", *command))


def _tell(recorder: Whole, options: dict[str, Any], command: list[str], code: int) -> None:
    from rooflab.cli.profile import show, show_ranks
    from rooflab.programs.profile import Profile, result

    def found() -> Profile:
        return result(recorder.name, recorder.finish(), ("rooflab", "profile", *command))

    sys.stdout.flush()
    if recorder.peers:
        ranks.finish(recorder.peers, found, code, show_ranks)
    else:
        show(found(), Path(options["out"]))


if __name__ == "__main__":
    sys.exit(main())
