"""Models by name: their spellings, what a part of a name stands for, and what was published."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flopwatch.errors import UsageError
from flopwatch.jobs.layer_parts import list_kinds, list_layers
from flopwatch.jobs.model_shapes import SHAPES, find_dimensions
from flopwatch.jobs.model_zoo import load_zoo
from flopwatch.jobs.parameters import count_parameters
from flopwatch.jobs.training_job import TrainingJob, read_job

ZOO = load_zoo()
FAMILIES = """
    llama-2- llama-3- llama-3.1- llama-3.2- llama-3.3- llama-4- qwen-2.5- qwen-3- mistral- mixtral-
    deepseek-v2 deepseek-v3 gpt-oss- gemma-2- gemma-3- olmo-2- phi-3 phi-4 nemotron-4- nemotron-h-
    falcon- granite-3- gpt-3- bloom- megatron- mamba2- mpt- pythia- opt- gpt2
"""


def test_all_families_are_there() -> None:
    assert len(ZOO) >= 150
    for family in FAMILIES.split():
        assert any(name.startswith(family) for name in ZOO), family


@pytest.mark.parametrize("name", ZOO)
def test_parameters_are_those_published(name: str) -> None:
    """As far as those are rounded, or have a vision part that is not counted here."""
    model = ZOO[name]
    assert count_parameters(model.shape) == pytest.approx(model.published, rel=0.03)
    assert model.source
    assert model.shape == find_dimensions(name)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama-2-70b", 68_976_648_192),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3.1-405b", 405_853_388_800),
        ("llama-3.2-1b", 1_235_814_400),
        ("qwen-2.5-7b", 7_615_616_512),
        ("qwen-3-0.6b", 596_049_920),
        ("qwen-3-30b-a3b", 30_532_122_624),
        ("mixtral-8x7b", 46_702_792_704),
        ("gpt-oss-20b", 20_914_757_184),
        ("gemma-2-2b", 2_614_341_888),
        ("gemma-3-1b", 999_885_952),
        ("phi-4", 14_659_507_200),
        ("bloom-176b", 176_247_271_424),
        ("pythia-12b", 11_846_072_320),
        ("gpt2-xl", 1_557_611_200),
    ],
)
def test_exact_counts_of_the_checkpoints(name: str, parameters: int) -> None:
    assert count_parameters(ZOO[name].shape) == parameters


@pytest.mark.parametrize(
    ("name", "active"),
    [
        ("mixtral-8x7b", 12.9e9),
        ("deepseek-v3", 37e9),
        ("deepseek-v2", 21e9),
        ("qwen-3-235b-a22b", 22e9),
        ("gpt-oss-120b", 5.7e9),
        ("llama-4-maverick", 17e9),
        ("kimi-k2", 32e9),
        ("nemotron-3-nano-30b-a3b", 3.6e9),
    ],
)
def test_active_parameters_are_those_published(name: str, active: float) -> None:
    assert count_parameters(ZOO[name].shape, active=True) == pytest.approx(active, rel=0.03)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("llama3-8b", "llama-3-8b"),
        ("Llama-3-8B", "llama-3-8b"),
        ("meta-llama/Meta-Llama-3-8B", "llama-3-8b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Llama-2-70b-chat-hf", "llama-2-70b"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama-4-scout"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen-2.5-7b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen-3-30b-a3b"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-v3"),
        ("openai/gpt-oss-20b", "gpt-oss-20b"),
        ("google/gemma-3-4b-it", "gemma-3-4b"),
        ("allenai/OLMo-2-1124-7B", "olmo-2-7b"),
        ("microsoft/Phi-3-mini-4k-instruct", "phi-3-mini"),
        ("nvidia/Nemotron-H-8B-Base-8K", "nemotron-h-8b"),
        ("EleutherAI/pythia-1b-deduped", "pythia-1b"),
        ("openai-community/gpt2-xl", "gpt2-xl"),
        ("gpt3-175b", "gpt-3-175b"),
        ("bloom", "bloom-176b"),
        ("deepseekv3", "deepseek-v3"),
        ("llama33b", "llama-30b"),
        ("llama-3-3b", "llama-3.2-3b"),
        ("405b", "llama-3.1-405b"),
        ("scout", "llama-4-scout"),
        ("8x22b", "mixtral-8x22b"),
        ("qwen3-235b", "qwen-3-235b-a22b"),
    ],
)
def test_a_name_may_be_spelled_in_many_ways(spelling: str, name: str) -> None:
    assert find_dimensions(spelling) == ZOO[name].shape
    assert find_dimensions(f"{spelling}:layers=4").layers == 4


def test_spellings_are_unambiguous_and_hide_no_name_of_ours() -> None:
    spellings = [spelling for model in ZOO.values() for spelling in (model.name, *model.also)]
    assert Counter(spellings).most_common(1)[0][1] == 1
    assert not set(spellings) & set(SHAPES)
    for model in ZOO.values():
        for spelling in model.also:
            assert find_dimensions(spelling) == model.shape, spelling
    # Sizes alone have been MosaicGPT's from the beginning.
    assert find_dimensions("7b") == SHAPES["gpt-7b"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("8b", "there is no model '8b' alone; llama-3-8b, llama-3.1-8b, qwen-3-8b, "),
        ("mixtral", "mixtral-8x7b, mixtral-8x22b have that in their names: choose one"),
        ("llama", "llama-3-8b and "),
        ("lama3-8b", "there is no model 'lama3-8b'; did you mean llama-3-8b or "),
        ("qwen-3-9b", "did you mean qwen-3-"),
        ("nothing-like-it", "there is no model 'nothing-like-it'; `flopwatch models` lists all "),
        ("llama-3-8b:pattern=sx", "write a letter for each layer, which are repeated: f (full"),
        ("llama-3-8b:pattern=sf", "its pattern needs window; give them, too"),
        ("llama-3-8b:pattern=fm", "its pattern needs state_size, state_heads, "),
        ("llama-3-8b:kv_lora_rank=512", "latent attention needs head_dim, qk_rope_head_dim, "),
        ("llama-3-8b:shared_expert_size=512", "shared_expert_size is of a model with experts"),
        ("llama-3-8b:heads=48", "48 heads cannot share a hidden size of 4096; choose heads that"),
        (
            "mixtral-8x7b:expert_every=1001",
            "its layers repeat after more than 1000; give",
        ),
        ("small:head_dim=128", "decoder has no head_dim; llama has"),
    ],
)
def test_what_is_no_model_gets_one_sentence(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_dimensions(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_dimensions_by_hand() -> None:
    shape = find_dimensions(
        "llama:hidden_size=512:layers=8:head_dim=128:key_value_heads=2:window=64:pattern=sf"
        ":experts=8:active_experts=2:expert_size=256:shared_expert_size=256:dense_layers=2"
        ":expert_every=2"
    )
    assert list_kinds(shape) == ("sd", "fd", "sd", "fe", "sd", "fe", "sd", "fe")
    kinds = {layer.kind: layer for layer in list_layers(shape)}
    attention = kinds["fe"].attention
    assert attention is not None
    assert (attention.key_width, attention.key_value_heads, attention.window) == (1024, 2, None)
    assert {each.copies for each in kinds["fe"].linears} == {1, 8}
    assert sum(layer.count for layer in kinds.values()) == 8


@given(
    layers=st.integers(1, 40),
    pattern=st.text("fsc", min_size=1, max_size=5),
    dense=st.integers(0, 50),
    every=st.integers(1, 6),
)
def test_kinds_are_counted_as_they_are_listed(
    layers: int, pattern: str, dense: int, every: int
) -> None:
    shape = replace(
        ZOO["mixtral-8x7b"].shape, layers=layers, pattern=pattern, window=8, dense_layers=dense,
        expert_every=every,
    )  # fmt: skip
    counted = {layer.kind: layer.count for layer in list_layers(shape)}
    assert counted == Counter(list_kinds(shape))
    assert list(counted) == list(dict.fromkeys(list_kinds(shape)))


def test_a_billion_layers_are_counted_at_once() -> None:
    (layer,) = list_layers(find_dimensions("llama-3-8b:layers=999999999"))
    assert layer.count == 999_999_999


def test_layers_differ_as_their_models_say() -> None:
    def count(name: str) -> dict[str, int]:
        return dict(Counter(list_kinds(ZOO[name].shape)))

    assert count("deepseek-v3") == {"fd": 3, "fe": 58}
    assert count("llama-4-scout") == {"ce": 36, "fe": 12}
    assert count("llama-4-maverick") == {"cd": 24, "ce": 12, "fe": 12}
    assert count("gpt-oss-20b") == {"se": 12, "fe": 12}
    assert count("gemma-3-27b") == {"sd": 52, "fd": 10}
    assert count("nemotron-h-8b") == {"m": 24, "d": 24, "f": 4}
    assert count("nemotron-3-nano-30b-a3b") == {"m": 23, "e": 23, "f": 6}
    assert count("qwen-3-next-80b-a3b") == {"le": 36, "fe": 12}
    assert count("granite-4-h-tiny") == {"me": 36, "fe": 4}
    assert count("mamba2-2.7b") == {"m": 64}


def test_multi_token_prediction_is_trained_where_it_is_asked_for() -> None:
    """The 14B that DeepSeek's checkpoint has beyond 671B are a copy of embedding and head, too."""
    plain, more = (
        count_parameters(find_dimensions(f"deepseek-v3{text}")) for text in ("", ":mtp_layers=1")
    )
    copies = 2 * 129_280 * 7168
    assert more - plain + copies == pytest.approx(13.5e9, rel=0.01)


def test_a_job_with_a_shape_of_any_kind_survives_json() -> None:
    for name in ("deepseek-v3", "gemma-3-4b", "nemotron-h-8b", "qwen-3-next-80b-a3b"):
        job = TrainingJob(ZOO[name].shape, 4096)
        assert read_job(json.loads(json.dumps(job.to_dict()))) == job


def test_a_configuration_is_read_anew_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "config.json"

    def write(**more: Any) -> None:
        path.write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 2, **more}))

    write()
    assert TrainingJob(str(path), 128).shape.layers == 2
    write(num_hidden_layers=3)
    assert TrainingJob(str(path), 128).shape.layers == 3
    assert TrainingJob(f"{tmp_path}:layers=4", 128).shape.layers == 4
    path.write_text("{")
    with pytest.raises(UsageError, match="is no JSON; give a config.json of Hugging Face$"):
        TrainingJob(str(path), 128)
    path.write_text("[]")
    with pytest.raises(UsageError, match="is no configuration of a model"):
        TrainingJob(str(path), 128)
    with pytest.raises(UsageError, match=r"mine.json cannot be read \(No such file"):
        TrainingJob("mine.json", 128)
