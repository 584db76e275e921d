"""What can be said of a Ray cluster without Ray."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rooflab.errors import UnavailableError, UsageError
from rooflab.fleet.child import Seat
from rooflab.fleet.ray import HERE, Node, Ray, answering, named, on_gpu


def node(number: int, **changes: Any) -> dict[str, Any]:
    address = f"10.0.0.{number}"
    return {
        "NodeID": f"{number}" * 56,
        "Alive": True,
        "NodeManagerAddress": address,
        "NodeManagerHostname": f"host-{number}",
        "NodeName": address,
        "Resources": {"CPU": 8.0, "GPU": 2.0},
        **changes,
    }


def test_nodes_have_the_names_of_their_hosts_or_those_they_were_given() -> None:
    dead, cpus = node(2, Alive=False), node(4, Resources={"CPU": 3.0})
    nodes = named([node(1), dead, node(3, NodeName="mine"), cpus])
    assert nodes == {
        "host-1": Node("1" * 56, 2, 8),
        "mine": Node("3" * 56, 2, 8),
        "host-4": Node("4" * 56, 0, 3),
    }


def test_nodes_of_one_name_are_told_apart() -> None:
    same = {"NodeManagerHostname": "h"}
    assert list(named([node(1, **same), node(2, **same)])) == ["h-10.0.0.1", "h-10.0.0.2"]
    same |= {"NodeManagerAddress": "10.0.0.9", "NodeName": "10.0.0.9"}
    names = list(named([node(1, **same), node(2, **same), node(3)]))
    assert names == [f"h-10.0.0.9-{'1' * 15}", f"h-10.0.0.9-{'2' * 15}", "host-3"]


def test_a_dead_node_beside_the_one_that_took_its_place() -> None:
    """Ray lists both as living: what accepts no connection is dead. If none does, both stay."""
    here = {"NodeManagerHostname": "h", "NodeManagerAddress": "127.0.0.1", "NodeName": "mine"}
    with socket.create_server(("127.0.0.1", 0)) as open_port, closed_port() as closed:
        old = node(1, **here, NodeManagerPort=closed)
        new = node(2, **here, NodeManagerPort=open_port.getsockname()[1])
        other = node(3, NodeManagerPort=closed)
        assert answering([old, other, new]) == [new, other]
        assert answering([old, other, old]) == [old, old, other]
        assert answering([node(1, Alive=False), new]) == [new]


@contextmanager
def closed_port() -> Iterator[int]:
    """A port that nobody listens on or gets meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.mark.parametrize(
    "address", ["", "x", "ray://", "ray://h", "h:0", "h:99999", "a b:1", "h:1/x"]
)
def test_what_is_no_address_of_ray(address: str) -> None:
    with pytest.raises(UsageError, match=r"--on .*: write ray://HOST:PORT"):
        Ray(address)


@pytest.mark.parametrize("address", [HERE, "auto", "h:6379", "ray://a-b.c:10001", "ray://[::1]:1"])
def test_what_is_an_address(address: str) -> None:
    assert Ray(address).title == address


@pytest.mark.parametrize(
    ("device", "gpu"),
    [("all", True), ("cuda", True), ("cuda:3", True), ("cpu", False), ("cuda:Mine", False)],
)
def test_which_devices_need_a_gpu_of_ray(device: str, gpu: bool) -> None:
    assert on_gpu(device) is gpu


def test_without_ray_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UnavailableError, match=r"pip install 'rooflab\[ray\]'") as error, Ray(HERE):
        pass
    assert error.value.exit_code == 2


def test_a_seat_has_one_member_at_a_time() -> None:
    seat = Seat()
    echo = "import sys; print(sys.stdin.readline(), end='', flush=True); sys.exit('bye')"
    for text in (b"first\n", b"second\n"):
        seat.start(["-c", echo])
        seat.ask("write", text)
        assert seat.ask("read", 20) == text
    assert seat.ask("read", 20) == b""
    assert seat.ask("why") == "it ended with code 1: bye"
    seat.start(["-c", "input()"])
    assert seat.ask("read", 0.1) is None
    seat.end()
    seat.end()


def test_a_member_that_nobody_asks_for_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rooflab.fleet.child._FORGOTTEN_S", -1.0)
    seat = Seat()
    seat.start(["-c", "input()"])
    assert seat.ask("read", 20) == b""
    assert seat.ask("why") == "it died of signal 9"
    seat.end()
