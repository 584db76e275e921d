"""A member of a fleet: ``python -m rooflab.fleet.member``, started by the coordinator.

It reads ``Open`` and ``Work`` from standard input and writes messages to standard output. When
standard input ends, because the coordinator or its connection has, the member ends too, whatever it
does.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from rooflab import engine, planning
from rooflab.config import of_run
from rooflab.devices.base import Device
from rooflab.devices.cuda import device as cuda
from rooflab.devices.open import ALL, open_device, resolve
from rooflab.engine import Observer
from rooflab.errors import RooflabError, UsageError
from rooflab.fleet.messages import (
    Devices,
    Done,
    Hello,
    Message,
    Note,
    Open,
    Refused,
    Row,
    Rows,
    Step,
    Work,
    Written,
    encode,
)
from rooflab.kernels.sources import load_file
from rooflab.model.measurement import Measurement
from rooflab.model.problem import ProblemRecord
from rooflab.model.timeline import Span
from rooflab.runs import table
from rooflab.runs.manifest import Manifest
from rooflab.runs.store import Run, resumable
from rooflab.version import __version__


class Sender:
    """Writes messages; may be used by several threads. A coordinator that has ended ends us."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def __call__(self, message: Message) -> None:
        """Write one."""
        data = encode(message)
        with self._lock:
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError:
                os._exit(1)


class Journal:
    """What ``RunWriter`` is to a folder: it sends instead of writing."""

    def __init__(self, send: Sender, folder: str, manifest: Manifest, rows: Sequence[str]) -> None:
        self._send = send
        self.path = Path(folder)
        self.manifest = manifest
        self._columns = table.header(manifest.workloads)
        self.rows = [table.parse(self._columns, line, manifest) for line in rows]
        self.write_manifest()

    @property
    def empty(self) -> bool:
        """The coordinator removes a folder without rows."""
        return False

    def write_manifest(self) -> None:
        """Send it."""
        self._send(Written(manifest=self.manifest.model_dump(mode="json", by_alias=True)))

    def append(
        self, row: Measurement, rounds: Sequence[Sequence[float]], spans: Sequence[Span] = ()
    ) -> None:
        """Send a row."""
        self._send(
            Row(
                line=table.line(self._columns, row),
                rounds=[[float(f"{time:.6g}") for time in samples] for samples in rounds],
                spans=[(s.stream, s.chunk, s.what, s.start_us, s.end_us) for s in spans],
            )
        )

    def replace(self, rows: Sequence[Measurement]) -> None:
        """Send all rows."""
        self._send(Rows(lines=[table.line(self._columns, row) for row in rows]))


class Reporter(Observer):
    """Sends notes and heartbeats."""

    def __init__(self, send: Sender) -> None:
        self._send = send
        self._finished = False

    def finished(self) -> None:
        """Nothing more is sent: nobody listens."""
        self._finished = True
        self._send(Done())

    def note(self, text: str) -> None:
        """Send it."""
        self._send(Note(text=text))

    def began(self, run: Run, points: int) -> None:
        """The roofs are known."""
        self._send(Step(text="warming up"))

    def progress(self, problem: ProblemRecord, kernel: str, step: str) -> None:
        """Send the current step."""
        if not self._finished:
            self._send(Step(text=f"{step} {kernel} {problem.precision} {problem.size}"))


def main() -> None:
    """Serve one coordinator."""
    sender = Sender(_reserve_stdout())
    source = sys.stdin.buffer
    try:
        opened = Open.model_validate_json(source.readline())
    except ValueError:
        sys.exit("rooflab.fleet.member is started by: rooflab fleet sweep")
    try:
        if opened.device == ALL:
            sender(Devices(rooflab=__version__, ids=[f"cuda:{i}" for i in range(cuda.count())]))
            return
        sys.path += [place for place in opened.path if place not in sys.path]
        device = open_device(resolve(opened.device)[0])
        sender(_hello(device))
        work = Work.model_validate_json(source.readline())
        _end_with_stdin(source.fileno())
        _measure(device, work, sender)
    except RooflabError as error:
        sender(Refused(reason=str(error)))
    except ValueError:  # the coordinator has ended, or refused us
        return
    except Exception as error:  # a user's code may raise anything
        sender(Refused(reason=f"{type(error).__name__}: {error}"))


def _reserve_stdout() -> int:
    """A descriptor for messages; what others print on standard output goes to standard error."""
    descriptor = os.dup(1)
    os.dup2(2, 1)
    return descriptor


def _end_with_stdin(descriptor: int) -> None:
    """End this process when the coordinator ends; its workers then end too."""

    def watch() -> None:
        while os.read(descriptor, 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _hello(device: Device) -> Hello:
    return Hello(
        rooflab=__version__,
        host=platform.node(),
        device=device.id,
        kind=device.kind,
        name=device.name,
        uuid=str(device.fact("uuid") or device.id),
    )


def _measure(device: Device, work: Work, send: Sender) -> None:
    for file in work.files:
        if not file.endswith(".cu"):
            load_file(file)  # it may define a workload
    config = of_run(work.config)
    if config.threads is not None:
        device = open_device(device.id, config.threads)
    plan = planning.plan(config, device)
    for note in plan.notes:
        send(Note(text=note))
    manifest = engine.describe(plan, device, work.command)
    if work.manifest is not None:
        old = Manifest.model_validate(work.manifest)
        if differences := resumable(old, manifest):
            raise UsageError(f"cannot continue: {'; '.join(differences)[:400]}")
        manifest = old
    journal = Journal(send, work.folder, manifest, work.rows)
    engine.execute_into(plan, device, journal, Reporter(send), hold=work.hold)


if __name__ == "__main__":
    main()
