"""Values from the command line for a suite's axes: ``--set AXIS=VALUE[,VALUE]``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from flopwatch.errors import UsageError
from flopwatch.suites.case import format_value
from flopwatch.suites.grids import VARIANT, Grid, list_axes
from flopwatch.suites.suite import AUTO, Accepts, Suite


def choose(
    suite: Suite,
    texts: Mapping[str, Sequence[str]],
    grids: Sequence[Grid] | None = None,
    baseline: str | None = None,
) -> Grid:
    """The values that the texts stand for, by axis, all of which the suite accepts.

    They are to be put into one of the `grids`, which are the suite's own unless they are given. The
    baseline is the suite's own, too, unless it is given.
    """
    texts = _add_baseline(suite, texts, baseline)
    if not texts:
        return {}
    known = {**suite.axes, VARIANT: suite.variants}
    accepts = suite.accepts
    chosen: Grid = {}
    for axis, given in texts.items():
        if axis not in known:
            raise UsageError(
                f"suite {suite.name!r} has no axis {axis!r} to --set; it has {', '.join(known)}"
            )
        if accepts is None:
            raise UsageError(
                f"suite {suite.name!r} knows only its own values, so that there is nothing to "
                "--set; --filter chooses among them"
            )
        searched = [AUTO] if axis in suite.searches else []
        values = [
            text if text in searched else _read(axis, text, known[axis], accepts) for text in given
        ]
        if axis == VARIANT:
            values.insert(0, baseline or suite.baseline)  # all are compared with it
        chosen[axis] = [value for n, value in enumerate(values) if value not in values[:n]]
    axes = list_axes(chosen)
    if not any(axes <= list_axes(grid) for grid in grids or suite.grids):
        raise UsageError(f"suite {suite.name!r} has no case with all of {', '.join(sorted(axes))}")
    return chosen


def _add_baseline(
    suite: Suite, texts: Mapping[str, Sequence[str]], baseline: str | None
) -> Mapping[str, Sequence[str]]:
    """One that the suite does not list is a variant that is asked for, too."""
    if baseline is None or baseline in suite.variants:
        return texts
    if suite.accepts is None:
        raise UsageError(
            f"suite {suite.name!r} has no variant {baseline!r} to be the --baseline; it has "
            f"{', '.join(suite.variants)}"
        )
    return {**texts, VARIANT: [baseline, *texts.get(VARIANT, suite.variants)]}


def parse_value(text: str, own: Sequence[Any]) -> Any:
    """The value that a text stands for, on an axis that has such values of its own.

    Raises ValueError where it can be none of their kind.

    >>> parse_value("5120x20480", [[768, 3072]]), parse_value("4", [0.5, 1.0])
    ([5120, 20480], 4.0)
    """
    for value in own:
        if format_value(value) == text:
            return value
    for kind, parse in PARSERS.items():
        if any(type(value) is kind for value in own):
            with suppress(ValueError):
                return parse(text, own)
    raise ValueError(f"{text!r} is not of the kind of {format_value(own[0])}")


def _parse_float(text: str, own: Sequence[Any]) -> float:
    number = float(text)
    if not math.isfinite(number):  # JSON, and so a case, cannot hold it
        raise ValueError
    return number


def _parse_list(text: str, own: Sequence[Any]) -> list[Any]:
    parts = [part for value in own if isinstance(value, list) for part in value]
    return [parse_value(part, parts) for part in text.split("x")]


def _parse_switch(text: str, own: Sequence[Any]) -> bool:
    if text not in ("true", "false"):
        raise ValueError
    return text == "true"


PARSERS: dict[type, Callable[[str, Sequence[Any]], Any]] = {
    bool: _parse_switch,
    int: lambda text, own: int(text),
    float: _parse_float,
    list: _parse_list,
    str: lambda text, own: text,
}
"""By the kind of an axis's own values, the pickiest first."""


def _read(axis: str, text: str, own: Sequence[Any], accepts: Accepts) -> Any:
    try:
        value = parse_value(text, own)
        if accepts(axis, value) is False:
            raise ValueError("the suite does not accept it")
    except (UsageError, ValueError) as error:
        raise UsageError(f"--set {axis}={text}: {error}") from None
    return value


def require_counts(axis: str, value: Any, count: int) -> None:
    """For a suite's `accepts`: refuse what is not so many whole numbers from 1 on."""
    numbers = value if isinstance(value, list) else [value]
    if len(numbers) != count or any(number < 1 for number in numbers):
        example = format_value([768, 3072, 12288][:count])
        wanted = "a whole number from 1 on"
        if count > 1:
            wanted = f"{count} whole numbers from 1 on, such as {example}"
        raise UsageError(f"{axis} is {format_value(value)}, but takes {wanted}")
