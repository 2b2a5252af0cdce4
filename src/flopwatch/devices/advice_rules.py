"""What a rule of the doctor is: it gets a few facts of the environment, and says what it found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Severity = Literal["warn", "note", "good"]
Finding = tuple[Severity, str, str | None] | None
"""A severity, what was found, and what to do; None: nothing to say."""
Judge = Callable[..., Finding]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    topic: str
    paths: tuple[str, ...]
    """Facts that it gets, by their place in the environment; with a question mark, also where they
    are not known."""
    judge: Judge


def add_rule(rules: list[Rule], topic: str, *paths: str) -> Callable[[Judge], Judge]:
    """A decorator that adds a function to these rules."""

    def register(judge: Judge) -> Judge:
        rules.append(Rule(topic=topic, paths=paths, judge=judge))
        return judge

    return register
