"""The ways to compute a training step: precision, optimizer, and what a variant changes.

All modes of a model compute the same function, so that they can be checked against each other and
timed side by side. A mode is written as words joined by ``+``:

    eager                                  as it stands: the baseline
    compiled                               through torch.compile
    plain-attention                        two products and a softmax instead of the fused kernel
    checkpointed                           blocks keep their inputs only, and are computed again
    dyad:auto:4, switchback:global@linear  other linear layers in the feed-forward parts, in all
                                           blocks (@linear), or where a pattern matches their names
                                           (@blocks.0.*)
    compiled+checkpointed                  both
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from flopwatch.errors import LayerError, UsageError
from flopwatch.layers import registry

Attention = Literal["sdpa", "plain"]
"""sdpa: torch's fused attention; plain: two products and a softmax that can be seen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Precision:
    dtype: str
    """Of the parameters, their gradients and the optimizer's state."""
    autocast: str | None = None
    """The dtype of products, where autocast chooses it."""

    @property
    def product_dtype(self) -> str:
        return self.autocast or self.dtype


PRECISIONS = {
    "fp32": Precision(dtype="float32"),
    "bf16-autocast": Precision(dtype="float32", autocast="bfloat16"),
    "fp16-autocast": Precision(dtype="float32", autocast="float16"),
    "bf16": Precision(dtype="bfloat16"),
}
OPTIMIZERS = ("adamw", "adamw-unfused", "sgd")
"""adamw: one kernel for all of a step; adamw-unfused: an operation at a time, as torch does it by
default; sgd: without momentum."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mode:
    compiled: bool = False
    attention: Attention = "sdpa"
    checkpointed: bool = False
    spec: str = "dense"
    """Of the linear layers that `match` names."""
    match: str = "feed-forward"
    """"feed-forward", "linear" (all in the blocks), or a pattern of layers' names."""


WORDS: dict[str, dict[str, Any]] = {
    "eager": {},
    "compiled": {"compiled": True},
    "plain-attention": {"attention": "plain"},
    "checkpointed": {"checkpointed": True},
}


def parse_mode(text: str) -> Mode:
    """
    >>> parse_mode("compiled+plain-attention").attention
    'plain'
    >>> mode = parse_mode("dyad:auto:4@*.up")
    >>> mode.spec, mode.match
    ('dyad:auto:4', '*.up')
    """
    mode = Mode()
    for word in text.split("+"):
        if word in WORDS:
            mode = replace(mode, **WORDS[word])
            continue
        if mode.spec != "dense":
            raise UsageError(f"variant {text!r} names two kinds of layers; name one")
        spec, _, match = word.partition("@")
        try:
            registry.parse(spec)
        except LayerError as error:
            raise UsageError(
                f"variant {text!r}: {word!r} is none of {', '.join(WORDS)}, nor a layer ({error})"
            ) from None
        mode = replace(mode, spec=spec, match=match or mode.match)
    return mode
