"""What an average layer takes in one micro-batch, and the ends of a model: `cost` has the formulas
in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from flopwatch.prediction.job_arrays import JobArrays
from flopwatch.prediction.model_work import COLUMN, ROW
from flopwatch.prediction.software_stacks import Parameters

if TYPE_CHECKING:
    from flopwatch.prediction.job_arrays import Array

Bound = Literal["compute", "memory", "overhead", "network"]
ALIGNED = 8
"""Tensor cores want widths that are multiples of it."""
COMMON_HEAD = 64
BACKWARD_MATMULS = 2.5
"""Of fused attention, for each of the forward pass: five instead of two."""
FORWARD_SHARE = 1 / 3
"""Of what both passes take, where nothing else is known."""
TILE = 128 * 256
"""Numbers of a matmul's result that one processor computes at a time."""
LONGEST_SUM = 8192
"""Of a matmul's inner dimension that one processor adds up: longer ones are divided."""
SEQUENCE_LAUNCHES, SHARDED_LAUNCHES = 1.8, 0.3
"""What sequence parallelism adds to `divided_block_s`, and what sharding alone takes of it: from
steps of tiny layers on a CPU, where launches are all there is."""
EMBEDDING_PASSES = 6
"""Over hidden states, of what the embedding reads and writes in both passes."""


class Micro(NamedTuple):
    """Of one micro-batch and one average layer, or the head."""

    name: str
    forward_s: Array
    backward_s: Array
    forward_ideal_s: Array | float
    backward_ideal_s: Array | float
    bound: Bound


def time_matmuls(jobs: JobArrays, parameters: Parameters) -> Micro:
    import numpy as np

    tokens = count_tokens(jobs)[:, None]
    share = jobs.weight_layers / jobs.get("layers")[:, None]
    tensor = jobs.tensor[:, None]
    is_expert = jobs.copies > 1
    divided = np.where(is_expert, jobs.find_expert_tensor()[:, None], tensor)
    inputs = np.where(jobs.split == ROW, jobs.inputs / divided, jobs.inputs)
    outputs = np.where(jobs.split == COLUMN, jobs.outputs / divided, jobs.outputs)
    groups = np.where(is_expert, np.maximum(jobs.copies / jobs.expert[:, None], 1.0), 1.0)
    can_differ = is_expert & (jobs.copies > jobs.active)
    imbalance = find_imbalance(jobs, parameters)[:, None]
    uneven = np.where(can_differ, imbalance, 1.0)
    # Ranks that do not divide an expert among them have a share of its tokens each.
    rows = tokens * np.where(is_expert, jobs.active * divided / tensor, 1.0) * uneven
    efficiency = _as_column(parameters.matmul_efficiency) * np.where(
        is_expert, _as_column(parameters.grouped_efficiency), 1.0
    )
    rate, bandwidth = jobs.matmul_rate[:, None], find_bandwidth(jobs, parameters)[:, None]
    flops = 2.0 * rows * inputs * outputs  # a multiply and an add
    numbers = rows * inputs + groups * inputs * outputs + rows * outputs
    moved_s = jobs.element_bytes[:, None] * numbers / bandwidth
    once = flops / (rate * efficiency) + _as_column(parameters.matmul_traffic) * moved_s
    # Casts of the input, the result's gradient and the weight, each for two of three matmuls.
    casts = _as_column(parameters.cast_bytes) * jobs.is_narrow[:, None] * numbers / bandwidth
    wave = (
        _as_column(parameters.wave_tail) * 2 * TILE * jobs.processors[:, None] / rate
    )  # fmt: skip
    sums = np.minimum(rows, LONGEST_SUM)
    again = (jobs.is_full * parameters.recomputed_share)[:, None]
    ideal = flops / jobs.matmul_peak[:, None]
    is_real = jobs.active > 0

    def add(values: Array) -> Array:
        summed: Array = np.sum(np.where(is_real, share * values, 0.0), axis=1)
        return summed

    return Micro(
        "matmuls",
        add(once + wave * inputs + casts / 2),
        add((2 + again) * once + wave * (outputs + sums + again * inputs) + casts / 2),
        add(ideal),
        add((2 + again) * ideal),
        "compute",
    )


def _as_column(value: Any) -> Any:
    """A parameter to compute with columns of linear layers: one for all jobs, or one each."""
    return value[:, None] if getattr(value, "ndim", 0) else value


def find_imbalance(jobs: JobArrays, parameters: Parameters) -> Array:
    import numpy as np

    return np.where(jobs.expert_imbalance > 0, jobs.expert_imbalance, parameters.expert_imbalance)


def count_tokens(jobs: JobArrays) -> Array:
    return jobs.micro_batch * jobs.seq_len / jobs.context


def find_bandwidth(jobs: JobArrays, parameters: Parameters) -> Array:
    found: Array = jobs.bandwidth * parameters.bandwidth_efficiency
    return found


