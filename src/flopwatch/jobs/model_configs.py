"""Configurations of Hugging Face (``config.json``) as shapes, without their library.

What a configuration leaves out is the default of its class in the library transformers
(``data/config_defaults.json``, which a test compares with the library). Of a model for images and
text, the text part is read. What cannot be counted is refused in one sentence.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from flopwatch.errors import UsageError
from flopwatch.jobs.config_readers import READERS, Config, Fields
from flopwatch.jobs.model_shapes import Shape
from flopwatch.jobs.shape_validation import validate_shape

NAMES: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "vocabulary": ("vocab_size",),
    "positions": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    "feed_forward_size": ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"),
    "key_value_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "tied": ("tie_word_embeddings",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "active_experts": ("num_experts_per_tok",),
    "expert_size": ("moe_intermediate_size",),
}
"""What configurations call the fields of a shape."""
TEXT_PARTS = {"gemma3": "gemma3_text", "llama4": "llama4_text"}
"""The architecture of the text part, where that does not say."""
SAME = {"kimi_k2": "deepseek_v3"}
"""Architectures that have another name, and the layers of one that is read."""
COVERED: dict[str, tuple[Any, ...]] = {
    "mlp_only_layers": (None, []),
    "moe_latent_size": (None, 0),
    "qk_layernorm": (None, False),
    "qkv_bias": (None, True),
    "use_bias": (None, False),
    "mamba_proj_bias": (None, False),
    "use_conv_bias": (None, True),
    "mamba_conv_bias": (None, True),
    "enable_bias": (None, True),
    "layer_norm_elementwise_affine": (None, True),
    "add_cross_attention": (None, False),
    "embedding_fraction": (None, 1.0),
    "expansion_ratio": (None, 4),
    "is_encoder_decoder": (None, False),
}
"""Settings that would change the counts, with the values that are counted."""


def read_config_file(path: Path) -> Shape:
    """The shape of a ``config.json``, or of a folder with one."""
    if path.is_dir():
        path = path / "config.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror}); give a config.json of Hugging Face, or a "
            "folder that has one"
        ) from None
    except ValueError:
        raise UsageError(f"{path} is no JSON; give a config.json of Hugging Face") from None
    if not isinstance(content, dict):
        raise UsageError(f"{path} is no configuration of a model; give a config.json")
    return read_config(content, str(path))


def read_config(content: Config, where: str = "this configuration") -> Shape:
    """
    >>> read_config({"model_type": "gpt2", "n_embd": 1024, "n_layer": 24, "n_head": 16}).layers
    24
    """
    config = _take_text_part(content, where)
    kind = str(config["model_type"])
    try:
        shape = _make_shape(kind, _read_fields(config))
    except (TypeError, ValueError, KeyError, ZeroDivisionError) as error:
        raise UsageError(
            f"{where} is a {kind!r} that cannot be counted: {error}; describe the model by its "
            "dimensions instead, as in llama:hidden_size=4096:layers=32"
        ) from None
    validate_shape(where, shape)
    return shape


@cache
def read_usual(kind: str) -> Fields:
    """What a configuration of this `model_type` has if it says nothing; empty where it has to.

    >>> read_usual("mixtral")["experts"], read_usual("nemotron_h")
    (8, {})
    """
    try:
        fields = _read_fields(read_defaults()[kind] | {"model_type": kind})
    except KeyError:
        return {}
    return {name: value for name, value in fields.items() if value is not None}


def _read_fields(config: Config) -> Fields:
    for name, values in COVERED.items():
        if config.get(name) not in values:
            raise ValueError(f"{name}={str(config[name])[:40]} is not counted")
    fields = {name: _find(config, *keys) for name, keys in NAMES.items()}
    return {**fields, **READERS[str(config["model_type"])](config)}


def _take_text_part(content: Config, where: str) -> dict[str, Any]:
    """With the defaults of its class."""
    kind, text = content.get("model_type"), content.get("text_config")
    if isinstance(text, dict):
        kind, content = text.get("model_type", TEXT_PARTS.get(str(kind), kind)), text
    kind = SAME.get(str(kind), kind)
    if kind not in READERS:
        known = ", ".join(READERS)
        raise UsageError(
            f"{where} has the model_type {str(kind)[:40]!r}, whose layers are not counted; "
            f"those of {known} are"
        )
    spelled = {
        name for names in NAMES.values() for name in names if any(each in content for each in names)
    }
    defaults = read_defaults()[str(kind)]
    left = {name: value for name, value in defaults.items() if name not in spelled}
    return {**left, **content, "model_type": kind}


@cache
def read_defaults() -> dict[str, dict[str, Any]]:
    text = files("flopwatch.jobs").joinpath("data/config_defaults.json").read_text("utf-8")
    defaults: dict[str, dict[str, Any]] = json.loads(text)
    return defaults


def _find(config: Config, *keys: str) -> Any:
    return next((config[key] for key in keys if config.get(key) is not None), None)


NEEDED = ("layers", "heads", "hidden_size", "vocabulary")
"""What no model is without."""
WORDS = {"pattern": str, "biases": str, "tied": bool, "norm_first": bool}
"""Fields that are no numbers."""


def _make_shape(kind: str, fields: Fields) -> Shape:
    for name, value in fields.items():
        is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        is_right = isinstance(value, WORDS[name]) if name in WORDS else is_count
        if value is not None and not is_right:
            raise ValueError(f"its {name} is {str(value)[:40]!r}")
        if name in NEEDED and not value:
            raise ValueError(f"its {name} is not there")
    hidden, heads = fields["hidden_size"], fields["heads"]
    usual = {
        "feed_forward_size": (None, 4 * hidden),
        "positions": (None, 2048),
        # What is the same without being said.
        "key_value_heads": (heads, None),
        "head_dim": (None if fields.get("kv_lora_rank") else hidden / heads, None),
    }
    for name, (found, instead) in usual.items():
        if fields[name] == found:
            fields = {**fields, name: instead}
    return Shape(architecture=kind, **fields)
