"""Models of either origin, ours or the library transformers', behind one face.

Both are called alike, ``model(input_ids=ids, labels=ids).loss``; what differs is how they are made
and how they compute the same thing in another way.

Models of the library transformers, built from their dimensions: no weights, no network.

What is timed and compared must be the same every time, so that every dropout is 0, and nothing is
kept for generating text. Weights are random, drawn from torch's current seed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from torch import nn
from torch.utils import swap_tensors

from flopwatch.devices.kinds import HOST
from flopwatch.errors import FlopwatchError, UsageError
from flopwatch.jobs.model_shapes import Shape, find_shape, require_built
from flopwatch.jobs.training_job import Attention, Recompute
from flopwatch.models import transformer
from flopwatch.models.feed_forward import Mixing
from flopwatch.models.initialisation import empty_matrices
from flopwatch.models.transformer import Transformer

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

HUGGING_FACE_NAMES = {"sdpa": "sdpa", "plain": "eager"}


def build(shape: Shape, *, device: str = HOST, dtype: str = "float32") -> nn.Module:
    """In training mode, with random weights from torch's current seed."""
    maker = transformer.build if shape.is_ours else build_from_transformers
    return maker(shape, device=device, dtype=dtype)


def choose_attention(model: Any, kind: Attention) -> None:
    if isinstance(model, Transformer):
        model.choose_attention(kind)
    elif model.config._attn_implementation != HUGGING_FACE_NAMES[kind] and model._supports_sdpa:
        model.set_attn_implementation(HUGGING_FACE_NAMES[kind])


def choose_mixing(model: Any, mixing: Mixing) -> None:
    """How experts are computed, where it is a model of ours."""
    if isinstance(model, Transformer):
        model.choose_mixing(mixing)


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


def put_on(device: str, model: nn.Module, left: Sequence[nn.Module] = ()) -> None:
    """Move a model, but for the parts that are left where they are.

    Its parameters stay the same objects: for the device of another package ``model.to`` makes new
    ones, which unties those that two modules share, and ``fully_shard`` cannot move them at all.
    """
    for part in _list_parts(model, {id(module) for module in left}):
        for parameter in part.parameters(recurse=False):
            if parameter.device.type != device:
                moved = nn.Parameter(parameter.detach().to(device), parameter.requires_grad)
                swap_tensors(parameter, moved)
        for name, buffer in part.named_buffers(recurse=False):
            setattr(part, name, buffer.to(device))


def _list_parts(module: nn.Module, left: Collection[int]) -> Iterator[nn.Module]:
    if id(module) not in left:
        yield module
        for child in module.children():
            yield from _list_parts(child, left)


def find_attention(model: Any) -> Attention:
    """The kind that is in force."""
    if isinstance(model, Transformer):
        kind: Attention = model.blocks[0].attention.kind  # type: ignore[union-attr,assignment]
        return kind
    return "sdpa" if model.config._attn_implementation == "sdpa" else "plain"


Implementation = Literal["sdpa", "eager"]
"""sdpa: torch's fused attention; eager: as separate matmuls and softmax."""


def build_from_transformers(
    model: str | Shape,
    *,
    device: str = HOST,
    dtype: str = "float32",
    attention: Implementation = "sdpa",
) -> PreTrainedModel:
    """A model by name or shape, in training mode, called as in
    ``build("opt-125m")(input_ids=ids, labels=ids).loss``.

    The same seed gives the same weights in every dtype, but for rounding.
    """
    transformers = _import_transformers()
    import torch

    shape = find_shape(model) if isinstance(model, str) else model
    require_built(shape.architecture, shape)
    with torch.device(device), _single_initialisation(), explained(shape):
        make = partial(transformers.AutoModelForCausalLM.from_config, make_config(shape))
        try:
            built: PreTrainedModel = make(attn_implementation=attention)
        except ValueError as error:
            if "attention implementation" not in str(error):
                raise
            built = make(attn_implementation="eager")  # the one that all have
    # Parameters only: rotary positions need their frequencies in full precision.
    for parameter in built.parameters():
        parameter.data = parameter.data.to(getattr(torch, dtype))
    return built.train()


def build_empty(shape: Shape, dtype: str, layers: range | None = None) -> nn.Module:
    """Of either origin, with no memory for its matrices; one of the library transformers still in
    float32, which its weights are drawn in. With `layers`, a stage of one of ours."""
    if shape.is_ours:
        return transformer.build(shape, device="meta", dtype=dtype, layers=layers)
    with empty_matrices():
        return build_from_transformers(shape)


