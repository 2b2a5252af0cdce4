"""The cost model: the time of a training step, part by part.

A step is `grad_accum` micro-batches and an update. A micro-batch of T tokens, in sequences of S,
goes through L blocks of width d:

    matmuls        of T x K by K x N, three of them for each weight (forward, and the gradients of
                    input and weight), and of recomputed blocks a fourth:

                        2 T K N / (rate of large matmuls * matmul_efficiency)
                        + matmul_traffic * bytes of operands and result / bandwidth

                    so that narrow matmuls are slower, the more so the more arithmetic a device
                    has for its bandwidth
    head            the same for the logits; `odd_matmul` times that where the vocabulary is no
                    multiple of 8, which tensor cores need
    attention       the pairs of positions that the mask leaves, of every head:

                        4 * 64 FLOPs * (head size / 64) ** attention_growth
                        / (peak * attention_efficiency)

                    forward, and backward 2.5 times that (five matmuls instead of two, since the
                    scores are recomputed) times `attention_backward`
    element-wise    what norms, residuals, activations and layouts read and write: at the least
                    12 d + 2 F numbers forward and 23 d + 3 F backward (F is the feed-forward size;
                    3 F and 5 F where it is gated) for every token and block; `traffic` times that,
                    `autocast_traffic` times more under autocast
    loss            `loss_bytes` for each of T x V logits
    overhead        `block_s` for every block
    pressure        `pressure_s_per_gb` for each GB that is held, where memory is nearly full
    communication   what ranks exchange (`_count_exchanged`), through links within a node and
                    the network between nodes. Of its time, `exposed_share` is waited for, and
                    the rest as far as it takes longer than all that is computed.

and an update reads and writes each rank's share of parameters, gradients and moments, and takes
`step_s` more.

Left out: the embedding's lookup, dropout, data loaders that cannot keep up, pipelines and tensor
parallelism, slow ranks, and clocks that change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from flopwatch.errors import UsageError
from flopwatch.jobs.model_shapes import Shape
from flopwatch.jobs.parallelism import UNSHARDED, count_shards, require_data_only
from flopwatch.jobs.parameters import require_known
from flopwatch.jobs.precision import PRECISIONS
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.prediction.hardware import Machine
from flopwatch.prediction.software_stacks import Parameters

Bound = Literal["compute", "memory", "overhead", "network"]
Phase = Literal["forward", "backward", "optimizer"]
ALIGNED = 8
"""Tensor cores want widths that are multiples of it."""
COMMON_HEAD = 64
BACKWARD_MATMULS = 2.5
"""Of attention, for each of the forward pass: five instead of two."""
FORWARD_SHARE = 1 / 3
"""Of what both passes take, where nothing else is known."""
UPDATE_PASSES = {"adamw": 7, "adamw-unfused": 16, "sgd": 3}
"""Reads and writes of a parameter's worth of numbers in an update. Fused AdamW reads parameter,
gradient and both moments, and writes all but the gradient; SGD has no moments; unfused, every
operation of AdamW reads and writes anew."""


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


class _Speed(NamedTuple):
    """Of something, in its unit a second."""

    reached: float
    peak: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Speeds:
    """What a job finds on a machine."""

    matmuls: _Speed
    """FLOP/s of blocks' linear layers,"""
    head: _Speed
    """of the head, which keeps the wider numbers,"""
    attention: _Speed
    """and of attention."""
    memory: _Speed
    """Bytes/s."""


