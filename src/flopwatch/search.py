"""The largest value of an axis that fits into memory, found by trying.

Each try is a run of the whole group in processes of its own: what it needs is known for certain
only then. Values are doubled until one fails, and then halved between the last that fitted and the
first that did not. What failed is a record like any other failure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from flopwatch.plan import Group
from flopwatch.records.record import Record, Status

TOO_MUCH: tuple[Status, ...] = ("oom", "timeout")
"""What a smaller value may mend."""


class Found(NamedTuple):
    group: Group | None
    """With the largest values that fit; None where none does."""
    failures: list[Record]


def find_largest(values: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """The largest of the ascending values that fits, if what is smaller fits too.

    >>> tried = []
    >>> find_largest(range(1, 4097), lambda value: tried.append(value) or value <= 11), tried
    (11, [1, 2, 4, 8, 16, 12, 10, 11])
    """
    good, bad = -1, len(values)
    place = 0
    while good < place < bad:
        if fits(values[place]):
            good, place = place, min(2 * place + 1, len(values) - 1)
        else:
            bad = place
    while bad - good > 1:
        middle = (good + bad) // 2
        if fits(values[middle]):
            good = middle
        else:
            bad = middle
    return values[good] if good >= 0 else None


def fill_in(group: Group, attempt: Callable[[Group], list[Record]]) -> Found:
    """The group with a value for each axis that is to be as large as fits. `attempt` tries a group
    and gives the records of what failed. Variants that fail for another reason than memory are
    left out: no smaller value would help them."""
    failures: list[Record] = []
    left = group.variants

    def fits(value: int) -> bool:
        nonlocal left
        while left:
            failed = attempt(replace(put(group, axis, value), variants=left))
            failures.extend(failed)
            hopeless = {record.variant for record in failed if record.status not in TOO_MUCH}
            left = tuple(variant for variant in left if variant not in hopeless)
            if not hopeless:
                return not failed
        return False

    for axis, values in group.candidates.items():
        largest = find_largest(values, fits)
        if largest is None or not left:
            return Found(None, failures)
        group = put(group, axis, largest)
    return Found(replace(group, variants=left), failures)


def put(group: Group, axis: str, value: int) -> Group:
    """The group with this value there."""
    others = {name: values for name, values in group.candidates.items() if name != axis}
    return replace(group, params={**group.params, axis: value}, candidates=others)
