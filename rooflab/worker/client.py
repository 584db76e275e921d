"""Measures in another process, so that no kernel can end the sweep.

The sweep's process launches nothing. It sends one problem at a time to a worker process and
receives heartbeats. A kernel that corrupts the device's context, hangs or kills the process fails
only its own row; a new worker measures the others.

On a GPU the time of a launch differs between processes and is constant in each. So several
processes are started, and the one with the shortest empty launch measures (docs/measurement.md).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf, isfinite
from typing import Any, Final

from rooflab.devices.base import Counters
from rooflab.errors import ALONE, RooflabError
from rooflab.measure.protocol import Clock, Outcome
from rooflab.model.problem import ProblemRecord
from rooflab.model.roofline import CeilingList, Roofline
from rooflab.worker.messages import (
    BuildRecords,
    Count,
    Done,
    End,
    Failed,
    Job,
    Lost,
    Measured,
    Progress,
    Refused,
    Request,
)
from rooflab.worker.printed import Printed
from rooflab.worker.process import START_S, Process, begin, end_ahead, kill

FIRST_PROBE_S: Final = 0.2
PROBE_S: Final = 0.03
"""Launches before a process is judged: the first one finds the device idle."""


class Worker:
    """Starts processes as they are needed; use it as a context manager."""

    def __init__(
        self,
        job: Job,
        progress: Callable[[ProblemRecord, str, str], None],
        failed: Callable[[ProblemRecord, str, str, str], None] = lambda *_: None,
        printed: Printed | None = None,
    ) -> None:
        self._job = job
        self._progress = progress
        self._failed = failed
        self._printed = printed
        self._process: Process | None = None
        self._begun: list[Process] = []
        self._alone: dict[str, set[str]] = {}
        self._rehearsed: tuple[tuple[ProblemRecord, str], ...] = ()
        self._helpers = 0
        self._at: Progress | None = None
        self.clock = Clock()
        self.builds: BuildRecords = {}
        self.launches_us: list[list[float]] = []
        """Per worker, the time of an empty launch in each of its candidates, µs."""

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def roofline(self, *, again: bool = False) -> Roofline:
        """The device's ceilings.

        ``again`` measures those that percentages refer to now, even if they are known. Raises
        ``RooflabError`` if the process does not start or cannot open the device.
        """
        roofline: Roofline = self._ask("roofline", again)
        return roofline

    def levels(self, *, links: bool) -> CeilingList:
        """Ceilings of each memory level and pipe, and of links; raises ``RooflabError``."""
        limits: CeilingList = self._ask("levels", links)
        return limits

    def _ask(self, name: str, argument: bool) -> Any:
        try:
            reply = self._call(None, name, argument, timeout_s=START_S)
        except (EOFError, TimeoutError) as error:
            raise RooflabError(
                f"the measuring process on {self._job.device} did not start: "
                f"{str(error) or self._cause_of_death(self._process)} (see: rooflab doctor)"
            ) from error
        if isinstance(reply, Done):
            return reply.value
        raise RooflabError(reply.reason)

    def warm_up(self, problem: ProblemRecord, kernels: Sequence[str]) -> dict[str, Any]:
        """Run ``problem`` until the device is steady; returns the record for the manifest.

        A failure is ignored here; the kernel's own row reports it.
        """
        with suppress(EOFError, TimeoutError):
            reply = self._call(problem, "warm_up", problem, tuple(kernels))
            if isinstance(reply, Done):
                return dict(reply.value)
            if isinstance(reply, Refused):
                return {}
            if left := [kernel for kernel in kernels if kernel != reply.kernel]:
                self.stop()
                return self.warm_up(problem, left)
        self.stop()
        return {}

    def measure(
        self, problem: ProblemRecord, kernels: Sequence[str], most_s: float = inf
    ) -> list[Outcome]:
        """One outcome per kernel, in their order, even if the process ends meanwhile."""
        done: dict[str, Outcome] = {}
        unsociable = self._alone.setdefault(problem.workload, set())
        left = [name for name in kernels if name not in unsociable]
        self._measure(problem, left, most_s, done)
        for name in (name for name in kernels if name not in done):
            kept, self._process = self._process, None
            try:
                self._measure(problem, [name], most_s, done)
            finally:
                self.stop()
                self._process = kept
        return [done[name] for name in kernels]

    def _measure(
        self, problem: ProblemRecord, left: list[str], most_s: float, done: dict[str, Outcome]
    ) -> None:
        """Add outcomes to ``done``; those of kernels that need a process of their own lack."""
        idle_death = False
        while left:
            self._at = None
            try:
                end = self._call(problem, "measure", problem, tuple(left), most_s)
            except TimeoutError:
                at = self._at or Progress(left[0], "starting")
                reason = (
                    f"no answer for {self._job.config.timing.timeout_s:g} s while {at.step}; "
                    "killed (if it is only slow: a smaller size, or a larger timeout_s in [timing] "
                    "of a --config file)"
                )
                end = Lost(at.kernel, reason, "timeout")
            except EOFError:
                at = self._at or Progress(left[0], "starting")
                reason = f"{self._cause_of_death(self._process)} while {at.step}"
                if self._at is None:
                    # It ended before it began the request: no kernel is the cause, unless it
                    # happens again.
                    if not idle_death:
                        idle_death = True
                        self.stop()
                        continue
                    reason = "the measuring process ends as soon as it starts"
                end = Lost(at.kernel, reason)
            if isinstance(end, Done):
                self._account(end.value)
                done |= {outcome.kernel: outcome for outcome in end.value.outcomes}
                if any(outcome.stays for outcome in end.value.outcomes):
                    self.stop()
                return
            if isinstance(end, Refused):
                end = Lost(self._at.kernel if self._at else left[0], end.reason)
            # The results of the other kernels are lost with the process: they are measured again.
            self.stop()
            left.remove(end.kernel)
            if end.status == ALONE:
                self._alone.setdefault(problem.workload, set()).add(end.kernel)
            else:
                done[end.kernel] = Outcome(end.kernel)
                done[end.kernel].fail(end.reason, end.status)

    def count(self, request: Count) -> Counters | str | None:
        """Hardware counters of one launch; or why they cannot be read, None if there are none.

        Raises ``RooflabError`` if the kernel fails.
        """
        self._progress(request.problem, request.kernel, "counting")
        try:
            reply = self._call(request.problem, "count", request)
        except (EOFError, TimeoutError) as error:
            reason = str(error) or self._cause_of_death(self._process)
        else:
            if isinstance(reply, Done):
                counted: Counters | str | None = reply.value
                return counted
            reason = reply.reason
        self.stop()
        raise RooflabError(f"{request.kernel} was not counted: {reason}")

    def _call(
        self,
        problem: ProblemRecord | None,
        name: str,
        *arguments: Any,
        timeout_s: float | None = None,
    ) -> End:
        """The end of a request; what happens meanwhile is told.

        Raises ``EOFError`` if the process ends, ``TimeoutError`` if it is silent for too long.
        """
        if self._process is None:
            self._process = self._start()
        process = self._process
        process.send(Request(name, arguments))
        while True:
            reply = process.receive(timeout_s or self._job.config.timing.timeout_s)
            if isinstance(reply, End):
                return reply
            assert problem
            if isinstance(reply, Failed):
                self._failed(problem, reply.kernel, reply.status, reply.reason)
            else:
                self._at = reply
                self._progress(problem, reply.kernel, reply.step)

    def _account(self, reply: Measured) -> None:
        for name in ("prepare", "verify", "timing", "device"):
            setattr(self.clock, name, getattr(self.clock, name) + getattr(reply.clock, name))
        for kernel, builds in reply.builds.items():
            known = self.builds.setdefault(kernel, [])
            known += [build for build in builds if build not in known]

    def begin(
        self, rehearsed: Sequence[tuple[ProblemRecord, str]] = (), processes: int = 1
    ) -> None:
        """Start the processes, without waiting for them.

        They compile what is rehearsed, each some of it; so many processes are started for
        that at least, and end when it is done.
        """
        self._rehearsed = tuple(rehearsed)
        self._helpers = max(0, min(processes, len(rehearsed)) - self._job.candidates)
        with suppress(EOFError):
            self._begin()

    def ready(self) -> None:
        """Wait until all processes that began have rehearsed."""
        if self._process is None:
            with suppress(EOFError, TimeoutError, RooflabError):
                self._ready()

    def _begin(self) -> None:
        wanted = self._job.candidates + self._helpers
        try:
            while self._process is None and len(self._begun) < wanted:
                self._begun.append(begin(self._job, self._printed))
        finally:
            end_ahead()

    def _ready(self) -> None:
        """Ask the processes that began to rehearse, and forget those that have ended."""
        self._begin()
        waiting, self._begun = self._begun, []
        rehearsed, self._rehearsed = self._rehearsed, ()
        ready: list[Process] = []
        self._failure: Exception = EOFError()
        try:
            # The time to start must not count towards the first kernel's time limit.
            ready = [one for one in waiting if one.opened or self._answers(one)]
            shares = [(one, rehearsed[i :: len(ready)]) for i, one in enumerate(ready)]
            shares = [(one, share) for one, share in shares if share]
            for candidate, share in shares:
                candidate.send(Request("rehearse", (share,)))
            ended = [candidate for candidate, _ in shares if not self._answers(candidate)]
            ready = [candidate for candidate in ready if candidate not in ended]
        finally:
            self._begun, self._helpers = ready[: self._job.candidates], 0
            kill([candidate for candidate in waiting if candidate not in self._begun])
        if not self._begun:
            raise self._failure

    def _answers(self, candidate: Process) -> bool:
        """Wait for a process; whether it goes on. Raises ``RooflabError``."""
        try:
            reply = candidate.receive(START_S)
        except EOFError:
            self._failure = EOFError(self._cause_of_death(candidate))
        except TimeoutError:
            self._failure = TimeoutError(f"no answer for {START_S:g} s")
        else:
            if isinstance(reply, Refused):
                raise RooflabError(reply.reason)
            candidate.opened = True
            return True
        return False

    def _start(self) -> Process:
        """The best of the candidates. Raises ``EOFError`` or ``TimeoutError`` if none starts."""
        self._ready()
        candidates, self._begun = self._begun, []
        if len(candidates) == 1:
            return candidates[0]
        waits = [FIRST_PROBE_S, *[PROBE_S] * (len(candidates) - 1)]
        launches_us = [_probe(one, wait) for one, wait in zip(candidates, waits, strict=True)]
        self.launches_us.append([us for us in launches_us if isfinite(us)])
        _, best = min(zip(launches_us, candidates, strict=True), key=lambda pair: pair[0])
        # Their contexts end while the device is warmed up.
        losers = [candidate for candidate in candidates if candidate is not best]
        threading.Thread(target=kill, args=(losers,)).start()
        return best

    def _cause_of_death(self, process: Process | None) -> str:
        if process is None:
            return "no measuring process started"
        code = process.exit_code()
        if code is not None and code < 0:
            names = {int(known): known.name for known in signal.Signals}
            return f"the measuring process died of {names.get(-code, f'signal {-code}')}"
        said = self._printed.last[:200] if self._printed and code else ""
        return f"the measuring process ended with exit code {code}" + (f" ({said})" if said else "")

    def stop(self) -> None:
        """End the process, even if it is busy."""
        kill([process for process in (self._process, *self._begun) if process])
        self._process, self._begun = None, []


def _probe(process: Process, seconds: float) -> float:
    """Time of an empty launch in the process, µs; infinite if it does not answer.

    After ``seconds`` of them the clock has risen from idle.
    """
    with suppress(EOFError, TimeoutError):
        process.send(Request("probe", (seconds,)))
        reply = process.receive(START_S)
        if isinstance(reply, Done):
            return float(reply.value)
    return inf
