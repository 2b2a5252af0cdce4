"""Sections of a nanotron configuration, in YAML: parallelism, tokens, optimizer and model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flopwatch.jobs.architectures import ARCHITECTURES
from flopwatch.jobs.model_shapes import Shape
from flopwatch.jobs.training_job import TrainingJob

ENGINES = {"1f1b": "1f1b", "gpipe": "afab"}
ZERO_STAGES = {"none": 0, "ddp": 0, "zero1": 1}
DTYPES = {"fp32": "float32", "tf32": "float32", "bf16-mixed": "bfloat16", "bf16": "bfloat16",
          "fp16-mixed": "float16", "fp16": "float16"}  # fmt: skip
SPECIAL = (
    "window", "pattern", "kv_lora_rank", "state_size", "index_topk", "dense_layers",
    "shared_expert_size", "mtp_layers",
)  # fmt: skip
"""What none of its models has."""


def find_obstacle(job: TrainingJob) -> str | None:
    split = job.parallelism
    obstacles = {
        "it has no interleaved stages": split.virtual_stages > 1,
        f"it has no {split.schedule} schedule": split.pipeline > 1
        and split.schedule not in ENGINES,
        f"it has no sharding {job.sharding}": job.sharding not in ZERO_STAGES,
        "it recomputes whole layers or nothing": job.recompute == "selective",
        "its expert-parallel ranks are other ones than the data-parallel ranks": split.expert > 1,
        f"it has no precision {job.precision}": job.precision not in DTYPES,
    }
    return next((sentence for sentence, is_so in obstacles.items() if is_so), None)


def list_differences(job: TrainingJob) -> list[str]:
    differences = {
        "checkpoints, data stages, the tokenizer and the learning rate are yours": True,
        f"nanotron has no model like {job.name}, so that model_config is left out": _find_class(
            job.shape
        )
        is None,
        "tf32 is no setting; set NVIDIA_TF32_OVERRIDE=1": job.precision == "tf32",
    }
    return [sentence for sentence, is_so in differences.items() if is_so]


def write(job: TrainingJob, steps: int) -> list[str]:
    split = job.parallelism
    content: dict[str, Any] = {
        "parallelism": {
            "dp": split.data,
            "tp": split.tensor,
            "pp": split.pipeline,
            "context_parallel_size": split.context,
            "expert_parallel_size": split.expert,
            "pp_engine": ENGINES[split.schedule],
            "tp_mode": "REDUCE_SCATTER" if split.sequence else "ALL_REDUCE",
            "tp_linear_async_communication": split.sequence,
            "recompute_layer": job.recompute == "full",
        },
        "tokens": {
            "sequence_length": job.seq_len,
            "micro_batch_size": job.micro_batch,
            "batch_accumulation_per_replica": job.grad_accum,
            "train_steps": steps,
        },
        "optimizer": {
            "zero_stage": ZERO_STAGES[job.sharding],
            "accumulate_grad_in_fp32": job.precision not in ("bf16", "fp16"),
        },
        "model": {"dtype": DTYPES[job.precision], **_describe_model(job.shape)},
    }
    return list(_write_yaml(content))


def _find_class(shape: Shape) -> str | None:
    """Llama without experts and biases, or Qwen 2."""
    own = ARCHITECTURES.get(shape.architecture)
    if own is None or any(getattr(shape, name) is not None for name in SPECIAL):
        return None
    is_like_llama = (
        own.norm_vectors == 1
        and own.extra_positions is None
        and own.norms == 2
        and own.qk_norm == "none"
        and not own.norms_after
        and not own.has_sinks
        and shape.is_gated
        and shape.head_size * shape.heads == shape.hidden_size
    )
    biases = shape.biases or own.biases
    if not is_like_llama or biases not in ("none", "qkv"):
        return None
    return "qwen2" if biases == "qkv" or shape.experts else "llama"


def _describe_model(shape: Shape) -> dict[str, Any]:
    kind = _find_class(shape)
    if kind is None:
        return {}
    experts = (
        {"moe_config": {"num_experts": shape.experts, "top_k": shape.active_experts}}
        if shape.experts
        else {}
    )
    return {
        "make_vocab_size_divisible_by": 1,
        "model_config": {
            f"is_{kind}_config": True,
            "hidden_act": "silu",
            "hidden_size": shape.hidden_size,
            "intermediate_size": shape.expert_size or shape.feed_forward_size,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.key_value_heads or shape.heads,
            "attention_bias": kind == "qwen2" and not shape.experts,
            "max_position_embeddings": shape.positions,
            "tie_word_embeddings": shape.is_tied,
            "vocab_size": shape.rows,
            **experts,
        },
    }


def _write_yaml(content: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Of names, numbers and words that need no quotes."""
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield f"{indent}{name}:"
            yield from _write_yaml(value, f"{indent}  ")
        else:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            yield f"{indent}{name}: {text}"
