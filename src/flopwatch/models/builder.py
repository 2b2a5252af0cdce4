"""Models of either origin, ours or the library transformers', behind one face.

Both are called alike, ``model(input_ids=ids, labels=ids).loss``; what differs is how they are made
and how they are told to compute the same thing in another way.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from flopwatch.models import hugging_face, transformer
from flopwatch.models.modes import Attention, Recompute
from flopwatch.models.shapes import Shape
from flopwatch.models.transformer import Transformer

HUGGING_FACE_NAMES = {"sdpa": "sdpa", "plain": "eager"}


def build(shape: Shape, *, device: str = "cpu", dtype: str = "float32") -> nn.Module:
    """In training mode, with random weights from torch's current seed."""
    maker = transformer.build if shape.is_ours else hugging_face.build
    return maker(shape, device=device, dtype=dtype)


def choose_attention(model: Any, kind: Attention) -> None:
    if isinstance(model, Transformer):
        model.choose_attention(kind)
    elif model.config._attn_implementation != HUGGING_FACE_NAMES[kind] and model._supports_sdpa:
        model.set_attn_implementation(HUGGING_FACE_NAMES[kind])


def choose_recompute(model: Any, recompute: Recompute) -> None:
    """What blocks compute again in the backward pass instead of keeping what it needs."""
    if isinstance(model, Transformer):
        model.choose_recompute(recompute)
    elif recompute == "none":
        model.gradient_checkpointing_disable()
    else:
        model.gradient_checkpointing_enable(transformer.CHECKPOINTS[recompute])


def find_blocks(model: Any) -> list[nn.Module]:
    """The layers of a decoder, in order."""
    if isinstance(model, Transformer):
        return list(model.blocks)
    number = model.config.num_hidden_layers
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    return list(next(blocks for blocks in lists if len(blocks) == number))


def find_attention(model: Any) -> Attention:
    """The kind that is in force."""
    if isinstance(model, Transformer):
        kind: Attention = model.blocks[0].attention.kind  # type: ignore[union-attr,assignment]
        return kind
    return "sdpa" if model.config._attn_implementation == "sdpa" else "plain"
