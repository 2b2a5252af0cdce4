"""Arguments of Megatron-LM's pretrain_gpt.py (core 0.15 and 0.16), a line each.

data             what is left of the ranks; ddp is --overlap-grad-reduce, zero1 the distributed
                 optimizer, zero2, full and hybrid are Megatron-FSDP
pipeline         1F1B, or interleaved with --num-virtual-stages-per-pipeline-rank; embedding and
                 loss count as layers where that makes stages even, and else the last stage is
                 shorter
recompute        selective: attention, norms and the experts' activation
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flopwatch.jobs.architectures import ARCHITECTURES, Architecture
from flopwatch.jobs.model_shapes import Shape
from flopwatch.jobs.training_job import TrainingJob

PRECISIONS: Mapping[str, tuple[str, ...]] = {
    "fp32": (),
    "tf32": (),
    "bf16-mixed": ("--bf16",),
    "bf16": ("--bf16",),
    "fp16-mixed": ("--fp16",),
    "fp8": ("--bf16", "--fp8-format hybrid", "--fp8-recipe tensorwise"),
    "mxfp8": ("--bf16", "--fp8-format e4m3", "--fp8-recipe mxfp8"),
    "nvfp4": ("--bf16", "--fp4-format e2m1", "--fp4-recipe nvfp4"),
}
FSDP = (
    "--use-megatron-fsdp", "--use-distributed-optimizer", "--no-gradient-accumulation-fusion",
    "--ckpt-format fsdp_dtensor", "--overlap-grad-reduce", "--overlap-param-gather",
)  # fmt: skip
SHARDINGS: Mapping[str, tuple[str, ...]] = {
    "none": (),
    "ddp": ("--overlap-grad-reduce",),
    "zero1": ("--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"),
    "zero2": (*FSDP, "--data-parallel-sharding-strategy optim_grads"),
    "full": (*FSDP, "--data-parallel-sharding-strategy optim_grads_params"),
    "hybrid": (
        *FSDP, "--data-parallel-sharding-strategy optim_grads_params",
        "--outer-dp-sharding-strategy no_shard",
    ),
}  # fmt: skip
OPTIMIZERS = {"adamw": "adam", "adamw-unfused": "adam", "sgd": "sgd"}
UNEMITTED = ("pattern", "window", "index_topk", "state_size", "gates_attention")
"""Of a model: what has no arguments here."""


def find_obstacle(job: TrainingJob) -> str | None:
    split, shape = job.parallelism, job.shape
    groups = shape.key_value_heads or shape.heads
    obstacles = {
        f"{shape.layers} layers leave none for the last of {split.pipeline} stages": _count_last(
            job
        )
        < 1,
        f"it has no {split.schedule} schedule": split.pipeline > 1
        and split.schedule not in ("1f1b", "interleaved"),
        f"its {groups} key-value heads are fewer than {split.tensor} tensor-parallel ranks, which "
        "it does not divide": groups % split.tensor > 0 and shape.kv_lora_rank is None,
        "with experts, it divides tensors only with sequence parallelism": shape.experts is not None
        and split.tensor > 1
        and not split.sequence,
        f"it halves what {split.context} context-parallel ranks have of a sequence": split.context
        > 1
        and job.seq_len % (2 * split.context) > 0,
        f"it has no precision {job.precision}": job.precision not in PRECISIONS,
    }
    return next((sentence for sentence, is_so in obstacles.items() if is_so), None)


def list_differences(job: TrainingJob) -> list[str]:
    shape, own = job.shape, _find_architecture(job.shape)
    differences = {
        "the arguments of the tokenizer, of the data and of the learning rate are yours": True,
        "Megatron-LM keeps a copy of the parameters in float32, which takes more memory than "
        "planned with --precision bf16": job.precision == "bf16",
        "Megatron-FSDP overlaps only where CUDA_DEVICE_MAX_CONNECTIONS is not set":
            "--use-megatron-fsdp" in SHARDINGS[job.sharding],
        "tf32 is no argument; set NVIDIA_TF32_OVERRIDE=1": job.precision == "tf32",
        "state spaces, sliding windows and sparse attention have no arguments here: add your "
        "model's own": any(getattr(shape, name, None) for name in UNEMITTED),
        f"the architecture {shape.architecture} is not known: its norms, positions and biases are "
        "yours": own is None,
        "it recomputes attention and norms, but not the activation between linear layers":
            job.recompute == "selective",
        "the vocabulary is padded to a multiple of --make-vocab-size-divisible-by times the "
        "tensor-parallel ranks": shape.rows % (128 * job.parallelism.tensor) > 0,
    }  # fmt: skip
    return [sentence for sentence, is_so in differences.items() if is_so]


def write(job: TrainingJob, steps: int) -> list[str]:
    return [
        *_list_parallelism(job),
        *SHARDINGS[job.sharding],
        *_list_recompute(job),
        *PRECISIONS[job.precision],
        f"--optimizer {OPTIMIZERS[job.optimizer]}",
        f"--micro-batch-size {job.micro_batch}",
        f"--global-batch-size {job.global_batch}",
        f"--train-iters {steps}",
        f"--seq-length {job.seq_len}",
        f"--max-position-embeddings {job.shape.positions}",
        *_list_model(job.shape),
        *_list_attention(job.shape),
        *_list_experts(job.shape),
    ]


def _list_parallelism(job: TrainingJob) -> Iterator[str]:
    split, layers = job.parallelism, job.shape.layers
    yield f"--tensor-model-parallel-size {split.tensor}"
    if split.sequence:
        yield "--sequence-parallel"
    yield f"--pipeline-model-parallel-size {split.pipeline}"
    if split.virtual_stages > 1:
        yield f"--num-virtual-stages-per-pipeline-rank {split.virtual_stages}"
    if layers % split.pipeline and (layers + 2) % split.pipeline == 0:
        yield "--account-for-embedding-in-pipeline-split"
        yield "--account-for-loss-in-pipeline-split"
    elif layers % split.pipeline:
        yield f"--decoder-last-pipeline-num-layers {_count_last(job)}"
    yield f"--context-parallel-size {split.context}"
    if job.shape.experts:
        yield f"--expert-model-parallel-size {split.expert}"
        yield f"--expert-tensor-parallel-size {split.tensor}"
    if job.sharding == "hybrid":
        copies = split.data * split.context // (split.shard_group or 1)
        yield f"--num-distributed-optimizer-instances {copies}"


def _count_last(job: TrainingJob) -> int:
    """Layers of the last stage, where embedding and loss do not count."""
    layers, stages = job.shape.layers, job.parallelism.pipeline
    if (layers + 2) % stages == 0:
        return 1
    return layers - -(-layers // stages) * (stages - 1)


def _list_recompute(job: TrainingJob) -> list[str]:
    if job.recompute == "full":
        return [
            "--recompute-granularity full", "--recompute-method uniform",
            "--recompute-num-layers 1",
        ]  # fmt: skip
    if job.recompute == "selective":
        modules = "core_attn layernorm" + (" moe_act" if job.shape.experts else "")
        return ["--recompute-granularity selective", f"--recompute-modules {modules}"]
    return []


def _find_architecture(shape: Shape) -> Architecture | None:
    return ARCHITECTURES.get(shape.architecture)


def _list_model(shape: Shape) -> Iterator[str]:
    own = _find_architecture(shape)
    yield f"--num-layers {shape.layers}"
    yield f"--hidden-size {shape.hidden_size}"
    yield f"--ffn-hidden-size {shape.feed_forward_size}"
    yield f"--num-attention-heads {shape.heads}"
    yield f"--vocab-size {shape.vocabulary}"
    if own is None:
        return
    if shape.is_gated:
        yield "--swiglu"
    yield f"--normalization {'RMSNorm' if own.norm_vectors == 1 else 'LayerNorm'}"
    learned = own.extra_positions is not None
    yield f"--position-embedding-type {'learned_absolute' if learned else 'rope'}"
    biases = shape.biases or own.biases
    if biases != "all":
        yield "--disable-bias-linear"
    if biases in ("qkv", "attention"):
        yield "--add-qkv-bias"
    if own.qk_norm != "none":
        yield "--qk-layernorm"
    if not shape.is_tied:
        yield "--untie-embeddings-and-output-weights"


def _list_attention(shape: Shape) -> Iterator[str]:
    if shape.kv_lora_rank is not None:
        rotary = shape.qk_rope_head_dim or 0
        yield "--multi-latent-attention"
        if shape.q_lora_rank is not None:
            yield f"--q-lora-rank {shape.q_lora_rank}"
        yield f"--kv-lora-rank {shape.kv_lora_rank}"
        yield f"--qk-head-dim {shape.head_size - rotary}"
        yield f"--qk-pos-emb-head-dim {rotary}"
        yield f"--v-head-dim {shape.v_head_dim or shape.head_size}"
        return
    yield f"--kv-channels {shape.head_size}"
    if shape.key_value_heads not in (None, shape.heads):
        yield "--group-query-attention"
        yield f"--num-query-groups {shape.key_value_heads}"


def _list_experts(shape: Shape) -> Iterator[str]:
    if shape.mtp_layers:
        yield f"--mtp-num-layers {shape.mtp_layers}"
    if not shape.experts:
        return
    yield f"--num-experts {shape.experts}"
    yield f"--moe-router-topk {shape.active_experts}"
    yield f"--moe-ffn-hidden-size {shape.expert_size or shape.feed_forward_size}"
    if shape.shared_expert_size:
        yield f"--moe-shared-expert-intermediate-size {shape.shared_expert_size}"
    if shape.dense_layers:
        yield f"--moe-layer-freq ([0]*{shape.dense_layers}+[1]*{shape.layers - shape.dense_layers})"
    elif (shape.expert_every or 1) > 1:
        yield f"--moe-layer-freq {shape.expert_every}"
    yield "--moe-token-dispatcher-type alltoall"
    yield "--moe-grouped-gemm"
