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
from collections.abc import Callable, Sequence
from pathlib import Path

from rooflab import engine, planning
from rooflab.config import of_run
from rooflab.devices.base import Device
from rooflab.devices.cuda import device as cuda
from rooflab.devices.registry import ALL, open_device, resolve
from rooflab.engine import Observer
from rooflab.errors import RooflabError, UsageError
from rooflab.fleet import messages
from rooflab.kernels.sources import load_file
from rooflab.model.measurement import Measurement
from rooflab.model.problem import ProblemRecord
from rooflab.model.timeline import Span
from rooflab.runs import table
from rooflab.runs.manifest import Manifest
from rooflab.runs.store import RunData, resumable
from rooflab.version import __version__
from rooflab.worker.lifeline import end_with_file

Send = Callable[[messages.Message], None]


class _Journal:
    """What ``RunWriter`` is to a folder: it sends instead of writing."""

    empty = False
    """The coordinator removes a folder without rows."""

    def __init__(self, send: Send, work: messages.Work, manifest: Manifest) -> None:
        self._send = send
        self.path = Path(work.folder)
        self.manifest = manifest
        self._columns = table.header(manifest.workloads)
        self.rows = [table.parse(self._columns, line, manifest) for line in work.rows]
        self.write_manifest()

    def write_manifest(self) -> None:
        content = self.manifest.model_dump(mode="json", by_alias=True)
        self._send(messages.Written(manifest=content))

    def append(
        self, row: Measurement, rounds: Sequence[Sequence[float]], spans: Sequence[Span] = ()
    ) -> None:
        self._send(
            messages.Row(
                line=table.line(self._columns, row),
                rounds=[[float(f"{time:.6g}") for time in samples] for samples in rounds],
                spans=[(s.stream, s.chunk, s.what, s.start_us, s.end_us) for s in spans],
            )
        )

    def replace(self, rows: Sequence[Measurement]) -> None:
        self._send(messages.Rows(lines=[table.line(self._columns, row) for row in rows]))


class _Reporter(Observer):
    """Sends notes and heartbeats."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._finished = False

    def finished(self) -> None:
        self._finished = True  # nobody listens from now on
        self._send(messages.Finished())

    def note(self, text: str) -> None:
        self._send(messages.Note(text=text))

    def began(self, run: RunData, points: int) -> None:
        self._send(messages.Heartbeat(text="warming up"))

    def progress(self, problem: ProblemRecord, kernel: str, step: str) -> None:
        if not self._finished:
            text = f"{step} {kernel} {problem.precision} {problem.size}"
            self._send(messages.Heartbeat(text=text))


def main() -> None:
    """Serve one coordinator."""
    send, source = _sender(), sys.stdin.buffer
    try:
        opened = messages.Open.model_validate_json(source.readline())
    except ValueError:
        sys.exit("rooflab.fleet.member is started by: rooflab fleet sweep")
    try:
        if opened.device == ALL:
            ids = [f"cuda:{i}" for i in range(cuda.count())]
            send(messages.Devices(rooflab=__version__, ids=ids))
            return
        sys.path += [place for place in opened.path if place not in sys.path]
        device = open_device(resolve(opened.device)[0])
        send(_hello(device))
        work = messages.Work.model_validate_json(source.readline())
        end_with_file(source.fileno())  # then the coordinator has ended
        _measure(device, work, send)
    except RooflabError as error:
        send(messages.Refusal(reason=str(error)))
    except ValueError:  # the coordinator has ended, or refused us
        return
    except Exception as error:  # a user's code may raise anything
        send(messages.Refusal(reason=f"{type(error).__name__}: {error}"))


def _sender() -> Send:
    """What writes messages to standard output; a coordinator that has ended ends this process.

    What others print on standard output goes to standard error.
    """
    descriptor = os.dup(1)
    os.dup2(2, 1)
    lock = threading.Lock()

    def send(message: messages.Message) -> None:
        data = messages.encode(message)
        with lock:
            try:
                while data:
                    data = data[os.write(descriptor, data) :]
            except OSError:
                os._exit(1)

    return send


def _hello(device: Device) -> messages.Hello:
    return messages.Hello(
        rooflab=__version__,
        host=platform.node(),
        device=device.id,
        kind=device.kind,
        name=device.name,
        uuid=str(device.fact("uuid") or device.id),
    )


def _measure(device: Device, work: messages.Work, send: Send) -> None:
    for file in work.files:
        if not file.endswith(".cu"):
            load_file(file)  # it may define a workload
    config = of_run(work.config)
    if config.threads is not None:
        device = open_device(device.id, config.threads)
    plan = planning.plan(config, device)
    for note in plan.notes:
        send(messages.Note(text=note))
    manifest = engine.describe(plan, device, work.command)
    if work.manifest is not None:
        old = Manifest.model_validate(work.manifest)
        if differences := resumable(old, manifest):
            raise UsageError(f"cannot continue: {'; '.join(differences)[:400]}")
        manifest = old
    journal = _Journal(send, work, manifest)
    engine.execute_into(plan, device, journal, _Reporter(send), hold=work.hold)


if __name__ == "__main__":
    main()
