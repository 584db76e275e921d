"""A fleet on a Ray cluster: several nodes on this host, each with a member of its own."""

from __future__ import annotations

import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
from commands import gone, started, wait_until
from kills import CONFIG, POINTS, fleets, kept

from rooflab.errors import RooflabError
from rooflab.fleet import record as fleet_record
from rooflab.fleet.launch import MemberLost, Setup
from rooflab.fleet.messages import Hello, Open
from rooflab.fleet.ray import Ray
from rooflab.fleet.session import expanded

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="no Ray: pip install 'rooflab[ray]'"),
    pytest.mark.filterwarnings("ignore"),  # those of Ray
]

NODES = ("a", "b", "c")
GPUS = {"c": 2}
MEMBER = ("--device", "fake:Member")
PLAN = ("--config", "small.toml")
PREFIX = ("--launch", "env FAKE_MEMBER={host}", "--python", sys.executable, "--hosts", "a,b,c")
SMALL = {"object_store_memory": 80 * 2**20, "include_dashboard": False}


class Nodes:
    """The cluster. Nodes have GPUs only in Ray's books."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        # The head serves the books; it has no members and lives as long as the cluster.
        head = {"node_name": "head", "num_cpus": 0, "num_gpus": 0, **SMALL}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.of: dict[str, Any] = {}

    def add(self, name: str) -> None:
        self.of[name] = self.cluster.add_node(
            node_name=name,
            num_cpus=1,
            num_gpus=GPUS.get(name, 0),
            env_vars={"FAKE_MEMBER": name},
            **SMALL,
        )

    def kill(self, name: str) -> None:
        """At once, with all processes of Ray; the members must end by themselves."""
        with suppress(psutil.Error):
            for process in psutil.Process(self.pid(name)).children():
                process.kill()
        self.cluster.remove_node(self.of.pop(name), allow_graceful=False)

    def complete(self) -> None:
        """Bring back the nodes that were killed, or that Ray gave up on a busy machine."""
        for name in NODES:
            if name in self.of and self._raylet(name).poll() is not None:
                self.kill(name)
            if name not in self.of:
                self.add(name)

    def pid(self, name: str) -> int:
        """Of the process whose descendants are the node's members."""
        return self._raylet(name).pid

    def _raylet(self, name: str) -> subprocess.Popen[bytes]:
        (found,) = self.of[name].all_processes["raylet"]
        process: subprocess.Popen[bytes] = found.process
        return process

    @property
    def way(self) -> tuple[str, ...]:
        return ("--on", str(self.cluster.address), *MEMBER)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with pytest.MonkeyPatch.context() as patch:
        # Nobody else may use this cluster. Ray reads these when it is imported, here.
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patch.setenv("RAY_health_check_timeout_ms", "60000")  # many members on few cores
        # Members find the fake device; Ray's processes inherit it.
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        nodes = Nodes()
        try:
            nodes.complete()
            yield nodes
        finally:
            nodes.cluster.shutdown()


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    Path("small.toml").write_text(CONFIG)


def only() -> Path:
    (path,) = fleets()
    return path


def rows(name: str) -> int:
    (count,) = kept({f"{name}-{name}": 0}).values()
    return count


def statuses() -> dict[str, str]:
    return {one.host: one.status for one in fleet_record.load(only()).members.values()}


def finished(*words: object) -> tuple[int, str, str]:
    with started("fleet", "sweep", *words) as process:
        out, err = process.communicate(timeout=900)
    return process.returncode, out, err


def members(above: int) -> list[psutil.Process]:
    """The members below a process, and their workers; without those that end just now."""
    found: list[psutil.Process] = []
    with suppress(psutil.Error):
        for process in psutil.Process(above).children(recursive=True):
            with suppress(psutil.Error):
                if "rooflab.fleet.member" in process.cmdline():
                    found += [process, *process.children(recursive=True)]
    return found


def test_a_member_per_node_and_a_dead_node_costs_only_its_rows(nodes: Nodes) -> None:
    Path("small.toml").write_text(CONFIG.replace("40:64", "40:104"))
    points = 9 * POINTS // 4  # of 9 sizes instead of 4
    with started("fleet", "sweep", *nodes.way, *PLAN) as process:
        wait_until(lambda: list(Path("results").glob("*/members/*")), process)
        wait_until(lambda: rows("b") >= 2, process)
        there = members(nodes.pid("b"))
        nodes.kill("b")
        nodes.add("b")
        out, err = process.communicate(timeout=120)
    assert process.returncode == 1, err
    assert "b fake:Member: lost: its Ray actor failed: " in err
    assert "(raylet)" not in out + err
    assert there
    assert gone(there)
    assert statuses() == {"a": "done", "b": "lost", "c": "done"}
    assert (rows("a"), rows("c")) == (points, points)
    assert 2 <= rows("b") < points
    assert fleet_record.load(only()).launch == nodes.cluster.address
    code, _, err = finished("--resume", only(), *PREFIX, *MEMBER)
    assert code == 0, err
    assert [rows(name) for name in NODES] == [points] * 3


def test_a_fleet_that_began_without_ray_is_finished_on_it(nodes: Nodes) -> None:
    launch = "sh -c 'test {host} != b && FAKE_MEMBER={host} exec \"$@\"' --"
    begun = ("--launch", launch, "--python", sys.executable, "--hosts", "a,b,c", *MEMBER)
    assert finished(*begun, *PLAN)[0] == 1
    assert statuses() == {"a": "done", "b": "lost", "c": "done"}
    code, out, err = finished("--resume", only(), *nodes.way)
    assert code == 0, err
    assert (rows("b"), set(statuses().values())) == (POINTS, {"done"})
    assert out.count("Exact 1000") == 3


