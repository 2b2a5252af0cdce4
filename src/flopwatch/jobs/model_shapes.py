"""Causal language models by name: their dimensions and what their architectures have in common.

Dimensions are those that the models were published with:

    small ... 2.7B            the language-modelling course CS336, handout of 2025
    xl-2026, 10B              the same, handout of 2026
    gpt-125m ... gpt-70b      MosaicGPT; 125m ... 70b are the same. Their vocabulary of 50,257 is
                              not padded here; the later jobs of llm-foundry padded it to 50,368,
                              and so do predictions from those
    opt-6l-H                  OPT-1.3B cut to 6 layers, at hidden size H: feed-forward size 4 H and
                              heads of 64, as in OPT-1.3B, whose own hidden size is 2048

Today's models are in `model_zoo`, by the names that they were published with. A model of other
dimensions is written as a name with what differs, ``small:layers=4``, as the path of a
configuration of Hugging Face, ``mine/config.json``, or as an architecture with its dimensions,
``llama:hidden_size=512:layers=8``: one of ours, or any causal language model that the library
transformers knows.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from flopwatch.errors import UsageError
from flopwatch.jobs.architectures import ARCHITECTURES, BIASES, Biases
from flopwatch.jobs.layer_parts import LETTERS
from flopwatch.jobs.shape_validation import validate_shape

__all__ = [
    "ARCHITECTURES", "SHAPES", "Activation", "Shape", "find_dimensions", "find_shape",
    "has_own_experts", "has_usual_vocabulary", "is_config_path", "make_opt", "make_shape",
    "require_built",
]  # fmt: skip


Activation = Literal["swiglu", "gelu"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """The dimensions of one model."""

    architecture: str
    """A key of ARCHITECTURES, or any other `model_type` of the library transformers."""
    hidden_size: int
    feed_forward_size: int
    layers: int
    heads: int
    vocabulary: int
    positions: int = 2048
    """The longest text, in tokens."""
    key_value_heads: int | None = None
    """Where several queries share a key and a value (transformers' models only); None: each has its
    own."""
    embedding_size: int | None = None
    """Of token embeddings, where projections lead from there to the hidden size and back (OPT
    only); None: the hidden size itself."""
    norm_first: bool = True
    """False: each norm comes after its layer, and there is none before the LM head (OPT only)."""
    activation: Activation | None = None
    """None: the architecture's own; otherwise ours only."""
    tied: bool | None = None
    """Whether the LM head is the token embedding; None: as the architecture has it."""
    head_dim: int | None = None
    """Of a head's queries and keys; None: the hidden size divided by the heads."""
    window: int | None = None
    """Positions that one sees in layers with a sliding window or chunks."""
    pattern: str | None = None
    """What the layers are, a letter each (`layer_parts.LETTERS`), repeated; None: all have full
    attention, or with a window a sliding one."""
    q_lora_rank: int | None = None
    """Of latent attention, as configurations of DeepSeek call its dimensions; None: queries come
    from the hidden state itself."""
    kv_lora_rank: int | None = None
    """None: attention is not latent."""
    qk_rope_head_dim: int | None = None
    """Of `head_dim`, the rotary part, which is the same for all keys of a token."""
    v_head_dim: int | None = None
    """Of a head's values; None: as wide as its queries."""
    index_topk: int | None = None
    """Of sparse attention, as configurations of DeepSeek call its dimensions: positions that one
    sees, which narrow heads choose; None: attention is not sparse."""
    index_heads: int | None = None
    index_head_dim: int | None = None
    experts: int | None = None
    """Feed-forward parts of a block, of which a router chooses some for each token; None: one for
    all. Of ours, `decoder` has them; gpt with experts is accounted for only."""
    active_experts: int | None = None
    """How many of them a token goes through."""
    expert_size: int | None = None
    """Feed-forward size of each; None: that of the model."""
    shared_expert_size: int | None = None
    """Feed-forward size of what all tokens go through besides, together; None: nothing."""
    dense_layers: int | None = None
    """The first layers, without experts."""
    expert_every: int | None = None
    """Every so many layers there are experts, and none between; None: in all layers."""
    state_size: int | None = None
    """Of a state space, for each number of a head; of linear attention, width of a key."""
    state_heads: int | None = None
    """Of a state space; of linear attention, those of values."""
    state_head_dim: int | None = None
    state_groups: int | None = None
    """Groups of heads with the same input and output matrices; of linear attention, heads of
    keys."""
    conv_size: int | None = None
    """Positions that the convolution before it covers."""
    scan_chunk: int | None = None
    """Positions that are computed together."""
    mtp_layers: int | None = None
    """Modules of multi-token prediction, each of which trains the model to predict one more
    token."""
    biases: Biases | None = None
    """None: as the architecture has them; likewise the norms of a layer."""
    norms: int | None = None
    padded_vocabulary: int | None = None
    """Rows of the embedding and the LM head, where there are more than tokens, for speed; None: as
    many. Accounted for only."""

    @property
    def rows(self) -> int:
        """Of the embedding and the LM head."""
        return self.padded_vocabulary or self.vocabulary

    @property
    def padding(self) -> int:
        """Rows of the LM head that stand for no token."""
        return self.rows - self.vocabulary

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden_size // self.heads

    @property
    def is_tied(self) -> bool:
        own = ARCHITECTURES[self.architecture].is_tied
        return own if self.tied is None else self.tied

    @property
    def is_gated(self) -> bool:
        """Whether a third matrix gates the feed-forward part."""
        own = ARCHITECTURES[self.architecture].feed_forward_matrices == 3
        return own if self.activation is None else self.activation == "swiglu"

    def stretch(self, tokens: int) -> Shape:
        """The same with room for sequences of so many tokens."""
        return self if tokens <= self.positions else replace(self, positions=tokens)

    @property
    def is_ours(self) -> bool:
        known = ARCHITECTURES.get(self.architecture)
        return known is not None and known.is_ours


def make_shape(
    architecture: str,
    hidden_size: int,
    layers: int,
    *,
    vocabulary: int = 10_000,
    heads: int | None = None,
    feed_forward_size: int | None = None,
    **more: Any,
) -> Shape:
    """With the proportions that are usual, where nothing is said: heads of 64, and a feed-forward
    size of four times the hidden size."""
    return Shape(
        architecture=architecture,
        hidden_size=hidden_size,
        feed_forward_size=feed_forward_size or 4 * hidden_size,
        layers=layers,
        heads=heads or max(hidden_size // 64, 1),
        vocabulary=vocabulary,
        **more,
    )


_make_cs336 = partial(make_shape, "decoder", vocabulary=10_000)
_make_gpt = partial(make_shape, "gpt", vocabulary=50257)
make_opt = partial(make_shape, "opt", vocabulary=50272)

SHAPES = {
    "small": _make_cs336(768, 12),
    "medium": _make_cs336(1024, 24),
    "large": _make_cs336(1280, 36),
    "xl": _make_cs336(1600, 48),
    "2.7B": _make_cs336(2560, 32, heads=32),
    "xl-2026": _make_cs336(2560, 32, heads=32),
    "10B": _make_cs336(4608, 50, heads=36, feed_forward_size=12288),
    "gpt-125m": _make_gpt(768, 12),
    "gpt-350m": _make_gpt(1024, 24),
    "gpt-760m": _make_gpt(1536, 24, heads=12),
    "gpt-1b": _make_gpt(2048, 24, heads=16),
    "gpt-3b": _make_gpt(2560, 32, heads=20),
    "gpt-7b": _make_gpt(4096, 32, heads=32),
    "gpt-13b": _make_gpt(5120, 40, heads=40),
    "gpt-30b": _make_gpt(7168, 48, heads=56),
    "gpt-70b": _make_gpt(8192, 80, heads=64),
    "opt-125m": make_opt(768, 12),
    "opt-350m": make_opt(1024, 24, embedding_size=512, norm_first=False),
    **{f"opt-6l-{size}": make_opt(size, 6) for size in (768, 1024, 1536, 2048)},
    "pythia-160m": make_shape("gpt_neox", 768, 12, vocabulary=50304),
    "llama-160m": make_shape("llama", 768, 12, vocabulary=32000),
}


def find_shape(text: str) -> Shape:
    """A model that can be built, by its name, or by its architecture and dimensions.

    >>> find_shape("opt-125m").hidden_size
    768
    >>> find_shape("7b") == find_shape("gpt-7b")
    True
    >>> find_shape("small:layers=4:activation=gelu").layers
    4
    >>> find_shape("qwen2:hidden_size=512:layers=8:key_value_heads=2").heads
    8
    """
    shape = find_dimensions(text)
    require_built(text, shape)
    return shape


def require_built(text: str, shape: Shape) -> None:
    """Refuse what only can be accounted for."""
    usual = _find_usual(shape.architecture)
    if shape.architecture == "decoder":
        usual = {name: getattr(shape, name) for name in OF_EXPERTS}
    odd = [name for name in ACCOUNTED_ONLY if getattr(shape, name) != usual.get(name)]
    if odd or shape.architecture in NEVER_BUILT:
        what = odd[0] if odd else f"a {shape.architecture!r}"
        raise UsageError(
            f"model {text!r}: {what} can be accounted for (flopwatch mfu), but not built; "
            "leave it out, or take an architecture that has it, as decoder and mixtral have experts"
        )


def find_dimensions(text: str) -> Shape:
    """The same, also of models that can only be accounted for.

    >>> find_dimensions("llama:hidden_size=512:layers=8:experts=8:active_experts=2").experts
    8
    """
    name, *settings = text.split(":")
    changes = dict(_parse_setting(text, setting) for setting in settings)
    is_whole = {"hidden_size", "layers"} <= changes.keys()
    known = _find_known(name, is_whole=is_whole)
    if known is not None:
        shape = replace(known, **changes)
    elif is_whole:
        shape = make_shape(name, **{**_find_usual(name), **changes})
    else:
        raise UsageError(f"there is no model {name!r}; {_advise(name)}")
    validate_shape(text, shape)
    return shape


def _find_usual(architecture: str) -> dict[str, Any]:
    """What a configuration of the library transformers has besides dimensions, such as experts."""
    if architecture not in ARCHITECTURES or ARCHITECTURES[architecture].is_ours:
        return {}
    from flopwatch.jobs.model_configs import read_usual

    usual = read_usual(architecture)
    # Heads of latent attention do not follow from the hidden size.
    own = ("head_dim",) if "kv_lora_rank" in usual else ()
    return {name: usual[name] for name in (*ACCOUNTED_ONLY, *own) if name in usual}


def has_own_experts(architecture: str) -> bool:
    """Whether the library transformers builds it with experts."""
    return "experts" in _find_usual(architecture)


def _find_known(name: str, *, is_whole: bool) -> Shape | None:
    """By its name, or by the path of its configuration. Our own names come first: 7b is gpt-7b.
    With `is_whole`, there are dimensions enough for an architecture of that name."""
    own = SHAPES.get(name) or SHAPES.get(f"gpt-{name}")
    if own is not None:
        return own
    if is_config_path(name):
        from flopwatch.jobs.model_configs import read_config_file

        return read_config_file(Path(name))
    if is_whole and name in ARCHITECTURES:
        return None
    from flopwatch.jobs.model_zoo import find_named

    found = find_named(name, exactly=is_whole)
    return None if found is None else found.shape


def is_config_path(model: str) -> bool:
    """Whether it is a file, or a folder that has one, which is written with a slash; and no name.

    >>> is_config_path("mine/config.json"), is_config_path("meta-llama/Meta-Llama-3-8B")
    (True, False)
    """
    name = model.partition(":")[0]
    return name.endswith(".json") or ("/" in name and (Path(name) / "config.json").is_file())


def _advise(name: str) -> str:
    from flopwatch.jobs.model_zoo import suggest

    near = suggest(name, list(SHAPES))
    return (
        (f"did you mean {' or '.join(near)}? " if near else "")
        + "`flopwatch models` lists all names; or give the path of a config.json, or an "
        "architecture with its dimensions, as in llama:hidden_size=512:layers=8:heads=8"
    )


def has_usual_vocabulary(model: str | Shape) -> bool:
    """Whether the vocabulary is that of a named model, and nobody has chosen another.

    >>> has_usual_vocabulary("7b:layers=4"), has_usual_vocabulary("7b:vocabulary=50257")
    (True, False)
    """
    if not isinstance(model, str):
        return False
    name, *settings = model.split(":")
    chosen = {setting.partition("=")[0] for setting in settings}
    is_named = name in SHAPES or f"gpt-{name}" in SHAPES
    return is_named and not chosen & {"vocabulary", "padded_vocabulary"}


KINDS: dict[str, str] = {field.name: str(field.type) for field in fields(Shape)}
SWITCHES = {"true": True, "false": False}
WORDS: dict[str, tuple[str, ...]] = {"activation": get_args(Activation), "biases": BIASES}
MOST_DIGITS = 9
"""Of a dimension: what is counted from them must stay a number."""
BUILT = (
    "architecture", "hidden_size", "feed_forward_size", "layers", "heads", "vocabulary",
    "positions", "key_value_heads", "embedding_size", "norm_first", "activation", "tied", "head_dim"
)  # fmt: skip
ACCOUNTED_ONLY = tuple(name for name in KINDS if name not in BUILT)
OF_EXPERTS = (
    "experts", "active_experts", "expert_size", "shared_expert_size", "dense_layers", "expert_every"
)  # fmt: skip
NEVER_BUILT = ("llama4_text", "mamba2", "nemotron_h", "granitemoehybrid")
"""Whose configurations have other names for what `models.builder` sets."""


def _parse_setting(text: str, setting: str) -> tuple[str, Any]:
    name, _, value = setting.partition("=")
    if name not in KINDS or name == "architecture" or not value:
        known = ", ".join(known for known in KINDS if known != "architecture")
        raise UsageError(f"model {text!r}: {setting!r} is not name=value with a name of {known}")
    if "bool" in KINDS[name] and value in SWITCHES:
        return name, SWITCHES[value]
    if value in WORDS.get(name, ()):
        return name, value
    if name == "pattern" and set(value) <= set(LETTERS):
        return name, value
    if KINDS[name].startswith("int") and value.isdecimal():
        if len(value) > MOST_DIGITS:
            raise UsageError(
                f"a model with {len(value)} digits in its {name} has no use; give at most "
                f"{MOST_DIGITS}"
            )
        if int(value) > 0:
            return name, int(value)
        if KINDS[name] == "int | None":
            return name, None
    raise UsageError(f"model {text!r}: {value!r} cannot be its {name}" + _list_letters(name))


def _list_letters(name: str) -> str:
    if name != "pattern":
        return ""
    letters = ", ".join(f"{letter} ({meaning})" for letter, meaning in LETTERS.items())
    return f"; write a letter for each layer, which are repeated: {letters}"
