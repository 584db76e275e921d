"""Members on the nodes of a Ray cluster.

An actor on a node, the ``Seat``, starts the ordinary member there and relays its bytes. On a GPU it
holds that GPU until the sweep ends, so that no member gets the GPU of another one. Ray restarts and
repeats nothing.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Lock, Thread
from typing import Any, Final, Self

from rooflab.devices.cuda import install
from rooflab.devices.registry import ALL
from rooflab.errors import RooflabError, UnavailableError, UsageError
from rooflab.files import package_root
from rooflab.fleet import child
from rooflab.fleet.launch import MEMBER, Launcher, Link, MemberLost
from rooflab.worker.process import START_S, module_path

HERE: Final = "ray"
"""The address of a Ray that is started on this host."""

ANSWER_S: Final = 10.0
"""Longest time in which the cluster's host must accept a connection."""

ALIVE_S: Final = 2.0
"""Longest time in which a node must accept one, where another has its name."""

JOIN_S: Final = 60.0
"""Longest time in which Ray must let us join."""

_POLL_S: Final = 5.0
"""So long an actor waits for bytes before it answers that there are none."""

_GRACE_S: Final = 30.0
"""An answer of an actor may come so much later than it is due."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node: Ray's id of it, and how many GPUs and CPUs Ray may use there."""

    id: str
    gpus: int
    cpus: int


def named(nodes: Sequence[Mapping[str, Any]]) -> dict[str, Node]:
    """The living ones of ``ray.nodes()`` by name: the one given to Ray, else the host's.

    Nodes of one host are told apart by the rest of their addresses or, in need, by their ids.
    """
    living = [node for node in nodes if node["Alive"]]
    names = [_name(node) for node in living]
    for more in ("NodeManagerAddress", "NodeID"):
        counts = Counter(names)
        names = [
            f"{name}-{str(node[more])[:15]}" if counts[name] > 1 else name
            for name, node in zip(names, living, strict=True)
        ]
    return dict(zip(names, map(_node, living), strict=True))