def test_no_process_is_left_without_the_coordinator(nodes: Nodes) -> None:
    way = ("--on", nodes.way[1], "--hosts", "a,c", *MEMBER)
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with started("fleet", "sweep", *way, "-k", "fast", "--sizes", "40:400:+8", **streams) as one:
        wait_until(lambda: list(Path("results").glob("*/members/*")), one)
        wait_until(lambda: rows("a") and rows("c"), one)
        there = [*members(nodes.pid("a")), *members(nodes.pid("c"))]
        assert len(there) >= 4, "two members and their workers"
        one.kill()
        assert one.wait(60) == -signal.SIGKILL
    wait_until(lambda: gone(there))
    assert not [*members(nodes.pid("a")), *members(nodes.pid("c"))]


SAYS_HELLO = """
import json, os, sys
device = json.loads(sys.stdin.readline())["device"]
gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "none")
threads = os.environ.get("OMP_NUM_THREADS", "all")
hello = dict(type="hello", rooflab="1", host="h", device=device, kind="k", name=threads, uuid=gpu)
print(json.dumps(hello), flush=True)
sys.stdin.readline()
sys.exit("bye")
"""


def test_each_gpu_of_a_node_has_one_member(nodes: Nodes) -> None:
    with Ray(nodes.way[1], ["-c", SAYS_HELLO]) as ray:
        assert ray.hosts(["cpu"]) == NODES
        assert ray.hosts(["all"]) == ("c",)
        targets = expanded(Setup(launcher=ray, hosts=("c",), devices=("all",)))
        assert [(one.host, one.device) for one in targets] == [("c", "cuda:0"), ("c", "cuda:1")]
        # One after the other, twice, as with --one-by-one --repeats 2.
        found = [hello(ray, one.host, one.device) for one in [*targets, *targets]]
        assert {one.device for one in found} == {"cuda:0"}, "it sees no other"
        assert {one.uuid for one in found[:2]} == {"0", "1"}
        assert [one.uuid for one in found[2:]] == [one.uuid for one in found[:2]]
        assert hello(ray, "a", "cpu").name == "all", "Ray's limit on threads is not the member's"
        with pytest.raises(RooflabError, match=r"nowhere does not answer: Ray has no such node"):
            expanded(Setup(launcher=ray, hosts=("nowhere",), devices=("all",)))


def hello(ray: Ray, host: str, device: str) -> Hello:
    link = ray.start(host, device)
    try:
        link.send(Open(device=ray.seen(device)))
        message = link.receive(60)
        assert isinstance(message, Hello)
        with pytest.raises(MemberLost, match=r"no message for 0\.1 s"):
            link.receive(0.1)
    finally:
        link.close()
    return message


def test_a_cluster_that_does_not_answer_is_one_line() -> None:
    code, out, err = finished("--on", "127.0.0.1:9", *MEMBER)
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "Ray at 127.0.0.1:9 does not answer: Connection refused" in err


# The last: for a while Ray knows a killed node beside the new one of its name.

KILLS = int(os.environ.get("RAY_KILLS", "4"))
DEVICES = [f"fake:Member{i + 1}" for i in range(int(os.environ.get("RAY_DEVICES", "2")))]
"""Of each node."""
PACE = float(os.environ.get("RAY_PACE", "1"))
"""Times 2 to 8 s between kills: raise it with the devices, or members never get beyond starting."""
RESUMES = 5
"""After the kills. The first may still find members that are about to end."""


def _next() -> tuple[object, ...]:
    """What to type: a coordinator may be killed before its folder is there."""
    return ("--resume", only()) if fleets() else PLAN


def test_killed_at_random_moments(nodes: Nodes) -> None:
    """A node, a member, or the coordinator: what was received stays, and the rest is measured."""
    draw, names = random.Random(), [f"{n}-{n}-{i + 1}" for n in NODES for i in range(len(DEVICES))]
    known = dict.fromkeys(names, 0)
    way = (*nodes.way[:2], "--device", ",".join(DEVICES))
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    killed = undisturbed = 0
    while killed < KILLS:
        before = killed
        more = _next()
        seen: set[psutil.Process] = set()
        with started("fleet", "sweep", *more, *way, **streams) as process:
            while process.poll() is None and killed < KILLS:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(draw.uniform(2.0, 8.0) * PACE)
                    break
                seen |= {one for name in nodes.of for one in members(nodes.pid(name))}
                killed += 1
                if draw.random() < 0.3 / len(DEVICES):
                    process.kill()
                elif draw.random() < 0.3 or not seen:
                    if nodes.of:
                        nodes.kill(draw.choice(list(nodes.of)))
                else:
                    with suppress(psutil.Error):
                        draw.choice(list(seen)).kill()
            process.wait(900)
        wait_until(partial(gone, list(seen)), patience_s=60 + 10 * len(names))
        nodes.complete()
        known = kept(known)
        undisturbed = undisturbed + 1 if killed == before else 0
        assert undisturbed < RESUMES, "nothing is left to kill, and it does not come to its end"
        if killed < KILLS and set(known.values()) == {POINTS}:
            undisturbed = 0
            shutil.rmtree("results")
            known = dict.fromkeys(names, 0)
    for _ in range(RESUMES):
        nodes.complete()
        code, out, err = finished(*_next(), *way)
        known = kept(known)
        if not code:
            break
    assert not code, (out, err)
    assert set(known.values()) == {POINTS}
    assert {one.status for one in fleet_record.load(only()).members.values()} == {"done"}
