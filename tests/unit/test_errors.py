"""The one line of a message that stands for it."""

from __future__ import annotations

import pytest

from rooflab.errors import headline

NAME = """\
TypingError: Failed in nopython mode pipeline (step: nopython frontend)
\x1b[1m\x1b[1mNameError: name 'unknown_name' is not defined\x1b[0m
\x1b[0m\x1b[1mDuring: Pass nopython_type_inference\x1b[0m
"""

TYPES = """\
TypingError: Failed in nopython mode pipeline (step: nopython frontend)
\x1b[1m\x1b[1m\x1b[1mNo implementation of function Function(<built-in function add>) found \
for signature:

 >>> add(array(float32, 1d, C), Literal[str](x))

There are 20 candidate implementations:
\x1b[0m\x1b[1mDuring: typing of intrinsic-call at /home/me/nb.py (14)\x1b[0m
\x1b[1m
File "nb.py", line 14:\x1b[0m
\x1b[1mdef bad2(a, b, c):
"""


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (NAME, "TypingError: NameError: name 'unknown_name' is not defined"),
        (
            TYPES,
            "TypingError: No implementation of function Function(<built-in function add>) found "
            "for signature: add(array(float32, 1d, C), Literal[str](x)) (nb.py:14)",
        ),
        ("ValueError: bad\nmore", "ValueError: bad"),
        ("\n\n  late", "late"),
        (
            "Failed in nopython mode pipeline (step: x)",
            "Failed in nopython mode pipeline (step: x)",
        ),
        ("", ""),
    ],
)
def test_the_headline_of_a_failure(message: str, line: str) -> None:
    assert headline(message) == line
