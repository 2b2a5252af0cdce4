"""Grids: axes with their values, crossed to points.

A suite has one grid or several, and a case is a variant at a point of one of them. Where a grid
has an entry ``variant``, it has only these of the suite's variants.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from flopwatch.errors import SuiteError
from flopwatch.suites.case import digest

Grid = dict[str, list[Any]]
Axes = Mapping[str, Sequence[Any]]
VARIANT = "variant"


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


def put_in(chosen: Grid, grids: Sequence[Grid]) -> list[Grid]:
    """The grids that have all of the chosen axes, with the chosen values there."""
    return [{**grid, **chosen} for grid in grids if list_axes(chosen) <= list_axes(grid)]


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
    except (TypeError, ValueError):
        raise SuiteError(
            f"axis {axis!r} of suite {suite!r} has a value that JSON cannot hold; use text, "
            "numbers, true/false, or lists of them (for a dtype, its name)"
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
