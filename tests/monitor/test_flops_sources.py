"""Where FLOPs of a token come from, and when they are unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from flopwatch.errors import UsageError
from flopwatch.jobs.conventions import CONVENTIONS
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.models.builder import build
from flopwatch.models.module_flops import Call, count_module_flops, describe_call
from flopwatch.monitor.flops_sources import FlopsAnswer, FlopsRequest, find_flops
from flopwatch.monitor.loop_configs import read_shape
from tests.monitor.loops import HIDDEN, TOKENS, WEIGHTS, WORDS, draw, make_model

JOB = TrainingJob("decoder:hidden_size=64:layers=2:vocabulary=500", 32, micro_batch=2)


def call_with(*arguments: Any, **options: Any) -> Call:
    return describe_call(arguments, options, "cpu")


def ask(*models: nn.Module, call: Call | None = None, **more: Any) -> FlopsAnswer:
    return find_flops(FlopsRequest(models=models, **more), call)


def test_a_job_is_counted_by_its_convention() -> None:
    flops = ask(job=JOB, convention="palm", flops_per_token=1.0).flops
    assert flops is not None
    assert flops.model == CONVENTIONS["palm"].count_model_flops(JOB, None)
    assert (flops.source, flops.convention, flops.dtype) == ("job", "palm", "bfloat16")


@dataclass
class NanoConfig:
    block_size: int = 64
    vocab_size: int = 100
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 32


TITAN = {
    "dim": 256,
    "n_layers": 2,
    "n_heads": 8,
    "n_kv_heads": 2,
    "vocab_size": 100,
    "multiple_of": 64,
    "ffn_dim_multiplier": 1.3,
}


@pytest.mark.parametrize(
    ("config", "model"),
    [
        (
            NanoConfig(),
            "gpt:hidden_size=32:layers=2:heads=4:vocabulary=100:positions=64",
        ),
        # 2/3 of 4 x 256 is 682, times 1.3 is 886, in multiples of 64: 896.
        (
            TITAN,
            "llama:hidden_size=256:layers=2:heads=8:vocabulary=100:key_value_heads=2"
            ":feed_forward_size=896",
        ),
        (
            {
                "model_type": "mixtral",
                "hidden_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "intermediate_size": 96,
                "vocab_size": 100,
                "num_local_experts": 8,
                "num_experts_per_tok": 2,
            },
            "mixtral:hidden_size=64:layers=2:heads=4:vocabulary=100:key_value_heads=2"
            ":feed_forward_size=96:experts=8:active_experts=2",
        ),
    ],
)
def test_a_config_is_a_job(config: object, model: str) -> None:
    answer = ask(config=config, seq_len=16)
    flops = answer.flops
    assert flops is not None
    job = TrainingJob(model, 16)
    assert flops.model == CONVENTIONS["exact"].count_model_flops(job, None)
    assert (flops.source, flops.hardware) == ("config", None)
    assert answer.job is not None


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"hidden_size": 64}, "no layers"),
        ({**TITAN, "multiple_of": None}, "kind ''"),
        ({**TITAN, "kv_lora_rank": 16}, "kv_lora_rank"),
        ({**TITAN, "sliding_window": 8}, "sliding window of 8"),
        ({**TITAN, "head_dim": 99}, "head_dim"),
    ],
)
def test_a_config_that_is_not_understood_is_refused(config: object, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        read_shape(config, None, 16)
    answer = ask(config=config, seq_len=16)
    assert answer.flops is None
    assert "the config cannot be used" in (answer.missing or "")
    assert ask(config=config, seq_len=16, flops_per_token=7.0).flops is not None


def test_a_config_that_is_not_the_models_is_not_used() -> None:
    call = call_with(draw(1)[0])
    answer = ask(make_model(), config=NanoConfig(), call=call)
    assert answer.flops is not None
    assert answer.flops.source == "module"


def test_a_model_of_transformers_has_a_config_of_its_own() -> None:
    job = TrainingJob("llama:hidden_size=64:layers=2:vocabulary=500", 32, micro_batch=2)
    model = build(job.shape)
    ids = torch.zeros(2, 32, dtype=torch.long)
    call = call_with(input_ids=ids, labels=ids)
    answer = ask(model, call=call)
    flops = answer.flops
    assert flops is not None
    assert flops.source == "config"
    assert flops.model == flops.hardware == CONVENTIONS["exact"].count_model_flops(job, None)
    # And its operators say the same.
    counted = count_module_flops(model, call)
    assert (counted.forward + counted.backward) / (2 * 32) == pytest.approx(flops.model, rel=1e-3)


def test_operators_agree_with_the_job_for_our_own_model() -> None:
    model = build(JOB.shape)
    ids = torch.zeros(2, 32, dtype=torch.long)
    state = torch.get_rng_state()
    flops = ask(model, call=call_with(input_ids=ids, labels=ids)).flops
    assert torch.equal(torch.get_rng_state(), state)
    assert flops is not None
    assert flops.source == "module"
    assert flops.model == pytest.approx(CONVENTIONS["exact"].count_model_flops(JOB, None), rel=1e-3)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any("Fake" in type(parameter).__name__ for parameter in model.parameters())


def test_frozen_parameters_have_no_gradients_to_compute() -> None:
    model = make_model()
    for parameter in model[:-1].parameters():  # type: ignore[index]
        parameter.requires_grad_(False)
    flops = ask(model, job=JOB, call=call_with(draw(1)[0])).flops
    assert flops is not None
    assert flops.source == "module"
    # Forward through both; backward the weight of the last only, since nothing before it trains.
    assert flops.model == 2 * WEIGHTS + 2 * HIDDEN * WORDS


class Adapted(nn.Module):
    """A frozen linear layer with an adapter of a low rank, as LoRA has it."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        adapted: Tensor = self.layer(x) + self.up(self.down(x))
        return adapted


