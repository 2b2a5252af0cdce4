"""Configurations of Hugging Face are counted as their models are built: all names of the zoo, on
the meta device."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from flopwatch.errors import UsageError
from flopwatch.jobs.architectures import ARCHITECTURES
from flopwatch.jobs.layer_parts import list_kinds
from flopwatch.jobs.model_configs import READERS, read_config, read_defaults
from flopwatch.jobs.model_shapes import SHAPES, Shape, find_shape
from flopwatch.jobs.model_zoo import load_zoo
from flopwatch.jobs.parameters import count_parameters
from flopwatch.models.builder import build_from_transformers

ZOO = load_zoo()


def make_config(content: dict[str, Any], layers: int | None = None) -> PreTrainedConfig:
    """By their library; with so many of its layers."""
    config = AutoConfig.for_model(**content)
    if layers is None:
        return config
    types = content.get("layer_types")
    pattern = content.get("hybrid_override_pattern")
    fewer = {
        **content,
        **({"layer_types": types[:layers]} if types else {}),
        **({"hybrid_override_pattern": pattern[:layers]} if pattern else {}),
        **({} if pattern else {find_name(config): layers}),
    }
    return AutoConfig.for_model(**fewer)


def find_name(config: PreTrainedConfig) -> str:
    return next(n for n in ("n_layer", "n_layers", "num_hidden_layers") if n in config.to_dict())


def count_built(config: PreTrainedConfig) -> int:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


def find_depth(shape: Shape) -> int:
    """Layers until there is one of each kind."""
    kinds = list_kinds(shape)
    return 1 + max(kinds.index(kind) for kind in set(kinds))


@pytest.mark.parametrize("name", ZOO)
def test_parameters_of_every_name_are_exact(name: str) -> None:
    """With its first layers, so that there is one of each kind, and one more."""
    model = ZOO[name]
    depth = find_depth(model.shape)
    for layers in (depth, depth + 1):
        built = count_built(make_config(dict(model.config), layers))
        assert count_parameters(replace(model.shape, layers=layers)) == built


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_parameters_of_all_layers_are_exact(name: str) -> None:
    model = ZOO[name]
    assert count_parameters(model.shape) == count_built(make_config(dict(model.config)))


@pytest.mark.parametrize("name", ZOO)
def test_a_config_file_gives_the_same_shape(name: str) -> None:
    """As the library writes it: in full, and without what is the default of its class."""
    model = ZOO[name]
    config = make_config(dict(model.config))
    # A layer's kind is written out there, and its period is found again.
    for is_diff in (True, False):
        written = json.loads(config.to_json_string(use_diff=is_diff))
        read = read_config(written)
        assert count_parameters(read) == count_parameters(model.shape)
        assert list_kinds(read) == list_kinds(model.shape)
        assert replace(read, positions=1, pattern=None) == replace(
            model.shape, positions=1, pattern=None
        )


@pytest.mark.parametrize("kind", READERS)
def test_defaults_are_those_of_the_library(kind: str) -> None:
    written = CONFIG_MAPPING[kind]()
    for name, value in read_defaults()[kind].items():
        follows = value in (None, "auto") or name == "sliding_window"  # from other settings
        if not follows or getattr(written, name):
            assert value in (getattr(written, name), None, "auto"), name


def test_every_reader_has_an_architecture() -> None:
    assert set(READERS) == {name for name, known in ARCHITECTURES.items() if not known.is_ours}
    assert {model.shape.architecture for model in ZOO.values()} == set(READERS)


def test_whether_a_head_is_tied_is_as_in_the_library() -> None:
    for kind in READERS:
        assert CONFIG_MAPPING[kind]().tie_word_embeddings == ARCHITECTURES[kind].is_tied, kind


@pytest.mark.parametrize("name", [*ZOO, *(n for n, s in SHAPES.items() if not s.is_ours)])
def test_what_can_be_built_is_built_as_it_is_counted(name: str) -> None:
    """Or is refused."""
    try:
        shape = replace(find_shape(name), layers=2)
        model = build_from_transformers(shape, device="meta")
    except UsageError:
        return
    assert count_parameters(shape) == sum(p.numel() for p in model.parameters())


def test_of_a_model_for_images_the_text_part_is_read() -> None:
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
            "sliding_window": 1024}  # fmt: skip
    gemma = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 1152}}
    assert read_config(gemma) == ZOO["gemma-3-4b"].shape
    llama = {"model_type": "llama4", "text_config": {"model_type": "llama4_text"}}
    assert read_config(llama).experts == 16


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"model_type": "bert"}, "has the model_type 'bert', whose layers are not counted; those "),
        ({}, "has the model_type 'None'"),
        (
            {"model_type": "qwen3_moe", "mlp_only_layers": [0]},
            "is a 'qwen3_moe' that cannot be counted: mlp_only_layers=[0] is not counted; describe",
        ),
        ({"model_type": "llama", "hidden_size": "wide"}, "cannot be counted: "),
        ({"model_type": "llama", "hidden_size": -1}, "hidden_size is '-1'"),
        ({"model_type": "llama", "hidden_size": 4097}, "cannot share a hidden size of 4097"),
        ({"model_type": "olmo3", "layer_types": ["what"]}, "of the type 'what' are not counted"),
        ({"model_type": "deepseek_v3", "attention_bias": True}, "biases of latent attention are"),
        ({"model_type": "llama4_text", "moe_layers": [3]}, "experts in the layers [3] are not"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M?"}, "with the letters M, "),
        ({"model_type": "nemotron_h"}, "hybrid_override_pattern"),
    ],
)
def test_what_is_not_covered_is_refused_in_one_sentence(
    content: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read_config(content, "config.json")
    assert str(caught.value).startswith(("config.json", "model 'config.json'"))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_biases_are_read() -> None:
    small = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4,
             "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 64}  # fmt: skip
    for biases in ({}, {"attention_bias": True}, {"mlp_bias": True},
                   {"attention_bias": True, "mlp_bias": True}):  # fmt: skip
        content = {**small, **biases}
        assert count_parameters(read_config(content)) == count_built(make_config(content))
