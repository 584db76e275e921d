"""Streamed problems: operands in host memory, moved in chunks through slots on the device.

Chunk i uses slot i mod streams, which is device memory for one chunk. Copies to the device, kernels
and copies to the host have one stream each, so that both directions of the link and the device are
busy at once. Events order what touches the same memory: the inputs of a slot are overwritten after
the kernel that reads them, its outputs after they were copied out. A stream for the kernels of each
slot made nothing faster, and cost 2 to 5 % (streamed add on an H200).
With one slot everything is in one stream, one after the other.

Host memory is a ring of chunks, so problems may be larger than both memories. The copies to a place
of the ring are in one stream, in the order of the chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from rooflab.config import SweepConfig
from rooflab.devices.base import Device, Launch, MarkedLaunch
from rooflab.kernels.base import Operands, Prepare
from rooflab.measure.buffers import allocate, checksum, poison
from rooflab.measure.subject import Subject
from rooflab.measure.verify import Accuracy, verify
from rooflab.model.problem import FromHost, Operand, Problem
from rooflab.model.timeline import MOST_CHUNKS, Span, What

RING_BYTES: Final = 4 * 2**30
"""Host memory for the chunks of a ring: more than any processor's cache."""

LAUNCHES: Final = 4
"""Launches that a kernel is assumed to make, to know how many operations a stream gets."""

MOST_QUEUED: Final = 900
"""Operations that a stream takes before it blocks the host: about a thousand."""


