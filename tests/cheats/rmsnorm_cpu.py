"""RMS norms of rows, without what keeps them finite, or with a part of the work."""

from __future__ import annotations

import numpy as np

import rooflab

kernel = rooflab.kernel(workload="rmsnorm", device="cpu")


def parts(operands):
    """x, w, y and epsilon."""
    return (*operands.values(), np.float32(operands.problem.epsilon))


def inverse(x, epsilon):
    """One over the root of the mean square of each row."""
    return 1 / np.sqrt(np.einsum("ij,ij->i", x, x)[:, None] / x.shape[1] + epsilon)


def scaled(x, w, scale, y):
    np.multiply(x, scale, out=y)
    np.multiply(y, w, out=y)


@kernel
def honest(operands, stream):
    """The definition"""
    x, w, y, epsilon = parts(operands)
    return lambda: scaled(x, w, inverse(x, epsilon), y)


@kernel
def honest_rows(operands, stream):
    """A row after the other"""
    x, w, y, epsilon = parts(operands)

    def launch():
        for row, out in zip(x, y, strict=True):
            np.multiply(row, w / np.sqrt(row @ row / row.size + epsilon), out=out)

    return launch


@kernel
def no_epsilon(operands, stream):
    """Without epsilon: rows of zeros become NaN"""
    x, w, y, _ = parts(operands)
    return lambda: scaled(x, w, inverse(x, np.float32(0)), y)


@kernel
def outer_epsilon(operands, stream):
    """Epsilon outside the root"""
    x, w, y, epsilon = parts(operands)
    return lambda: scaled(x, w, 1 / (1 / inverse(x, np.float32(0)) + epsilon), y)


@kernel
def fixed_epsilon(operands, stream):
    """1e-6, whatever epsilon is"""
    x, w, y, _ = parts(operands)
    return lambda: scaled(x, w, inverse(x, np.float32(1e-6)), y)


@kernel
def no_weights(operands, stream):
    """Without w"""
    x, _, y, epsilon = parts(operands)
    return lambda: np.multiply(x, inverse(x, epsilon), out=y)


@kernel
def first_columns(operands, stream):
    """The mean of half of the columns"""
    x, w, y, epsilon = parts(operands)
    some = x[:, : x.shape[1] // 2]
    return lambda: scaled(x, w, inverse(some, epsilon), y)


@kernel
def one_norm(operands, stream):
    """The norm of the first row for all: random rows are alike"""
    x, w, y, epsilon = parts(operands)
    return lambda: scaled(x, w, inverse(x[:1], epsilon), y)


@kernel
def keeps_norms(operands, stream):
    """Keeps the norms while the corners of x are the same"""
    x, w, y, epsilon = parts(operands)
    kept = {}

    def launch():
        key = (x[0, 0], x[-1, -1])
        if key not in kept:
            kept.clear()
            kept[key] = inverse(x, epsilon)
        scaled(x, w, kept[key], y)

    return launch


@kernel
def keeps_weighted(operands, stream):
    """Keeps the weights that it had when it was prepared"""
    x, w, y, epsilon = parts(operands)
    mine = w.copy()
    return lambda: scaled(x, mine, inverse(x, epsilon), y)


@kernel
def half(operands, stream):
    """Squares in half precision"""
    x, w, y, epsilon = parts(operands)

    def launch():
        squares = np.square(x, dtype=np.float16, casting="unsafe")
        mean = squares.mean(axis=1, keepdims=True, dtype=np.float32)
        scaled(x, w, 1 / np.sqrt(mean + epsilon), y)

    return launch


@kernel
def no_last_column(operands, stream):
    """Without the last column"""
    x, w, y, epsilon = parts(operands)
    return lambda: scaled(x[:, :-1], w[:-1], inverse(x, epsilon), y[:, :-1])


@kernel
def in_place(operands, stream):
    """Normalises x, and copies it"""
    x, w, y, epsilon = parts(operands)

    def launch():
        scaled(x, w, inverse(x, epsilon), x)
        y[...] = x

    return launch


@kernel
def own_root(operands, stream):
    """Replaces numpy.sqrt, which the reference uses, and saves the norms"""
    x, w, y, _ = parts(operands)
    np.sqrt = np.ones_like
    return lambda: np.multiply(x, w, out=y)
