"""A trace of torch.profiler: Chrome's JSON of Kineto, of PyTorch 1.8 and later.

Format: https://github.com/pytorch/kineto and Chrome's "Trace Event Format". Times are in µs.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from rooflab.devices.ranges import Range
from rooflab.devices.records import CopyKind, Needs, RecordedLaunch, Recording
from rooflab.errors import RunError
from rooflab.programs.imports.host import (
    UNKNOWN,
    DeviceActivity,
    EventKey,
    HostThreads,
    LaunchCall,
    is_step,
    launched_steps,
    transfers,
    windows,
)
from rooflab.programs.imports.values import BIGGEST, MOST, described, dim, name, number, whole
from rooflab.programs.operations import work_of
from rooflab.runs.text import cleaned

_CATEGORIES: Final = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "memcpy": "copy",
    "gpu_memset": "memset",
    "memset": "memset",
    "cpu_op": "operation",
    "operator": "operation",
    "user_annotation": "annotation",
    "gpu_user_annotation": "device annotation",
    "cuda_runtime": "call",
    "cuda_driver": "call",
    "runtime": "call",
}
"""What is read. The names with capitals are PyTorch's before 1.12."""

_FACTS: Final = {
    "numSms": "sm_count",
    "totalGlobalMem": "memory_total",
    "sharedMemPerBlockOptin": "shared_memory_per_block",
}
"""Names in ``deviceProperties``, and those of rooflab."""

_COPY: Final = re.compile(r"Memcpy (\w)to(\w)")
_ENDS: Final = re.compile(r"\((\w+) -> (\w+)\)")
_HOST_MEMORY: Final = ("Pageable", "Pinned")


def read(path: Path, text: str) -> Recording:
    """What the trace in ``text``, the content of ``path``, has recorded. Raises ``RunError``."""
    content = _parsed(path, text)
    events = content if isinstance(content, list) else content.get("traceEvents")
    if not isinstance(events, list):
        raise RunError(f"{path}: not a trace of torch.profiler (it has no list of traceEvents)")
    if len(events) > MOST:
        raise RunError(f"{path}: more than {MOST:,} events; record fewer steps of the program")
    trace = _Trace(path)
    for index, event in enumerate(events):
        if isinstance(event, dict) and event.get("ph") == "X":
            trace.add(index, event)
    if not trace.kernels:
        raise RunError(
            f"{path}: no kernel of a GPU is in this trace; record it with "
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
        )
    return trace.recording(content if isinstance(content, dict) else {})


def _parsed(path: Path, text: str) -> dict[str, Any] | list[Any]:
    try:
        content = json.loads(text, object_hook=_wanted, parse_constant=lambda _: None, strict=False)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise RunError(
            f"{path} {place}: damaged or incomplete JSON ({error.msg}); copy or record it again"
        ) from error
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: not a trace of torch.profiler ({str(error)[:200]})") from error
    if not isinstance(content, (dict, list)):
        raise RunError(f"{path}: not a trace of torch.profiler (it is not a JSON object)")
    return content


def _wanted(found: dict[str, Any]) -> dict[str, Any] | None:
    """None for events that are not read, such as those of Python's stack, to save their memory."""
    category = found.get("cat")
    return found if category is None or _category(category) else None


def _category(value: object) -> str | None:
    return _CATEGORIES.get(value.lower()) if isinstance(value, str) else None


