"""The cost model: the time of a training step, part by part.

A step is `grad_accum` micro-batches and an update. A micro-batch of T tokens (of a sequence, the
share of a context-parallel rank) goes through the layers of a pipeline stage. Of a layer:

    matmuls         of T x K by K x N, three of them for each weight (forward, and the gradients of
                    input and weight), and of recomputed layers a fourth:

                        2 T K N / (rate of large matmuls * matmul_efficiency)
                        + matmul_traffic * bytes of operands and result / bandwidth
                        + wave_tail * a wave of tiles: processors that have nothing left to do

                    Tensor parallelism divides N or K. Of experts, a rank has its share, the
                    fullest `expert_imbalance` times the mean, at `grouped_efficiency`. Operands of
                    8 bits or fewer are made by casts, `cast_bytes` for each number.
    attention       fused, the pairs of positions that the mask leaves, of every head:

                        4 * 64 FLOPs * (head size / 64) ** attention_growth
                        / (peak * attention_efficiency)

                    and backward 2.5 times that (five matmuls instead of two, since the scores are
                    recomputed) times `attention_backward`; plain, two matmuls of all pairs, and
                    `score_bytes` for each score; `odd_head` times that where the head size is no
                    multiple of 8
    element-wise    what norms, residuals, activations and layouts read and write, at the least
                    (`job_arrays`); `traffic` times that, `autocast_traffic` times more under
                    autocast, and `compiled_traffic` times where compiled. Tensor parallelism
                    divides what is inside attention and feed-forward; the rest, sequence
                    parallelism.
    collectives     of tensor parallelism: four all-reduces of T x d, six with recomputation;
                    of experts: four all-to-alls; of context parallelism: keys and values to all
                    others, hidden behind attention as far as that takes
    overhead        launches and hooks take `block_s`, and `divided_block_s` more where tensors
                    are divided (three times that with sequence parallelism); it is hidden where
                    kernels take longer: both together take the root of the sum of their squares
                    (on a CPU, the sum)

Then the head, `odd_matmul` times as long where its rows are no multiple of 8, and `loss_bytes` for
each logit; `micro_batch_s`; and what is sent to the next stage, of which `p2p_exposed` is waited
for. All micro-batches pass the slowest stage, and the pipeline fills and drains in the time that
one takes through all other stages (with virtual stages a share of it, with zero-bubble schedules a
third). Head and embedding are work of the last and the first stage. Where ranks share the cores of
a CPU, those that wait leave them to others, which are faster meanwhile.

A collective takes `collective_s`, what `flopwatch peaks` has measured that it takes at least in a
measured machine, and `hop_s` for each node; and what a rank sends and receives at
`link_efficiency` of its link inside a node (or a domain of NVLink), `network_efficiency` of the
network between nodes, whichever is slower. Rings of ranks of one node share its adapters. Data
parallelism reduces gradients once a step; where blocks are sharded, they are gathered before
each pass and gradients reduced in every micro-batch. Of that, `exposed_share` is waited for (all of
it, where sharding is `none`), and the rest as far as it takes longer than all that is computed.

An update reads and writes each rank's share of parameters, gradients and moments, and a step takes
`step_s` more; slow ranks cost `scale_loss` for each doubling of the nodes. Where memory is nearly
full, each GB costs `pressure_s_per_gb` in every micro-batch.

Layers whose activations are offloaded wait for what takes longer to move to the host and back than
to compute; an optimizer's state on the host is updated there.

Left out: the embedding's lookup, dropout, data loaders that cannot keep up, clocks that change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from flopwatch.errors import UsageError
from flopwatch.jobs.parallelism import count_shards
from flopwatch.jobs.parameters import require_known
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.prediction.communication import (
    time_data_exchange,
    time_end_exchange,
    time_layer_exchange,
    time_sends,
)
from flopwatch.prediction.hardware import Machine
from flopwatch.prediction.job_arrays import (
    NO_HABITS,
    Habits,
    JobArrays,
    Placed,
    count_rank_parameters,
    count_stage_layers,
    make_arrays,
)
from flopwatch.prediction.layer_cost import (
    Bound,
    Micro,
    find_bandwidth,
    time_attention,
    time_elements,
    time_embedding,
    time_head,
    time_matmuls,
    time_overhead,
)
from flopwatch.prediction.software_stacks import Parameters
from flopwatch.prediction.stage_memory import count_kept

if TYPE_CHECKING:
    from flopwatch.prediction.job_arrays import Array

Phase = Literal["forward", "backward", "optimizer"]
HOST_BYTES_PER_S = 50e9
"""Of the host's memory, what the update of one device has, where its state is there: an eighth of
a server's, assumed."""
ZERO_BUBBLE = 1 / 3
"""Of a pipeline's bubble, what a schedule leaves that fills it with gradients of weights."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one kind of work takes in a whole step of one rank."""

    name: str
    phase: Phase
    time_s: float
    ideal_s: float
    """At the peak, or the full bandwidth: what is above it could be gained at the most."""
    bound: Bound = "compute"


