"""One count of parameters, whoever asks: memory, predictions, plans, utilisation and FLOPs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from flopwatch import api
from flopwatch.cli.main import cli
from flopwatch.jobs.activation_memory import Sizes, list_weights, make_block
from flopwatch.jobs.flops import OPTIMIZER_FLOPS, count_micro_batch_flops
from flopwatch.jobs.parallelism import Parallelism, Sharding
from flopwatch.jobs.parameters import count_parameters, count_weights
from flopwatch.jobs.rank_memory import estimate_rank_memory
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.models.job_estimates import count_swapped_flops, estimate_step
from flopwatch.prediction.predictions import pad_as_published
from flopwatch.prediction.software_stacks import find_stack

EXPERTS = ":experts=8:active_experts=2"
MIXTRAL = (
    "llama:hidden_size=4096:layers=32:heads=32:key_value_heads=8:feed_forward_size=14336"
    f":vocabulary=32000{EXPERTS}"
)
MODELS = [
    "small",
    "gpt-125m:padded_vocabulary=50304",
    f"gpt-125m{EXPERTS}",
    f"small{EXPERTS}",
    "opt-125m",
    "opt-125m:padded_vocabulary=50304",
    "pythia-160m",
    "llama-160m",
    f"llama-160m{EXPERTS}:padded_vocabulary=32064",
    f"opt-350m{EXPERTS}",
    f"pythia-160m{EXPERTS}",
]
HARDWARE = "8xB200"


def ask(*words: str) -> Any:
    result = CliRunner().invoke(cli, [*words, "--json"])
    assert result.exit_code == 0, (result.stderr, result.exception)
    return json.loads(result.stdout)


# Plans of models that are built by transformers take seconds: one of them stands for the others.
@pytest.mark.parametrize(
    "model",
    [*MODELS[:5], *(pytest.param(model, marks=pytest.mark.slow) for model in MODELS[5:])],
)
def test_every_command_has_the_same_parameters(model: str) -> None:
    # Predictions pad a named model's vocabulary where the published jobs did.
    padded = pad_as_published(TrainingJob(model, 128), find_stack("llm-foundry-2023-late"))
    assert isinstance(padded.model, str)
    model, count = padded.model, count_parameters(padded.shape)
    given = ["--model", model, "--seq-len", "128", "--hardware", HARDWARE]
    assert ask("mfu", *given, "--tokens-per-s", "1000")["parameters"] == count
    assert ask("predict", *given, "--micro-batch", "1")[0]["parameters"] == count
    (memory,) = ask("memory", *given, "--micro-batch", "1", "--sharding", "ddp")
    assert memory["step"]["parameters"] == count
    assert memory["parts"]["parameters"] == 4 * count
    plan = ask("plan", *given, "--global-batch-tokens", "2048")
    assert plan["best"][0]["parameters"] == count
    assert plan["tokens"] == 20 * count
    job = TrainingJob(model, 128)
    assert api.flops(job).parameters == job.parameters == count
    updates = count_micro_batch_flops(job)["optimizer"]
    assert sum(updates.values()) == OPTIMIZER_FLOPS["adamw"] * count


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("sharding", ["none", "ddp", "zero2", "full", "hybrid"])
def test_ranks_hold_all_parameters_together(model: str, sharding: Sharding) -> None:
    """Each of them has as many as its share is, whatever a token goes through."""
    job = TrainingJob(
        model,
        128,
        precision="bf16-mixed",
        parallelism=Parallelism(data=8, sharding=sharding, ranks_per_node=4),
    )
    shards = {"none": 1, "ddp": 1, "zero2": 8, "full": 8, "hybrid": 4}[sharding]
    parts = estimate_rank_memory(job, estimate=estimate_step)
    assert parts["parameters"] == count_parameters(job.shape) * 4 // shards
    assert parts["optimizer state"] == 2 * parts["parameters"]
    if sharding == "ddp":
        assert parts["buckets"] == parts["parameters"]
    if sharding == "zero2":  # all blocks stay gathered, in 16 bits
        assert parts["gathered parameters"] == 2 * job.parameters


@pytest.mark.parametrize("given", [{"sharding": "zero1"}, {"expert": 4, "sharding": "ddp"}])
def test_what_is_divided_holds_less(given: dict[str, Any]) -> None:
    job = TrainingJob(f"small{EXPERTS}", 128, parallelism=Parallelism(data=8, **given))
    whole = replace(job, parallelism=Parallelism(data=8, sharding="ddp"))
    memories = [
        (api.memory(each, HARDWARE), api.predict(each, HARDWARE).memory) for each in (job, whole)
    ]
    for less, more in zip(*memories, strict=True):
        assert less.parts["optimizer state"] < more.parts["optimizer state"] / 1.5


def test_experts_that_do_not_fit_are_not_said_to() -> None:
    """Mixtral 8x7B: with AdamW in float32, each rank of DDP has 16 bytes for each parameter."""
    job = TrainingJob(MIXTRAL, 2048, parallelism=Parallelism(data=8, sharding="ddp"))
    for memory in (api.memory(job, HARDWARE), api.predict(job, HARDWARE).memory):
        assert memory.total_bytes > 16 * 46_702_792_704
        assert not memory.fits
    split = api.plan(job, HARDWARE).best[0].job.parallelism
    assert split.tensor * split.pipeline * split.expert > 1


@pytest.mark.parametrize("architecture", ["decoder", "gpt"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_gradients_and_matrices_of_experts_are_those_of_all_parameters(
    architecture: str, recompute: Any
) -> None:
    model = f"{architecture}:hidden_size=128:layers=4:vocabulary=512{EXPERTS}"
    job = TrainingJob(model, 64, precision="fp32", recompute=recompute)
    one, two = (count_parameters(replace(job.shape, layers=layers)) for layers in (1, 2))
    sizes = Sizes(job, on_host=True)
    assert sum(stage.gradient_bytes for stage in make_block(sizes, has_experts=True)) == 4 * (
        two - one
    )
    matrices = sum(weight.count * weight.size_bytes for weight in list_weights(sizes))
    vectors = 4 * (
        count_parameters(job.shape) - sum(count_weights(job.shape, active=False).values())
    )
    assert 0 <= 4 * count_parameters(job.shape) - matrices <= vectors


@pytest.mark.parametrize("model", ["small", "gpt-125m", "llama-160m", "opt-125m"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_one_expert_is_a_model_without_but_for_its_router(model: str, recompute: Any) -> None:
    """What is surveyed and what is computed grow alike: a token's way through more experts keeps
    more, and experts that it does not go through keep nothing where weights are not copied."""
    step, one, two, many = (
        estimate_step(
            TrainingJob(f"{model}{given}", 64, precision="fp32", recompute=recompute),
            on_host=True,
        )
        for given in (
            "",
            ":experts=1:active_experts=1",
            ":experts=2:active_experts=2",
            ":experts=64:active_experts=2",
        )
    )
    hidden, layers = 768, 12
    assert one.parameters - step.parameters == layers * hidden
    assert many.parameters > 20 * step.parameters
    if recompute == "full":
        assert step.block_bytes == one.block_bytes == many.block_bytes
    else:
        assert step.block_bytes < one.block_bytes < two.block_bytes
        scores_bytes = 64 * (64 - 2) * 4
        assert many.block_bytes - two.block_bytes == scores_bytes


def test_swapped_layers_of_all_experts_are_updated() -> None:
    job = TrainingJob(f"gpt-125m{EXPERTS}", 128, linear="dyad:it:4", precision="fp32")
    dense = TrainingJob(f"gpt-125m{EXPERTS}", 128, precision="fp32")
    saved = dense.parameters - sum(count_swapped_flops(job)["optimizer"].values()) / 12
    experts = count_weights(job.shape, active=False)["feed-forward"]
    assert saved / experts == pytest.approx(0.5, abs=0.01)
