"""Arithmetic in the headers of kernels, which may come from anybody."""

from __future__ import annotations

import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflab.kernels.cuda_file.expression import MOST, evaluate, names

VALUES = {"M": 7, "TILE": 64, "input_bytes": 2}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (5, 5),
        ("5", 5),
        ("TILE * 16 // input_bytes", 512),
        ("2 * (M + 1) - 3 % 2", 15),
        ("M - 10", -3),
        ("min(M, TILE)", 7),
        ("max(M, TILE, 100)", 100),
        ("ceildiv(TILE, M)", 10),
        ("ceildiv(M, ceildiv(TILE, 10))", 1),
        ("(M - 10) // 2", -2),
    ],
)
def test_values(text: int | str, value: int) -> None:
    assert evaluate(text, VALUES) == value


OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


@given(st.integers(0, 10**6), st.sampled_from(list(OPERATORS)), st.integers(0, 10**6))
def test_it_counts_as_python_does(a: int, sign: str, b: int) -> None:
    assert evaluate(f"A {sign} B", {"A": a, "B": b}) == OPERATORS[sign](a, b)


def test_names_are_found_without_the_functions() -> None:
    assert names("min(M, TILE) * input_bytes + 4") == {"M", "TILE", "input_bytes"}
    assert names("4 * 4") == set()
    assert names(4) == set()
    assert names("max(min, 3)") == {"min"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("M *", "is not arithmetic"),
        ("", "is not arithmetic"),
        ("M; N", "is not arithmetic"),
        ("M = 3", "is not arithmetic"),
        ("\0", "is not arithmetic"),
        ("(" * 100_000, "is not arithmetic"),
        ("-M", r"use \+ - \*"),
        ("M / 2", r"use \+ - \* // %, min, max, ceildiv and whole numbers"),
        ("M ** 9", r"use \+ - \*"),
        ("M << 9", r"use \+ - \*"),
        ("M if M else 1", r"use \+ - \*"),
        ("M < 3", r"use \+ - \*"),
        ("[M]", r"use \+ - \*"),
        ("lambda: 1", r"use \+ - \*"),
        ("M.real", r"use \+ - \*"),
        ("VALUES[0]", r"use \+ - \*"),
        ("[x for x in M]", r"use \+ - \*"),
        ("(x := 3)", r"use \+ - \*"),
        ("min(*M)", "the functions are min, max and ceildiv"),
        ("1.5 * M", "1.5 is not a whole number"),
        ("True", "True is not a whole number"),
        ("'a' * 9", "'a' is not a whole number"),
        ("1j", "1j is not a whole number"),
        ("min(M)", "the functions are min, max and ceildiv"),
        ("min(M, key=TILE)", "the functions are min, max and ceildiv"),
        ("abs(M, M)", "the functions are min, max and ceildiv"),
        ("__import__('os').system('true')", "the functions are min, max and ceildiv"),
        ("().__class__.__bases__", r"use \+ - \*"),
    ],
)
def test_what_is_no_arithmetic_is_refused(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told) as caught:
        names(text)
    assert len(str(caught.value)) < 200
    with pytest.raises(ValueError, match=told):
        evaluate(text, VALUES)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("M + N", "N has no value here"),
        ("X + Y", "X, Y has no value here"),
        ("M // 0", "division"),
        ("M % (M - 7)", "modulo|division"),
        ("ceildiv(M, 0)", "division"),
        ("ceildiv(M, 1, 2)", "ceildiv"),
        ("TILE * " * 20 + "TILE", "is too large"),
        ("9" * 400, "is too large"),
        ("min", "min has no value here"),
        ("min(M, max)", "max has no value here"),
    ],
)
def test_what_has_no_value_is_refused(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told) as caught:
        evaluate(text, VALUES)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "text",
    [
        "1+" * 20_000 + "1",  # deeper than Python's stack
        "min(" * 90 + "1" + ",1)" * 90,
        "9" * 5000,
        "-" * 20_000 + "1",
    ],
)
def test_long_ones_have_a_value_or_an_error_and_no_crash(text: str) -> None:
    try:
        assert evaluate(text, VALUES) < MOST
    except ValueError as error:
        assert len(str(error)) < 200


def test_large_products_are_refused() -> None:
    text = "9" * 4000
    for _ in range(3):
        text = f"({text}) * ({text})"
    with pytest.raises(ValueError, match="too large"):
        evaluate(text, VALUES)


@given(st.text(alphabet="MN019+-*/%(), .\n", max_size=40))
def test_any_text_is_a_value_or_a_value_error(text: str) -> None:
    try:
        assert isinstance(evaluate(text, {"M": 3, "N": 4}), int)
    except ValueError as error:
        assert str(error)