def time_attention(jobs: JobArrays, parameters: Parameters) -> Micro:
    import numpy as np

    share = jobs.micro_batch / (jobs.get("layers") * jobs.tensor * jobs.context)
    pairs, scores, size = (jobs.get(name) for name in ("pairs", "scores", "head_dim"))
    # 4: scores and values are a matmul each, of a multiply and an add.
    flops = 4 * COMMON_HEAD * (size / COMMON_HEAD) ** parameters.attention_growth
    peak = jobs.attention_peak
    fused_s = (
        share * pairs * flops / (peak * jobs.attention_share * parameters.attention_efficiency)
    )
    odd = np.where(size % ALIGNED > 0, parameters.odd_head, 1.0)
    bandwidth = find_bandwidth(jobs, parameters)
    moved = parameters.score_bytes + 2 * parameters.matmul_traffic * jobs.element_bytes * odd
    rate = jobs.head_rate * parameters.matmul_efficiency
    plain_s = share * scores * (4 * size * odd / rate + moved / bandwidth)
    scanned = share * jobs.tensor * jobs.context * jobs.get("scanned") / jobs.tensor / jobs.context
    scan_s = 2 * scanned / (peak * parameters.scan_efficiency)
    again = np.maximum(jobs.is_full, jobs.is_selective)
    forward = np.where(jobs.is_plain > 0, plain_s, fused_s) + scan_s
    backward = (
        np.where(
            jobs.is_plain > 0,
            (2 * parameters.plain_backward + again) * plain_s,
            (BACKWARD_MATMULS * parameters.attention_backward + again) * fused_s,
        )
        + (2 + again) * scan_s
    )
    ideal = share * pairs * 4 * size / peak + 2 * scanned / peak
    back = np.where(jobs.is_plain > 0, 2.0, BACKWARD_MATMULS) + again
    return Micro(
        "attention", forward, backward, ideal, np.minimum(back * ideal, backward), "compute"
    )


def time_elements(jobs: JobArrays, parameters: Parameters) -> Micro:
    import numpy as np

    tokens, layers = count_tokens(jobs), jobs.get("layers")
    stream = np.where(jobs.is_sequence > 0, jobs.tensor, 1.0)
    forward, backward = (
        (jobs.get(f"stream_{name}") / stream + jobs.get(f"inner_{name}") / jobs.tensor) / layers
        for name in ("forward", "backward")
    )
    # Selective recomputation repeats all but matmuls; where attention is plain, that alone.
    again = np.where(jobs.is_plain > 0, jobs.is_full, np.maximum(jobs.is_full, jobs.is_selective))
    backward = backward + again * forward
    more = parameters.traffic * np.where(jobs.is_autocast > 0, parameters.autocast_traffic, 1.0)
    more = more * np.where(jobs.is_compiled > 0, parameters.compiled_traffic, 1.0)
    size_bytes = tokens * jobs.element_bytes
    return Micro(
        "element-wise",
        more * size_bytes * forward / find_bandwidth(jobs, parameters),
        more * size_bytes * backward / find_bandwidth(jobs, parameters),
        size_bytes * forward / jobs.bandwidth,
        size_bytes * backward / jobs.bandwidth,
        "memory",
    )


def time_overhead(jobs: JobArrays, parameters: Parameters, layer: Sequence[Micro]) -> Micro:
    """Launches run ahead of kernels, and are seen where those are shorter; on a host, nothing runs
    ahead."""
    import numpy as np

    again = np.maximum(jobs.is_full, jobs.is_selective)
    divided = np.where(jobs.tensor > 1, 1 + SEQUENCE_LAUNCHES * jobs.is_sequence, 0.0)
    divided = divided + SHARDED_LAUNCHES * jobs.is_sharded
    launches = parameters.block_s + parameters.divided_block_s * divided
    # On a host it is work of cores, which ranks may share.
    launches = (
        launches
        * jobs.ranks_per_core
        * np.where(jobs.is_compiled > 0, parameters.compiled_launches, 1.0)
    )
    collectives = np.where(jobs.tensor > 1, 2 * np.log2(jobs.tensor), 0.0) * parameters.collective_s
    forward = FORWARD_SHARE * launches + collectives
    backward = (1 - FORWARD_SHARE + again * FORWARD_SHARE) * launches + collectives * (
        1 + jobs.is_full
    )
    kernels = [sum(getattr(each, name) for each in layer) for name in ("forward_s", "backward_s")]
    both = np.hypot(kernels[0] + kernels[1], forward + backward) - kernels[0] - kernels[1]
    both = np.where(jobs.is_host > 0, forward + backward, both)
    share = forward / np.maximum(forward + backward, 1e-12)
    return Micro("overhead", share * both, (1 - share) * both, 0.0, 0.0, "overhead")


def time_head(jobs: JobArrays, parameters: Parameters) -> list[Micro]:
    """Head and loss, which are work of the last stage."""
    import numpy as np

    tokens, rows = count_tokens(jobs), jobs.get("rows") / jobs.tensor
    width, count = jobs.get("head_width"), jobs.get("heads_computed")
    bandwidth = find_bandwidth(jobs, parameters)
    flops = 2.0 * tokens * width * rows
    numbers = tokens * width + width * rows + tokens * rows
    once = flops / (jobs.head_rate * parameters.matmul_efficiency) + (
        parameters.matmul_traffic * jobs.element_bytes * numbers / bandwidth
    )
    head = count * once * np.where(rows % ALIGNED > 0, parameters.odd_matmul, 1.0)
    ideal = count * flops / jobs.head_peak
    loss = count * tokens * rows * parameters.loss_bytes / bandwidth
    # 3: at the least, logits are written, read, and overwritten by their gradient.
    least = np.minimum(3 * count * tokens * rows * jobs.element_bytes / jobs.bandwidth, loss)
    there, back = FORWARD_SHARE, 1 - FORWARD_SHARE
    return [
        Micro("head", head, 2 * head, ideal, 2 * ideal, "compute"),
        Micro("loss", there * loss, back * loss, there * least, back * least, "memory"),
    ]


def time_embedding(jobs: JobArrays, parameters: Parameters) -> Micro:
    """What the first stage reads and writes of hidden states."""
    size_bytes = count_tokens(jobs) * jobs.get("hidden") * jobs.element_bytes
    once = EMBEDDING_PASSES / 2 * size_bytes / find_bandwidth(jobs, parameters)
    ideal = EMBEDDING_PASSES / 2 * size_bytes / jobs.bandwidth
    return Micro("embedding", once, once, ideal, ideal, "memory")
