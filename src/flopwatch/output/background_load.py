"""What other processes take of the cores, in words: before a measurement, and below its results."""

from __future__ import annotations

WORTH_TELLING = 0.1
"""A smaller share of all cores' time changes times by little."""


def warn_of_load(share: float | None) -> list[str]:
    """Before something is measured; nothing where the machine is calm, or its load is not known.

    >>> warn_of_load(0.64)
    ['other processes take 64 % of the cores: times will be longer and less certain; end them, or \
wait']
    >>> warn_of_load(0.03)
    []
    """
    if share is None or share < WORTH_TELLING:
        return []
    return [
        f"other processes take {100 * share:.0f} % of the cores: times will be longer and less "
        "certain; end them, or wait"
    ]


def describe_load(share: float | None) -> list[str]:
    """After it was measured.

    >>> describe_load(0.64)
    ['other processes took 64 % of the cores meanwhile: trust speedups more than times, or end \
them and measure again']
    """
    if share is None or share < WORTH_TELLING:
        return []
    return [
        f"other processes took {100 * share:.0f} % of the cores meanwhile: trust speedups more "
        "than times, or end them and measure again"
    ]
