"""Exceptions of all kinds, as text that a record can hold."""

from __future__ import annotations

import pytest

from flopwatch.worker.failure import LONGEST_TEXT, describe_error, is_loss_of_peer


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise SystemExit


class Number(Exception):
    __str__ = lambda self: 7  # type: ignore[assignment]  # noqa: E731


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Unspeakable(), "Unspeakable: its text cannot be read (SystemExit)"),
        (Number(), "Number: its text cannot be read (TypeError)"),
        (ValueError("half: \ud800"), r"ValueError: half: \ud800"),
        (
            ValueError("x" * 10**6),
            f"ValueError: {'x' * LONGEST_TEXT}... (the first {LONGEST_TEXT} of 1000000 characters)",
        ),
    ],
)
def test_odd_exceptions_have_a_message(error: Exception, message: str) -> None:
    assert describe_error(error, None).message == message
    assert describe_error(error, None).status == "crash"
    assert not is_loss_of_peer(error)
