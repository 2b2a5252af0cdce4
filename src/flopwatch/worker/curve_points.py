"""Curves: what a workload produces as it runs, point by point, once the timing is done."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from flopwatch.errors import SuiteError

STEP = "step"
"""What points of a training are numbered by."""


class Diverged(Exception):
    """A curve has a value that is not finite. The points before it stay."""


def take_points(curves: Callable[[], Iterable[Mapping[str, Any]]]) -> Iterator[dict[str, float]]:
    """The points as plain numbers, all with the same names."""
    first: dict[str, float] | None = None
    for number, point in enumerate(curves(), 1):
        if not isinstance(point, Mapping):
            raise SuiteError(
                f"the curves yield {type(point).__name__}; yield mappings of names to numbers"
            )
        plain = {str(name): _as_number(str(name), value) for name, value in point.items()}
        first = plain if first is None else first
        if plain.keys() != first.keys():
            raise SuiteError(
                f"the first point has {_list(first)}, and point {number} {_list(plain)}; "
                "yield the same names each time"
            )
        for name, value in plain.items():
            # JSON cannot hold it, and what follows means nothing.
            if not math.isfinite(value):
                raise Diverged(_explain_divergence(plain, name, number))
        yield plain


def _explain_divergence(point: Mapping[str, float], name: str, number: int) -> str:
    """Points of a training are counted in steps."""
    step = point.get(STEP)
    if step is None or not math.isfinite(step):
        place, before = f"its curve diverged: {name} is {point[name]} at point {number}", "points"
    else:
        place, before = f"its training diverged: {name} is {point[name]} in step {step:g}", "steps"
    return f"{place}; the {before} before it are stored"


def _as_number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise SuiteError(
            f"the curves yield a {type(value).__name__} as {name!r}; yield numbers"
        ) from None


def _list(point: Mapping[str, float]) -> str:
    return ", ".join(point) or "nothing"