def test_adapters_of_a_low_rank_are_counted_as_they_are() -> None:
    model = make_model()
    model[0].requires_grad_(False)  # type: ignore[index]
    model[1] = Adapted(model[1], 2)  # type: ignore[index, operator]
    model[3] = Adapted(model[3], 2)  # type: ignore[index, operator]
    flops = ask(model, call=call_with(draw(1)[0])).flops
    assert flops is not None
    small = [2 * (HIDDEN + HIDDEN), 2 * (HIDDEN + WORDS)]
    # All forward, gradients of adapters, and of inputs wherever an adapter is before them: in the
    # first layer only that of the adapter's upper half.
    backward = 2 * sum(small) + 2 * small[1] + 2 * HIDDEN * WORDS + 2 * 2 * HIDDEN
    assert flops.model == 2 * (WEIGHTS + sum(small)) + backward


class Repeating(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = make_model()

    def forward(self, ids: Tensor) -> Any:
        return checkpoint(self.inner, ids, use_reentrant=False)


def test_what_is_recomputed_is_for_hfu_only() -> None:
    flops = ask(Repeating(), call=call_with(draw(1)[0])).flops
    assert flops is not None
    assert flops.model == 6 * WEIGHTS
    # All but what comes after the last thing that the backward pass needs.
    assert flops.hardware is not None
    assert flops.model < flops.hardware <= 8 * WEIGHTS


def test_without_tokens_a_micro_batch_is_the_unit() -> None:
    model = nn.Linear(8, 4)
    flops = ask(model, call=call_with(torch.ones(3, 8))).flops
    assert flops is not None
    assert (flops.unit, flops.model) == ("micro-batch", 2 * 2 * 3 * 8 * 4)


@torch.library.custom_op("flopwatch_tests::secret", mutates_args=())
def secret(x: Tensor) -> Tensor:
    return x @ x


@secret.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Strange(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.layer = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        if self.how == "looks":
            return x if bool(x.sum() > 0) else -x
        if self.how == "secret":
            return self.unused(x) + secret(x.detach())
        return x


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("looks", "cannot be counted without computing it"),
        ("secret", "the operator flopwatch_tests::secret"),
        ("forgets", "what uses unused.weight"),
    ],
)
def test_what_cannot_be_counted_is_unknown_and_says_why(how: str, why: str) -> None:
    answer = ask(Strange(how), call=call_with(torch.ones(4, 4)))
    assert answer.flops is None
    assert why in (answer.missing or "")
    assert "flops_per_token=" in (answer.missing or "")


def test_a_rank_with_a_part_of_the_model_does_not_count() -> None:
    call = call_with(draw(1)[0])
    answer = ask(make_model(), call=call, world_size=4, data_parallel=2)
    assert "a part of the model" in (answer.missing or "")


def test_the_dtype_is_that_of_autocast() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        call = call_with(draw(1)[0])
    flops = ask(make_model(), call=call).flops
    assert flops is not None
    assert flops.dtype == "bfloat16"
    assert flops.model == 6 * WEIGHTS
    assert ask(make_model(), call=call, dtype="float16", flops_per_token=1.0).flops is not None
    assert TOKENS == 32
