"""Models of the library transformers, built from their dimensions: no weights, no network.

What is timed and compared must be the same every time, so that every dropout is 0, and nothing is
kept for generating text. Weights are random, drawn from torch's current seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from flopwatch.errors import FlopwatchError
from flopwatch.models.shapes import Shape, find_shape

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

Attention = Literal["sdpa", "eager"]
"""sdpa: torch's fused attention; eager: as separate products and softmax."""


def build(
    model: str | Shape,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    attention: Attention = "sdpa",
) -> PreTrainedModel:
    """A model by name or shape, in training mode, called as in
    ``build("opt-125m")(input_ids=ids, labels=ids).loss``.

    The same seed gives the same weights in every dtype, but for rounding.
    """
    transformers = _import_transformers()
    import torch

    shape = find_shape(model) if isinstance(model, str) else model
    with torch.device(device), _single_initialisation():
        built: PreTrainedModel = transformers.AutoModelForCausalLM.from_config(
            make_config(shape), attn_implementation=attention
        )
    # Parameters only: rotary positions need their frequencies in full precision.
    for parameter in built.parameters():
        parameter.data = parameter.data.to(getattr(torch, dtype))
    return built.train()


def make_config(shape: Shape) -> PreTrainedConfig:
    common = {
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.positions,
        "attention_dropout": 0.0,
        "use_cache": False,
    }
    config: PreTrainedConfig = _import_transformers().AutoConfig.for_model(
        shape.architecture, **common, **OPTIONS[shape.architecture](shape)
    )
    return config


def _opt_options(shape: Shape) -> dict[str, Any]:
    return {
        "ffn_dim": shape.feed_forward_size,
        "word_embed_proj_dim": shape.embedding_size or shape.hidden_size,
        "do_layer_norm_before": shape.norm_first,
        "activation_function": "relu",
        "dropout": 0.0,
        "layerdrop": 0.0,
    }


def _gpt_neox_options(shape: Shape) -> dict[str, Any]:
    return {
        "intermediate_size": shape.feed_forward_size,
        "hidden_act": "gelu",
        "hidden_dropout": 0.0,
        "rotary_pct": 0.25,
        "use_parallel_residual": True,
    }


def _llama_options(shape: Shape) -> dict[str, Any]:
    return {"intermediate_size": shape.feed_forward_size, "hidden_act": "silu"}


OPTIONS: dict[str, Callable[[Shape], dict[str, Any]]] = {
    "opt": _opt_options,
    "gpt_neox": _gpt_neox_options,
    "llama": _llama_options,
}
"""What only one architecture's configuration has, by architecture."""


@contextmanager
def _single_initialisation() -> Iterator[None]:
    """transformers draws every weight anew after torch has; without torch's turn, building takes
    half the time."""
    from torch import nn

    originals: dict[Any, Any] = {k: k.reset_parameters for k in (nn.Linear, nn.Embedding)}
    try:
        for kind in originals:
            kind.reset_parameters = lambda self: None
        yield
    finally:
        for kind, original in originals.items():
            kind.reset_parameters = original


def _import_transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise FlopwatchError(
            "this needs the package transformers, which is not installed; "
            "run: pip install transformers"
        ) from None
    return transformers
