"""A GPU, CUPTI's records of it and its replays, as tests imagine them: with a clock of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from launched import counters

from rooflab.devices.base import Counters
from rooflab.devices.cuda.activity import Records
from rooflab.devices.cuda.replay import Counted
from rooflab.devices.records import LaunchKey, RecordedLaunch, Transfer
from rooflab.errors import KernelError, RooflabError
from rooflab.programs.session import Findings
from rooflab.programs.whole import Whole

GRID, BLOCK = (4, 1, 1), (128, 1, 1)


def key(kernel: str) -> LaunchKey:
    return LaunchKey(kernel, GRID, BLOCK)


class Chip:
    """Launches take the time that they are given; ``events`` are what a profiler asked for."""

    def __init__(self) -> None:
        self.ns = 10**12
        self.events: list[str] = []
        self.order = 0
        self.recording = False
        self.numbered = False
        self.number = 0
        self.replay: ImitatedReplay | None = None
        self.launches: list[RecordedLaunch] = []
        self.copies: list[Transfer] = []
        self.numbers: list[int] = []
        self.phases: list[tuple[str, ...]] = []
        self.dropped = 0
        self.record_us = 0.0
        """What recording adds to each launch."""
        self.replay_s = 0.1
        self.refuses: RooflabError | None = None
        """Why launches cannot be replayed."""
        self.fails_after = 10**9
        """Launches that are replayed before one cannot be."""
        self.passes = 1
        """Launches of a graph that count all of it."""
        self.ends: Exception | None = None
        """What the end of the replays raises."""
        self.stops: Exception | None = None
        """What the end of the records raises."""

    def wait(self, us: float) -> None:
        self.ns += round(us * 1000)

    def launch(self, kernel: str = "k", us: float = 10, **more: Any) -> None:
        self.order += 1
        if self.replay and not more.get("graph"):
            self.replay.launched(LaunchKey(kernel, more.get("grid", GRID), BLOCK), us)
        begin = self.ns
        self.wait(us)
        if self.recording:
            one: dict[str, Any] = {"start_ns": begin, "end_ns": self.ns, "order": self.order}
            one |= {"grid": GRID, "block": BLOCK, **more}
            self.launches.append(RecordedLaunch(kernel=kernel, **one))
            self.numbers.append(self.number if self.numbered else 0)
            self.wait(self.record_us)

    def copy(self, size: int = 1000, us: float = 1) -> None:
        begin = self.ns
        self.wait(us)
        if self.recording:
            one = Transfer(kind="h2d", bytes=size, start_ns=begin, end_ns=self.ns)
            self.copies.append(one)

    def launch_graph(self, us: float = 10) -> None:
        if self.replay:
            self.replay.graph_launched()
        self.launch("node", us, graph=7)

    def install(self, monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
        """In a module that records."""
        monkeypatch.setattr(module, "Cupti", object)
        monkeypatch.setattr(module, "Activity", lambda cupti: ImitatedActivity(self))
        monkeypatch.setattr(module, "Replay", lambda *given, **more: self._replay(*given, **more))
        monkeypatch.setattr(module, "counters_of", lambda cupti, device: f"counters of {device}")
        monkeypatch.setattr(module, "synchronize", lambda: None)
        monkeypatch.setattr(module, "require_gpu", lambda: None, raising=False)
        monkeypatch.setattr(module, "perf_counter", lambda: self.ns / 1e9)
        if hasattr(module, "perf_counter_ns"):
            monkeypatch.setattr(module, "perf_counter_ns", lambda: self.ns)

    def _replay(self, cupti: Any, counters: Any, wanted: Any, **more: Any) -> ImitatedReplay:
        assert counters == "counters of 0"
        return ImitatedReplay(self, wanted, **more)


class ImitatedActivity:
    """CUPTI's records."""

    def __init__(self, chip: Chip) -> None:
        self.chip = chip

    def start(self, *, numbers: bool = False) -> None:
        self.chip.events.append("start numbered" if numbers else "start")
        self.chip.recording, self.chip.numbered = True, numbers

    def resume(self) -> None:
        assert not self.chip.replay, "what is replayed would be recorded"
        self.chip.events.append("resume")
        self.chip.recording = True

    def begin_numbers(self) -> None:
        assert self.chip.recording
        self.chip.events.append("numbers")
        self.chip.numbered = True

    def end_numbers(self) -> None:
        self.chip.events.append("end of numbers")
        self.chip.numbered = False

    def ignore(self) -> None:
        self.chip.recording = False

    def stop(self) -> None:
        if self.chip.stops:
            raise self.chip.stops
        self.chip.events.append("stop")
        self.chip.recording = False

    def flush(self) -> None:
        pass

    @property
    def held(self) -> int:
        return 100 * len(self.chip.launches)

    @property
    def kept(self) -> int:
        return len(self.chip.launches)

    def now(self) -> int:
        return self.chip.ns

    def push(self, number: int) -> None:
        self.chip.number = number

    def pop(self) -> None:
        self.chip.number = 0

    def taken(self) -> Records:
        chip = self.chip
        phases = chip.phases or [()] * len(chip.launches)
        found = Records(chip.launches, chip.copies, chip.numbers, phases, chip.dropped)
        chip.launches, chip.copies, chip.numbers, chip.dropped = [], [], [], 0
        return found


