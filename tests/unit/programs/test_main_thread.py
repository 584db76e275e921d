"""Calls in the main thread, between two of its own instructions."""

from __future__ import annotations

import ctypes
import threading
import time

from rooflab.programs.main_thread import in_main_thread


def test_the_main_thread_calls_it_while_it_does_something_else() -> None:
    callers: list[int] = []
    answers: list[bool] = []

    def ask() -> None:
        answers.append(in_main_thread(lambda: callers.append(threading.get_ident()), 30))

    other = threading.Thread(target=ask)
    other.start()
    while other.is_alive():
        pass
    assert answers == [True]
    assert callers == [threading.main_thread().ident]


def test_a_main_thread_that_waits_is_not_waited_for_and_does_not_call_later() -> None:
    called: list[int] = []
    answers: list[bool] = []

    def ask() -> None:
        time.sleep(0.1)
        answers.append(in_main_thread(lambda: called.append(1), 0.05))

    other = threading.Thread(target=ask)
    other.start()
    ctypes.CDLL(None).usleep(600_000)
    other.join()
    for _ in range(1000):
        time.sleep(0)
    assert answers == [False]
    assert not called


def test_in_the_main_thread_it_is_called_at_once() -> None:
    called: list[int] = []
    assert in_main_thread(lambda: called.append(1), 0)
    assert called == [1]
