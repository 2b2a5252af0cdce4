"""Synthetic texts: token ids that follow from a seed, a step, and a text's place in its batch.

However a batch is divided among ranks and micro-batches, it consists of the same texts, so that all
ways to train on it must find the same losses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor


def draw_texts(
    vocabulary: int, context: int, seed: int, step: int, places: Iterable[int]
) -> Tensor:
    """Token ids, a row for each of these places in the batch of a step.

    The k-th token is about as frequent as 1 / k, as words are, so that there is something to learn
    within a few steps, and a loss that does not fall tells of a mistake.

    >>> draw_texts(100, 5, 0, 3, [7]).equal(draw_texts(100, 5, 0, 3, [6, 7])[1:])
    True
    """
    generator = torch.Generator()
    rows = []
    for place in places:
        generator.manual_seed(_mix(seed, step, place))
        shares = torch.rand(context, generator=generator, dtype=torch.float64)
        rows.append(((vocabulary + 1.0) ** shares).long() - 1)
    return torch.stack(rows)


def _mix(*numbers: int) -> int:
    """One seed of several: neighbouring ones give texts that have nothing in common."""
    text = " ".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1
