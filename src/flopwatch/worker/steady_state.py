"""When warm-up is over, and when more samples no longer help.

The first calls of a variant pay for allocation, compilation, lazy initialisation, cold caches and
a sleeping clock frequency. How many calls that takes is not known beforehand, so a steady state is
detected: the last few samples are no faster and no slower than the few before them, by more than
they scatter themselves. Both sides count: a time that still falls has not warmed up, and one that
still rises (a filling cache, a heating chip) is not what the next minutes will show either.
"""

from __future__ import annotations

from collections.abc import Sequence

from flopwatch.analysis.statistics import median

TOLERANCE = 0.03
"""Two windows whose medians differ by less than this are alike, however little they scatter."""

WINDOWS = ((20e6, 5), (500e6, 3), (float("inf"), 2))
"""(sample shorter than this many ns, samples in a window): a step that takes seconds cannot be
repeated ten times before it counts."""


def is_steady(samples_ns: Sequence[float]) -> bool:
    """Whether the last two windows of these samples agree.

    >>> is_steady([900, 500, 104, 101, 100, 100, 102, 101, 100, 100])
    False
    >>> is_steady([900, 500, 104, 101, 100, 100, 102, 101, 100, 100, 101, 100])
    True
    """
    if not samples_ns:
        return False
    width = next(window for limit, window in WINDOWS if samples_ns[-1] < limit)
    if len(samples_ns) < 2 * width:
        return False
    earlier, later = samples_ns[-2 * width : -width], samples_ns[-width:]
    difference = abs(median(later) - median(earlier))
    # Only the later window's scatter excuses a difference: a steep fall scatters by itself.
    return difference <= max(TOLERANCE * median(later), 2 * _scatter(later))


def _scatter(samples_ns: Sequence[float]) -> float:
    """Median absolute deviation."""
    centre = median(samples_ns)
    return median([abs(sample - centre) for sample in samples_ns])


def is_stalled(widths: dict[int, float | None]) -> bool:
    """Whether four times the rounds have narrowed the interval by less than a fifth.

    Independent samples would have halved it. `widths` holds the width by number of rounds.
    """
    latest = max(widths)
    earlier = [count for count in widths if count <= latest / 4]
    if latest < 100 or not earlier:
        return False
    before, now = widths[max(earlier)], widths[latest]
    return before is not None and now is not None and now > 0.8 * before
