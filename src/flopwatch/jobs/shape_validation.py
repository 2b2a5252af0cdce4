"""Refuse dimensions that make no model, each in one sentence."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING

from flopwatch.errors import UsageError
from flopwatch.jobs.architectures import ARCHITECTURES
from flopwatch.jobs.layer_parts import RECURRENT, WINDOWED, find_pattern

if TYPE_CHECKING:
    from flopwatch.jobs.model_shapes import Shape


def validate_shape(text: str, shape: Shape) -> None:
    if shape.head_dim is None and shape.hidden_size % shape.heads:
        raise UsageError(
            f"model {text!r}: {shape.heads} heads cannot share a hidden size of "
            f"{shape.hidden_size}; choose heads that divide it, or give head_dim"
        )
    if shape.is_ours and (shape.key_value_heads or shape.head_dim):
        name = "key_value_heads" if shape.key_value_heads else "head_dim"
        raise UsageError(f"model {text!r}: {shape.architecture} has no {name}; llama has")
    if shape.heads % (shape.key_value_heads or shape.heads):
        raise UsageError(
            f"model {text!r}: {shape.heads} heads cannot share {shape.key_value_heads} "
            "key_value_heads; choose a number that divides the heads"
        )
    if shape.is_ours and shape.architecture == "decoder" and shape.head_size % 2:
        raise UsageError(
            f"model {text!r}: its heads are {shape.head_size} wide, and rotary positions need an "
            "even width; choose other heads"
        )
    if shape.activation and not shape.is_ours:
        raise UsageError(f"model {text!r}: only decoder and gpt have a choice of activation")
    if shape.embedding_size and shape.architecture != "opt":
        raise UsageError(f"model {text!r}: only opt has an embedding_size of its own")
    if not shape.norm_first and shape.architecture != "opt":
        raise UsageError(f"model {text!r}: only opt can have its norms last")
    _validate_accounted(text, shape)


def _validate_accounted(text: str, shape: Shape) -> None:
    experts, active = shape.experts, shape.active_experts
    if (experts is None) != (active is None) or (experts or 0) < (active or 0):
        raise UsageError(
            f"model {text!r}: give both experts and active_experts, and no more active ones than "
            "there are"
        )
    if shape.padding < 0:
        raise UsageError(
            f"model {text!r}: a padded_vocabulary of {shape.padded_vocabulary} has no room for "
            f"{shape.vocabulary} tokens; give a larger one"
        )
    if lcm(len(find_pattern(shape)), shape.expert_every or 1) > LONGEST_PERIOD:
        raise UsageError(
            f"model {text!r}: its layers repeat after more than {LONGEST_PERIOD}; give a shorter "
            "pattern, or another expert_every"
        )
    for name, needed, wanted in _list_needs(shape):
        if wanted and any(getattr(shape, each) is None for each in needed):
            raise UsageError(f"model {text!r}: {name} needs {', '.join(needed)}; give them, too")
    for name in EXPERT_FIELDS if experts is None else ():
        if getattr(shape, name) is not None:
            raise UsageError(
                f"model {text!r}: {name} is of a model with experts; give experts and "
                "active_experts, too"
            )


LONGEST_PERIOD = 1000
"""Layers until the kinds of layers begin anew."""
EXPERT_FIELDS = ("expert_size", "shared_expert_size", "dense_layers", "expert_every")
STATE_FIELDS = ("state_size", "state_heads", "state_head_dim", "conv_size", "scan_chunk")


def _list_needs(shape: Shape) -> list[tuple[str, tuple[str, ...], bool]]:
    """What a shape has, which dimensions that needs, and whether it has it."""
    letters, known = set(find_pattern(shape)), ARCHITECTURES.get(shape.architecture)
    return [
        ("its pattern", ("window",), bool(letters & set(WINDOWED))),
        ("its pattern", STATE_FIELDS, bool(letters & set(RECURRENT))),
        ("its pattern", ("experts",), "e" in letters),
        ("latent attention", ("head_dim", "qk_rope_head_dim", "v_head_dim"),
         shape.kv_lora_rank is not None),
        ("sparse attention", ("index_heads", "index_head_dim", "q_lora_rank"),
         shape.index_topk is not None),
        ("q_lora_rank", ("kv_lora_rank",), shape.q_lora_rank is not None),
        (f"a {shape.architecture!r}", ("pattern",), known is not None and known.splits_layers),
    ]  # fmt: skip
