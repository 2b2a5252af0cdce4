"""How many tokens a batch has, as data loaders of language models make them.

Useful tokens are those that the attention mask keeps. Labels do not say it: a prompt that is not
trained on (label -100) is computed like the rest. Tokens of packed sequences, which come without a
mask, are all useful.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, SupportsInt, TypeVar

Item = TypeVar("Item")

NAMES = ("input_ids", "tokens", "inputs", "labels")
"""Of a batch's tokens, the first that there is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchTokens:
    """Of one rank's micro-batch."""

    useful: SupportsInt
    """On an accelerator a tensor that is read later: reading it here would wait for the device."""
    padded: int

    def __add__(self, other: BatchTokens) -> BatchTokens:
        useful: Any = self.useful
        return BatchTokens(useful=useful + other.useful, padded=self.padded + other.padded)


CountTokens = Callable[[Any], "BatchTokens | int | None"]
"""Of a batch: its tokens, or None where that cannot be said."""


def count_tokens(batch: object) -> BatchTokens | None:
    """Of a batch like those of transformers (a mapping with ``input_ids`` and perhaps an
    ``attention_mask``), or one whose first tensor of whole numbers has a row for each sequence;
    None for others, such as images.

    >>> import torch
    >>> tokens = torch.ones(2, 4, dtype=torch.long)
    >>> mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    >>> count = count_tokens({"input_ids": tokens, "attention_mask": mask})
    >>> int(count.useful), count.padded
    (6, 8)
    >>> count_tokens((tokens, tokens)).padded, count_tokens({"pixels": torch.ones(2, 3)})
    (8, None)
    """
    if not isinstance(batch, Mapping):
        tokens = next(filter(_has_tokens, _list_items(batch)), None)
        return None if tokens is None else BatchTokens(useful=tokens.numel(), padded=tokens.numel())
    tokens = next((batch[name] for name in NAMES if _has_tokens(batch.get(name))), None)
    if tokens is None:
        return None
    mask: Any = batch.get("attention_mask")
    padded = tokens.numel()
    # Masks of another shape say which token sees which, and numbers above 1 are those of sequences.
    is_of_tokens = mask is not None and getattr(mask, "shape", None) == tokens.shape
    return BatchTokens(useful=mask.ne(0).sum() if is_of_tokens else padded, padded=padded)


def _list_items(batch: Any) -> Sequence[Any]:
    return batch if isinstance(batch, list | tuple) else (batch,)


def _has_tokens(item: Any) -> bool:
    is_tensor = hasattr(item, "is_floating_point") and hasattr(item, "ndim")
    return is_tensor and item.ndim == 2 and not item.is_floating_point()


class StepTokens:
    """Of the micro-batches since the step before."""

    def __init__(self, count: CountTokens | None = None) -> None:
        self._count = count or count_tokens
        self._sum: BatchTokens | None = None
        self._is_known = True
        self._has_warned = False

    def add(self, batch: object) -> None:
        try:
            self.add_counted(self._count(batch))
        except Exception as error:  # of a batch unlike all others, or in the user's function
            self._is_known = False
            if not self._has_warned:
                self._has_warned = True
                message = f"the tokens of a batch cannot be counted ({error}); give count_tokens="
                warnings.warn(message, stacklevel=2)

    def add_counted(self, counted: BatchTokens | int | None) -> None:
        if isinstance(counted, int):
            counted = BatchTokens(useful=counted, padded=counted)
        if counted is None:
            self._is_known = False
        else:
            self._sum = counted if self._sum is None else self._sum + counted

    @property
    def is_empty(self) -> bool:
        return self._sum is None

    def take(self) -> dict[str, Any]:
        """The arguments of `Monitor.tick`: none where a batch could not be counted."""
        counted = self._sum if self._is_known else None
        self._sum, self._is_known = None, True
        if counted is None:
            return {}
        return {"tokens": counted.useful, "padded_tokens": counted.padded}


class CountedBatches(Generic[Item]):
    """A loader whose batches are counted as they are fetched."""

    def __init__(self, loader: Iterable[Item], tokens: StepTokens) -> None:
        self._loader = loader
        self._tokens = tokens

    def __iter__(self) -> Iterator[Item]:
        for batch in self._loader:
            self._tokens.add(batch)
            yield batch

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]
