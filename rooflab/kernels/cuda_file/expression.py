"""Whole-number arithmetic in the headers of kernels, such as ``THREADS * 16 // input_bytes``."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

_OPERATORS: Final[dict[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: Final[dict[str, Callable[..., int]]] = {
    "min": min,
    "max": max,
    "ceildiv": lambda a, b: -(-a // b),
}

MOST: Final = 2**63
"""Larger results are errors; no extent of a launch is nearly as large."""


def names(expression: int | str) -> frozenset[str]:
    """The names that ``expression`` uses; raises ``ValueError`` if it is not arithmetic."""
    return frozenset() if isinstance(expression, int) else _checked(expression)[1]


@lru_cache(4096)
def _checked(expression: str) -> tuple[ast.expr, frozenset[str]]:
    """``expression`` parsed, and the names that it uses. Each variant of a kernel asks again."""
    try:
        tree = ast.parse(expression, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"{expression[:60]!r} is not arithmetic") from None
    found: set[str] = set()
    called: set[ast.AST] = set()
    for node in ast.walk(tree.body):
        if isinstance(node, ast.Call):
            _function(node, expression)
            called.add(node.func)  # ast.walk visits a call before its function's name
        elif isinstance(node, ast.Name):
            if node not in called:
                found.add(node.id)
        elif isinstance(node, ast.Constant):
            if type(node.value) is not int:
                raise ValueError(f"{expression[:60]!r}: {node.value!r} is not a whole number")
        elif not isinstance(node, (ast.BinOp, ast.operator, ast.expr_context)) or (
            isinstance(node, ast.operator) and type(node) not in _OPERATORS
        ):
            raise ValueError(
                f"{expression[:60]!r}: use + - * // %, min, max, ceildiv and whole numbers"
            )
    return tree.body, frozenset(found)


def _function(node: ast.Call, expression: str) -> None:
    known = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
    if not known or len(node.args) < 2 or node.keywords:
        raise ValueError(f"{expression[:60]!r}: the functions are min, max and ceildiv, of two")


def evaluate(expression: int | str, values: Mapping[str, int]) -> int:
    """The value of ``expression``; raises ``ValueError`` if it has none."""
    if isinstance(expression, int):
        return expression
    tree, used = _checked(expression)
    if unknown := used - values.keys():
        raise ValueError(f"{expression[:60]!r}: {', '.join(sorted(unknown))} has no value here")
    try:
        value = _value(tree, values)
    except (ZeroDivisionError, TypeError, RecursionError) as error:
        raise ValueError(f"{expression[:60]!r}: {error}") from error
    if abs(value) >= MOST:
        raise ValueError(f"{expression[:60]!r} is too large")
    return value


def _value(node: ast.expr, values: Mapping[str, int]) -> int:
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left, values), _value(node.right, values))
    if isinstance(node, ast.Call):
        assert isinstance(node.func, ast.Name)
        return _FUNCTIONS[node.func.id](*(_value(argument, values) for argument in node.args))
    if isinstance(node, ast.Name):
        return values[node.id]
    assert isinstance(node, ast.Constant)
    assert isinstance(node.value, int)
    return node.value
