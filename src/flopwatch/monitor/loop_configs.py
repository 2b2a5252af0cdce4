"""The shape of a decoder, from the configuration that a training loop has at hand.

Those of transformers are read as a ``config.json`` is (`jobs.model_configs`); those like nanoGPT's
or torchtitan's, and of kinds that are not known there, by the names that their dimensions usually
have. Such a configuration does not say all that a model is: where the module is known, too, it is
taken for right only if it has as many parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

from flopwatch.errors import FlopwatchError, UsageError
from flopwatch.jobs.config_readers import READERS
from flopwatch.jobs.model_configs import TEXT_PARTS, read_config
from flopwatch.jobs.model_shapes import Shape
from flopwatch.jobs.parameters import count_parameters

NAMES: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "key_value_heads": ("num_key_value_heads", "n_kv_heads", "n_kv_head"),
    "feed_forward_size": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff"),
    "expert_size": ("moe_intermediate_size",),
    "vocabulary": ("vocab_size", "padded_vocab_size"),
    "positions": ("max_position_embeddings", "n_positions", "block_size", "max_seq_len"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "active_experts": ("num_experts_per_tok", "num_experts_per_token", "top_k_experts"),
    "head_size": ("head_dim",),
    "tied": ("tie_word_embeddings", "weight_tying"),
}
"""By our names: what others call them, the usual one first."""
STRANGE = ("kv_lora_rank", "n_shared_experts", "first_k_dense_replace", "state_size", "ssm_cfg")
"""What changes how much a layer computes, and is not counted here."""
CLOSE = 0.01
"""Parameters may differ by so much: biases, norms, positions."""


def read_shape(config: object, parameters: int | None, seq_len: int) -> Shape:
    """Raises UsageError where it cannot be read, or is not the module's.

    >>> class Config:
    ...     n_layer, n_head, n_embd, vocab_size, block_size = 12, 12, 768, 50304, 1024
    >>> read_shape(Config(), None, 1024).feed_forward_size
    3072
    """
    kind = str(_look(config, "model_type") or "")
    if kind in READERS or kind in TEXT_PARTS:
        return _confirm([read_config(_make_dict(config), "the config")], parameters)
    found = _read(config)
    needed = ("hidden_size", "layers", "heads", "vocabulary")
    missing = [name for name in needed if not isinstance(found.get(name), int)]
    if missing:
        raise UsageError(
            f"the config has no {missing[0]} under any name that is known here "
            f"({', '.join(NAMES[missing[0]])})"
        )
    _refuse_strange(config, found, seq_len)
    shapes = [
        shape
        for gated in _choose_gates(config, is_checked=parameters is not None)
        if (shape := _make_shape(config, found, gated)) is not None
    ]
    if not shapes:
        raise UsageError(f"models of the kind {kind!r} are not known here")
    return _confirm(shapes, parameters)


def _confirm(shapes: Sequence[Shape], parameters: int | None) -> Shape:
    """The first that has as many parameters as the module, if that is known."""
    if parameters is None:
        return shapes[0]
    for shape in shapes:
        if abs(count_parameters(shape) / parameters - 1) <= CLOSE:
            return shape
    counts = " or ".join(f"{count_parameters(shape):,}" for shape in shapes)
    raise UsageError(f"by the config it has {counts} parameters, but the model {parameters:,}")


def _make_dict(config: object) -> Mapping[str, Any]:
    as_dict = getattr(config, "to_dict", None)
    content = as_dict() if as_dict is not None else config
    return content if isinstance(content, Mapping) else vars(content)


def _read(config: object) -> dict[str, Any]:
    return {
        ours: next((v for name in names if (v := _look(config, name)) is not None), None)
        for ours, names in NAMES.items()
    }


def _look(config: object, name: str) -> Any:
    if is_dataclass(config) and not isinstance(config, type):
        config = asdict(config)
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def _refuse_strange(config: object, found: Mapping[str, Any], seq_len: int) -> None:
    for name in STRANGE:
        if _look(config, name):
            raise UsageError(f"its {name} is not counted here")
    window = _look(config, "sliding_window")
    is_used = _look(config, "use_sliding_window") is not False
    if isinstance(window, int) and is_used and window < seq_len:
        raise UsageError(f"its sliding window of {window} tokens is not counted here")
    head_size = found["head_size"]
    if head_size and head_size * found["heads"] != found["hidden_size"]:
        raise UsageError(f"its head_dim of {head_size} is not counted here")


def _choose_gates(config: object, *, is_checked: bool) -> list[bool]:
    """Whether feed-forward parts have a gate; both where the module's parameters will tell."""
    if _look(config, "multiple_of") is not None:  # torchtitan, and Llama's own code
        return [True]
    if _look(config, "n_embd") is not None:  # nanoGPT
        return [False]
    return [True, False] if is_checked else []


def _make_shape(config: object, found: Mapping[str, Any], gated: bool) -> Shape | None:
    hidden_size = found["hidden_size"]
    experts = found["experts"] if found["active_experts"] else None
    size = (experts and found["expert_size"]) or found["feed_forward_size"]
    size = size or _find_titan_size(config, hidden_size) or 4 * hidden_size
    kv_heads = found["key_value_heads"]
    usual = kv_heads in (None, found["heads"])
    if not gated and not usual:
        return None
    try:
        return Shape(
            architecture="llama" if gated else "gpt",
            hidden_size=hidden_size,
            feed_forward_size=size,
            layers=found["layers"],
            heads=found["heads"],
            vocabulary=found["vocabulary"],
            key_value_heads=None if usual else kv_heads,
            positions=found["positions"] or 2048,
            tied=found["tied"],
            experts=experts,
            active_experts=found["active_experts"] if experts else None,
        )
    except (FlopwatchError, TypeError, ValueError):
        return None


def _find_titan_size(config: object, hidden_size: int) -> int | None:
    """As torchtitan and Llama's own code have it: 2/3 of four times the hidden size, times a
    factor, rounded up."""
    multiple = _look(config, "multiple_of")
    if not isinstance(multiple, int):
        return None
    size = int(2 * (4 * hidden_size) / 3)
    factor = _look(config, "ffn_dim_multiplier")
    if factor is not None:
        size = int(factor * size)
    return multiple * -(-size // multiple)
