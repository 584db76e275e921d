"""Collectives: GPUs of one host exchange their data, which tests the links between them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

from rooflab.errors import UsageError
from rooflab.model.problem import (
    DRAM,
    PEER,
    Block,
    Inputs,
    Operand,
    Piece,
    Problem,
    Task,
    boxes,
    extent,
    in_and_out,
)
from rooflab.workloads.parts import ALL, Moves


@dataclass(frozen=True, kw_only=True)
class Collective(Problem):
    """Their base: row i of each operand belongs to GPU i.

    ``elements`` are those that each GPU contributes.
    """

    sizes: ClassVar = ("elements",)
    collective: ClassVar = True

    elements: int = extent("elements of each GPU")
    gpus: int = extent("GPUs of this host", 2)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gpus == 1:
            raise UsageError(f"{self.workload} needs two GPUs: give --gpus 2 or more")

    @property
    def result(self) -> int:
        """Elements that each GPU has in the end."""
        return self.elements

    @property
    def operands(self) -> tuple[Operand, ...]:
        """What each GPU has before, x, and after, y."""
        x, y = (self.gpus, self.elements), (self.gpus, self.result)
        return in_and_out(self.precision, x=x, y=y)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Every GPU has its rows."""
        columns = {"x": self.elements, "y": self.result}

        def task(gpu: int) -> Task:
            row = (gpu, gpu + 1)
            blocks = {name: Block(gpu, (row, (0, count))) for name, count in columns.items()}
            return Task(gpu, self, blocks)

        return tuple(map(task, range(self.gpus)))

    @property
    def flops_each(self) -> int:
        """The additions, divided among the GPUs."""
        return -(-self.flops // self.gpus)

    @property
    def result_bytes(self) -> int:
        """Size of a row of y."""
        return self.result * self.precision.output.bytes


@dataclass(frozen=True, kw_only=True)
class AllReduce(Collective):
    """Every GPU gets the sum of all vectors."""

    workload: ClassVar = "allreduce"
    title: ClassVar = "sum over GPUs, to all of them"
    formula: ClassVar = "y[i] = Σ x[j], for every GPU i"
    work: ClassVar = "(gpus - 1)·elements"

    @property
    def flops(self) -> int:
        """One addition for each element of all vectors but one."""
        return (self.gpus - 1) * self.elements

    @property
    def traffic(self) -> dict[str, int]:
        """Each GPU receives at least as much as the vector has.

        A switch that adds needs no more; without one each GPU receives 2·(gpus - 1)/gpus of that
        (Patarasuk, Yuan, "Bandwidth Optimal All-reduce Algorithms", 2009).
        """
        return {DRAM: 2 * self.result_bytes, PEER: self.result_bytes}

    @property
    def bus_bytes(self) -> int:
        """What each GPU sends without help from a switch."""
        return 2 * (self.gpus - 1) * self.result_bytes // self.gpus

    @property
    def tolerance(self) -> float:
        """Each addition may round to the output's type."""
        return 0.5 * self.gpus * self.precision.output.epsilon

    def magnitude(self, rms: Mapping[str, float]) -> float:
        """A sum of N random numbers has sqrt(N) times the size of one."""
        return sqrt(self.gpus) * rms["x"]

    def pieces(self, draw: random.Random) -> Iterator[Piece]:
        """All elements, some of every GPU at a time."""
        for (some,) in boxes((self.elements,), 2**20):
            yield Piece({"x": (ALL, some), "y": (ALL, some)})

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """The sum, once per GPU."""
        total = inputs["x"].sum(axis=0, keepdims=True)
        return {"y": arrays.repeat(total, self.gpus, axis=0)}


@dataclass(frozen=True, kw_only=True)
class AllGather(Moves, Collective):
    """Every GPU gets the vectors of all, one after the other."""

    workload: ClassVar = "allgather"
    title: ClassVar = "vectors of all GPUs, to all of them"
    formula: ClassVar = "y[i] = (x[0], x[1], …), for every GPU i"
    work: ClassVar = "0"

    @property
    def result(self) -> int:
        """All vectors."""
        return self.gpus * self.elements

    @property
    def traffic(self) -> dict[str, int]:
        """Each GPU receives the vectors of the others, and writes all."""
        one = self.result_bytes // self.gpus
        return {DRAM: one + self.result_bytes, PEER: (self.gpus - 1) * one}

    @property
    def bus_bytes(self) -> int:
        """What each GPU receives."""
        return self.traffic[PEER]

    def pieces(self, draw: random.Random) -> Iterator[Piece]:
        """The vector of one GPU at a time, in parts, at its place in the results of all."""
        for gpu in range(self.gpus):
            for (some,) in boxes((self.elements,), 2**20):
                first = gpu * self.elements
                there = slice(first + some.start, first + some.stop)
                yield Piece({"x": (slice(gpu, gpu + 1), some), "y": (ALL, there)})

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """The vectors, one after the other, once per GPU."""
        return {"y": arrays.repeat(inputs["x"].reshape(1, -1), self.gpus, axis=0)}
