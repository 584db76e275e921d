"""What Linux lets a process give up without privileges: files, the network, other processes.

Files and signals are refused by Landlock, in full from Linux 6.12 on, sockets and access to other
processes by seccomp. Both hold for all threads and children that this process starts afterwards,
and cannot be undone. docs/judge.md says what is not covered.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

# <linux/prctl.h>, <linux/seccomp.h>, <linux/landlock.h>
_NO_NEW_PRIVILEGES: Final = 38
_SET_SECCOMP, _FILTER = 22, 2
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION: Final = 1
_PATH_BENEATH: Final = 1

TRUNCATES, SIGNALS = 3, 6
"""Versions of Landlock (Linux 6.2, 6.12) from which it refuses to shorten files, and signals."""

_WRITE_FILE, _REMOVE, _MAKE, _REFER, _TRUNCATE = 1 << 1, 0b11 << 4, 0b1111111 << 6, 1 << 13, 1 << 14
_CONNECT_OR_BIND: Final = 0b11
_SOCKETS_AND_SIGNALS: Final = 0b11
"""Abstract sockets and signals, to processes that are not below this one."""

DEVICES: Final = ("null", "zero", "nvidia*", "nvidia-caps/*", "dxg")
"""Files in /dev that may be written: without them there is no GPU."""

OWN: Final = Path("/proc/self/task")
"""CUDA does not start if it cannot write there."""

_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050001, 0x80000000
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _ARCHITECTURE = 0, 4
_X32: Final = 0x40000000

SOCKET: Final = (41, 198)
_FAMILY, _UNIX = 16, 1
"""Only sockets of this family may be made, and not be connected: CUDA makes one to no effect."""

CALLS: Final = {
    "connect": (42, 203),
    "ptrace": (101, 117),
    "setpgid": (109, 154),
    "setsid": (112, 157),
    "unshare": (272, 97),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "io_uring_setup": (425, 425),
}
"""System calls that are refused, with their numbers on x86_64 and aarch64: the network, the memory
of other processes, and leaving the group of processes that is ended together. ``io_uring`` does the
others' work."""

_MACHINES: Final = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""The architecture's number for seccomp (AUDIT_ARCH), and the column of ``CALLS``."""


@dataclass(frozen=True, slots=True)
class Enforced:
    """What is refused: writing ``files``, the ``network``, and reaching other ``processes``."""

    files: bool = False
    network: bool = False
    processes: bool = False

    @property
    def lacking(self) -> list[str]:
        """What is not refused on this machine."""
        return [name for name, refused in asdict(self).items() if not refused]


def enter(folder: str) -> Enforced:
    """Give up what can be given up; files may be written in ``folder`` only.

    Call it before any thread is started: others keep what they have.
    """
    if platform.system() != "Linux":
        return Enforced()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        return Enforced()
    version = _refuse_writing(libc, folder)
    calls = _refuse_calls(libc)
    return Enforced(version >= TRUNCATES, calls, calls and version >= SIGNALS)


def _refuse_writing(libc: ctypes.CDLL, folder: str) -> int:
    """By Landlock; returns its version here, 0 if it refuses nothing."""
    version = int(libc.syscall(_CREATE_RULESET, None, 0, _VERSION))
    if version < 1:
        return 0
    files = _WRITE_FILE | (_TRUNCATE if version >= TRUNCATES else 0)
    rights = files | _REMOVE | _MAKE | (_REFER if version >= 2 else 0)
    wanted = (rights, _CONNECT_OR_BIND, _SOCKETS_AND_SIGNALS)
    known = 1 + (version >= 4) + (version >= SIGNALS)
    ruleset = _attribute(struct.pack(f"={known}Q", *wanted[:known]))
    rules = libc.syscall(_CREATE_RULESET, ruleset, len(ruleset), 0)
    if rules < 0:
        return 0
    try:
        devices = [place for pattern in DEVICES for place in Path("/dev").glob(pattern)]
        for path, access in [*((one, files) for one in [*devices, OWN]), (Path(folder), rights)]:
            _allow(libc, rules, path, access)
        return version if libc.syscall(_RESTRICT_SELF, rules, 0) == 0 else 0
    finally:
        os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, path: Path, access: int) -> None:
    with suppress(OSError):  # what cannot be opened cannot be written
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            rule = _attribute(struct.pack("=Qi", access, place))
            libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, rule, 0)
        finally:
            os.close(place)


def _attribute(content: bytes) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(content, len(content))


def _refuse_calls(libc: ctypes.CDLL) -> bool:
    """By seccomp; False if this kernel or processor is not known."""
    if platform.machine() not in _MACHINES:
        return False
    architecture, column = _MACHINES[platform.machine()]
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),  # calls of another architecture have other numbers
        (_LOAD, 0, 0, _NUMBER),
    ]
    numbers = [each[column] for each in CALLS.values()]
    steps += [
        (_EQUAL, 0, 4, SOCKET[column]),
        (_LOAD, 0, 0, _FAMILY),
        (_EQUAL, 0, 1, _UNIX),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
        (_AT_LEAST, len(numbers) + 1, 0, _X32),
        *((_EQUAL, len(numbers) - i, 0, number) for i, number in enumerate(numbers)),
    ]
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
    program = _attribute(b"".join(struct.pack("=HBBI", *step) for step in steps))
    header = _attribute(struct.pack("@HP", len(steps), ctypes.addressof(program)))
    return bool(libc.prctl(_SET_SECCOMP, _FILTER, header, 0, 0) == 0)
