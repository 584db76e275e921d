"""The NUMA node of a GPU, and host memory on it. From Linux's files; other systems have none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rooflab.devices.cpu.facts import affinity, read
from rooflab.model.facts import Fact


def node_fact(root: Path, bus_id: str) -> Fact:
    """The node of the device at ``bus_id``, from the files below ``root`` (``/`` on a live system).

    ``bus_id`` is CUDA's or NVML's spelling; the folder has four digits of the domain.
    """
    domain, _, rest = bus_id.strip().lower().partition(":")
    path = f"sys/bus/pci/devices/{domain.lstrip('0').zfill(4)}:{rest}/numa_node"
    text = read(root / path)
    if text.isdecimal():
        return Fact(int(text), source=f"/{path}")
    why = f"{text}, so no node is known" if text else "it cannot be read here"
    return Fact(None, source=f"/{path}", reason=f"/{path}: {why}")


@contextmanager
def near(root: Path, node: object) -> Iterator[None]:
    """Run the calling thread on the CPUs of ``node`` meanwhile: Linux then puts new pages there.

    A page gets its place when it is first touched, so that must happen meanwhile too. Nothing is
    done if ``node`` is unknown (None), if the host has only one node, or if the thread may not run
    on the node's CPUs.
    """
    before = affinity()
    if not _bind(before & node_cpus(root, node)):
        yield
        return
    try:
        yield
    finally:
        _bind(before)


def node_cpus(root: Path, node: object) -> frozenset[int]:
    """Numbers of the CPUs of ``node``; empty if it is unknown or the only one."""
    nodes = list(root.glob("sys/devices/system/node/node[0-9]*"))
    if node is None or len(nodes) < 2:
        return frozenset()
    return _numbers(read(root / f"sys/devices/system/node/node{node}/cpulist"))


def _numbers(text: str) -> frozenset[int]:
    """The numbers in ``0-3,8``; none if the text has another form."""
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()):
            return frozenset()
        numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def _bind(cpus: frozenset[int]) -> bool:
    """Bind the calling thread to ``cpus``, if there are any; whether that was possible."""
    try:
        if cpus:
            os.sched_setaffinity(0, cpus)
    except OSError:
        return False
    return bool(cpus)
