"""Ctrl-C, without processes."""

from __future__ import annotations

import os
import signal

import pytest

from flopwatch.runner.group_runner import Interrupts


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_press_is_only_told() -> None:
    said: list[str] = []
    interrupts = Interrupts()
    with interrupts.watched(said.append), interrupts.raised():
        press()
    assert interrupts.count == 1
    assert said == ["finishing the current group; press Ctrl-C again to stop at once"]


def test_the_second_is_raised_only_while_waiting() -> None:
    interrupts = Interrupts()
    with interrupts.watched(lambda sentence: None):
        press()
        press()  # not waiting: nothing may be lost
        with pytest.raises(KeyboardInterrupt), interrupts.raised():
            pytest.fail("it came before, and is raised at once")
        interrupts.count = 1
        with pytest.raises(KeyboardInterrupt), interrupts.raised():
            press()


def test_the_handler_before_is_restored() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts().watched(lambda sentence: None):
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
