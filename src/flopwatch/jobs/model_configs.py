"""Configurations of Hugging Face (``config.json``) as shapes, without their library.

What a configuration leaves out is the default of its class in the library transformers
(``data/config_defaults.json``, which a test compares with the library). Of a model for images and
text, the text part is read. What cannot be counted is refused in one sentence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from flopwatch.errors import UsageError
from flopwatch.jobs.layer_parts import WINDOWED
from flopwatch.jobs.model_shapes import Shape, validate_shape

Config = Mapping[str, Any]
Fields = dict[str, Any]

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
LAYER_TYPES = {
    "full_attention": "f",
    "attention": "f",
    "sliding_attention": "s",
    "chunked_attention": "c",
    "linear_attention": "l",
    "mamba": "m",
    "mlp": "d",
    "moe": "e",
}
HYBRID_LETTERS = {"M": "m", "*": "f", "-": "d", "E": "e"}
"""Of `hybrid_override_pattern`."""
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


def _read_plain(config: Config) -> Fields:
    """Nothing but what `NAMES` has, and biases."""
    attention, feed_forward = config.get("attention_bias"), config.get("mlp_bias")
    words = {(1, 1): "all", (1, 0): "attention", (0, 1): "feed-forward"}
    return {"biases": words.get((int(bool(attention)), int(bool(feed_forward))))}


def _read_pattern(config: Config, default: str = "f") -> Fields:
    """Of layers with and without windows."""
    types = config.get("layer_types") or config.get("layers_block_type")
    window = config.get("sliding_window")
    if config.get("use_sliding_window") is False:
        types, default, window = None, "f", None
    letters = default if types is None else shorten(_translate(types))
    if not set(letters) & set(WINDOWED) or not window:
        return {"pattern": None, "window": None}
    return {"pattern": None if letters == "s" else letters, "window": window}


def _translate(types: Any) -> str:
    unknown = [each for each in types if each not in LAYER_TYPES]
    if unknown:
        raise ValueError(f"layers of the type {str(unknown[0])[:40]!r} are not counted")
    return "".join(LAYER_TYPES[each] for each in types)


def shorten(pattern: str) -> str:
    """The shortest beginning that gives the same layers when it is repeated.

    >>> shorten("ssfssfss"), shorten("mdmd*"), shorten("ff")
    ('ssf', 'mdmd*', 'f')
    """
    for length in range(1, len(pattern)):
        start = pattern[:length]
        if (start * (len(pattern) // length + 1))[: len(pattern)] == pattern:
            return start
    return pattern


def _read_windowed(default: str) -> Callable[[Config], Fields]:
    return lambda config: {**_read_plain(config), **_read_pattern(config, default)}


def _read_upper_windows(config: Config) -> Fields:
    """Qwen: with windows in the layers from `max_window_layers` on."""
    full, layers = config.get("max_window_layers") or 0, config["num_hidden_layers"]
    letters = ("f" * full + "s" * layers)[:layers]
    # Qwen 2 has biases of queries, keys and values in any case.
    biases = {} if config["model_type"] in ("qwen2", "qwen2_moe") else _read_plain(config)
    return {**biases, **_read_pattern(config, shorten(letters))}


def _read_gemma3(config: Config) -> Fields:
    every = config.get("sliding_window_pattern") or 6
    return {**_read_plain(config), **_read_pattern(config, "s" * (every - 1) + "f")}


def _read_neox(config: Config) -> Fields:
    return {"biases": None if config.get("attention_bias") else "feed-forward"}


def _read_opt(config: Config) -> Fields:
    width, hidden = config.get("word_embed_proj_dim"), config["hidden_size"]
    return {
        "embedding_size": None if width in (None, hidden) else width,
        "norm_first": bool(config["do_layer_norm_before"]),
    }


def _read_falcon(config: Config) -> Fields:
    """Of the first kind, all queries share a key and a value; of the second, groups do."""
    heads = config["num_attention_heads"]
    shared: int | None = config.get("num_kv_heads") or heads
    if not config["new_decoder_architecture"]:
        shared = 1 if config["multi_query"] else None
    norms = 2 if config["new_decoder_architecture"] else 1
    norms = config.get("num_ln_in_parallel_attn") or norms
    return {
        "key_value_heads": shared,
        "norms": norms if config["parallel_attn"] else 2,
        "biases": "all" if config["bias"] else None,
    }


def _read_sparse(config: Config) -> Fields:
    """Experts every so many layers."""
    return {
        **_read_upper_windows(config),
        "expert_every": config.get("decoder_sparse_step"),
        "shared_expert_size": config.get("shared_expert_intermediate_size") or None,
    }


def _read_llama4(config: Config) -> Fields:
    """Layers without rotary positions see everything, the others chunks. Dense layers are wider
    than experts."""
    layers, size = config["num_hidden_layers"], config["intermediate_size"]
    every = config["interleave_moe_layer_step"]
    chosen = config.get("moe_layers")
    if chosen is not None and list(chosen) != list(range(every - 1, layers, every)):
        raise ValueError(f"experts in the layers {str(chosen)[:40]} are not counted")
    types, rotary = config.get("layer_types"), config.get("no_rope_layers") or []
    interval = config["no_rope_layer_interval"]
    rotary = rotary or [int((place + 1) % interval != 0) for place in range(layers)]
    letters = _translate(types) if types else "".join("c" if each else "f" for each in rotary)
    window = config.get("attention_chunk_size")
    return {
        **_read_plain(config),
        "feed_forward_size": config["intermediate_size_mlp"],
        "expert_size": size,
        "shared_expert_size": size,
        "expert_every": every,
        "pattern": shorten(letters[:layers]) if window else None,
        "window": window,
    }


def _read_deepseek(config: Config) -> Fields:
    rotary, size = config["qk_rope_head_dim"], config["moe_intermediate_size"]
    if config.get("moe_layer_freq") not in (None, 1):
        raise ValueError("a moe_layer_freq other than 1 is not counted")
    if _read_plain(config)["biases"] is not None:
        raise ValueError("biases of latent attention are not counted")
    return {
        "key_value_heads": None,
        "head_dim": config["qk_nope_head_dim"] + rotary,
        "qk_rope_head_dim": rotary,
        "v_head_dim": config["v_head_dim"],
        "kv_lora_rank": config["kv_lora_rank"],
        "q_lora_rank": config.get("q_lora_rank") or None,
        "dense_layers": config.get("first_k_dense_replace") or None,
        "shared_expert_size": (config.get("n_shared_experts") or 0) * size or None,
    }


def _read_sparse_deepseek(config: Config) -> Fields:
    """With narrow heads that choose which positions are seen."""
    return {
        **_read_deepseek(config),
        "index_topk": config["index_topk"],
        "index_heads": config["index_n_heads"],
        "index_head_dim": config["index_head_dim"],
    }


def _read_qwen3_next(config: Config) -> Fields:
    interval, types = config.get("full_attention_interval") or 4, config.get("layer_types")
    return {
        "pattern": shorten(_translate(types)) if types else "l" * (interval - 1) + "f",
        "expert_every": config.get("decoder_sparse_step"),
        "shared_expert_size": config.get("shared_expert_intermediate_size"),
        "state_size": config["linear_key_head_dim"],
        "state_heads": config["linear_num_value_heads"],
        "state_head_dim": config["linear_value_head_dim"],
        "state_groups": config["linear_num_key_heads"],
        "conv_size": config["linear_conv_kernel_dim"],
        "scan_chunk": DELTA_CHUNK,
    }


DELTA_CHUNK = 64
"""Positions that implementations of the gated delta rule compute together."""


def _read_mamba2(config: Config) -> Fields:
    return {
        "pattern": "m",
        "feed_forward_size": 0,
        "head_dim": config["head_dim"],
        "state_size": config["state_size"],
        "state_heads": config["num_heads"],
        "state_head_dim": config["head_dim"],
        "state_groups": config["n_groups"],
        "conv_size": config["conv_kernel"],
        "scan_chunk": config["chunk_size"],
    }


def _read_nemotron_h(config: Config) -> Fields:
    types = config.get("layers_block_type") or config.get("layer_types")
    if types:
        pattern = _translate(types).replace("l", "m")
    else:
        given = config.get("hybrid_override_pattern") or ""
        pattern = "".join(HYBRID_LETTERS.get(each, "?") for each in given)
    if not pattern or "?" in pattern:
        raise KeyError("hybrid_override_pattern, with the letters M, *, - and E, is not there")
    has_experts = "e" in pattern
    own = {
        "expert_size": config["moe_intermediate_size"],
        "shared_expert_size": config["moe_shared_expert_intermediate_size"] or None,
        "experts": config["n_routed_experts"],
        "active_experts": config["num_experts_per_tok"],
    }
    return {
        **{name: value if has_experts else None for name, value in own.items()},
        "biases": "feed-forward" if config.get("mlp_bias") else None,
        "layers": len(pattern),
        "pattern": shorten(pattern),
        "state_size": config["ssm_state_size"],
        "state_heads": config["mamba_num_heads"],
        "state_head_dim": config["mamba_head_dim"],
        "state_groups": config["n_groups"],
        "conv_size": config["conv_kernel"],
        "scan_chunk": config["chunk_size"],
    }


def _read_granite_hybrid(config: Config) -> Fields:
    """A shared feed-forward part everywhere, and experts besides it, or none."""
    types = config.get("layer_types") or config.get("layers_block_type")
    experts, shared = config.get("num_local_experts") or None, config["shared_intermediate_size"]
    heads, inner = config["mamba_n_heads"], config["mamba_expand"] * config["hidden_size"]
    pattern = _translate(types).replace("l", "m") if types else "m"
    has_states = "m" in pattern
    states = {
        "state_size": config["mamba_d_state"],
        "state_heads": heads,
        "state_head_dim": inner // heads,
        "state_groups": config["mamba_n_groups"],
        "conv_size": config["mamba_d_conv"],
        "scan_chunk": config["mamba_chunk_size"],
    }
    return {
        **_read_plain(config),
        **({} if not has_states else states),
        "experts": experts,
        "active_experts": config["num_experts_per_tok"] if experts else None,
        "expert_size": config["intermediate_size"] if experts else None,
        "shared_expert_size": shared if experts else None,
        "feed_forward_size": shared,
        "pattern": shorten(pattern) if has_states else None,
    }


def _read_own_biases(config: Config) -> Fields:
    """Of an architecture whose biases no setting changes."""
    return {}


READERS: dict[str, Callable[[Config], Fields]] = {
    "opt": _read_opt,
    "gpt_neox": _read_neox,
    "llama": _read_plain,
    "mistral": _read_windowed("s"),
    "qwen2": _read_upper_windows,
    "qwen3": _read_upper_windows,
    "olmo2": _read_plain,
    "olmo3": _read_windowed("sssf"),
    "gemma": _read_plain,
    "gemma2": _read_windowed("sf"),
    "gemma3_text": _read_gemma3,
    "granite": _read_plain,
    "smollm3": _read_windowed("f"),
    "phi3": _read_windowed("s"),
    "phi": _read_own_biases,
    "nemotron": _read_plain,
    "gpt2": _read_own_biases,
    "bloom": _read_own_biases,
    "mpt": _read_own_biases,
    "falcon": _read_falcon,
    "mixtral": _read_windowed("s"),
    "qwen2_moe": _read_sparse,
    "qwen3_moe": _read_sparse,
    "olmoe": _read_plain,
    "granitemoe": _read_plain,
    "gpt_oss": lambda config: _read_pattern(config, "sf"),
    "llama4_text": _read_llama4,
    "deepseek_v2": _read_deepseek,
    "deepseek_v3": _read_deepseek,
    "deepseek_v32": _read_sparse_deepseek,
    "qwen3_next": _read_qwen3_next,
    "mamba2": _read_mamba2,
    "nemotron_h": _read_nemotron_h,
    "granitemoehybrid": _read_granite_hybrid,
}
"""What else the configurations of each `model_type` say."""
