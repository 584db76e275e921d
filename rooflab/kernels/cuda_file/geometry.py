"""The launch that a header asks for: its arithmetic, for one problem and configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rooflab.devices.cuda import driver
from rooflab.devices.cuda.compiler import Compiled
from rooflab.errors import KernelError
from rooflab.kernels.cuda_file import expression, tensor_maps
from rooflab.kernels.cuda_file.header import (
    MAX_CLUSTER,
    Configuration,
    Header,
    Map,
    whole_numbers,
)
from rooflab.model.problem import Problem


@dataclass(frozen=True)
class Geometry:
    """Each property raises ``KernelError`` if its arithmetic has no value."""

    source: Path
    header: Header
    problem: Problem
    config: Configuration
    multiprocessors: int
    compiled: Compiled | None = None
    """With it, what only the compiler knows."""

    def _amounts(self, *amounts: int | str) -> tuple[int, ...]:
        try:
            return tuple(expression.evaluate(amount, self._values) for amount in amounts)
        except ValueError as error:
            raise KernelError(f"{self.source}: header: {error}") from error

    @cached_property
    def _values(self) -> dict[str, int]:
        """The values of the names in the header's arithmetic."""
        problem = self.problem
        named = {name: getattr(problem, name, None) for name in problem.arguments}
        return {
            **problem.extents,
            **whole_numbers({**named, **problem.macros, **self.config.macros}),
            "input_bytes": problem.precision.input.bytes,
            "output_bytes": problem.precision.output.bytes,
            "multiprocessors": self.multiprocessors,
        }

    @property
    def block(self) -> tuple[int, ...]:
        """Threads in x, y and z; empty if a plan gives them."""
        return self._amounts(*self.header.block)

    @property
    def threads(self) -> int:
        """Threads of a block, 0 if a plan gives them."""
        return math.prod(block) if (block := self.block) else 0

    @property
    def shared_bytes(self) -> int:
        """Bytes of dynamic shared memory per block; 0 if only the compiler knows."""
        if self.header.shared_expression:
            return self.compiled.dynamic_bytes if self.compiled else 0
        return self._amounts(self.header.shared_bytes)[0]

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks in x, y and z."""
        header, extents = self.header, self.problem.grid_extents
        if header.blocks:
            count, width = self._amounts(header.blocks, (*header.cluster, 1)[0])
            return -(-max(1, count) // width) * width, 1, math.prod(extents[:-2])
        tile = self._amounts(*header.tile)
        tile = (*[1] * (len(extents) - len(tile)), *tile)
        blocks = [-(-extent // max(1, step)) for extent, step in zip(extents, tile, strict=False)]
        per_sm, per_tile = self._amounts(header.blocks_per_sm, header.blocks_per_tile)
        if header.flat:
            blocks = [math.prod(blocks)]
        blocks[-1] *= max(1, per_tile)
        cluster = self._amounts(*header.cluster)
        for axis, step in enumerate(cluster[: len(blocks)], start=1):
            blocks[-axis] = -(-blocks[-axis] // step) * step
        per_tile = math.lcm(max(1, per_tile), *cluster[:1])
        if per_sm:
            most = max(1, per_sm * self.multiprocessors // per_tile) * per_tile
            blocks[-1] = min(blocks[-1], most)
        x, y, z = (*reversed(blocks), 1, 1)[:3]
        return x, y, z

    @property
    def attributes(self) -> dict[int, tuple[int, ...]]:
        """Launch attributes that CuPy does not set."""
        attributes: dict[int, tuple[int, ...]] = {}
        if cluster := self._amounts(*self.header.cluster):
            if math.prod(cluster) > MAX_CLUSTER or min(cluster) < 1:
                raise KernelError(f"{self.source}: a cluster of {cluster} blocks is not possible")
            if math.prod(cluster) > 1 and not (self.compiled and self.compiled.cluster):
                attributes[driver.CLUSTER_DIMENSION] = (*cluster, 1, 1)[:3]
        if any(self._amounts(self.header.early_launch)):
            attributes[driver.PROGRAMMATIC_STREAM_SERIALIZATION] = (1,)
        return attributes

    @property
    def cluster_refusal(self) -> str:
        """Why the clusters that the source fixes do not divide every grid, empty if they do."""
        fixed = self.compiled.cluster if self.compiled else ()
        (per_tile,) = self._amounts(self.header.blocks_per_tile)
        along_x = (max(1, per_tile), 1, 1)
        given = (*self._amounts(*self.header.cluster), 1, 1, 1)[:3]
        if not any(step % size for step, size in zip(along_x, fixed, strict=False)):
            return ""
        if (*fixed, 1, 1)[:3] == given:
            return ""
        return (
            f"has __cluster_dims__({', '.join(map(str, fixed))}): write cluster = {list(fixed)}, "
            "so that there are only whole clusters"
        )

    @property
    def tensor_maps(self) -> list[tuple[Map, driver.TensorMap]]:
        """The TMA descriptors."""
        operands = {operand.name: operand for operand in self.problem.operands}
        made = []
        for one in self.header.tensor_maps:
            operand, box = one.view(operands[one.operand]), self._amounts(*one.box)
            if mistake := tensor_maps.box_mistake(box, one.swizzle, operand.type):
                raise KernelError(f"{self.source}: header: tensor_maps: {mistake} (got {box})")
            tensor_map = tensor_maps.tensor_map(
                operand, box, one.swizzle, one.promotion, self.problem.precision
            )
            made.append((one, tensor_map))
        return made