def list_initialisers(model: nn.Module) -> dict[nn.Module, Callable[[nn.Module], object]]:
    """Of a model of the library transformers: what draws the weights of each of its modules. A
    model inside of it may have rules of its own."""
    found: dict[nn.Module, Callable[[nn.Module], object]] = {}
    for module in model.modules():  # outer ones first
        if (rules := getattr(module, "_init_weights", None)) is not None:
            found.update(dict.fromkeys(module.modules(), rules))
    return found


@contextmanager
def explained(shape: Shape) -> Iterator[None]:
    """The library's many ways to refuse dimensions, as one sentence."""
    try:
        yield
    except (FlopwatchError, MemoryError):
        raise
    except Exception as error:
        if "allocate memory" in str(error) or type(error).__name__ == "OutOfMemoryError":
            raise
        raise UsageError(
            f"the library transformers cannot make a {shape.architecture!r} of these dimensions "
            f"({type(error).__name__}: {' '.join(str(error).split())[:200]}); try others, or "
            "another architecture"
        ) from None


def make_config(shape: Shape) -> PreTrainedConfig:
    """Any architecture's: what a dimension is called there is looked up in its configuration."""
    plain = find_config_class(shape.architecture)()
    known = {*plain.to_dict(), *type(plain).attribute_map}
    if "decoder_layers" in known:
        raise UsageError(
            f"{shape.architecture!r} has an encoder too, with dimensions of its own; take a "
            "language model that has a decoder only"
        )
    options: dict[str, Any] = {"use_cache": False}
    for aliases, value in _list_dimensions(shape):
        name = next((alias for alias in aliases if alias in known), None)
        if name is not None:
            options[name] = value
        elif value not in (None, _find_implied(aliases, shape)):
            raise UsageError(
                f"the architecture {shape.architecture!r} has no {aliases[0]} to be set to {value}"
            )
    for name, value in plain.to_dict().items():
        if isinstance(value, float) and "drop" in name:
            options[name] = 0.0
        elif name.endswith("_token_id") and isinstance(value, int) and value >= shape.vocabulary:
            options[name] = 0  # a special token of the published vocabulary, outside of this one
    options |= OPTIONS.get(shape.architecture, lambda shape: {})(shape)
    config: PreTrainedConfig = type(plain)(**options)
    return config


def find_config_class(architecture: str) -> Any:
    """Of the library's configurations; refuses what is none of its causal language models."""
    transformers = _import_transformers()
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as KNOWN

    if architecture not in KNOWN:
        raise UsageError(
            f"there is no architecture {architecture!r}; take decoder or gpt, or a causal language "
            "model of the library transformers, such as llama, opt, gpt_neox, gpt2 or qwen2"
        )
    return transformers.models.auto.configuration_auto.CONFIG_MAPPING[architecture]


def _list_dimensions(shape: Shape) -> list[tuple[tuple[str, ...], Any]]:
    """What configurations call each dimension, and its value."""
    return [
        (("hidden_size", "d_model"), shape.hidden_size),
        (("num_hidden_layers", "n_layers"), shape.layers),
        (("num_attention_heads", "n_heads"), shape.heads),
        (("vocab_size",), shape.vocabulary),
        (("max_position_embeddings", "max_seq_len"), shape.positions),
        (FEED_FORWARD_NAMES, shape.feed_forward_size),
        (("num_key_value_heads",), shape.key_value_heads or shape.heads),
        (("head_dim",), shape.head_size),
        *([] if shape.tied is None else [(("tie_word_embeddings",), shape.tied)]),
    ]


FEED_FORWARD_NAMES = (
    "intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "dff", "dim_ff"
)  # fmt: skip


def _find_implied(aliases: Sequence[str], shape: Shape) -> Any:
    """The value that an architecture without such a setting has by itself."""
    implied = {
        FEED_FORWARD_NAMES: 4 * shape.hidden_size,
        ("num_key_value_heads",): shape.heads,
        ("head_dim",): shape.hidden_size // shape.heads,
        ("max_position_embeddings", "max_seq_len"): shape.positions,  # without a limit
    }
    return implied.get(tuple(aliases))


def _opt_options(shape: Shape) -> dict[str, Any]:
    return {
        "word_embed_proj_dim": shape.embedding_size or shape.hidden_size,
        "do_layer_norm_before": shape.norm_first,
        "activation_function": "relu",
    }


OPTIONS: dict[str, Callable[[Shape], dict[str, Any]]] = {
    "opt": _opt_options,
    "gpt_neox": lambda shape: {"rotary_pct": 0.25, "use_parallel_residual": True},
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