@dataclass(frozen=True, slots=True)
class Cost:
    parts: tuple[Part, ...]

    @property
    def step_s(self) -> float:
        return sum(part.time_s for part in self.parts)

    def sum_phase(self, *phases: Phase) -> float:
        return sum(part.time_s for part in self.parts if part.phase in phases)

    @property
    def by_name(self) -> dict[str, Part]:
        """Parts of one name added up over the phases."""
        sums: dict[str, Part] = {}
        for part in self.parts:
            if known := sums.get(part.name):
                time_s, ideal_s = known.time_s + part.time_s, known.ideal_s + part.ideal_s
                sums[part.name] = Part(part.name, known.phase, time_s, ideal_s, part.bound)
            else:
                sums[part.name] = part
        return sums


class PartArrays(NamedTuple):
    """A `Part` of many jobs."""

    name: str
    phase: Phase
    time_s: Array
    ideal_s: Array | float = 0.0
    bound: Bound = "overhead"


def estimate_cost(
    job: TrainingJob,
    machine: Machine,
    parameters: Parameters,
    pressed_gb: float = 0.0,
    habits: Habits = NO_HABITS,
) -> Cost:
    """Of a step on each of the job's ranks, which have a `machine` each. `pressed_gb` is what they
    hold where that nearly fills their memory, and 0 elsewhere (`predictions.find_pressure`).

    >>> from flopwatch.jobs.parallelism import Parallelism
    >>> from flopwatch.prediction.hardware import find_machine
    >>> from flopwatch.prediction.software_stacks import EXPECTED
    >>> split = Parallelism(data=8, sharding="full")
    >>> job = TrainingJob("7b", 2048, micro_batch=4, parallelism=split)
    >>> cost = estimate_cost(job, find_machine("A100-80GB")[1], EXPECTED)
    >>> round(job.tokens_per_step / cost.step_s / 8, -3)
    4000.0
    """
    require_predictable(job)
    require_links(job, machine)
    jobs = make_arrays([Placed(job, machine, habits, pressed_gb)])
    parts = [
        Part(
            each.name, each.phase, _first(each.time_s), _first(each.ideal_s), each.bound
        )
        for each in list_parts(jobs, parameters)
    ]  # fmt: skip
    return Cost(tuple(part for part in parts if part.time_s > 0 or part.name in ALWAYS))


ALWAYS = ("matmuls", "attention", "head", "element-wise", "loss", "overhead", "optimizer")


def _first(values: Array | float) -> float:
    import numpy as np

    return float(np.ravel(np.asarray(values))[0])


def estimate_steps(jobs: JobArrays, parameters: Parameters) -> Array:
    """Seconds of a step of each."""
    total: Any = 0.0
    for part in list_parts(jobs, parameters):
        total = total + part.time_s
    return cast("Array", total)