def estimate_cost(
    job: TrainingJob, machine: Machine, parameters: Parameters, pressed_gb: float = 0.0
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
    5000.0
    """
    speeds = _find_speeds(job, machine, parameters)
    once = [
        *_list_matmuls(job, speeds, parameters),
        *_list_attention(job, speeds, parameters),
        *_list_traffic(job, speeds, parameters),
        *_list_overheads(job, parameters, pressed_gb),
    ]
    computed_s = sum(part.time_s for part in once)
    exchanged = _estimate_exchange(job, machine, parameters, computed_s)
    times = job.grad_accum
    micro_batches = [
        Part(part.name, part.phase, times * part.time_s, times * part.ideal_s, part.bound)
        for part in once
    ]
    return Cost((*micro_batches, *exchanged, *_list_update(job, machine, speeds, parameters)))


def _find_speeds(job: TrainingJob, machine: Machine, parameters: Parameters) -> _Speeds:
    arithmetic, efficiency = job.arithmetic, parameters.matmul_efficiency
    attention = (
        machine.peak_flops_per_s.get(arithmetic.activation_dtype, 0.0) * machine.attention_share
    )
    memory = machine.bandwidth_bytes_per_s
    return _Speeds(
        matmuls=_find_matmul_speed(machine, arithmetic.matmul_dtype, efficiency),
        head=_find_matmul_speed(machine, arithmetic.activation_dtype, efficiency),
        attention=_Speed(
            attention * parameters.attention_efficiency,
            machine.peak_flops_per_s.get(arithmetic.activation_dtype, 0.0),
        ),
        memory=_Speed(memory * parameters.bandwidth_efficiency, memory),
    )


def _find_matmul_speed(machine: Machine, dtype: str, efficiency: float) -> _Speed:
    rate = machine.find_rate(dtype)
    if rate is None:
        known = [n for n, a in PRECISIONS.items() if a.matmul_dtype in machine.peak_flops_per_s]
        raise UsageError(
            f"{machine.name} has no known peak in {dtype}; choose one of the precisions "
            f"{', '.join(known)}"
        )
    return _Speed(rate * efficiency, machine.peak_flops_per_s[dtype])


def list_weights(shape: Shape) -> list[tuple[int, int]]:
    """The inputs and outputs of a block's linear layers, as many times as a token goes through
    them; of experts, the active ones."""
    hidden, inner = shape.hidden_size, shape.feed_forward_size
    queries = shape.heads * shape.head_size
    keys = (shape.key_value_heads or shape.heads) * shape.head_size
    ups = [(hidden, inner)] * (2 if shape.is_gated else 1)
    experts = shape.active_experts or 1
    return [(hidden, queries + 2 * keys), (queries, hidden), *([*ups, (inner, hidden)] * experts)]


def _list_matmuls(job: TrainingJob, speeds: _Speeds, parameters: Parameters) -> Iterator[Part]:
    shape, again = job.shape, 0.0
    if job.recompute == "full":
        again = parameters.recomputed_share
    blocks = [
        _time_matmul(job, speeds, parameters, speeds.matmuls, sizes)
        for sizes in list_weights(shape)
    ]
    once_s = shape.layers * sum(time_s for time_s, _ in blocks)
    ideal_s = shape.layers * sum(ideal_s for _, ideal_s in blocks)
    # Backward: the gradients of input and weight, and where blocks are recomputed, forward again.
    yield Part("matmuls", "forward", once_s, ideal_s)
    yield Part("matmuls", "backward", (2 + again) * once_s, (2 + again) * ideal_s)
    rows = shape.rows
    width = shape.embedding_size or shape.hidden_size
    head_s, head_ideal_s = _time_matmul(job, speeds, parameters, speeds.head, (width, rows))
    head_s *= parameters.odd_matmul if rows % ALIGNED else 1.0
    yield Part("head", "forward", head_s, head_ideal_s)
    yield Part("head", "backward", 2 * head_s, 2 * head_ideal_s)


def _time_matmul(
    job: TrainingJob, speeds: _Speeds, parameters: Parameters, speed: _Speed, sizes: tuple[int, int]
) -> tuple[float, float]:
    """Of one micro-batch and one pass, and at the peak. All three passes move the same tensors."""
    rows, (inputs, outputs) = job.micro_batch_tokens, sizes
    flops = 2.0 * rows * inputs * outputs  # a multiply and an add
    numbers = rows * inputs + inputs * outputs + rows * outputs
    moved_s = job.arithmetic.element_bytes * numbers / speeds.memory.reached
    time_s = flops / speed.reached + parameters.matmul_traffic * moved_s
    return time_s, flops / speed.peak


def _list_attention(job: TrainingJob, speeds: _Speeds, parameters: Parameters) -> Iterator[Part]:
    shape = job.shape
    pairs = job.micro_batch * job.seq_len * (job.seq_len + 1) / 2 * shape.heads * shape.layers
    # 4: scores and values are a matmul each, of a multiply and an add.
    flops = 4 * COMMON_HEAD * (shape.head_size / COMMON_HEAD) ** parameters.attention_growth
    forward_s = pairs * flops / speeds.attention.reached
    ideal_s = pairs * 4 * shape.head_size / speeds.attention.peak
    again = 0 if job.recompute == "none" else 1
    backward = BACKWARD_MATMULS * parameters.attention_backward + again
    yield Part("attention", "forward", forward_s, ideal_s)
    yield Part("attention", "backward", backward * forward_s, (BACKWARD_MATMULS + again) * ideal_s)


def count_elements(shape: Shape) -> tuple[int, int]:
    """Numbers that a token's way through a block reads and writes between matmuls, at the least:
    forward and backward."""
    hidden, inner = shape.hidden_size, shape.feed_forward_size * (shape.active_experts or 1)
    gate = 1 if shape.is_gated else 0
    return 12 * hidden + (2 + gate) * inner, 23 * hidden + (3 + 2 * gate) * inner


def _list_traffic(job: TrainingJob, speeds: _Speeds, parameters: Parameters) -> Iterator[Part]:
    shape, arithmetic = job.shape, job.arithmetic
    forward, backward = count_elements(shape)
    if job.recompute != "none":
        backward += forward
    size_bytes = float(job.micro_batch_tokens * shape.layers * arithmetic.element_bytes)
    more = parameters.traffic * (parameters.autocast_traffic if arithmetic.is_autocast else 1.0)
    passes: tuple[tuple[Phase, int], ...] = (("forward", forward), ("backward", backward))
    for phase, numbers in passes:
        least_s = size_bytes * numbers / speeds.memory.peak
        time_s = more * size_bytes * numbers / speeds.memory.reached
        yield Part("element-wise", phase, time_s, least_s, "memory")
    rows = shape.rows
    logits_s = job.micro_batch_tokens * rows * parameters.loss_bytes / speeds.memory.reached
    # 3: at the least, logits are written, read, and overwritten by their gradient.
    least_s = 3 * job.micro_batch_tokens * rows * arithmetic.element_bytes / speeds.memory.peak
    yield Part("loss", "forward", FORWARD_SHARE * logits_s, FORWARD_SHARE * least_s, "memory")
    rest = 1 - FORWARD_SHARE
    yield Part("loss", "backward", rest * logits_s, rest * least_s, "memory")


def _list_overheads(job: TrainingJob, parameters: Parameters, pressed_gb: float) -> Iterator[Part]:
    blocks_s = job.shape.layers * parameters.block_s
    again = 0 if job.recompute == "none" else FORWARD_SHARE
    yield Part("overhead", "forward", FORWARD_SHARE * blocks_s, 0.0, "overhead")
    yield Part("overhead", "backward", (1 - FORWARD_SHARE + again) * blocks_s, 0.0, "overhead")
    if pressed_gb:
        pressure_s = pressed_gb * parameters.pressure_s_per_gb
        yield Part("memory pressure", "backward", pressure_s, 0.0, "overhead")


class _Exchange(NamedTuple):
    """What ranks exchange, as what each of them sends."""

    local_bytes: float = 0.0
    """Within a node."""
    remote_bytes: float = 0.0
    """Through the network."""


def _count_exchanged(job: TrainingJob, machine: Machine) -> tuple[_Exchange, _Exchange]:
    """In every micro-batch, and once a step. Where a model is sharded, blocks are gathered before
    each pass and gradients summed up after it; where it is not, gradients are averaged in the last
    micro-batch, which moves each of them twice."""
    ranks, arithmetic = job.ranks, job.arithmetic
    gathered = float(job.parameters * arithmetic.gathered_bytes)
    reduced = float(job.parameters * (job.reduced_bytes or arithmetic.reduced_bytes))
    everybody = (ranks - 1) / ranks
    if job.sharding in UNSHARDED:
        return _Exchange(), _send(2 * reduced * everybody, ranks, machine)
    gathers = 1 if job.sharding == "zero2" else 2
    if job.sharding == "hybrid":
        shards = count_job_shards(job, machine)
        inside = _send((gathers * gathered + reduced) * (shards - 1) / shards, shards, machine)
        copies = ranks // shards
        between = 2 * reduced / shards * (copies - 1) / copies
        if ranks <= machine.per_node:
            return inside, _Exchange(local_bytes=between)
        return inside, _Exchange(remote_bytes=between)
    return _send((gathers * gathered + reduced) * everybody, ranks, machine), _Exchange()


def _send(size_bytes: float, ranks: int, machine: Machine) -> _Exchange:
    """Rings pass through all adapters of a machine at once, so that each of its devices sends a
    share of what has to leave it."""
    if ranks <= machine.per_node:
        return _Exchange(local_bytes=size_bytes)
    return _Exchange(local_bytes=size_bytes, remote_bytes=size_bytes / machine.per_node)


def count_job_shards(job: TrainingJob, machine: Machine) -> int:
    """Into how many parts a parameter is divided: with hybrid, among the devices of a node, where
    there are several nodes."""
    has_whole_nodes = job.ranks % machine.per_node == 0
    per_node = machine.per_node if has_whole_nodes else job.ranks
    return count_shards(job.sharding, job.ranks, job.parallelism.ranks_per_node or per_node)


def require_predictable(job: TrainingJob, who: str = "predict") -> None:
    """Refuse a job whose cost does not follow from its description."""
    require_known(job.shape)
    require_data_only(job.parallelism, who)


def _estimate_exchange(
    job: TrainingJob, machine: Machine, parameters: Parameters, computed_s: float
) -> list[Part]:
    """`computed_s` is what a micro-batch computes meanwhile."""
    if job.ranks == 1:
        return []
    exposed = 1.0 if job.sharding == "none" else parameters.exposed_share
    waited_s = 0.0
    for times, sent in zip((job.grad_accum, 1), _count_exchanged(job, machine), strict=True):
        time_s = _time_exchange(sent, job, machine, parameters)
        # What could be hidden behind arithmetic is waited for where there is not enough of it.
        waited_s += times * (exposed * time_s + max(0.0, (1 - exposed) * time_s - computed_s))
    return [Part("communication", "backward", waited_s, 0.0, "network")]


def _time_exchange(
    sent: _Exchange, job: TrainingJob, machine: Machine, parameters: Parameters
) -> float:
    """The slower of the two ways: a ring is as fast as its slowest link."""
    times_s = [0.0]
    link, network = machine.find_link(job.ranks), machine.network_bytes_per_s
    ways = (
        ("a link", sent.local_bytes, link, parameters.link_efficiency),
        ("a network", sent.remote_bytes, network, parameters.network_efficiency),
    )
    for name, size_bytes, rate, efficiency in ways:
        if not size_bytes:
            continue
        if rate is None:
            raise UsageError(
                f"{job.ranks} ranks need {name}, and that of {machine.name} is not known; measure "
                "it with `flopwatch peaks`, or choose a device whose link is listed"
            )
        times_s.append(size_bytes / (rate * efficiency))
    return max(times_s)


def _list_update(
    job: TrainingJob, machine: Machine, speeds: _Speeds, parameters: Parameters
) -> list[Part]:
    shards = count_job_shards(job, machine)
    passes = UPDATE_PASSES[job.optimizer]
    size_bytes = passes * job.parameters / shards * job.arithmetic.parameter_bytes
    update_s, least_s = size_bytes / speeds.memory.reached, size_bytes / speeds.memory.peak
    return [
        Part("optimizer", "optimizer", update_s, least_s, "memory"),
        Part("overhead", "optimizer", parameters.step_s, 0.0, "overhead"),
    ]
