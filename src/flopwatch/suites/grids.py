"""Grids: axes with their values, crossed to points; and values of the user's own for them.

A suite has one grid or several, and a case is a variant at a point of one of them. Where a grid
has an entry ``variant``, it has only these of the suite's variants. ``--set AXIS=VALUE[,VALUE]``
puts other values into the grids, where the suite accepts them.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from flopwatch.errors import CorruptFile, SuiteError, UsageError
from flopwatch.records.quantities import LARGEST_UNSIGNED
from flopwatch.records.record import refuse_large_integers
from flopwatch.suites.case import digest, format_value

if TYPE_CHECKING:
    from flopwatch.suites.suite import Suite

Accepts = Callable[[str, Any], object]
Grid = dict[str, list[Any]]
Axes = Mapping[str, Sequence[Any]]
VARIANT = "variant"
AUTO = "auto"
"""The value of an axis that is to be the largest that fits."""


def make_grids(suite: str, axes: Axes | Sequence[Axes]) -> list[Grid]:
    """The grids that a suite declares, as JSON will give their values back."""
    declared = [axes] if isinstance(axes, Mapping) else list(axes)
    if not declared:
        raise SuiteError(f"suite {suite!r} has an empty list of grids; give it one, {{}} at least")
    return [
        {axis: list_values(suite, axis, values) for axis, values in grid.items()}
        for grid in declared
    ]


def make_quick_grids(
    suite: str, grids: Sequence[Grid], quick: Axes | Sequence[Axes] | None, on_request: Grid
) -> list[Grid]:
    """What is left of the grids with ``--quick``."""
    if quick is None:
        return [shorten(grid, on_request) for grid in grids]
    if isinstance(quick, Mapping):
        if len(grids) > 1:
            raise SuiteError(
                f"suite {suite!r} has {len(grids)} grids; make `quick` a list of grids too"
            )
        chosen = make_grids(suite, quick)[0]
        _refuse_unknown(suite, chosen, grids[0])
        return [{**grids[0], **chosen}]
    return make_other_grids(suite, "quick", quick, grids)


def make_other_grids(
    suite: str, name: str, axes: Axes | Sequence[Axes], grids: Sequence[Grid]
) -> list[Grid]:
    """Grids with other values: each has the axes of one of the suite's own."""
    others = make_grids(suite, axes)
    for grid in others:
        if all(list_axes(grid) != list_axes(known) for known in grids):
            listed = ", ".join(axis for axis in grid if axis != VARIANT) or "no axis"
            raise SuiteError(
                f"suite {suite!r} has a {name} grid of {listed}, and no grid of just these axes; "
                "name all axes of one"
            )
    return others


def put_in(chosen: Grid, grids: Sequence[Grid], optional: Collection[str] = ()) -> list[Grid]:
    """The grids that have all of the chosen axes, with the chosen values there; any has those that
    are optional."""
    needed = list_axes(chosen) - set(optional)
    return [{**grid, **chosen} for grid in grids if needed <= list_axes(grid)]


def shorten(grid: Grid, on_request: Grid) -> Grid:
    """The first value of every axis, what can be had on request, and all variants."""
    short = {}
    for axis, values in grid.items():
        requested = [value for value in values if value in on_request.get(axis, [])]
        others = [value for value in values if value not in requested]
        short[axis] = values if axis == VARIANT else others[:1] + requested
    return short


def list_axes(grid: Grid) -> set[str]:
    return set(grid) - {VARIANT}


def unite(grids: Sequence[Grid]) -> Grid:
    """Every axis with all its values, in the order in which they appear."""
    union: Grid = {}
    for grid in grids:
        for axis, values in grid.items():
            known = union.setdefault(axis, [])
            known += [value for value in values if value not in known]
    union.pop(VARIANT, None)
    return union


def cross(grids: Sequence[Grid], variants: Sequence[str]) -> list[tuple[dict[str, Any], list[str]]]:
    """All points of all grids, each once, with its variants."""
    found: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for grid in grids:
        axes = [axis for axis in grid if axis != VARIANT]
        for values in itertools.product(*(grid[axis] for axis in axes)):
            point = dict(zip(axes, values, strict=True))
            _, chosen = found.setdefault(digest(point), (point, []))
            chosen += [one for one in grid.get(VARIANT, variants) if one not in chosen]
    return list(found.values())


def list_values(suite: str, axis: str, values: Sequence[Any]) -> list[Any]:
    """The values as JSON will give them back, so that a case has one id before and after."""
    try:
        listed: list[Any] = json.loads(json.dumps(list(values), allow_nan=False))
        refuse_large_integers(listed)
    except (TypeError, ValueError, CorruptFile):
        raise SuiteError(
            f"axis {axis!r} of suite {suite!r} has a value that JSON cannot hold; use text, "
            "numbers of up to 64 bits, true/false, or lists of them (for a dtype, its name)"
        ) from None
    if not listed:
        raise SuiteError(f"axis {axis!r} of suite {suite!r} has no values")
    if any(value in listed[:position] for position, value in enumerate(listed)):
        raise SuiteError(f"axis {axis!r} of suite {suite!r} has a value twice; keep one")
    return listed


def _refuse_unknown(suite: str, quick: Grid, grid: Grid) -> None:
    unknown = list_axes(quick) - list_axes(grid)
    if unknown:
        raise SuiteError(
            f"suite {suite!r} gives quick values for {min(unknown)!r}, which is not one of "
            f"its axes {', '.join(axis for axis in grid if axis != VARIANT)}"
        )


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
    known = {**suite.axes, **suite.optional, VARIANT: suite.variants}
    accepts = suite.accepts
    chosen: Grid = {}
    for axis, given in texts.items():
        if axis not in known:
            raise UsageError(
                f"suite {suite.name!r} has no axis {axis!r} to --set; it has {', '.join(known)}"
            )
        if accepts is None:
            raise UsageError(
                f"suite {suite.name!r} accepts only its own values: there is nothing to "
                "--set; --filter chooses among them"
            )
        searched = [AUTO] if axis in suite.searches else []
        values = [
            text if text in searched else _read(axis, text, known[axis], accepts) for text in given
        ]
        if axis == VARIANT:
            values.insert(0, baseline or suite.baseline)  # all are compared with it
        chosen[axis] = [value for n, value in enumerate(values) if value not in values[:n]]
    axes = list_axes(chosen) - set(suite.optional)
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


def _parse_int(text: str, own: Sequence[Any]) -> int:
    number = int(text)
    if abs(number) > LARGEST_UNSIGNED:  # nor can a record hold it
        raise ValueError
    return number


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
    int: _parse_int,
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