class ImitatedReplay:
    """Replays of single launches, and counts of the graphs of one kind."""

    def __init__(
        self,
        chip: Chip,
        wanted: Callable[[LaunchKey, int], bool],
        *,
        anchor: LaunchKey | None = None,
        group: Callable[[LaunchKey], LaunchKey] = lambda key: key,
        graphs: bool = True,
        between: Sequence[Callable[[], None]] = (lambda: None, lambda: None),
    ) -> None:
        (self.before, self.after), self.lost = between, 0
        self.group = group
        self.chip, self.wanted, self.anchor, self.graphs = chip, wanted, anchor, graphs
        self.seen: Counter[LaunchKey] = Counter()
        self.counted: list[Counted] = []
        self.counted_graphs: list[Counters] = []
        self.graph_launches = self.passes = 0
        self.reasons: dict[str, None] = {}
        self.failed = self.counting = False

    def __enter__(self) -> ImitatedReplay:
        if self.chip.refuses:
            raise self.chip.refuses
        try:
            self.before()
        except BaseException:
            self.after()
            raise
        assert not self.chip.recording, "the record of what is replayed is never complete"
        self.chip.events.append("replay")
        self.chip.replay = self
        return self

    def __exit__(self, *error: object) -> None:
        self.chip.events.append("end of replay")
        self.chip.replay = None
        self.after()
        if self.chip.ends:
            raise self.chip.ends

    def new_step(self) -> None:
        self.seen.clear()
        self.graph_launches = 0

    @property
    def unfinished(self) -> bool:
        return 0 < self.passes < self.chip.passes and not self.failed

    def launched(self, one: LaunchKey, us: float) -> None:
        one = self.group(one)
        if one == self.anchor:
            self.seen.clear()
        index = self.seen[one]
        self.seen[one] += 1
        if self.failed or self.unfinished or not self.wanted(one, index):
            return
        self.chip.wait(self.chip.replay_s * 1e6)
        if len(self.counted) >= self.chip.fails_after:
            self.reasons["it could not be replayed"] = None
            self.failed = True
            return
        self.counted.append(Counted(one, index, us, counters(flops=1000 * us, dram_bytes=8)))

    def graph_launched(self) -> None:
        self.graph_launches += 1
        if self.graphs and not self.failed and not self.counted_graphs:
            self.passes += 1
            if self.passes == self.chip.passes:
                self.counted_graphs.append(counters(flops=77))


class Program:
    """A script that is recorded: the thread looks at it when a test says so."""

    def __init__(self, chip: Chip, **options: Any) -> None:
        self.chip = chip
        self.recorder = Whole("it.py", **options)
        nothing = SimpleNamespace(start=lambda: None, join=lambda: None)
        self.recorder._thread = nothing  # type: ignore[assignment]
        self.recorder.start()

    def look(self) -> None:
        """Once."""
        answers = iter([False, True])
        ended = SimpleNamespace(wait=lambda _: next(answers), set=lambda: None)
        self.recorder._ended = ended  # type: ignore[assignment]
        self.recorder._watch()

    def finish(self) -> Findings:
        return self.recorder.finish()


def refused() -> KernelError:
    return KernelError("launches cannot be counted: another profiler is active in this process")
