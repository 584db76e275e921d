"""Names of kernels that people can read. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from typing import Final

LONGEST: Final = 80
"""Characters of a name; longer ones lose their middle, so that what ends them tells them apart."""

UNNAMED: Final = "unnamed"

DEEP: Final = 1
"""Templates within templates that are shown."""

READ: Final = 20_000
"""Characters of a C++ name that are looked at."""

_HIDDEN: Final = re.compile(
    r"\(anonymous namespace\)(?:::)?|<unnamed>::|\{anonymous\}::|\(anonymous class\)(?:::)?|"
    r"_GLOBAL__N_\w+::|\bTHRUST_\d+\w*::|\b__\d+::|"
    r"\b(?:void|static|struct|class|enum|typename|const|unsigned(?= (?:int|long|short|char)))(?= )"
)
"""What no reader needs: namespaces without a name, and words of the language."""

_OPERATIONS: Final = re.compile(
    r"\b(\w+(?:Functor(?:_\w+)?|_functor|KernelImpl|_kernel_impl(?:_nocast)?|_kernel_cuda|_cuda_out"
    r"|Ops?|Epilogue))\b"
)
"""What a general kernel of PyTorch was made for."""

_WRAPPERS: Final = re.compile(
    r"gpu_kernel\w*|opmath_\w+|[AB]UnaryFunctor|BinaryFunctor|ReduceOp|\w*MultiTensorApply\w*"
)
"""What is between a general kernel and its operation."""

_TYPES: Final = re.compile(
    r"\b(BFloat16|Half|Float8_\w+|complex<\w+>|__nv_bfloat16|__half|float|double|bool|"
    r"(?:u?int(?:8|16|32|64)_t)|long long|long|int|short|char)\b"
)
_GENERAL: Final = re.compile(r"elementwise|multi_tensor_apply|reduce_kernel|\bDevice\w+Kernel")
_SHAPE: Final = re.compile(
    r"tuple<(?:\w+::)*C<(\d{1,6})>, *(?:\w+::)*C<(\d{1,6})>, *(?:\w+::)*C<(\d{1,6})>"
    r"|GemmShape<(\d{1,6}), *(\d{1,6}), *(\d{1,6})>"
)
_CUTLASS_TYPE: Final = re.compile(
    r"\b(?:bfloat16_t|half_t|tfloat32_t|float_e\dm\d_t|int8_t|float|double)\b"
)
_CUDNN: Final = re.compile(r"cudnn_generated_(?:fort_native_)?|_cga\d+x\d+x\d+|_kernel\d+_\d+$")
_TRITON: Final = re.compile(r"_(?:\d+(?:d[ec]?|c)){2,}$")
"""What older versions of Triton add: which arguments are divisible by 16, or constant."""


def short(name: str) -> str:
    """A C++ name without its arguments, and with as much of its templates as tells it apart.

    ``elementwise_kernel<GeluCUDAKernelImpl, BFloat16>``: the function's name, and what it was made
    for. Names that no rule knows stay as they are.
    """
    name = name[:READ]
    if not name.isprintable():
        name = "".join(c if c.isprintable() else " " for c in name)
    name = " ".join(name.split())
    if name.startswith("_Z"):
        name = _demangled(name) or name
    elif any(c in name for c in "<(:"):
        name = _of_cpp(name)
    # What begins with a bracket is no kernel.
    name = _TRITON.sub("", _CUDNN.sub(_kept, name)).lstrip("(")
    return middle(name, LONGEST) or UNNAMED


def _of_cpp(name: str) -> str:
    function = _function(_HIDDEN.sub("", name).strip())
    head, inside = _template(function)
    head = _last(head) or name
    if not inside:
        return head
    arguments = [_plain(one) for one in _split(inside, ",")]
    if head in ("Kernel", "Kernel2", "device_kernel") and arguments:  # CUTLASS
        return _cutlass(inside, arguments[0])
    told = _operation(inside) if _GENERAL.search(head) else ""
    return f"{head}<{told or ', '.join(filter(None, arguments))}>"


def middle(text: str, room: int) -> str:
    """``text`` in at most ``room`` characters, without a part of its middle."""
    if len(text) <= room:
        return text
    end = min(room - 2, max(8, (room - 1) // 3))
    return f"{text[: max(1, room - 1 - end)]}…{text[len(text) - end :]}" if end > 0 else text[:room]


def _kept(found: re.Match[str]) -> str:
    return "cudnn_" if found[0].startswith("cudnn") else ""


# C++ ---------------------------------------------------------------------------------------------


def _function(name: str) -> str:
    """The name without what the function returns and takes."""
    start = 0
    for i in _outside(name, "( "):
        if name[i] == " ":
            start = i + 1
        elif i and not name[:i].endswith("operator"):
            return name[start:i].strip()
    return name[start:].strip() or name


_MARKS: Final = re.compile(r"[-=]>|[<(\[{>)\]} :,]")
"""What can be outside of brackets, or is a bracket; arrows are none."""


def _outside(text: str, wanted: str) -> Iterator[int]:
    """Where one of these characters is outside of brackets; opening brackets are outside."""
    depth = 0
    for mark in _MARKS.finditer(text):
        c = mark[0]
        if c in ">)]}":
            depth = max(0, depth - 1)
        elif depth == 0 and c in wanted:
            yield mark.start()
        if c in "<([{":
            depth += 1


def _split(text: str, separator: str) -> list[str]:
    """The parts between separators that are in no bracket."""
    cuts = list(_outside(text, separator))
    ends = zip([-1, *cuts], [*cuts, len(text)], strict=True)
    return [text[start + 1 : end].strip() for start, end in ends]


def _template(function: str) -> tuple[str, str]:
    """The function's name, and what is in its last template brackets."""
    opening = list(_outside(function, "<"))
    if not opening or "operator<" in function:
        return function, ""
    start = opening[-1]
    inside, closed, after = function[start + 1 :].rpartition(">")
    if not closed:  # as of a name that was cut
        return function[:start], after.strip()
    return (function, "") if after else (function[:start], inside.strip())


