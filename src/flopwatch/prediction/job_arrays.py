"""Training jobs on machines as arrays, an entry each: what the cost model computes with.

A model is described by its average layer: its linear layers are columns of `inputs`, `outputs` and
so on, where `weight_layers` says in which share of the layers each of them is. Everything is a
float, so that one formula serves a single prediction, the rows of a table, a fit to thousands of
measured steps, and the search of a plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from flopwatch.devices.kinds import is_host
from flopwatch.devices.measured_peaks import Operation
from flopwatch.jobs.parallelism import SCHEDULES, UNSHARDED
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.prediction.hardware import Machine
from flopwatch.prediction.model_work import (
    ModelWork,
    Weight,
    count_work,
    list_weights,
)

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

GATHERS: Mapping[str, int] = {"zero2": 1, "full": 2, "hybrid": 2}
"""How often a block is gathered in a micro-batch, by sharding."""
UPDATE_PASSES = {"adamw": 7, "adamw-unfused": 16, "sgd": 3}
"""Reads and writes of a parameter's worth of numbers in an update. Fused AdamW reads parameter,
gradient and both moments, and writes all but the gradient; SGD has no moments; unfused, every
operation of AdamW reads and writes anew."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Habits:
    """What a framework does that no fit has to find."""

    casts: bool = True
    """Autocast: matmuls cast weights of 32 bits, and norms are wide. Else weights are kept in 16
    bits, too."""
    has_plain_attention: bool = False
    """Scores are written to memory: two matmuls and a softmax instead of a fused kernel."""
    has_new_attention: bool = False
    """Its fused kernels are written for the instructions of the device that it runs on."""
    scatters: bool = False
    """Tensor-parallel ranks send a part each from stage to stage, not all of them all of it."""
    gathered_tensors: int = 1
    """Collectives that gather a sharded block: 1, or one for each of its tensors."""
    reduced_bytes: int | None = None
    """Of a gradient that ranks sum up; None: as is usual for the precision."""
    network_gbit: float | None = None
    """Between the nodes that it was measured on, for each device; None: as is usual."""


NO_HABITS = Habits()


@dataclass(frozen=True, kw_only=True, slots=True)
class JobArrays:
    """A row each; `inputs` to `copies` have a column for each linear layer."""

    inputs: Array
    outputs: Array
    weight_layers: Array
    split: Array
    active: Array
    copies: Array
    work: Array
    """As the fields of `ModelWork`, a column each."""
    seq_len: Array
    micro_batch: Array
    grad_accum: Array
    is_full: Array
    """Which share of the layers is recomputed in full,"""
    is_selective: Array
    """or whether a part of each is."""
    is_plain: Array
    """Whether scores of attention are written to memory."""
    is_autocast: Array
    is_narrow: Array
    """Whether matmuls have operands of 8 bits or fewer."""
    is_compiled: Array
    element_bytes: Array
    parameter_bytes: Array
    gathered_bytes: Array
    reduced_bytes: Array
    update_passes: Array
    tensor: Array
    is_sequence: Array
    pipeline: Array
    virtual_stages: Array
    is_zero_bubble: Array
    is_gpipe: Array
    context: Array
    is_swapped: Array
    """Whether context-parallel ranks swap tokens for heads."""
    expert: Array
    expert_tensor: Array
    """0: as `tensor`."""
    expert_imbalance: Array
    """0: as the software stack has it."""
    offloads_activations: Array
    offloads_optimizer: Array
    host_link: Array
    data: Array
    is_none: Array
    is_sharded: Array
    """Whether blocks are gathered and gradients reduced in every micro-batch: zero2, full and
    hybrid,"""
    gathers: Array
    """and how often a block is gathered."""
    is_zero1: Array
    shard_group: Array
    """Data-parallel ranks that divide the optimizer's state, and all that is sharded."""
    scatters: Array
    gathered_tensors: Array
    matmul_rate: Array
    matmul_peak: Array
    head_rate: Array
    head_peak: Array
    attention_peak: Array
    attention_share: Array
    bandwidth: Array
    link: Array
    network: Array
    tensor_link: Array
    """As `link`, of what tensor-parallel ranks exchange,"""
    tensor_latency: Array
    """and what that takes in addition to all that is usual, as measured here; likewise"""
    data_link: Array
    data_latency: Array
    expert_link: Array
    expert_latency: Array
    stage_link: Array
    stage_latency: Array
    ranks_per_core: Array
    per_node: Array
    processors: Array
    is_host: Array
    pressed_gb: Array

    def find_expert_tensor(self) -> Array:
        """Ranks that divide an expert."""
        import numpy as np

        return np.where(self.expert_tensor > 0, self.expert_tensor, self.tensor)

    def count_alike(self) -> Array:
        """Ranks that have the same experts."""
        import numpy as np

        ranks = self.data * self.context * self.tensor / self.find_expert_tensor() / self.expert
        return np.maximum(ranks, 1.0)

    def get(self, name: str) -> Array:
        """A field of `ModelWork`."""
        return self.work[:, ModelWork._fields.index(name)]