def answering(nodes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Without the dead among nodes of one name and address, of which one answers.

    For up to a minute Ray lists a node that died beside the one that took its place.
    """
    same: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for node in nodes:
        if node["Alive"]:
            same.setdefault((_name(node), node["NodeManagerAddress"]), []).append(node)
    found: list[Mapping[str, Any]] = []
    for group in same.values():
        living = group if len(group) == 1 else list(filter(_answers, group))
        found += living or group
    return found


def _answers(node: Mapping[str, Any]) -> bool:
    try:
        endpoint = (node["NodeManagerAddress"], node["NodeManagerPort"])
        socket.create_connection(endpoint, ALIVE_S).close()
    except OSError:
        return False
    return True


def _name(node: Mapping[str, Any]) -> str:
    given = str(node.get("NodeName") or "")
    return given if given not in ("", node["NodeManagerAddress"]) else node["NodeManagerHostname"]


def _node(node: Mapping[str, Any]) -> Node:
    has = node.get("Resources") or {}
    return Node(str(node["NodeID"]), int(has.get("GPU", 0)), int(has.get("CPU", 0)))


def on_gpu(device: str) -> bool:
    """Whether Ray must provide a GPU for this device."""
    return device == ALL or bool(re.fullmatch(r"cuda(:\d+)?", device, re.ASCII))


class Ray(Launcher):
    """A connection to a cluster; use it as a context manager.

    ``address`` is Ray's, or ``ray`` to start one on this host. ``words`` follow Python's name on a
    node and start a member there. Raises ``UsageError`` for what is no address of Ray.
    """

    def __init__(self, address: str, words: Sequence[str] = ()) -> None:
        if address not in (HERE, "auto") and _endpoint(address) is None:
            raise UsageError(
                f"--on {address[:60]!r}: write ray://HOST:PORT, HOST:PORT, auto, or ray to start "
                "one here"
            )
        self.title, local = address, address == HERE
        self.path = module_path() if local else ()
        usual = ["-P", "-c", MEMBER, str(package_root())]
        self.words = list(words) or (usual if local else ["-P", "-m", "rooflab.fleet.member"])
        self._seats: dict[tuple[str, str], Any] = {}
        self._change = Lock()
        self._ray: Any = None
        self._seat: Any = None

    def __enter__(self) -> Self:
        """Connect. Raises ``RooflabError`` if Ray is missing or does not answer."""
        ray = self._ray = _import_ray(local=self.title == HERE)
        _connect(ray, self.title)
        _say(warnings_of_ray=False)
        ray.cloudpickle.register_pickle_by_value(child)
        # Threads of the actor: one waits for bytes while others write or end.
        options = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": 4, "num_cpus": 0}
        self._seat = ray.remote(**options)(child.Seat)
        return self

    def __exit__(self, *error: object) -> None:
        """Disconnect; Ray ends all actors, and a Ray that was started here."""
        self._ray.cloudpickle.unregister_pickle_by_value(child)
        self._ray.shutdown()
        _say(warnings_of_ray=True)

    def nodes(self) -> dict[str, Node]:
        """The living nodes by name. Raises ``MemberLost`` if the cluster does not answer."""
        try:
            return named(answering(self._ray.nodes()))
        except Exception as error:  # Ray and its client raise anything
            raise MemberLost(f"Ray does not answer: {_told(error)}") from error

    def hosts(self, devices: Sequence[str]) -> tuple[str, ...]:
        """The nodes that may have such devices: with a GPU, or with a CPU that Ray may use."""
        gpu = any(on_gpu(device) for device in devices)
        try:
            nodes = self.nodes()
        except MemberLost as error:
            raise RooflabError(str(error)) from error
        found = [name for name, node in nodes.items() if (node.gpus if gpu else node.cpus)]
        if not found:
            what = "GPU" if gpu else "CPU"
            raise UnavailableError(f"no node of this Ray cluster has a {what} (type: ray status)")
        return tuple(sorted(found))

    def node(self, host: str) -> Node:
        """The node of this name. Raises ``MemberLost``."""
        nodes = self.nodes()
        if host not in nodes:
            raise MemberLost(f"Ray has no such node (it has: {', '.join(sorted(nodes)) or 'none'})")
        return nodes[host]

    def gpus(self, host: str) -> list[str]:
        """Those that Ray may use on a node."""
        return [f"cuda:{number}" for number in range(self.node(host).gpus)]

    def seen(self, device: str) -> str:
        """A member sees no other GPU than its own."""
        return "cuda:0" if on_gpu(device) else device

    def start(self, host: str, device: str) -> Link:
        """A link to ``host``; the member is started by the first message."""
        return Link(_Seated(self, host, self.node(host), device))

    def seat(self, host: str, node: Node, device: str) -> Any:
        """The actor for a device: the one that is there, or a new one."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        with self._change:
            if (host, device) not in self._seats:
                there = NodeAffinitySchedulingStrategy(node.id, soft=False)
                gpus = 1 if on_gpu(device) else 0
                options = self._seat.options(num_gpus=gpus, scheduling_strategy=there)
                self._seats[host, device] = options.remote()
            return self._seats[host, device]

    def leave(self, host: str, device: str) -> None:
        """End the actor for a device, and the member with it."""
        with self._change:
            seat = self._seats.pop((host, device), None)
        if seat is not None:
            with suppress(Exception):  # it may have ended, or the cluster
                self._ray.kill(seat)

    def call(self, seat: Any, method: str, *arguments: object, within_s: float) -> Any:
        """The result of an actor's method. Raises ``TimeoutError`` or ``MemberLost``."""
        try:
            return self._ray.get(getattr(seat, method).remote(*arguments), timeout=within_s)
        except TimeoutError:
            raise
        except Exception as error:  # Ray and its client raise anything
            raise MemberLost(f"its Ray actor failed: {_told(error)}") from error


class _Seated:
    """The streams of a member behind an actor, which begins with the first message."""

    def __init__(self, ray: Ray, host: str, node: Node, device: str) -> None:
        self._ray, self._node, self._place = ray, node, (host, device)
        self._seat: Any = None
        self._killed = False

    def _ask(self, *words: object, within_s: float = _GRACE_S) -> Any:
        return self._ray.call(self._seat, "ask", *words, within_s=within_s)

    def write(self, data: bytes) -> None:
        if self._seat is None:
            self._begin()
        with suppress(TimeoutError):
            self._ask("write", data, within_s=START_S)

    def _begin(self) -> None:
        host, device = self._place
        self._seat = self._ray.seat(host, self._node, device)
        if self._killed:
            self.kill()
        try:
            self._ray.call(self._seat, "start", self._ray.words, within_s=START_S)
        except (MemberLost, TimeoutError) as error:
            self._ray.leave(host, device)
            late = f"Ray gave no place on this node for {START_S:g} s (type: ray status)"
            raise MemberLost(late if isinstance(error, TimeoutError) else str(error)) from error

    def read(self, timeout_s: float) -> bytes | None:
        wait = min(_POLL_S, timeout_s)
        try:
            data: bytes | None = self._ask("read", wait, within_s=wait + _GRACE_S)
        except TimeoutError as error:
            raise MemberLost("its Ray actor does not answer; killed") from error
        return data

    def why(self) -> str:
        try:
            return str(self._ask("why"))
        except TimeoutError:
            return "it ended"

    def kill(self) -> None:
        """End the actor, which ends the member."""
        self._killed = True
        if self._seat is not None:
            self._ray.leave(*self._place)

    def close(self) -> None:
        """End the member. Its actor keeps the device for the next one, if it lives."""
        if self._seat is not None:
            try:
                self._ray.call(self._seat, "end", within_s=_GRACE_S)
            except (MemberLost, TimeoutError):
                self.kill()
            self._seat = None


def _endpoint(address: str) -> tuple[str, int] | None:
    """Host and port of ``ray://HOST:PORT`` or ``HOST:PORT``."""
    match = re.fullmatch(r"(?:ray://)?\[?([\w.:-]+?)\]?:(\d{1,5})", address, re.ASCII)
    return (match[1], int(match[2])) if match and 0 < int(match[2]) < 2**16 else None


def _import_ray(*, local: bool) -> Any:
    """Ray, which reads its variables when it is imported."""
    if local:
        # It reports to nobody, and has a token that nobody else knows and no file keeps.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import ray
    except ImportError as error:
        raise UnavailableError(f"Ray is not installed: {install.line('ray')}") from error
    return ray


def _connect(ray: Any, address: str) -> None:
    """Join the cluster, or start one here. Raises ``RooflabError``."""
    if ray.is_initialized():
        raise RooflabError("this process is connected to Ray already: call ray.shutdown() first")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    if endpoint := _endpoint(address):
        _reach(address, endpoint)
    failures: list[str] = []

    def join() -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ray.init(**options)
        except Exception as error:  # Ray and its client raise anything
            failures.append(_told(error))

    with _without_stderr():
        if address == HERE:
            # In this thread: Linux ends Ray's processes when the thread that started them ends.
            options |= {"address": "local", "include_dashboard": False}
            join()
        else:
            options |= {"address": address}
            thread = Thread(target=join, daemon=True)  # it is left behind if it takes longer
            thread.start()
            thread.join(JOIN_S)
            if thread.is_alive():
                failures.append(f"it did not let us join within {JOIN_S:g} s")
    if failures:
        raise RooflabError(
            f"Ray at {address} does not answer: {failures[0]} (is it started? if it wants a token, "
            "set RAY_AUTH_MODE=token)"
        )


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Ray's C++ part writes its attempts to standard error, whatever one tells it."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _reach(address: str, endpoint: tuple[str, int]) -> None:
    """Raise ``RooflabError`` if nobody listens there: Ray itself would wait for minutes."""
    try:
        socket.create_connection(endpoint, ANSWER_S).close()
    except OSError as error:
        reason = error.strerror or str(error) or "no answer"
        raise RooflabError(
            f"Ray at {address} does not answer: {reason} (is it started? type: ray status)"
        ) from error


_DETAIL: Final = re.compile(r"(class_name|actor_id|pid|name|namespace|ip): ")
"""Lines about an actor that say nothing of its end."""


def _told(error: BaseException) -> str:
    """An error of Ray in one line: its cause, else the line of its text that says most."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):
        return f"{type(cause).__name__}: {cause}"[:200]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("The actor died"):
        lines = [line for line in lines[1:] if not _DETAIL.match(line)] or lines
    line = lines[0] if lines else type(error).__name__
    return re.sub(r" [0-9a-f]{16,}", "", line)[:200]  # without Ray's ids


def _say(*, warnings_of_ray: bool) -> None:
    """Whether Ray prints what happens to its nodes, which ``log_to_driver`` does not change."""
    with suppress(ImportError):
        from ray._private import worker

        worker._worker_logs_enabled = warnings_of_ray
