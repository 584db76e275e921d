"""The NUMA node of a GPU, from a tree of files, and binding the thread to its CPUs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rooflab.devices.cuda import numa

BUS = "0000:C1:00.0"


class Affinity:
    """Stands for the system's calls; ``history`` is what the thread was bound to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, allowed: set[int]) -> None:
        self.cpus = allowed
        self.history: list[set[int]] = []
        self.refuses = False
        monkeypatch.setattr(os, "sched_getaffinity", lambda thread: set(self.cpus), raising=False)
        monkeypatch.setattr(os, "sched_setaffinity", self.bind, raising=False)

    def bind(self, thread: int, cpus: frozenset[int]) -> None:
        assert thread == 0
        if self.refuses:
            raise OSError("Invalid argument")
        self.cpus = set(cpus)
        self.history.append(self.cpus)


def tree(root: Path, node: str | None = "1", nodes: tuple[str, ...] = ("0-3,8", "4-7")) -> Path:
    """A machine's /sys with a GPU at BUS."""
    device = root / "sys/bus/pci/devices/0000:c1:00.0"
    device.mkdir(parents=True)
    if node is not None:
        (device / "numa_node").write_text(f"{node}\n")
    for number, cpus in enumerate(nodes):
        folder = root / f"sys/devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
    nodes_folder = root / "sys/devices/system/node"
    nodes_folder.mkdir(parents=True, exist_ok=True)
    (nodes_folder / "has_cpu").write_text("0-1\n")
    return root


@pytest.mark.parametrize("spelling", [BUS, "00000000:C1:00.0", "0000:c1:00.0"])
def test_the_node_is_read_below_the_bus_id(spelling: str, tmp_path: Path) -> None:
    fact = numa.node_fact(tree(tmp_path, "0"), spelling)
    assert (fact.value, fact.reason) == (0, "")
    assert fact.source == "/sys/bus/pci/devices/0000:c1:00.0/numa_node"


def test_an_unknown_node_has_a_reason(tmp_path: Path) -> None:
    root = tree(tmp_path, "-1")
    fact = numa.node_fact(root, BUS)
    assert fact.value is None
    assert fact.reason.endswith("numa_node: -1, so no node is known")
    elsewhere = numa.node_fact(root, "0001:c1:00.0")
    assert elsewhere.value is None
    assert elsewhere.reason.endswith("0001:c1:00.0/numa_node: it cannot be read here")


def test_cpus_of_a_node(tmp_path: Path) -> None:
    root = tree(tmp_path, nodes=("0-3,8", "4-7", "", "what"))
    assert numa.node_cpus(root, 0) == {0, 1, 2, 3, 8}
    assert numa.node_cpus(root, 1) == {4, 5, 6, 7}
    for node in (2, 3, 9, None):  # memory without CPUs, nonsense, absent, unknown
        assert numa.node_cpus(root, node) == frozenset()


def test_the_thread_is_bound_meanwhile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    system = Affinity(monkeypatch, {0, 1, 4, 5})
    with numa.near(tree(tmp_path), 1):
        assert system.cpus == {4, 5}
    assert system.cpus == {0, 1, 4, 5}
    with pytest.raises(MemoryError), numa.near(tmp_path, 0):
        assert system.cpus == {0, 1}
        raise MemoryError
    assert system.cpus == {0, 1, 4, 5}


@pytest.mark.parametrize(
    ("nodes", "node", "allowed"),
    [
        (("0-7",), 0, {0, 1}),  # one node
        (("0-3", "4-7"), None, {0, 4}),  # unknown
        (("0-3", "4-7"), 1, {0, 1}),  # none of its CPUs is allowed
        ((), 0, {0}),  # no such files
    ],
)
def test_nothing_is_done_where_it_means_nothing(
    nodes: tuple[str, ...],
    node: int | None,
    allowed: set[int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    system = Affinity(monkeypatch, allowed)
    with numa.near(tree(tmp_path, nodes=nodes), node):
        assert system.cpus == allowed
    assert system.history == []


def test_a_refusal_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    system = Affinity(monkeypatch, {0, 4})
    system.refuses = True
    with numa.near(tree(tmp_path), 1):
        assert system.cpus == {0, 4}


def test_systems_without_affinity_do_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    with numa.near(tree(tmp_path), 1):
        pass
