"""Configurations of frameworks: what was written is read again, by parsers of the flags that each
framework documents, and gives the same training job."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import yaml

from flopwatch import api
from flopwatch.errors import UsageError
from flopwatch.jobs.parallelism import Parallelism
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.output.frameworks import FRAMEWORKS, emit, find_emitted
from flopwatch.output.frameworks.framework_configs import settle
from flopwatch.prediction.hardware import find_machine
from flopwatch.prediction.plans import Plan
from flopwatch.prediction.predictions import Prediction, predict
from flopwatch.prediction.software_stacks import find_stack

SMALL = "llama:hidden_size=1024:layers=16:heads=16:key_value_heads=8:vocabulary=32000"
EXPERTS = "mixtral:hidden_size=1024:layers=16:heads=16:experts=8:active_experts=2:vocabulary=32000"

MEGATRON_SWITCHES = (
    "--sequence-parallel", "--use-distributed-optimizer", "--overlap-grad-reduce",
    "--overlap-param-gather", "--use-megatron-fsdp", "--no-gradient-accumulation-fusion",
    "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split",
    "--bf16", "--fp16", "--swiglu", "--disable-bias-linear", "--add-qkv-bias", "--qk-layernorm",
    "--untie-embeddings-and-output-weights", "--group-query-attention", "--multi-latent-attention",
    "--moe-grouped-gemm",
)  # fmt: skip
MEGATRON_NUMBERS = (
    "--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--context-parallel-size",
    "--expert-model-parallel-size", "--expert-tensor-parallel-size",
    "--num-virtual-stages-per-pipeline-rank", "--decoder-last-pipeline-num-layers",
    "--num-distributed-optimizer-instances", "--recompute-num-layers", "--micro-batch-size",
    "--global-batch-size", "--train-iters", "--seq-length", "--max-position-embeddings",
    "--num-layers", "--hidden-size", "--ffn-hidden-size", "--num-attention-heads", "--vocab-size",
    "--kv-channels", "--num-query-groups", "--q-lora-rank", "--kv-lora-rank", "--qk-head-dim",
    "--qk-pos-emb-head-dim", "--v-head-dim", "--num-experts", "--moe-router-topk",
    "--moe-ffn-hidden-size", "--moe-shared-expert-intermediate-size", "--mtp-num-layers",
)  # fmt: skip
MEGATRON_WORDS = {
    "--recompute-granularity": ("full", "selective"),
    "--recompute-method": ("uniform", "block"),
    "--data-parallel-sharding-strategy": ("no_shard", "optim", "optim_grads", "optim_grads_params"),
    "--outer-dp-sharding-strategy": ("no_shard", "optim"),
    "--ckpt-format": ("torch", "torch_dist", "zarr", "torch_dcp", "fsdp_dtensor"),
    "--fp8-format": ("e4m3", "hybrid"),
    "--fp8-recipe": ("tensorwise", "delayed", "mxfp8", "blockwise"),
    "--fp4-format": ("e2m1",),
    "--fp4-recipe": ("nvfp4",),
    "--optimizer": ("adam", "sgd"),
    "--normalization": ("LayerNorm", "RMSNorm"),
    "--position-embedding-type": ("learned_absolute", "rope", "mrope", "relative", "none"),
    "--moe-token-dispatcher-type": ("allgather", "alltoall", "flex"),
}
"""As the help of pretrain_gpt.py has them."""
TITAN_NUMBERS = (
    "--parallelism.data_parallel_replicate_degree", "--parallelism.data_parallel_shard_degree",
    "--parallelism.tensor_parallel_degree", "--parallelism.context_parallel_degree",
    "--parallelism.pipeline_parallel_degree", "--parallelism.expert_parallel_degree",
    "--parallelism.pipeline_parallel_layers_per_stage",
    "--parallelism.pipeline_parallel_first_stage_less_layers",
    "--parallelism.pipeline_parallel_last_stage_less_layers", "--parallelism.num_pp_microbatches",
    "--training.num_tokens_per_microbatch_per_dp_rank", "--training.num_tokens_per_train_step",
    "--training.max_context_length", "--training.steps",
)  # fmt: skip
TITAN_WORDS = {
    "--module": None,
    "--config": None,
    "--parallelism.fsdp_reshard_after_forward": ("default", "always", "never"),
    "--parallelism.pipeline_parallel_schedule": ("1F1B", "GPipe", "Interleaved1F1B"),
    "--training.dtype": ("bfloat16", "float32"),
    "--training.mixed_precision_param": ("bfloat16", "float32"),
}
TITAN_SWITCHES = (
    "--parallelism.enable_sequence_parallel", "--parallelism.no-enable_sequence_parallel",
)  # fmt: skip


def parse(
    text: str,
    numbers: tuple[str, ...],
    words: Mapping[str, tuple[str, ...] | None],
    switches: tuple[str, ...],
    *others: str,
) -> Namespace:
    """As the shell splits it."""
    parser = ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for name in numbers:
        parser.add_argument(name, type=int)
    for name, choices in words.items():
        parser.add_argument(name, choices=choices)
    for name in switches:
        parser.add_argument(name, action="store_true")
    for name in others:
        parser.add_argument(name, nargs="+" if name.startswith("--") else None)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    arguments = " ".join(lines).split()
    given = [word.partition("=")[0] for word in arguments if word.startswith("--")]
    assert len(given) == len(set(given))
    return parser.parse_args(arguments)


def read_megatron(text: str, ranks: int) -> dict[str, Any]:
    found = parse(text, MEGATRON_NUMBERS, MEGATRON_WORDS, MEGATRON_SWITCHES,
                  "--recompute-modules", "--moe-layer-freq")  # fmt: skip
    split = {
        "tensor": found.tensor_model_parallel_size,
        "pipeline": found.pipeline_model_parallel_size,
        "context": found.context_parallel_size,
    }
    data = ranks // (split["tensor"] * split["pipeline"] * split["context"])
    virtual = found.num_virtual_stages_per_pipeline_rank or 1
    sharding = "ddp" if found.overlap_grad_reduce else "none"
    if found.use_distributed_optimizer:
        sharding = "zero1"
    if found.use_megatron_fsdp:
        strategy = found.data_parallel_sharding_strategy
        sharding = {"optim_grads": "zero2", "optim_grads_params": "full"}[strategy]
        sharding = "hybrid" if found.outer_dp_sharding_strategy else sharding
    copies = found.num_distributed_optimizer_instances
    parallelism = Parallelism(
        **split, data=data, sequence=found.sequence_parallel, virtual_stages=virtual,
        schedule="interleaved" if virtual > 1 else "1f1b",
        expert=found.expert_model_parallel_size or 1, sharding=sharding,
        shard_group=data * split["context"] // copies if copies else None,
    )  # fmt: skip
    precisions = {"tensorwise": "fp8", "mxfp8": "mxfp8", None: "bf16-mixed"}
    return {
        "parallelism": parallelism,
        "micro_batch": found.micro_batch_size,
        "grad_accum": found.global_batch_size // (found.micro_batch_size * data),
        "seq_len": found.seq_length,
        "recompute": found.recompute_granularity or "none",
        "precision": "nvfp4" if found.fp4_format else precisions[found.fp8_recipe],
        "layers": found.num_layers,
        "hidden_size": found.hidden_size,
    }


def read_torchtitan(text: str, ranks: int) -> dict[str, Any]:
    found = vars(parse(text, TITAN_NUMBERS, TITAN_WORDS, TITAN_SWITCHES, "checkpointing"))
    own = {name.partition(".")[2]: value for name, value in found.items()}
    copies, shards = own["data_parallel_replicate_degree"], own["data_parallel_shard_degree"]
    tensor, pipeline = own["tensor_parallel_degree"], own["pipeline_parallel_degree"]
    context, data = own["context_parallel_degree"], copies * shards
    assert data * tensor * pipeline * context == ranks
    again = own["fsdp_reshard_after_forward"]
    kinds = {"always": "full", "never": "zero1" if pipeline > 1 else "zero2", None: "none"}
    sharding = "ddp" if again is None and copies > 1 else kinds[again]
    sharding = "hybrid" if again and copies > 1 else sharding
    schedules = {"1F1B": "1f1b", "GPipe": "gpipe", "Interleaved1F1B": "interleaved", None: "1f1b"}
    ends = own["pipeline_parallel_first_stage_less_layers"] or 0
    stages = own["pipeline_parallel_layers_per_stage"]
    tokens = own["num_tokens_per_microbatch_per_dp_rank"]
    seq_len = own["max_context_length"]
    parallelism = Parallelism(
        data=data, tensor=tensor, pipeline=pipeline, context=context,
        sequence=own["enable_sequence_parallel"],
        schedule=schedules[own["pipeline_parallel_schedule"]],
        virtual_stages=(16 + 2 * ends) // (stages * pipeline) if stages else 1,
        expert=(own["expert_parallel_degree"] or tensor) // tensor, sharding=sharding,
        shard_group=shards * context if sharding == "hybrid" else None,
    )  # fmt: skip
    return {
        "parallelism": parallelism,
        "micro_batch": tokens // seq_len,
        "grad_accum": own["num_tokens_per_train_step"] // (tokens * data),
        "seq_len": seq_len,
        "recompute": found["checkpointing"].removeprefix("activation-checkpoint:"),
        "precision": "bf16-mixed" if own["mixed_precision_param"] == "bfloat16" else "fp32",
    }


def read_nanotron(text: str, ranks: int) -> dict[str, Any]:
    found = yaml.safe_load(text)
    own, tokens, model = found["parallelism"], found["tokens"], found["model"]
    assert own["dp"] * own["tp"] * own["pp"] * own["context_parallel_size"] == ranks
    unsharded = "ddp" if own["dp"] > 1 else "none"
    parallelism = Parallelism(
        data=own["dp"], tensor=own["tp"], pipeline=own["pp"], context=own["context_parallel_size"],
        sequence=own["tp_mode"] == "REDUCE_SCATTER",
        schedule={"1f1b": "1f1b", "afab": "gpipe"}[own["pp_engine"]],
        expert=own["expert_parallel_size"],
        sharding="zero1" if found["optimizer"]["zero_stage"] else unsharded,
    )  # fmt: skip
    return {
        "parallelism": parallelism,
        "micro_batch": tokens["micro_batch_size"],
        "grad_accum": tokens["batch_accumulation_per_replica"],
        "seq_len": tokens["sequence_length"],
        "recompute": "full" if own["recompute_layer"] else "none",
        "precision": {"bfloat16": "bf16-mixed", "float32": "fp32"}[model["dtype"]],
        "layers": model["model_config"]["num_hidden_layers"],
        "hidden_size": model["model_config"]["hidden_size"],
    }


READERS = {"megatron": read_megatron, "torchtitan": read_torchtitan, "nanotron": read_nanotron}


def predict_job(model: str, **given: Any) -> Prediction:
    names = ("micro_batch", "grad_accum", "recompute", "precision")
    fields = {name: given.pop(name) for name in names if name in given}
    job = TrainingJob(model, 2048, parallelism=Parallelism(**given), **fields)
    return predict(job, find_machine("B200")[1], find_stack("typical"))


def describe(prediction: Prediction) -> dict[str, Any]:
    job = settle(prediction)
    names = ("parallelism", "micro_batch", "grad_accum", "seq_len", "recompute", "precision")
    return {
        **{name: getattr(job, name) for name in names},
        "layers": job.shape.layers,
        "hidden_size": job.shape.hidden_size,
    }


JOBS: dict[str, dict[str, Any]] = {
    "one": {"micro_batch": 4, "grad_accum": 3},
    "ddp": {"data": 8, "sharding": "ddp", "recompute": "selective"},
    "zero2": {"data": 8, "sharding": "zero2", "grad_accum": 2},
    "full": {"data": 8, "context": 2, "sharding": "full", "recompute": "full"},
    "hybrid": {"data": 16, "sharding": "hybrid", "tensor": 2, "sequence": True},
    "3d": {"data": 4, "tensor": 4, "sequence": True, "pipeline": 4, "sharding": "zero1",
           "micro_batch": 2, "grad_accum": 8, "context": 2},
    "interleaved": {"data": 2, "tensor": 2, "pipeline": 4, "virtual_stages": 2,
                    "schedule": "interleaved", "sharding": "zero1", "grad_accum": 8},
    "gpipe": {"data": 2, "pipeline": 4, "schedule": "gpipe", "sharding": "zero1", "grad_accum": 4},
    "zero-bubble": {"data": 2, "pipeline": 4, "schedule": "zero-bubble", "sharding": "zero1"},
    "18 stages": {"pipeline": 9, "data": 2, "sharding": "zero1", "grad_accum": 9},
    "uneven": {"pipeline": 5, "data": 2, "sharding": "zero1", "grad_accum": 9},
    "fp8": {"data": 8, "sharding": "zero1", "precision": "fp8"},
    "nvfp4": {"data": 8, "sharding": "zero1", "precision": "nvfp4"},
    "experts": {"data": 8, "expert": 4, "tensor": 2, "sequence": True, "sharding": "full"},
}  # fmt: skip
CANNOT: dict[str, dict[str, str]] = {
    "megatron": {
        "gpipe": "no gpipe schedule",
        "zero-bubble": "no zero-bubble schedule",
        "uneven": "16 layers leave none for the last of 5 stages",
    },
    "torchtitan": {
        "zero-bubble": "no zero-bubble schedule with one stage",
        "fp8": "zero1 only with a pipeline",
        "nvfp4": "zero1 only with a pipeline",
        "uneven": "16 layers do not divide up into 5 stages",
    },
    "nanotron": {
        "ddp": "whole layers or nothing",
        "zero2": "no sharding zero2",
        "full": "no sharding full",
        "hybrid": "no sharding hybrid",
        "interleaved": "no interleaved stages",
        "zero-bubble": "no zero-bubble schedule",
        "fp8": "no precision fp8",
        "nvfp4": "no precision nvfp4",
        "experts": "no sharding full",
    },
}
"""What each framework refuses, and why."""


@pytest.mark.parametrize("framework", list(FRAMEWORKS))
@pytest.mark.parametrize("name", list(JOBS))
def test_a_configuration_reads_back_as_the_same_job(framework: str, name: str) -> None:
    prediction = predict_job(EXPERTS if name == "experts" else SMALL, **JOBS[name])
    if name in CANNOT[framework]:
        with pytest.raises(UsageError, match=CANNOT[framework][name]):
            emit(prediction, framework, 100)
        return
    found = READERS[framework](emit(prediction, framework, 100).text, prediction.job.ranks)
    expected = describe(prediction)
    assert found == {field: expected[field] for field in found}


def test_megatron_gets_the_dimensions_of_the_model() -> None:
    job = TrainingJob("deepseek-v3", 4096, parallelism=Parallelism(data=64, sharding="zero1"))
    prediction = predict(job, find_machine("B200")[1], find_stack("typical"))
    text = emit(prediction, "megatron", 10).text
    for line in (
        "--multi-latent-attention", "--q-lora-rank 1536", "--kv-lora-rank 512", "--qk-head-dim 128",
        "--qk-pos-emb-head-dim 64", "--v-head-dim 128", "--num-experts 256", "--moe-router-topk 8",
        "--moe-ffn-hidden-size 2048", "--moe-layer-freq ([0]*3+[1]*58)", "--swiglu",
        "--moe-shared-expert-intermediate-size 2048", "--normalization RMSNorm",
    ):  # fmt: skip
        assert f"\n{line}\n" in text
    windowed = replace(job, model="gpt-oss-20b")
    said = emit(predict(windowed, prediction.machine, prediction.stack), "megatron", 10).remarks
    assert any("sliding windows" in remark for remark in said)


def test_known_models_name_torchtitans_function() -> None:
    split = Parallelism(data=64, sharding="full")
    for model, words in {"llama-3-8b": "--config llama3_8b", SMALL: "# add --module"}.items():
        job = TrainingJob(model, 2048, parallelism=split)
        prediction = predict(job, find_machine("B200")[1], find_stack("typical"))
        assert words in emit(prediction, "torchtitan", 10).text


@cache
def plan() -> Plan:
    return api.plan(SMALL, "16xA100-80GB", global_batch_tokens=2**18, train_tokens=1e9)


@pytest.mark.parametrize("framework", list(FRAMEWORKS))
def test_the_fastest_that_a_framework_can_run_is_emitted(framework: str) -> None:
    chosen = FRAMEWORKS[framework]
    emitted = find_emitted(plan(), framework)
    speeds = [
        plan().searched.tokens_per_s[place]
        for place in plan().order
        if chosen.find_obstacle(
            settle(plan().best[0], plan().searched.pick(int(place)).apply(plan().job))
        )
        is None
    ]
    assert emitted.prediction.tokens_per_s == pytest.approx(max(speeds))
    is_best = emitted.prediction.tokens_per_s == plan().best[0].tokens_per_s
    assert is_best != any("slower than the fastest of all" in each for each in emitted.remarks)
    assert plan().emit(framework) == emitted.text


def test_what_no_framework_is_called_is_refused() -> None:
    with pytest.raises(UsageError, match="choose one of megatron, torchtitan, nanotron"):
        plan().emit("deepspeed")
