"""Microkernels in Numba that reach the limits of a CPU: FMA chains in registers, streams in DRAM.

Importing this module imports Numba.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import binding, ir
from numba import njit, prange, uint64
from numba.extending import intrinsic


def _registers() -> tuple[int, int]:
    """(bits in a vector register, independent chains) for the CPU that Numba compiles for.

    A pipe starts a new FMA each cycle with a latency of about four, so 2 to 4 pipes need 8 to 16
    chains. With two constants they must fit in 32 registers (AVX-512, NEON) or 16.
    """
    features = binding.get_host_cpu_features()
    if features.get("avx512f"):
        return 512, 16
    if features.get("avx"):
        return 256, 12
    return 128, 16 if features.get("neon") else 12


VECTOR_BITS: Final = _registers()[0]
CHAINS: Final = _registers()[1]


def _fma_chains(_context: Any, steps: Any, factor: Any, addend: Any) -> Any:
    """Advance CHAINS vectors by ``x = x * factor + addend``, ``steps`` times; return their sum.

    Written in LLVM IR because the vectoriser cannot be made to keep exactly these chains in
    registers. ``fmuladd`` becomes one FMA if the CPU has it, else two instructions.
    """

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        step_count, factor_value, addend_value = arguments
        number = factor_value.type
        lanes = VECTOR_BITS // factor.bitwidth
        vector = ir.VectorType(number, lanes)
        index = ir.IntType(32)
        undefined = ir.Constant(vector, ir.Undefined)
        name = f"llvm.fmuladd.v{lanes}f{factor.bitwidth}"
        fma = builder.module.globals.get(name) or ir.Function(
            builder.module, ir.FunctionType(vector, [vector] * 3), name
        )

        def broadcast(value: Any) -> Any:
            first = builder.insert_element(undefined, value, index(0))
            return builder.shuffle_vector(
                first, undefined, ir.Constant(ir.VectorType(index, lanes), [0] * lanes)
            )

        factors, addends = broadcast(factor_value), broadcast(addend_value)
        # Each chain has another start: the compiler would merge equal chains.
        starts = [
            broadcast(builder.fadd(addend_value, number(float(chain)))) for chain in range(CHAINS)
        ]
        entry = builder.block
        loop = builder.append_basic_block("chains")
        end = builder.append_basic_block("sum")
        builder.branch(loop)

        builder.position_at_end(loop)
        step = builder.phi(step_count.type)
        chains = [builder.phi(vector) for _ in range(CHAINS)]
        advanced = [builder.call(fma, [chain, factors, addends]) for chain in chains]
        next_step = builder.add(step, step.type(1))
        step.add_incoming(step.type(0), entry)
        step.add_incoming(next_step, loop)
        for chain, start, value in zip(chains, starts, advanced, strict=True):
            chain.add_incoming(start, entry)
            chain.add_incoming(value, loop)
        builder.cbranch(builder.icmp_signed("<", next_step, step_count), loop, end)

        builder.position_at_end(end)
        total = advanced[0]
        for value in advanced[1:]:
            total = builder.fadd(total, value)
        result = builder.extract_element(total, index(0))
        for lane in range(1, lanes):
            result = builder.fadd(result, builder.extract_element(total, index(lane)))
        return result

    return factor(steps, factor, addend), generate


fma_chains: Any = intrinsic(_fma_chains)


@njit(parallel=True, cache=True)
def run_fma_chains(sums: Any, steps: int, factor: float, addend: float) -> None:
    """Run the chains once per element of ``sums``, which is once per thread.

    FLOPs: 2 · lanes · CHAINS · ``steps`` · size of ``sums``.
    """
    for thread in prange(sums.size):
        sums[thread] = fma_chains(steps, factor, addend)


@njit(parallel=True, cache=True)
def scatter(x: Any) -> None:
    """Fill ``x`` with pseudo-random numbers in [0, 1).

    The threads that will stream it write it: a page is in the memory of the socket that touches it
    first.
    """
    for i in prange(x.size):
        # Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014.
        z = (uint64(i) + uint64(1)) * uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> uint64(27))) * uint64(0x94D049BB133111EB)
        x[i] = ((z ^ (z >> uint64(31))) >> uint64(11)) * 2.0**-53


@njit(parallel=True, cache=True)
def triad(a: Any, b: Any, c: Any, alpha: float) -> None:
    """C = A + alpha·B over flat arrays. 3 × 8 bytes per element of FP64."""
    scale = c.dtype.type(alpha)
    for i in prange(c.size):
        c[i] = a[i] + scale * b[i]


@njit(parallel=True, cache=True)
def copy(a: Any, c: Any) -> None:
    """C = A over flat arrays. 2 × 8 bytes per element of FP64."""
    for i in prange(c.size):
        c[i] = a[i]


@njit(parallel=True, cache=True, fastmath={"reassoc", "contract"})
def dot(x: Any, y: Any) -> float:
    """Sum of x · y, without writes. 2 × 8 bytes per element of FP64."""
    total = 0.0
    for i in prange(x.size):
        total += x[i] * y[i]
    return total


@njit(parallel=True, cache=True, fastmath={"reassoc", "contract"})
def read_again(pairs: Any, passes: int, sums: Any) -> None:
    """Each thread reads its pair of rows of ``pairs`` (threads, 2, n), ``passes`` times.

    Two loads per FMA: as many as a core can execute. ``passes`` · 8 bytes per element of FP64.
    """
    for thread in prange(pairs.shape[0]):
        x, y = pairs[thread, 0], pairs[thread, 1]
        total = 0.0
        for _ in range(passes):
            for i in range(x.size):
                total += x[i] * y[i]
        sums[thread] = total


@njit(parallel=True, cache=True)
def copy_again(pairs: Any, passes: int, scale: float) -> None:
    """Each thread writes its second row from its first, ``passes`` times.

    ``passes`` · 8 bytes per element of FP64, half of them written.
    """
    for thread in prange(pairs.shape[0]):
        x, y = pairs[thread, 0], pairs[thread, 1]
        for step in range(passes):
            factor = scale + step
            for i in range(x.size):
                y[i] = factor * x[i]
