"""Options of torchtitan 0.5, a line each; its model is a function of yours or one of its own.

data             what is sharded and what is copied. With a pipeline, FSDP that never shards
                 again gathers and reduces once a step: that is zero1. Without one, it reduces
                 in every micro-batch: zero2, or full where it shards again
experts          divided among data-parallel and tensor-parallel ranks alike
pipeline         as many micro-batches as gradients are accumulated of
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flopwatch.jobs.training_job import TrainingJob

SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B"}
DTYPES: Mapping[str, tuple[str, str]] = {
    "fp32": ("float32", "float32"),
    "tf32": ("float32", "float32"),
    "bf16-mixed": ("float32", "bfloat16"),
    "bf16": ("bfloat16", "bfloat16"),
    "fp8": ("float32", "bfloat16"),
    "mxfp8": ("float32", "bfloat16"),
    "nvfp4": ("float32", "bfloat16"),
}
"""Of parameters, and of what computes with them."""
NARROW = ("fp8", "mxfp8", "nvfp4")
MODELS = {
    ("llama", 4096, 32, 128_256): "llama3_8b",
    ("llama", 8192, 80, 128_256): "llama3_70b",
    ("llama", 16_384, 126, 128_256): "llama3_405b",
}
"""Its own functions, by architecture, hidden size, layers and vocabulary."""


def find_obstacle(job: TrainingJob) -> str | None:
    split, shape = job.parallelism, job.shape
    divided = split.tensor * split.pipeline * split.context
    chunks = split.pipeline * split.virtual_stages
    sharded = _count_shards(job) * split.context
    obstacles = {
        f"it has no {split.schedule} schedule with one stage for each rank": split.pipeline > 1
        and split.schedule not in SCHEDULES,
        "it has zero1 only with a pipeline": job.sharding == "zero1" and split.pipeline == 1,
        "it copies the model to data-parallel ranks only where nothing else divides it":
            job.sharding == "ddp" and divided > 1,
        "its groups of ranks that share parameters have whole sequences":
            job.sharding == "hybrid" and (split.shard_group or 1) % split.context > 0,
        f"it halves what {split.context} context-parallel ranks have of a sequence":
            split.context > 1 and job.seq_len % (2 * split.context) > 0,
        f"{shape.layers} layers do not divide up into {chunks} stages as it counts them":
            split.pipeline > 1
            and shape.layers % chunks > 0
            and (split.virtual_stages > 1 or (shape.layers + 2) % split.pipeline > 0),
        f"{shape.experts} experts cannot be divided among {split.expert * split.tensor} ranks":
            shape.experts is not None and shape.experts % (split.expert * split.tensor) > 0,
        "it divides experts among ranks that share parameters":
            shape.experts is not None and sharded % split.expert > 0,
        f"it has no precision {job.precision}": job.precision not in DTYPES,
    }  # fmt: skip
    return next((sentence for sentence, is_so in obstacles.items() if is_so), None)


def _count_shards(job: TrainingJob) -> int:
    """Data-parallel ranks that share parameters."""
    split = job.parallelism
    if job.sharding in ("none", "ddp"):
        return 1
    return (split.shard_group or 1) // split.context if job.sharding == "hybrid" else split.data


def list_differences(job: TrainingJob) -> list[str]:
    split = job.parallelism
    differences = {
        f"add --module and --config: the function that describes {job.name} and its dataset":
            _find_model(job) is None,
        f"{job.precision} is chosen in that function (a converter of its linear layers), not by "
        "options": job.precision in NARROW,
        "mixed precision takes effect where parameters are sharded; here they are not":
            job.precision == "bf16-mixed" and _count_shards(job) * split.context == 1
            and job.ranks > 1 and job.sharding != "ddp",
        "it keeps results of attention and of every other matmul, which takes less memory and "
        "more time than planned": job.recompute == "selective",
        f"the optimizer {job.optimizer} is chosen in that function": job.optimizer == "sgd",
        "versions before 0.5 say --training.local_batch_size "
        f"{job.local_batch if split.pipeline > 1 else job.micro_batch}, "
        f"--training.global_batch_size {job.global_batch}, --training.seq_len {job.seq_len}, "
        "--parallelism.pipeline_parallel_microbatch_size and --activation_checkpoint.mode": True,
    }  # fmt: skip
    return [sentence for sentence, is_so in differences.items() if is_so]


def _find_model(job: TrainingJob) -> str | None:
    shape = job.shape
    return MODELS.get((shape.architecture, shape.hidden_size, shape.layers, shape.vocabulary))


def write(job: TrainingJob, steps: int) -> list[str]:
    dtype, computed = DTYPES[job.precision]
    model = _find_model(job)
    return [
        *(["--module llama3", f"--config {model}"] if model else []),
        *(f"--parallelism.{option}" for option in _list_parallelism(job)),
        f"--training.num_tokens_per_microbatch_per_dp_rank {job.micro_batch_tokens}",
        f"--training.num_tokens_per_train_step {job.tokens_per_step}",
        f"--training.max_context_length {job.seq_len}",
        f"--training.steps {steps}",
        f"--training.dtype {dtype}",
        f"--training.mixed_precision_param {computed}",
        # Behind it, options would be those of activation checkpointing.
        f"activation-checkpoint:{job.recompute}",
    ]


def _list_parallelism(job: TrainingJob) -> Iterator[str]:
    split, shards = job.parallelism, _count_shards(job)
    yield f"data_parallel_replicate_degree {split.data // shards}"
    yield f"data_parallel_shard_degree {shards}"
    if job.sharding not in ("none", "ddp"):
        again = "never" if job.sharding in ("zero1", "zero2") else "always"
        yield f"fsdp_reshard_after_forward {again}"
    yield f"tensor_parallel_degree {split.tensor}"
    if split.tensor > 1:
        yield "enable_sequence_parallel" if split.sequence else "no-enable_sequence_parallel"
    yield f"context_parallel_degree {split.context}"
    yield f"pipeline_parallel_degree {split.pipeline}"
    if split.pipeline > 1:
        yield from _list_pipeline(job)
    if job.shape.experts:
        yield f"expert_parallel_degree {split.expert * split.tensor}"


def _list_pipeline(job: TrainingJob) -> Iterator[str]:
    split, layers = job.parallelism, job.shape.layers
    is_even = layers % split.pipeline == 0
    ends = 0 if is_even else 1  # embedding and head count as a layer each
    yield f"pipeline_parallel_schedule {SCHEDULES[split.schedule]}"
    chunks = split.pipeline * split.virtual_stages
    yield f"pipeline_parallel_layers_per_stage {(layers + 2 * ends) // chunks}"
    yield f"pipeline_parallel_first_stage_less_layers {ends}"
    yield f"pipeline_parallel_last_stage_less_layers {ends}"
    yield f"num_pp_microbatches {job.grad_accum}"