def require_predictable(job: TrainingJob, who: str = "predict") -> None:
    """Refuse a job whose cost does not follow from its description."""
    require_known(job.shape)
    split = job.parallelism
    if split.pipeline > job.shape.layers:
        raise UsageError(
            f"{who}: {split.pipeline} pipeline stages cannot share {job.shape.layers} layers; "
            "choose fewer stages"
        )
    heads = job.shape.heads
    if split.context_exchange == "all-to-all" and split.tensor * split.context > (heads or 1):
        raise UsageError(
            f"{who}: {split.tensor * split.context} ranks cannot share {heads} heads, which they "
            "do where tokens are swapped for heads; choose fewer, or context exchange ring"
        )
    if split.expert > (job.shape.experts or 1):
        raise UsageError(
            f"{who}: {split.expert} expert-parallel ranks cannot share {job.shape.experts or 0} "
            "experts; choose fewer, or leave --ep out"
        )


def count_job_shards(job: TrainingJob, machine: Machine) -> int:
    """Into how many parts a parameter of a data-parallel job is divided: with hybrid, among the
    devices of a node, where there are several nodes."""
    has_whole_nodes = job.ranks % machine.per_node == 0
    per_node = machine.per_node if has_whole_nodes else job.ranks
    return count_shards(job.sharding, job.ranks, job.parallelism.ranks_per_node or per_node)


def require_links(job: TrainingJob, machine: Machine) -> None:
    """Refuse ranks that nothing is known to join."""
    if job.ranks == 1:
        return
    missing = "a link" if machine.find_link(job.ranks) is None else None
    if job.ranks > machine.per_node and machine.network_bytes_per_s is None:
        missing = "a network"
    if missing:
        raise UsageError(
            f"{job.ranks} ranks need {missing}, and that of {machine.name} is not known; measure "
            "it with `flopwatch peaks`, or choose a device whose link is listed"
        )


def list_parts(jobs: JobArrays, parameters: Parameters) -> list[PartArrays]:
    """Of a step, of an average rank; what the slowest stage takes longer, and what a pipeline
    waits, is its bubble."""
    layer = [
        time_matmuls(jobs, parameters),
        time_attention(jobs, parameters),
        time_elements(jobs, parameters),
        *time_layer_exchange(jobs, parameters),
    ]
    layer.append(time_overhead(jobs, parameters, layer))
    layer.append(time_offload(jobs, layer))
    first_exchange, last_exchange = time_end_exchange(jobs, parameters)
    first = [time_embedding(jobs, parameters), first_exchange]
    last = [*time_head(jobs, parameters), last_exchange]
    layers, stages, times = jobs.get("layers"), jobs.pipeline, jobs.grad_accum
    layer_s, first_s, last_s = (
        _add(each.forward_s + each.backward_s for each in group) for group in (layer, first, last)
    )
    sent = time_sends(jobs, parameters)
    pressed_s = jobs.pressed_gb * parameters.pressure_s_per_gb
    summed_s = time_sums(jobs, parameters)
    fixed_s = sent + parameters.micro_batch_s + pressed_s + summed_s
    slowest_s, bubble_s = _find_bubble(jobs, layer_s, first_s, last_s, fixed_s)
    mean_s = (layers * layer_s + first_s + last_s) / stages
    waited_s = time_data_exchange(jobs, parameters, slowest_s, mean_s)
    parts = [
        *(part for each in layer for part in _scale(each, times * layers / stages)),
        *(part for each in (*first, *last) for part in _scale(each, times / stages)),
        PartArrays("overhead", "backward", times * parameters.micro_batch_s),
        PartArrays("gradient sums", "backward", times * summed_s, bound="memory"),
        PartArrays("memory pressure", "backward", times * pressed_s),
        PartArrays("pipeline communication", "backward", times * sent, bound="network"),
        PartArrays("pipeline bubble", "backward", times * (slowest_s - mean_s) + bubble_s),
        PartArrays("communication", "backward", waited_s, bound="network"),
        *_list_update(jobs, parameters),
    ]
    return _add_slow_ranks(jobs, parameters, parts)


def time_sums(jobs: JobArrays, parameters: Parameters) -> Array:
    """What a micro-batch takes to add its gradients to those of the ones before: read both, write
    one. Where gradients are sharded, that is a small share of them."""
    import numpy as np

    common, experts = count_rank_parameters(jobs)
    group = np.where(jobs.is_sharded > 0, jobs.shard_group, 1.0)
    numbers = (common + experts) / group
    moved = numbers * (jobs.element_bytes + 2 * jobs.reduced_bytes)
    summed: Array = np.where(jobs.grad_accum > 1, moved, 0.0) / find_bandwidth(jobs, parameters)
    return summed