class Ring:
    """Host memory of a streamed problem: inputs and outputs of ``places`` chunks.

    An operand that is the same for all parts, such as weights, has one array. An operand that is
    read and written has two, so that every launch reads the same numbers.
    """

    def __init__(self, device: Device, problem: Problem) -> None:
        self.problem, self.placement = problem, FromHost(problem)
        self.chunks = self.placement.chunks
        self.part = self.placement.part(problem.chunk)
        shared = _shared(self.placement)
        self.divided = [one for one in self.part.operands if one.name not in shared]
        per_place = sum(one.bytes * (one.read + one.written) for one in self.divided)
        count = len(self.chunks)
        least = min(problem.streams, count)
        self.places = max(least, min(count, RING_BYTES // max(1, per_place)))
        pinned = problem.host == "pinned"

        def array(shape: tuple[int, ...], operand: Operand) -> Any:
            return device.host_array(shape, operand.type.storage, pinned=pinned)

        self.inputs = {
            one.name: array((self.places, *one.shape), one) for one in self.divided if one.read
        }
        self.outputs = {
            one.name: array((self.places, *one.shape), one) for one in self.divided if one.written
        }
        self.shared = {
            one.name: array(one.shape, one) for one in self.part.operands if one.name in shared
        }

    def first(self, arrays: Mapping[str, Any], count: int) -> dict[str, Any]:
        """Those of ``count`` parts of a chunk."""
        return {n: a if n in self.shared else a[:count] for n, a in arrays.items()}


def _shared(placement: FromHost) -> set[str]:
    """Operands that do not grow with the number of parts."""
    one, two = placement.part(1).operands, placement.part(2).operands
    return {a.name for a, b in zip(one, two, strict=True) if a.shape == b.shape}


@dataclass
class Slot:
    """Operands of one chunk on the device, and the kernel prepared for each length.

    ``computed`` and ``emptied`` are events after the last kernel and the last copies to the host.
    """

    operands: Operands
    launches: dict[int, Launch] = field(default_factory=dict)
    computed: Any = None
    emptied: Any = None


class Pipeline:
    """One launch of a streamed problem.

    ``sums``, if given, receives a checksum of each chunk's outputs on the device.
    """

    def __init__(self, device: Device, ring: Ring, prepare: Prepare) -> None:
        self._device, self._ring = device, ring
        problem = ring.problem
        self._chunks = ring.chunks
        several = problem.streams > 1
        self._queues = device.queues(3 if several else 1)
        self._compute, self._in, self._out = self._queues if several else 3 * self._queues
        self.slots = [self._slot(prepare) for _ in range(problem.streams)]
        self._updated = any(one.read and one.written for one in ring.divided)
        self.sums: Any = None
        self.stamps: list[tuple[int, int, What, Any, Any]] | None = None
        copies = sum(one.read + one.written for one in ring.divided)
        inputs = sum(one.read for one in ring.divided)
        busiest = max(inputs, LAUNCHES) + 3 if several else copies + LAUNCHES
        self.gated = problem.host == "pinned" and busiest * len(self._chunks) <= MOST_QUEUED
        self.nodes = (copies + 1) * len(self._chunks)

    def _slot(self, prepare: Prepare) -> Slot:
        device, part = self._device, self._ring.part
        arrays = {
            one.name: device.arrays.empty(one.shape, dtype=one.type.storage)
            for one in part.operands
        }
        slot = Slot(Operands(part, arrays, {}))
        with device.on(self._compute):
            for count in sorted(set(self._chunks)):
                part = self._ring.placement.part(count)
                first = Operands(part, self._ring.first(arrays, count), {})
                slot.launches[count] = prepare(device, first)
        return slot

    def slot_of(self, chunk: int) -> Slot:
        """The slot of the chunk with this number."""
        return self.slots[chunk % len(self.slots)]

    def queue(self) -> None:
        """Queue all chunks."""
        device, ring = self._device, self._ring
        device.fork(self._queues)
        for slot in self.slots:
            slot.computed = slot.emptied = None
            for name, array in ring.shared.items():
                device.copy(slot.operands[name], array, self._compute)
        for i, count in enumerate(self._chunks):
            self._run(self.slot_of(i), i, i % ring.places, count)
        device.join(self._queues)

    def _run(self, slot: Slot, i: int, place: int, count: int) -> None:
        device, ring = self._device, self._ring
        self._order(slot.computed, self._compute, self._in)
        if self._updated:  # the kernel writes into the memory of an input
            self._order(slot.emptied, self._out, self._in)
        with self._stamped(self._in, i, "in"):
            for name, array in ring.inputs.items():
                device.copy(slot.operands[name][:count], array[place, :count], self._in)
        self._order(device.mark(self._in), self._in, self._compute)
        self._order(slot.emptied, self._out, self._compute)
        with self._stamped(self._compute, i, "kernel"), device.on(self._compute):
            device.call(slot.launches[count])
            if self.sums is not None:
                device.call(lambda: self._sum(slot, i, count))
        slot.computed = device.mark(self._compute)
        self._order(slot.computed, self._compute, self._out)
        with self._stamped(self._out, i, "out"):
            for name, array in ring.outputs.items():
                device.copy(array[place, :count], slot.operands[name][:count], self._out)
        slot.emptied = device.mark(self._out)

    def _order(self, event: Any, first: Any, then: Any) -> None:
        """``then`` waits for ``event`` of ``first``, which a stream need not do for itself."""
        if event is not None and first is not then:
            self._device.wait(then, event)

    @contextmanager
    def _stamped(self, queue: Any, i: int, what: What) -> Iterator[None]:
        """Stamps around what is queued meanwhile, of the first chunks and only on request."""
        if self.stamps is None or i >= MOST_CHUNKS:
            yield
            return
        start = self._device.mark(queue, timed=True)
        yield
        end = self._device.mark(queue, timed=True)
        self.stamps.append((i % len(self.slots), i, what, start, end))

    def timeline(self) -> list[Span]:
        """Run once, untimed, and return when the first chunks were copied and computed."""
        device, self.stamps = self._device, []
        try:
            first = device.mark(None, timed=True)
            self.queue()
            device.synchronize()
            return [
                Span(s, i, what, device.elapsed_us(first, a), device.elapsed_us(first, b))
                for s, i, what, a, b in self.stamps
            ]
        finally:
            self.stamps = None

    def _sum(self, slot: Slot, i: int, count: int) -> None:
        for k, name in enumerate(self._ring.outputs):
            self.sums[i, k] = checksum(slot.operands[name][:count])


class Streamed(Subject):
    """A streamed problem with one kernel: filled, verified, ready to be timed."""

    def __init__(
        self, device: Device, problem: Problem, prepare: Prepare, config: SweepConfig
    ) -> None:
        self._device = device
        self.ring = Ring(device, problem)
        self.pipeline = Pipeline(device, self.ring, prepare)
        launch, gated = self.pipeline.queue, self.pipeline.gated
        if problem.graph == "on":  # a large graph blocks the host behind a closed gate
            launch = device.capture(launch)
            gated = self.pipeline.nodes <= MOST_QUEUED
        super().__init__([MarkedLaunch(launch, gated)])
        self._prepare = prepare
        self._expected: dict[tuple[int, int], list[int]] = {}
        self._seed = config.seed

    def verify(self) -> Accuracy:
        """Fill the ring, compute every place alone, and compare a streamed launch with that.

        The first and the last chunk are compared with the reference. Of all chunks a checksum on
        the device, and of all places of the ring the results in host memory, must be those of the
        kernel alone.
        """
        device, ring = self._device, self.ring
        device.synchronize()
        chunks = ring.chunks
        last = (len(chunks) - 1) % ring.places
        verdict = Accuracy(0.0)
        for place in range(ring.places):
            operands = self._fill(place)
            for count in sorted({n for i, n in enumerate(chunks) if i % ring.places == place}):
                one = self._alone(operands, place, count)
                if place in (0, last) and not verdict.reason:
                    found = verify(device, one, self._seed + place)
                    verdict = max(verdict, found, key=lambda v: (bool(v.reason), v.rel_error))
        return verdict if verdict.reason else Accuracy(verdict.rel_error, self.check())

    def timeline(self) -> Sequence[Span]:
        """When the first chunks were copied and computed, in an untimed launch."""
        return self.pipeline.timeline()

    def refill(self) -> None:
        """New numbers everywhere in the next verification."""
        self._seed += 1 + self.ring.places

    def load(self, fill: str) -> None:
        """The inputs of the timing, if they are not those of verification."""
        if fill != "uniform":
            for place in range(self.ring.places):
                self._fill(place, fill)

    def _fill(self, place: int, fill: str = "uniform") -> Operands:
        """Operands on the device with new inputs, which are copied to ``place`` of the ring."""
        device, ring = self._device, self.ring
        operands = allocate(device, ring.part, self._seed + place, fill)
        for name, array in ring.shared.items():
            if place:
                device.copy(operands[name], array, None)
            else:
                device.copy(array, operands[name], None)
        for name, array in ring.inputs.items():
            device.copy(array[place], operands.initial.get(name, operands[name]), None)
        device.synchronize()
        return operands

    def _alone(self, operands: Operands, place: int, count: int) -> Operands:
        """The kernel on ``count`` parts, without streaming; its results' checksums are kept."""
        device, ring = self._device, self.ring
        arrays, initial = (ring.first(some, count) for some in (operands, operands.initial))
        one = Operands(ring.placement.part(count), arrays, initial)
        poison(one)
        self._prepare(device, one)()
        device.synchronize()
        sums = [int(checksum(one[name])) for name in ring.outputs]
        self._expected[place, count] = sums
        return one

    def check(self) -> str:
        """Run once; what is wrong with its results, empty if all are right."""
        device, ring = self._device, self.ring
        chunks = ring.chunks
        self._poison_host()
        self.pipeline.sums = device.arrays.zeros((len(chunks), len(ring.outputs)), "uint64")
        try:
            self.pipeline.queue()
            device.synchronize()
            sums = self.pipeline.sums.tolist()
        finally:
            self.pipeline.sums = None
        wrong = [
            i for i, count in enumerate(chunks) if sums[i] != self._expected[i % ring.places, count]
        ]
        if wrong:
            return _wrong(wrong, len(chunks), "not computed from their own data")
        if ring.problem.graph == "on":
            self._poison_host()
            self.launch()
            device.synchronize()
        return self._check_host(chunks)

    def _poison_host(self) -> None:
        for array in self.ring.outputs.values():
            array.view("uint8").fill(0xA5)

    def _check_host(self, chunks: Sequence[int]) -> str:
        """Compare the results in host memory: the last chunk in each place."""
        ring = self.ring
        latest = {i % ring.places: i for i in range(len(chunks))}
        wrong = []
        for place, i in latest.items():
            parts = [array[place, : chunks[i]] for array in ring.outputs.values()]
            if [int(checksum(part)) for part in parts] != self._expected[place, chunks[i]]:
                wrong.append(i)
        return _wrong(wrong, len(chunks), "not in host memory at the end") if wrong else ""


def _wrong(chunks: Sequence[int], count: int, what: str) -> str:
    return f"{len(chunks)} of {count} chunks are wrong, the first is {chunks[0]}: {what}"