ROW_FIELDS = tuple(
    each.name
    for each in fields(JobArrays)
    if each.name not in ("inputs", "outputs", "weight_layers", "split", "active", "copies", "work")
)


class Placed(NamedTuple):
    """A job on a machine, as a framework runs it."""

    job: TrainingJob
    machine: Machine
    habits: Habits = NO_HABITS
    pressed_gb: float = 0.0
    """What ranks hold, where that nearly fills their memory."""


def make_arrays(jobs: Sequence[Placed]) -> JobArrays:
    import numpy as np

    weights = [list_weights(each.job.shape) for each in jobs]
    columns = np.zeros((len(jobs), max(map(len, weights)), len(Weight._fields)))
    columns[:, :, :2] = 1.0
    for row, listed in enumerate(weights):
        columns[row, : len(listed)] = listed
    names = ("inputs", "outputs", "weight_layers", "split", "active", "copies")
    rows = np.array([list(_describe(each).values()) for each in jobs], dtype=float)
    work = np.array([count_work(each.job.shape, each.job.seq_len) for each in jobs], dtype=float)
    return JobArrays(
        **{name: columns[:, :, place] for place, name in enumerate(names)},
        work=work,
        **{name: rows[:, place] for place, name in enumerate(ROW_FIELDS)},
    )


def _describe(placed: Placed) -> dict[str, float]:
    """The fields of `JobArrays` in their order."""
    job, machine, habits, pressed_gb = placed
    split, arithmetic = job.parallelism, job.arithmetic
    sharding = job.sharding
    described: dict[str, float] = {
        "seq_len": job.seq_len,
        "micro_batch": job.micro_batch,
        "grad_accum": job.grad_accum,
        "is_full": job.recomputed_share,
        "is_selective": job.recompute == "selective",
        "is_plain": habits.has_plain_attention or job.attention == "plain",
        "is_autocast": arithmetic.is_autocast and habits.casts,
        "is_narrow": arithmetic.narrow in ("float8", "float4", "int8"),
        "is_compiled": job.compiled,
        "element_bytes": arithmetic.element_bytes,
        "parameter_bytes": arithmetic.parameter_bytes,
        "gathered_bytes": arithmetic.gathered_bytes,
        "reduced_bytes": job.reduced_bytes or habits.reduced_bytes or arithmetic.reduced_bytes,
        "update_passes": UPDATE_PASSES[job.optimizer],
        "tensor": split.tensor,
        "is_sequence": split.sequence,
        "pipeline": split.pipeline,
        "virtual_stages": split.virtual_stages,
        "is_zero_bubble": SCHEDULES[split.schedule].splits_backward,
        "is_gpipe": SCHEDULES[split.schedule].keeps_all,
        "context": split.context,
        "is_swapped": split.context_exchange == "all-to-all",
        "expert": split.expert,
        "expert_tensor": split.expert_tensor or 0,
        "expert_imbalance": job.expert_imbalance or 0.0,
        "offloads_activations": job.offload in ("activations", "both"),
        "offloads_optimizer": job.offload in ("optimizer", "both"),
        "host_link": machine.host_bytes_per_s,
        "data": split.data,
        "is_none": sharding == "none",
        "is_sharded": sharding in GATHERS,
        "gathers": GATHERS.get(sharding, 2),
        "is_zero1": sharding == "zero1",
        "shard_group": find_shard_group(job, machine),
        "scatters": habits.scatters or split.sequence,
        "gathered_tensors": habits.gathered_tensors,
        "matmul_rate": machine.require_rate(arithmetic.matmul_dtype),
        "matmul_peak": machine.peak_flops_per_s[arithmetic.matmul_dtype],
        "head_rate": machine.require_rate(arithmetic.activation_dtype),
        "head_peak": machine.peak_flops_per_s[arithmetic.activation_dtype],
        "attention_peak": machine.peak_flops_per_s[arithmetic.activation_dtype],
        "attention_share": machine.power_share
        * (1.0 if habits.has_new_attention else machine.attention_share),
        "bandwidth": machine.bandwidth_bytes_per_s,
        "link": machine.find_link(job.ranks) or 0.0,
        "network": machine.network_bytes_per_s or 0.0,
        **_describe_links(job, machine),
        "ranks_per_core": machine.ranks_per_core,
        "per_node": machine.per_node,
        "processors": machine.processors,
        "is_host": is_host(machine.device),
        "pressed_gb": pressed_gb,
    }
    return described