def _scale(part: Micro, times: Array) -> Iterator[PartArrays]:
    """From one micro-batch to a step."""
    yield PartArrays(
        part.name, "forward", times * part.forward_s, times * part.forward_ideal_s, part.bound
    )
    yield PartArrays(
        part.name, "backward", times * part.backward_s, times * part.backward_ideal_s, part.bound
    )


def _add(values: Iterable[Array]) -> Array:
    total: Any = 0.0
    for each in values:
        total = total + each
    return cast("Array", total)


def _find_bubble(
    jobs: JobArrays, layer_s: Array, first_s: Array, last_s: Array, fixed_s: Array
) -> tuple[Array, Array]:
    """What the slowest stage computes of a micro-batch, and what filling and draining takes."""
    import numpy as np

    stages = jobs.pipeline
    first, middle, last = count_stage_layers(jobs)
    alone = jobs.get("layers") * layer_s + first_s + last_s
    slowest = np.maximum(first * layer_s + first_s, last * layer_s + last_s)
    slowest = np.maximum(slowest, np.where(stages > 2, middle * layer_s, 0.0))
    slowest = np.where(stages > 1, slowest, alone)
    others = np.maximum(alone - slowest, 0.0) + (stages - 1) * fixed_s
    fill = np.where(jobs.is_zero_bubble > 0, ZERO_BUBBLE, 1.0) / jobs.virtual_stages
    # A stage that waits leaves its core to another, where they share it.
    fill = fill / jobs.ranks_per_core
    return slowest, np.where(stages > 1, others * fill, 0.0)


def _list_update(jobs: JobArrays, parameters: Parameters) -> list[PartArrays]:
    """On the host, where the optimizer's state is there: gradients go, and parameters come back."""
    import numpy as np

    common, experts = count_rank_parameters(jobs)
    group = np.where((jobs.is_sharded > 0) | (jobs.is_zero1 > 0), jobs.shard_group, 1.0)
    own = common / group + experts / np.minimum(group, jobs.count_alike())
    size_bytes = jobs.update_passes * own * jobs.parameter_bytes
    update_s = size_bytes / find_bandwidth(jobs, parameters)
    is_away = jobs.offloads_optimizer > 0
    away_s = size_bytes / HOST_BYTES_PER_S
    update_s = np.where(is_away, away_s, update_s)
    moved_s = own * (jobs.reduced_bytes + jobs.element_bytes) / jobs.host_link
    return [
        PartArrays("optimizer", "optimizer", update_s, size_bytes / jobs.bandwidth, "memory"),
        PartArrays("offloading", "optimizer", np.where(is_away, moved_s, 0.0), bound="memory"),
        PartArrays("overhead", "optimizer", parameters.step_s + 0 * update_s),
    ]


def time_offload(jobs: JobArrays, layer: Sequence[Micro]) -> Micro:
    """What a layer keeps goes to the host while it computes, and comes back likewise; waited for is
    what takes longer."""
    import numpy as np

    kept, _ = count_kept(jobs)
    moved_s = np.where(jobs.offloads_activations > 0, kept / jobs.host_link, 0.0)
    forward, backward = (
        np.maximum(moved_s - _add(getattr(each, name) for each in layer), 0.0)
        for name in ("forward_s", "backward_s")
    )
    return Micro("offloading", forward, backward, 0.0, 0.0, "memory")


def _add_slow_ranks(
    jobs: JobArrays, parameters: Parameters, parts: list[PartArrays]
) -> list[PartArrays]:
    import numpy as np

    ranks = jobs.tensor * jobs.context * jobs.data * jobs.pipeline
    doublings = np.log2(np.maximum(ranks / jobs.per_node, 1.0))
    lost_s = parameters.scale_loss * doublings * _add(part.time_s for part in parts)
    return [*parts, PartArrays("slow ranks", "backward", lost_s)]
