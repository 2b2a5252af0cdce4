"""Models by name as a table: what each of them consists of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flopwatch.jobs.layer_parts import Layer, list_layers
from flopwatch.jobs.model_shapes import SHAPES, Shape
from flopwatch.jobs.model_zoo import contains_words, load_zoo, split_name
from flopwatch.jobs.parameters import count_parameters
from flopwatch.output.tables import Column, Sheet, number
from flopwatch.output.units import format_count, plural

OURS = {
    "decoder": ("CS336", "the language-modelling course CS336, handouts of 2025 and 2026"),
    "gpt": ("MosaicGPT", "mosaicml/examples, llm/throughput"),
    "opt": ("OPT", "Zhang et al. 2022 (arXiv:2205.01068); opt-6l-*: 6 of its layers"),
    "gpt_neox": ("Pythia", "Biderman et al. 2023 (arXiv:2304.01373)"),
    "llama": ("Llama", "of the size of GPT-2"),
}
"""Family and source of the names that are measured, by architecture."""
CONDITIONS = (
    "active: parameters that a token goes through; attention: heads of queries / of keys and "
    "values x width of a head, MLA with the width of values behind it; context: tokens of the "
    "longest sequence that it was made for"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedModel:
    name: str
    family: str
    source: str
    also: tuple[str, ...]
    shape: Shape
    published: float | None

    @property
    def parameters(self) -> int:
        return count_parameters(self.shape)

    @property
    def active_parameters(self) -> int:
        return count_parameters(self.shape, active=True)


def list_models(words: Sequence[str] = ()) -> list[ListedModel]:
    """Those with these words, one after the other, in their name, another one or their family; a
    single word without a number may be a part of one."""
    own = [
        ListedModel(
            name=name,
            family=OURS[shape.architecture][0],
            source=OURS[shape.architecture][1],
            also=(name.removeprefix("gpt-"),) if name.startswith("gpt-") else (),
            shape=shape,
            published=None,
        )
        for name, shape in SHAPES.items()
    ]
    named = [
        ListedModel(
            name=model.name,
            family=model.family,
            source=model.source,
            also=model.also,
            shape=model.shape,
            published=model.published,
        )
        for model in load_zoo().values()
    ]
    return [model for model in [*own, *named] if not words or _has(model, words)]


def _has(model: ListedModel, words: Sequence[str]) -> bool:
    texts = (model.name, model.family, *model.also)
    wanted = split_name(" ".join(words))
    if len(wanted) == 1 and not any(letter.isdigit() for letter in wanted[0]):
        return any(wanted[0] in text.lower() for text in texts)
    return any(contains_words(split_name(text), wanted) for text in texts)


def models_as_dict(models: Sequence[ListedModel]) -> list[dict[str, Any]]:
    """For ``--json``."""
    return [
        {
            "name": model.name,
            "also": list(model.also),
            "family": model.family,
            "source": model.source,
            "architecture": model.shape.architecture,
            "parameters": model.parameters,
            "active_parameters": model.active_parameters,
            "published_parameters": model.published,
            "layers": model.shape.layers,
            "hidden_size": model.shape.hidden_size,
            "attention": describe_attention(model.shape),
            "other_layers": describe_other_layers(model.shape),
            "feed_forward": describe_feed_forward(model.shape),
            "vocabulary": model.shape.vocabulary,
            "positions": model.shape.positions,
        }
        for model in models
    ]


def list_model_sheets(models: Sequence[ListedModel]) -> list[Sheet]:
    """A group for each family; with one family, its source is said."""
    families = list(dict.fromkeys(model.family for model in models))
    columns: list[Column[ListedModel]] = [
        Column("model", lambda model: model.name, "word"),
        Column("parameters", lambda model: _format_parameters(model.parameters)),
        Column("active", _describe_active),
        number("layers", "integer", lambda model: model.shape.layers),
        number("hidden size", "integer", lambda model: model.shape.hidden_size),
        Column("attention", lambda model: describe_attention(model.shape), "word"),
        # Kinds say what a narrow terminal leaves out first.
        Column("other layers", lambda m: describe_other_layers(m.shape), "fact", has_words=True),
        Column("feed-forward", lambda m: describe_feed_forward(m.shape), "detail", has_words=True),
        number("vocabulary", "integer", lambda model: model.shape.vocabulary, "rate"),
        number("context", "integer", lambda model: model.shape.positions),
    ]
    sources = dict.fromkeys(model.source for model in models)
    return [
        Sheet(
            columns=[c for c in columns if any(map(c.cell, models))],
            items=[[model for model in models if model.family == family] for family in families],
            conditions=CONDITIONS,
            remarks=[f"from {source}" for source in sources] if len(families) == 1 else [],
        )
    ]


def _describe_active(model: ListedModel) -> str:
    return _format_parameters(model.active_parameters) if model.shape.experts else ""


def _format_parameters(count: int) -> str:
    """As models are named: 8.03B."""
    return format_count(float(f"{count:.3g}")).replace("G", "B")


def describe_attention(shape: Shape) -> str:
    """
    >>> from flopwatch.jobs.model_shapes import find_dimensions
    >>> describe_attention(find_dimensions("llama-3-8b"))
    'GQA 32/8 x 128'
    >>> describe_attention(find_dimensions("deepseek-v3"))
    'MLA 128 x 192/128'
    """
    found = next((layer.attention for layer in list_layers(shape) if layer.attention), None)
    if found is None:
        return ""
    if shape.kv_lora_rank:
        return f"MLA {found.heads} x {found.key_dim}/{found.value_dim}"
    if found.key_value_heads == found.heads:
        return f"MHA {found.heads} x {found.key_dim}"
    kind = "MQA" if found.key_value_heads == 1 else "GQA"
    return f"{kind} {found.heads}/{found.key_value_heads} x {found.key_dim}"


def describe_other_layers(shape: Shape) -> str:
    """Than those with full attention.

    >>> from flopwatch.jobs.model_shapes import find_dimensions
    >>> describe_other_layers(find_dimensions("gemma-3-4b"))
    '29 window 1,024'
    >>> describe_other_layers(find_dimensions("nemotron-h-8b"))
    '24 Mamba 2, 24 feed-forward'
    """
    kinds: Counter[str] = Counter()
    for layer in list_layers(shape):
        kinds[_name_layer(layer)] += layer.count
    return ", ".join(f"{count} {name}" for name, count in kinds.items() if name)


def _name_layer(layer: Layer) -> str:
    attention, letter = layer.attention, layer.kind[0]
    if attention is not None:
        word = "chunks of" if attention.is_chunked else "window"
        word = "sparse" if attention.index_width else word
        return "" if attention.window is None else f"{word} {attention.window:,}"
    names = {"m": "Mamba 2", "l": "linear attention", "d": "feed-forward", "e": "experts"}
    return names[letter]


def describe_feed_forward(shape: Shape) -> str:
    """
    >>> from flopwatch.jobs.model_shapes import find_dimensions
    >>> describe_feed_forward(find_dimensions("deepseek-v3"))
    '8 of 256 x 2,048, shared 2,048; 3 layers 18,432'
    """
    if shape.experts is None:
        return f"{shape.feed_forward_size:,}" if shape.feed_forward_size else ""
    size = shape.expert_size or shape.feed_forward_size
    text = f"{shape.active_experts} of {shape.experts} x {size:,}"
    if shape.shared_expert_size:
        text += f", shared {shape.shared_expert_size:,}"
    dense = sum(layer.count for layer in list_layers(shape) if layer.kind[1:] == "d")
    return text + (f"; {plural(dense, 'layer')} {shape.feed_forward_size:,}" if dense else "")
