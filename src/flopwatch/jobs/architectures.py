"""What all sizes of a model family share, by the `model_type` that the library transformers gives
it: norms, biases, gates, positions. `decoder` and `gpt` are ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Biases = Literal["none", "qkv", "attention", "feed-forward", "all"]
"""Which linear layers of the blocks have biases."""
BIASES: tuple[Biases, ...] = get_args(Biases)
QueryKeyNorm = Literal["none", "head", "all"]
"""What queries and keys are normalised over before attention, with weights: nothing, each head, or
all heads together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    feed_forward: str
    """Glob pattern of the names of the feed-forward linear layers; empty: they are no plain
    nn.Linear, so that no other layers can take their place."""
    blocks: str = "*.layers.*"
    """Glob pattern that, of all linear layers, only those inside the blocks match."""
    feed_forward_matrices: int = 3
    """2: up and down; 3: with a gate."""
    norm_vectors: int = 1
    """2: a LayerNorm's weight and bias; 1: an RMSNorm's weight."""
    norms: int = 2
    """Of a layer: 2, one for attention and one for the feed-forward part; 4, one more after each; 1
    where both take the same."""
    norms_after: bool = False
    """Whether a norm follows each part, before it is added to what blocks add up to."""
    biases: Biases = "none"
    extra_positions: int | None = None
    """Learned positions beyond those that a sequence can have; None: there are none to learn."""
    is_tied: bool = False
    """Whether the LM head is the token embedding."""
    is_ours: bool = False
    """Whether it is built by `models.transformer`, not by the library transformers."""
    qk_norm: QueryKeyNorm = "none"
    has_sinks: bool = False
    """Whether each head has a learned score that no token has (attention sink)."""
    gates_attention: bool = False
    """Whether each query head comes with a gate for its result."""
    norms_embedding: bool = False
    head_bias: bool = False
    router_bias: bool = False
    gates_shared_expert: bool = False
    splits_layers: bool = False
    """Whether each layer is either attention (or a state space) or a feed-forward part."""
    conv_bias: bool = True
    """Of a state space's convolution."""

    @property
    def has_biases(self) -> bool:
        """In all linear layers of the blocks."""
        return self.biases == "all"


_LLAMA = "*.mlp.*_proj"
ARCHITECTURES = {
    "decoder": Architecture(feed_forward="*.feed_forward.*", blocks="blocks.*", is_ours=True),
    "gpt": Architecture(
        feed_forward="*.feed_forward.*", blocks="blocks.*", feed_forward_matrices=2,
        norm_vectors=2, biases="all", extra_positions=0, is_tied=True, is_ours=True,
    ),
    "opt": Architecture(
        feed_forward="*.fc[12]", feed_forward_matrices=2, norm_vectors=2, biases="all",
        extra_positions=2, is_tied=True,
    ),
    "gpt_neox": Architecture(
        feed_forward="*.mlp.dense_*", feed_forward_matrices=2, norm_vectors=2, biases="all"
    ),
    "llama": Architecture(feed_forward=_LLAMA),
    "mistral": Architecture(feed_forward=_LLAMA),
    "qwen2": Architecture(feed_forward=_LLAMA, biases="qkv"),
    "qwen3": Architecture(feed_forward=_LLAMA, qk_norm="head"),
    "olmo2": Architecture(feed_forward=_LLAMA, qk_norm="all", norms_after=True),
    "olmo3": Architecture(feed_forward=_LLAMA, qk_norm="all", norms_after=True),
    "gemma": Architecture(feed_forward=_LLAMA, is_tied=True),
    "gemma2": Architecture(feed_forward=_LLAMA, norms=4, norms_after=True, is_tied=True),
    "gemma3_text": Architecture(
        feed_forward=_LLAMA, norms=4, norms_after=True, is_tied=True, qk_norm="head"
    ),
    "granite": Architecture(feed_forward=_LLAMA),
    "smollm3": Architecture(feed_forward=_LLAMA, is_tied=True),
    "phi3": Architecture(feed_forward=_LLAMA),
    "phi": Architecture(
        feed_forward="*.mlp.fc[12]", feed_forward_matrices=2, norm_vectors=2, norms=1,
        biases="all", head_bias=True,
    ),
    "nemotron": Architecture(feed_forward=_LLAMA, feed_forward_matrices=2, norm_vectors=2),
    "gpt2": Architecture(
        feed_forward="", blocks="*.h.*", feed_forward_matrices=2, norm_vectors=2,
        biases="all", extra_positions=0, is_tied=True,
    ),
    "bloom": Architecture(
        feed_forward="*.mlp.dense_*", blocks="*.h.*", feed_forward_matrices=2, norm_vectors=2,
        biases="all", is_tied=True, norms_embedding=True,
    ),
    "mpt": Architecture(
        feed_forward="*.ffn.*_proj", blocks="*.blocks.*", feed_forward_matrices=2, is_tied=True
    ),
    "falcon": Architecture(
        feed_forward="", blocks="*.h.*", feed_forward_matrices=2, norm_vectors=2,
        is_tied=True,
    ),
    "mixtral": Architecture(feed_forward=""),
    "qwen2_moe": Architecture(feed_forward="", biases="qkv", gates_shared_expert=True),
    "qwen3_moe": Architecture(feed_forward="", qk_norm="head"),
    "olmoe": Architecture(feed_forward="", qk_norm="all"),
    "granitemoe": Architecture(feed_forward=""),
    "gpt_oss": Architecture(feed_forward="", biases="all", has_sinks=True, router_bias=True),
    "llama4_text": Architecture(feed_forward=""),
    "deepseek_v2": Architecture(feed_forward=""),
    "deepseek_v3": Architecture(feed_forward=""),
    "deepseek_v32": Architecture(feed_forward=""),
    "qwen3_next": Architecture(
        feed_forward="", qk_norm="head", gates_attention=True, gates_shared_expert=True,
        conv_bias=False,
    ),
    "mamba2": Architecture(feed_forward="", splits_layers=True),
    "nemotron_h": Architecture(feed_forward="", feed_forward_matrices=2, splits_layers=True),
    "granitemoehybrid": Architecture(feed_forward=""),
}  # fmt: skip
"""``decoder`` has RMSNorm, rotary positions and SwiGLU, as Llama has; ``gpt`` has LayerNorm,
learned positions, GELU and biases, as GPT-2 has."""
