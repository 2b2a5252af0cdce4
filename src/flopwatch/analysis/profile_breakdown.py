"""From the events of profiled training steps to a breakdown of where the time went.

Events nest: a phase holds regions, regions hold operators, operators hold other operators. What
counts of an operator is the time in which it calls no other. In the forward pass it belongs to the
innermost region around it. In the backward pass autograd's nodes are around it instead, each with
the sequence number that was next when it was made: so a node belongs to where the last forward
operator with that number was. Regions inside the backward pass are those of a recomputed
forward pass (activation checkpointing).

The profiler slows a step down, so that a phase is scaled to what it takes without: the parts of a
breakdown add up to the steps that were not profiled. Kernels of a GPU are not slowed down, and
count as they are; what they leave of a phase is waiting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from flopwatch.jobs.flops import count_flops_by_part
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.traces.operation_kinds import (
    Kind,
    find_kernel_kind,
    find_scope_kind,
    find_scoped_kind,
)

Role = Literal["phase", "region", "node", "operator", "scope"]
"""node: autograd's evaluation of one function; scope: anything else that only holds others."""
Part = Literal["forward", "recomputed", "backward", "optimizer"]
"""A phase; but what the backward pass computes again of the forward pass is apart."""
PARTS: tuple[Part, ...] = ("forward", "recomputed", "backward", "optimizer")

OTHER_REGION = "other"
BETWEEN: Literal["between operations"] = "between operations"
INSIDE_ATTENTION: dict[Kind, str] = {
    "matmul": "attention/matmuls",
    "attention": "attention/fused",
    "softmax": "attention/softmax",
}
"""What is in no region of its own there, as in models of the library transformers, by its kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    """What an operator launched on a GPU."""

    name: str
    time_ns: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    name: str
    role: Role
    start_ns: float
    end_ns: float
    thread: int = 1
    sequence: int | None = None
    """Of an operator: the number of the node that would be made next; of a node: its own."""
    forward_thread: int = 1
    """Of a node: the thread in which it was made."""
    kernels: Sequence[Kernel] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """Time of one operator or kernel, and where it belongs."""

    name: str
    kind: Kind
    region: str
    phase: str
    part: Part
    time_ns: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """Time of a step that a kind of operator takes in a region and part."""

    region: str
    kind: Kind
    part: Part
    time_ns: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Operator:
    """One operator, or on a GPU one kernel, in all places of a step."""

    name: str
    kind: Kind
    calls: float
    time_ns: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Breakdown:
    entries: Sequence[Entry]
    operators: Sequence[Operator]
    """The slowest first."""


def make_breakdown(
    steps: Sequence[Sequence[Event]], plain_ns: Mapping[str, float], *, by_kernels: bool = False
) -> Breakdown:
    """Of an average step. `plain_ns` has the times of phases without the profiler.

    Of the profiled steps the faster half counts, phase by phase: what else runs on a machine slows
    small operators down more than large ones.
    """
    totals: dict[tuple[str, Kind, Part], float] = defaultdict(float)
    calls: dict[tuple[str, Kind], int] = defaultdict(int)
    times_ns: dict[tuple[str, Kind], float] = defaultdict(float)
    attributed = [(events, attribute(events, by_kernels=by_kernels)) for events in steps]
    half = (len(steps) + 1) // 2
    for phase, phase_ns in plain_ns.items():
        attributed.sort(key=lambda step: _measure_ns(phase, step[0]))
        for events, slices in attributed[:half]:
            inside = [one for one in slices if one.phase == phase]
            busy_ns = sum(one.time_ns for one in inside)
            profiled_ns = max(busy_ns, phase_ns) if by_kernels else _measure_ns(phase, events)
            factor = phase_ns / profiled_ns / half
            for one in inside:
                totals[one.region, one.kind, one.part] += one.time_ns * factor
                times_ns[one.name, one.kind] += one.time_ns * factor
                calls[one.name, one.kind] += 1
            between_ns = (profiled_ns - busy_ns) * factor
            totals[BETWEEN, BETWEEN, phase] += between_ns  # type: ignore[index]
    return Breakdown(
        entries=[
            Entry(region=region, kind=kind, part=part, time_ns=time_ns)
            for (region, kind, part), time_ns in totals.items()
        ],
        operators=[
            Operator(name=name, kind=kind, calls=calls[name, kind] / half, time_ns=time_ns)
            for (name, kind), time_ns in sorted(times_ns.items(), key=lambda item: -item[1])
        ],
    )


def _measure_ns(phase: str, events: Iterable[Event]) -> float:
    return sum(
        event.end_ns - event.start_ns
        for event in events
        if event.role == "phase" and event.name == phase
    )


@dataclass(slots=True)
class Frame:
    """An event while others may be inside it."""

    event: Event
    phase: str
    region: str | None
    part: str
    scope: Kind | None = None
    """The kind of everything inside."""
    children_ns: float = 0.0

    @property
    def own_ns(self) -> float:
        return max(self.event.end_ns - self.event.start_ns - self.children_ns, 0.0)


@dataclass(slots=True)
class _Places:
    """Where nodes belong, learned while events pass by."""

    made_in: dict[tuple[int, int], str] = field(default_factory=dict)
    """The region of the last operator of a thread that had this sequence number."""
    latest: dict[int, str] = field(default_factory=dict)
    """Of each thread, the region of its latest node."""

    def find(self, node: Event) -> str:
        """A node that accumulates a gradient has no number: it follows the one that made it."""
        region = self.latest.get(node.thread, OTHER_REGION)
        if node.sequence is not None:
            region = self.made_in.get((node.forward_thread, node.sequence), OTHER_REGION)
        self.latest[node.thread] = region
        return region


def attribute(events: Sequence[Event], *, by_kernels: bool = False) -> list[Slice]:
    """The operators inside of phases, each with its own time, or with that of its kernels."""
    slices = []
    for frame in _nest(events):
        event = frame.event
        if not frame.phase or event.role != "operator":  # marks on a device's timeline are no work
            continue
        if by_kernels:
            slices += [
                _make_slice(
                    frame,
                    kernel.name,
                    find_kernel_kind(kernel.name, frame.scope, [event.name]),
                    kernel.time_ns,
                )
                for kernel in event.kernels
            ]
        else:
            kind = find_scoped_kind(event.name, frame.scope)
            slices.append(_make_slice(frame, event.name, kind, frame.own_ns))
    return slices


def list_node_regions(events: Sequence[Event]) -> list[str]:
    """Of autograd's nodes, in the order in which they ran."""
    return [frame.region or OTHER_REGION for frame in _nest(events) if frame.event.role == "node"]