def _last(name: str) -> str:
    """The name without its namespaces; those in brackets belong to what it has."""
    cuts = [i for i in _outside(name, ":") if name[i : i + 2] == "::"]
    return name[cuts[-1] + 2 :].strip() if cuts else name.strip()


def _plain(argument: str, depth: int = 0) -> str:
    """A template's argument in short; empty if it says nothing."""
    if "olicy" in argument:  # how cub divides its work
        return ""
    argument = re.sub(r"^\((?:[\w:]+)\)(?=-?\d)", "", argument)
    name, inside = _template(argument)
    if "(" in name:  # a lambda: the function that it stands in
        name = name[: name.index("(")]
    last = _last(name)
    if not inside or depth == DEEP:
        return last
    parts = (_plain(one, depth + 1) for one in _split(inside, ","))
    return f"{last}<{', '.join(filter(None, parts))}>"


def _operation(inside: str) -> str:
    """``GeluCUDAKernelImpl, BFloat16``: the operation of a general kernel, and of which type."""
    names = list(_OPERATIONS.finditer(inside))
    known = [found for found in names if not _WRAPPERS.fullmatch(found[1])] or names
    if not known:
        return ""
    what = known[0]
    # A functor's type follows it; that of a function is its lambda's.
    after = inside[what.end() :]
    lambdas = re.findall(r"lambda\(([^()]+)\)", after) if not after.startswith("<") else []
    of = _TYPES.search(lambdas[0] if lambdas else after[:200])
    return f"{what[1]}, {of[1]}" if of else what[1]


def _cutlass(inside: str, first: str) -> str:
    """The name of a CUTLASS kernel: its own, or what it was made of and the tile."""
    name = first.partition("<")[0]
    if name.startswith("cutlass") or "<" not in first:
        return name
    loop = re.search(r"\b(Mainloop\w+|Mma(?:Multistage|Pipelined|Singlestage))", inside)
    shapes = [[int(n) for n in found if n] for found in _SHAPE.findall(inside)]
    tile = max(shapes, key=prod, default=[])  # shapes of clusters and instructions are smaller
    of = _CUTLASS_TYPE.search(inside)
    parts = [loop[1] if loop else "", "x".join(map(str, tile)), of[0] if of else ""]
    told = ", ".join(filter(None, parts))
    return f"{name}<{told}>" if told else name


# Names that were not demangled -------------------------------------------------------------------


def _demangled(name: str) -> str:
    """The function of a mangled name, and the operation that is named inside it."""
    found = list(_identifiers(name))
    if not found:
        return ""
    end = next((i for i, (_, after) in enumerate(found) if not after[:1].isdigit()), 0)
    head = found[end][0]
    inside = " ".join(identifier for identifier, _ in found[end + 1 :])
    told = _operation(inside) if _GENERAL.search(head) else ""
    return f"{head}<{told}>" if told else head


def _identifiers(name: str) -> Iterator[tuple[str, str]]:
    """Each identifier of a mangled name, ``5hello``, and what follows it."""
    i = 2
    while i < len(name):
        digits = re.match(r"\d{1,4}", name[i:])
        size = int(digits[0]) if digits and digits[0][0] != "0" else 0
        if not size or not digits:
            i += 1
            continue
        start = i + len(digits[0])
        word = name[start : start + size]
        if len(word) == size and word[:1] not in "0123456789":
            if not word.startswith("_GLOBAL__N"):
                yield word, name[start + size :]
            i = start + size
        else:
            i = start
