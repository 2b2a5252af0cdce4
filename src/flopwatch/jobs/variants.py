"""The ways to compute a training step: precision, optimizer, and what a variant changes.

All modes of a model compute the same function, so that they can be checked against each other and
timed side by side. A mode is written as words joined by ``+``:

    eager                                  as it stands: the baseline
    compiled                               through torch.compile
    plain-attention                        two products and a softmax instead of the fused kernel
    checkpointed                           blocks keep their inputs only, and are computed again
    selective                              blocks keep the results of linear layers too, and only
                                           the rest is computed again, attention included
    dyad:auto:4, switchback:global@linear  other linear layers in the feed-forward parts, in all
                                           blocks (@linear), or where a pattern matches their names
                                           (@blocks.0.*)
    compiled+checkpointed                  both

In a job of several ranks one more word says how they share the model:

    plain           each has all of it; gradients are averaged when the backward pass is done
    ddp             the same by DistributedDataParallel, which averages meanwhile
    full-shard      each keeps a part of every parameter; blocks are gathered in both passes
    grad-op-shard   the same, but what was gathered forward stays until the backward pass
    hybrid-shard    parts within groups of ranks, and each group has all of them
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from flopwatch.errors import LayerError, Unsupported, UsageError
from flopwatch.layers import registry

Attention = Literal["sdpa", "plain"]
"""sdpa: torch's fused attention; plain: two products and a softmax that can be seen."""
Recompute = Literal["none", "full", "selective"]
"""What a block computes again in the backward pass: nothing, all of it, or all but its products
with weights."""
Sharding = Literal["plain", "ddp", "full-shard", "grad-op-shard", "hybrid-shard"]


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
    "bf16-mixed": Precision(dtype="float32", autocast="bfloat16"),
    "fp16-mixed": Precision(dtype="float32", autocast="float16"),
    "bf16": Precision(dtype="bfloat16"),
}
OTHER_NAMES = {"amp_bf16": "bf16-mixed"}
"""Of precisions, as published tables have them."""
OPTIMIZERS = ("adamw", "adamw-unfused", "sgd")
"""adamw: one kernel for all of a step; adamw-unfused: an operation at a time, as torch does it by
default; sgd: without momentum."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mode:
    compiled: bool = False
    attention: Attention = "sdpa"
    recompute: Recompute = "none"
    spec: str = "dense"
    """Of the linear layers that `match` names."""
    match: str = "feed-forward"
    """"feed-forward", "linear" (all in the blocks), or a pattern of layers' names."""
    sharding: Sharding | None = None
    """How ranks share the model; None where there is but one process."""

    @property
    def checkpointed(self) -> bool:
        return self.recompute == "full"


WORDS: dict[str, dict[str, Any]] = {
    "eager": {},
    "compiled": {"compiled": True},
    "plain-attention": {"attention": "plain"},
    "checkpointed": {"recompute": "full"},
    "selective": {"recompute": "selective"},
}
SHARDINGS: dict[str, dict[str, Any]] = {
    name: {"sharding": name}
    for name in ("plain", "ddp", "full-shard", "grad-op-shard", "hybrid-shard")
}


def parse_mode(text: str) -> Mode:
    """
    >>> parse_mode("compiled+plain-attention").attention
    'plain'
    >>> mode = parse_mode("dyad:auto:4@*.up")
    >>> mode.spec, mode.match
    ('dyad:auto:4', '*.up')
    """
    for word in text.split("+"):
        if word in SHARDINGS:
            raise UsageError(
                f"variant {text!r}: {word!r} says how ranks share a model, which only the suite "
                "training measures; leave it out"
            )
    return _parse(text, WORDS)


def parse_training_mode(text: str) -> Mode:
    """Of a job of ranks.

    >>> parse_training_mode("full-shard+selective").sharding
    'full-shard'
    """
    mode = _parse(text, {**SHARDINGS, **WORDS})
    if mode.sharding is None:
        raise UsageError(
            f"variant {text!r} does not say how ranks share the model; add one of "
            f"{', '.join(SHARDINGS)}, as in plain+{text}"
        )
    return mode


def _parse(text: str, words: dict[str, dict[str, Any]]) -> Mode:
    mode = plain = Mode()
    for word in text.split("+"):
        if word in words:
            for field, value in words[word].items():
                if getattr(mode, field) not in (getattr(plain, field), value):
                    raise UsageError(
                        f"variant {text!r} has two words that cannot both hold, {word!r} and one "
                        "before it; keep one"
                    )
            mode = replace(mode, **words[word])
            continue
        if mode.spec != "dense":
            raise UsageError(f"variant {text!r} names two kinds of layers; name one")
        spec, _, match = word.partition("@")
        try:
            registry.parse(spec)
        except LayerError as error:
            raise UsageError(
                f"variant {text!r}: {word!r} is none of {', '.join(words)}, nor a layer ({error})"
            ) from None
        mode = replace(mode, spec=spec, match=match or mode.match)
    return mode


def count_on_machine(ranks: int, environ: Mapping[str, str] = os.environ) -> int:
    """How many of a job's ranks run on this machine, as torchrun tells each of them; outside of a
    job, all."""
    return int(environ.get("LOCAL_WORLD_SIZE", ranks))


def count_shards(sharding: Sharding, ranks: int, on_machine: int) -> int:
    """Into how many parts a parameter is divided: with hybrid-shard, among the ranks of a machine
    where there are several machines, and else into halves of the job."""
    if sharding in ("plain", "ddp"):
        return 1
    if sharding != "hybrid-shard":
        return ranks
    shards = on_machine if on_machine < ranks else ranks // 2
    if shards < 2 or ranks % shards:
        raise Unsupported(
            f"hybrid-shard divides a model within groups of at least 2 ranks and copies it between "
            f"at least 2 such groups, and {ranks} ranks are not such groups; take 4, or another "
            "even number from there on"
        )
    return shards