def _nest(events: Sequence[Event]) -> list[Frame]:
    phases = [event for event in events if event.role == "phase"]
    stacks: dict[int, list[Frame]] = defaultdict(list)
    places = _Places()
    frames = []
    for event in sorted(events, key=lambda event: (event.start_ns, -event.end_ns)):
        stack = stacks[event.thread]
        while stack and stack[-1].event.end_ns <= event.start_ns:
            stack.pop()
        # By time, since on a GPU the backward pass runs in another thread; "" where in none.
        around = (one.name for one in phases if one.start_ns <= event.start_ns < one.end_ns)
        phase = next(around, "")
        parent = stack[-1] if stack else Frame(event, phase, None, phase)
        frame = _place(event, parent, phase, places)
        frame.scope = parent.scope or _find_scope(event, phase)
        if stack:
            parent.children_ns += min(event.end_ns, parent.event.end_ns) - event.start_ns
        stack.append(frame)
        frames.append(frame)
    return frames


def _find_scope(event: Event, phase: str) -> Kind | None:
    return "optimizer" if phase == "optimizer" else find_scope_kind(event.name)


def _place(event: Event, parent: Frame, phase: str, places: _Places) -> Frame:
    if event.role == "region":
        return Frame(event, phase, event.name, "recomputed" if phase == "backward" else phase)
    if event.role == "node":
        return Frame(event, phase, places.find(event), phase)
    if event.role == "operator" and event.sequence is not None:
        places.made_in[event.thread, event.sequence] = parent.region or OTHER_REGION
    return Frame(event, phase, parent.region, parent.part or phase)


WITHOUT_REGION = {"forward": OTHER_REGION, "backward": "loss", "optimizer": "optimizer"}
"""By phase. In the backward pass it is the gradient of the loss itself, from which all begins."""


def _make_slice(frame: Frame, name: str, kind: Kind, time_ns: float) -> Slice:
    region = frame.region or WITHOUT_REGION[frame.phase]
    if region == "attention":
        region = INSIDE_ATTENTION.get(kind, region)
    return Slice(
        name=name,
        kind=kind,
        region=region,
        phase=frame.phase,
        part=frame.part,  # type: ignore[arg-type]
        time_ns=time_ns,
    )


SOFTMAX_FLOPS = {"forward": 5, "backward": 4}
"""For one element. Forward: compare with the largest, subtract it, exponentiate, add up, divide;
an exponential counts as one, as it does elsewhere, though it costs more. Backward: multiply with
the gradient and add up, subtract the sum, multiply."""

PROJECTIONS = ("attention/qkv", "attention/output")


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One kind of work in the attention of all layers, in one training step."""

    name: str
    forward_ns: float
    backward_ns: float
    forward_flops: float
    backward_flops: float


def compare_attention(entries: Sequence[Entry], job: TrainingJob) -> list[Work]:
    """Projections, the two matmuls with queries, keys and values, and softmax; nothing where a
    fused kernel does the last two."""
    inside = [entry for entry in entries if entry.region.partition("/")[0] == "attention"]
    if not any(entry.kind == "softmax" for entry in inside):
        return []
    # What attention counts does not depend on the architecture, which may be one without counts.
    shape = replace(job.shape, architecture="llama", activation=None)
    counts = count_flops_by_part(replace(job, model=shape))
    elements = job.micro_batch * shape.layers * shape.heads * job.seq_len**2
    projections = [entry for entry in inside if entry.region in PROJECTIONS]
    others = [entry for entry in inside if entry.region not in PROJECTIONS]
    return [
        _make_matmul("projections", projections, counts["qkv"].forward + counts["output"].forward),
        _make_matmul(
            "scores and values", others, counts["scores"].forward + counts["values"].forward
        ),
        Work(
            name="softmax",
            forward_ns=_sum_ns(inside, "softmax", "forward"),
            backward_ns=_sum_ns(inside, "softmax", "backward"),
            forward_flops=SOFTMAX_FLOPS["forward"] * elements,
            backward_flops=SOFTMAX_FLOPS["backward"] * elements,
        ),
    ]


def _make_matmul(name: str, entries: Sequence[Entry], flops: float) -> Work:
    return Work(
        name=name,
        forward_ns=_sum_ns(entries, "matmul", "forward"),
        backward_ns=_sum_ns(entries, "matmul", "backward"),
        forward_flops=flops,
        backward_flops=2 * flops,  # for each operand's gradient, a matmul as large
    )


def _sum_ns(entries: Sequence[Entry], kind: Kind, part: Part) -> float:
    return sum(entry.time_ns for entry in entries if (entry.kind, entry.part) == (kind, part))
