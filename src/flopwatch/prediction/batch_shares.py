"""Global batches that divide well: micro-batches, and how many of them a data-parallel rank has.

The global batch may differ from the one asked for by up to 5 %, so that micro-batches divide it.
Otherwise 61 sequences of a rank, say, could be computed one at a time or all at once, and nothing
in between. A rank's share of the global batch is

    the one asked for, where that is a whole number of sequences on every rank,
    else that within 5 % which has most factors of two, and of several the nearest: 4M tokens, which
    are 15.3 sequences of 4,096 tokens on each of 64 ranks, become 16, and so 2**22 tokens,
    and for micro-batches that do not divide it, their multiple that is nearest to the one asked
    for, within 5 % too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

NEAR = 0.05
"""By how much a batch may differ from what was asked for."""
FINE = 16
"""Micro-batches above are tried in steps of a sixteenth to an eighth of them."""


def choose_share(asked: float) -> int:
    """Sequences of a device in a step, where so many are asked for: see above.

    >>> [choose_share(asked) for asked in (4e6 / (4096 * 64), 4e6 / (2048 * 8), 100, 0.3)]
    [16, 256, 100, 1]
    """
    if asked == int(asked):
        return max(1, int(asked))
    low, high = math.ceil((1 - NEAR) * asked), math.floor((1 + NEAR) * asked)
    factor = 1 << max(high, 1).bit_length()
    while factor > 1:
        nearest = factor * max(1, round(asked / factor))
        if low <= nearest <= high:
            return nearest
        factor //= 2
    return max(1, round(asked))


def list_shares(asked: float) -> Iterator[tuple[int, int]]:
    """Micro-batches with how many of them a step has: those whose multiples come near to what is
    asked for, finely as long as they are small.

    >>> [micro_batch for micro_batch, _ in list_shares(4e6 / (4096 * 64))]
    [1, 2, 3, 4, 5, 8, 15, 16]
    >>> list(list_shares(7))
    [(1, 7), (7, 1)]
    """
    share, micro_batch = choose_share(asked), 1
    while micro_batch <= max(share, (1 + NEAR) * asked):
        times = share // micro_batch if share % micro_batch == 0 else round(asked / micro_batch)
        if micro_batch * times == share or abs(micro_batch * times - asked) <= NEAR * asked:
            yield micro_batch, times
        micro_batch += max(1, 2 ** (micro_batch.bit_length() - FINE.bit_length()))