GATHERED: tuple[Operation, ...] = ("all-gather", "all-gather")
"""Of a block, in the forward and the backward pass."""


def _describe_links(job: TrainingJob, machine: Machine) -> dict[str, float]:
    """By what ranks divide: the exchanges of it, one after another."""
    split = job.parallelism
    gathers = GATHERS.get(job.sharding, 0)
    exchanges: dict[str, tuple[int, tuple[Operation, ...]]] = {
        "tensor": (
            split.tensor,
            ("all-gather", "reduce-scatter") if split.sequence else ("all-reduce",),
        ),
        "data": (
            split.data * split.context,
            GATHERED[:gathers] + ("reduce-scatter",) if gathers else ("all-reduce",),
        ),
        "expert": (split.expert, ("all-to-all",)),
        "stage": (split.pipeline, ("send-receive",)),
    }
    described = {}
    for kind, (members, operations) in exchanges.items():
        found = [machine.find_exchange(each, members, job.ranks) for each in operations]
        rates = [rate for _, rate in found if rate]
        # Each moves as much, so that their times add up.
        described[f"{kind}_link"] = len(rates) / sum(1 / rate for rate in rates) if rates else 0.0
        described[f"{kind}_latency"] = sum(latency for latency, _ in found) / len(found)
    return described


def find_shard_group(job: TrainingJob, machine: Machine) -> int:
    """How many ranks divide what is sharded: all that have the same part of the model, a group of
    them, or none."""
    split = job.parallelism
    alike = split.data * split.context
    if job.sharding in UNSHARDED:
        return 1
    if split.shard_group is not None:
        return min(split.shard_group, alike)
    if job.sharding != "hybrid":
        return alike
    per_node = split.ranks_per_node or machine.per_node
    inside = max(1, per_node // (split.tensor * split.context))
    return inside if 1 < inside < alike and alike % inside == 0 else max(1, alike // 2)


def count_stage_layers(jobs: JobArrays) -> tuple[Array, Array, Array]:
    """Of the first stage, those between, and the last. Stages have as many layers each, and the
    last what is left; where embedding and head divide up evenly as two more layers, so they are
    taken."""
    import numpy as np

    layers, stages = jobs.get("layers"), jobs.pipeline
    counts_ends = (layers % stages > 0) & ((layers + 2) % stages == 0)
    each = np.where(counts_ends, (layers + 2) / stages, np.ceil(layers / stages))
    last = np.maximum(np.where(counts_ends, each - 1, layers - each * (stages - 1)), 0.0)
    return np.where(counts_ends, each - 1, each), each, last


def count_rank_parameters(jobs: JobArrays) -> tuple[Array, Array]:
    """That the fullest stage has of layers and ends, and of experts, on one rank."""
    import numpy as np

    _, middle, _ = count_stage_layers(jobs)
    share = middle / jobs.get("layers") / jobs.tensor
    ends = jobs.get("rest_parameters") / jobs.tensor
    is_divided = (jobs.pipeline > 1) & (
        jobs.get("rest_parameters") > 1.5 * jobs.get("rows") * jobs.get("head_width")
    )
    ends = np.where(is_divided, ends / 2, ends)
    of_experts = share * jobs.tensor / jobs.find_expert_tensor() / jobs.expert
    return share * jobs.get("block_parameters") + ends, of_experts * jobs.get("expert_parameters")