@dataclass(slots=True, kw_only=True)
class _Event(DeviceActivity):
    """A kernel, copy or memset, as the trace has it."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(slots=True)
class _Trace:
    path: Path
    host: HostThreads = field(default_factory=HostThreads)
    kernels: list[_Event] = field(default_factory=list)
    copies: list[_Event] = field(default_factory=list)
    device_steps: list[tuple[tuple[str, int], int, int]] = field(default_factory=list)
    by_id: dict[int, tuple[LaunchCall, Range]] = field(default_factory=dict)
    """The operation with an External id, and a call at its start."""

    def add(self, index: int, event: dict[str, Any]) -> None:
        """Keep an event. Raises ``RunError`` if it has no name or no time."""
        where = f"{self.path} traceEvents[{index}]"
        title, arguments = event.get("name"), event.get("args")
        if not isinstance(title, str):
            raise RunError(f"{where}: damaged, its name is not a text; copy or record it again")
        title = name(title)
        start, end = _span(where, event)
        arguments = arguments if isinstance(arguments, dict) else {}
        category = _category(event["cat"]) if "cat" in event else None
        if category in ("kernel", "copy", "memset"):
            kept = self.kernels if category == "kernel" else self.copies
            kept.append(
                _Event(
                    name=title,
                    arguments=arguments,
                    start_ns=start,
                    end_ns=end,
                    key=_key(arguments),
                    device=number(arguments.get("device")),
                    stream=number(arguments.get("stream")),
                    kind="memset" if category == "memset" else _kind(title),
                    bytes=number(arguments.get("bytes")),
                )
            )
        elif category == "device annotation":
            if title.startswith("ProfilerStep#"):
                self.device_steps.append(((title, 0), start, end))
        elif category is not None and (thread := _thread(event)):
            self._add_of_host(category, thread, Range(title, start, end, arguments))

    def _add_of_host(self, category: str, thread: tuple[Any, Any], one: Range) -> None:
        arguments = one.arguments or {}
        if category == "call":
            if correlation := whole(arguments.get("correlation")):
                self.host.calls.setdefault(correlation, (thread, one.start_ns))
        elif category == "annotation" or is_step(one.name):
            self.host.annotations[thread].append(one)
        else:
            self.host.operations[thread].append(one)
            if (external := _external(arguments)) is not None:
                self.by_id.setdefault(external, ((thread, one.start_ns), one))

    def recording(self, content: Mapping[str, Any]) -> Recording:
        everything = [*self.kernels, *self.copies]
        self._place(everything)
        launches = list(self._launches())
        device = Counter(one.device for one in launches).most_common(1)[0][0]
        device_name, facts = _properties(content, device)
        return Recording(
            launches=launches,
            copies=transfers(self.copies),
            steps=launched_steps(everything) or windows(self.device_steps),
            source="torch.profiler",
            device_name=device_name,
            facts=facts,
            notes=list(self._notes(launches)),
        )

    def _place(self, activities: Sequence[_Event]) -> None:
        """By the launch call, and else by the External id that operation and kernel share."""
        by_id = {
            one.key: self.by_id[external]
            for one in activities
            if (external := _external(one.arguments)) in self.by_id
        }
        for key, (call, _) in by_id.items():
            self.host.calls.setdefault(key, call)
        wanted = {one.key for one in activities}
        self.host.calls = {key: call for key, call in self.host.calls.items() if key in wanted}
        places = self.host.places()
        for key, (_, operation) in by_id.items():
            if places[key].operation is None:
                places[key] = replace(places[key], operation=operation)
        for one in activities:
            one.place = places.get(one.key, UNKNOWN)

    def _launches(self) -> Iterator[RecordedLaunch]:
        numbers: dict[Range, int] = {}
        works: dict[Range, Needs | None] = {}
        for one in sorted(self.kernels, key=lambda kernel: kernel.start_ns):
            found, operation = one.arguments, one.place.operation
            if operation and operation not in numbers:
                numbers[operation] = len(numbers) + 1
                works[operation] = _work(operation)
            yield RecordedLaunch(
                kernel=one.name,
                start_ns=one.start_ns,
                end_ns=one.end_ns,
                grid=dim(found.get("grid")),
                block=dim(found.get("block")),
                shared_bytes=number(found.get("shared memory")),
                registers=number(found.get("registers per thread")),
                device=one.device,
                stream=one.stream,
                graph=number(found.get("graph id")),
                operation=operation.name if operation else "",
                call=numbers[operation] if operation else 0,
                phase=one.place.phase,
                work=works[operation] if operation else None,
            )

    def _notes(self, launches: Sequence[RecordedLaunch]) -> Iterator[str]:
        operations = [one for ranges in self.host.operations.values() for one in ranges]
        lost = sum(one.place is UNKNOWN for one in self.kernels)
        if not operations:
            yield (
                "The trace has no operations, so it is not known what launched a kernel: record "
                "it with ProfilerActivity.CPU too."
            )
        elif not any(_shapes(one) for one in operations):
            yield (
                "The trace has no shapes, so FLOPs and bytes are not known, only times: record it "
                "with record_shapes=True."
            )
        if operations and lost:
            yield f"The launch calls of {lost} kernels of {len(launches)} are not in the trace."
        if graphs := sum(1 for one in launches if one.graph and not one.operation):
            yield f"{graphs} kernels were launched by a CUDA graph: their operations are not known."
        if left_out := sum(one.kind is None for one in self.copies):
            yield f"{left_out} copies of an unknown kind are left out."


def _span(where: str, event: Mapping[str, Any]) -> tuple[int, int]:
    """Start and end in ns."""
    start, duration = _ns(event.get("ts")), _ns(event.get("dur", 0))
    if start is None or duration is None or duration < 0:
        raise RunError(f"{where}: damaged, ts or dur is not a time in µs; copy or record it again")
    return start, start + duration


def _ns(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if not abs(value) < BIGGEST // 1000:  # NaN too
        return None
    return round(value * 1000)


def _thread(event: Mapping[str, Any]) -> tuple[Any, Any] | None:
    process, thread = event.get("pid"), event.get("tid")
    known = isinstance(process, (int, str)) and isinstance(thread, (int, str))
    return (process, thread) if known else None


def _key(arguments: Mapping[str, Any]) -> EventKey:
    """The correlation id, and without one, or with 0, the External id."""
    return whole(arguments.get("correlation")) or ("external", _external(arguments))


def _external(arguments: Mapping[str, Any]) -> int | None:
    return whole(arguments.get("External id", arguments.get("external id")))


def _shapes(operation: Range) -> list[Any]:
    return _list(operation, "Input Dims") or _list(operation, "Input dims")


def _list(operation: Range, key: str) -> list[Any]:
    found = (operation.arguments or {}).get(key)
    return found if isinstance(found, list) else []


def _work(operation: Range) -> Needs | None:
    shapes = _shapes(operation)
    if not shapes:
        return None
    types = _list(operation, "Input type") or _list(operation, "Input Type")
    concrete = _list(operation, "Concrete Inputs")
    strides = _list(operation, "Input Strides")
    given = (shapes, types, concrete, strides)
    return work_of(operation.name, *map(cleaned, given))


def _kind(title: str) -> CopyKind | None:
    """Of ``Memcpy HtoD (Pinned -> Device)``; the ends in brackets count if the kind is unknown."""
    if match := _COPY.match(title):
        source, target = match.groups()
        if source == target == "P":
            return "peer"
        from_host, to_host = source == "H", target == "H"
    elif match := _ENDS.search(title):
        from_host, to_host = (end in _HOST_MEMORY for end in match.groups())
    else:
        return None
    if from_host and to_host:
        return "host"
    return "h2d" if from_host else "d2h" if to_host else "d2d"


def _properties(content: Mapping[str, Any], device: int) -> tuple[str, dict[str, object]]:
    """Name and facts of a device."""
    found = content.get("deviceProperties")
    devices = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    own = next((one for one in devices if one.get("id") == device), None)
    if own is None:
        return "", {}
    facts = {fact: own.get(key) for key, fact in _FACTS.items()}
    return described(own.get("name"), facts, own.get("computeMajor"), own.get("computeMinor"))
