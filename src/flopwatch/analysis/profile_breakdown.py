"""From traces of profiled training steps to a breakdown of where the time went.

A trace is attributed as any other (`traces.attribution`): what counts of an operator is the time in
which it calls no other, and its kind is that of `traces.operation_kinds`. Besides, each operator
has a place in our models. In the forward pass it belongs to the innermost region around it. In the
backward pass autograd's nodes are around it instead, each with the sequence number that was next
when it was made: so a node belongs to where the last forward operator with that number was. Regions
inside the backward pass are those of a recomputed forward pass (activation checkpointing).

The profiler slows a step down, so that a phase is scaled to what it takes without: the parts of a
breakdown add up to the steps that were not profiled. Kernels of a GPU are not slowed down, and
count as they are; what they leave of a phase is waiting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from flopwatch.jobs.flops import count_flops_by_part
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.lazy import LazyModule
from flopwatch.traces.attribution import (
    HostTree,
    attribute,
    find_host_kinds,
    list_segments,
    make_tree,
)
from flopwatch.traces.operation_kinds import KINDS, NODE, Kind, is_scope
from flopwatch.traces.trace_events import ANNOTATION, NONE, OPERATOR, Trace

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

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
class ProfiledStep:
    """What the profiler has recorded of one step."""

    trace: Trace
    phases: Collection[str]
    """Names of annotations that are phases, and that are regions."""
    regions: Collection[str]

    @property
    def has_kernels(self) -> bool:
        """Not every accelerator reports its kernels to torch's profiler."""
        return self.trace.is_of_device

    def list_phases(self) -> list[tuple[str, int, int]]:
        """Names, beginnings and ends."""
        host, names = self.trace.host, self.trace.names
        return [
            (names[int(host.name[at])], int(host.start[at]), int(host.end[at]))
            for at in np.flatnonzero(host.place == ANNOTATION).tolist()
            if names[int(host.name[at])] in self.phases
        ]

    def measure_ns(self, phase: str) -> int:
        return sum(end - start for name, start, end in self.list_phases() if name == phase)


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
    steps: Sequence[ProfiledStep], plain_ns: Mapping[str, float], *, by_kernels: bool = False
) -> Breakdown:
    """Of an average step. `plain_ns` has the times of phases without the profiler.

    Of the profiled steps the faster half counts, phase by phase: what else runs on a machine slows
    small operators down more than large ones.
    """
    totals: dict[tuple[str, Kind, Part], float] = defaultdict(float)
    calls: dict[tuple[str, Kind], int] = defaultdict(int)
    times_ns: dict[tuple[str, Kind], float] = defaultdict(float)
    attributed = [(step, attribute_step(step, by_kernels=by_kernels)) for step in steps]
    half = (len(steps) + 1) // 2
    for phase, phase_ns in plain_ns.items():
        attributed.sort(key=lambda pair: pair[0].measure_ns(phase))
        for step, slices in attributed[:half]:
            inside = [one for one in slices if one.phase == phase]
            busy_ns = sum(one.time_ns for one in inside)
            profiled_ns = max(busy_ns, phase_ns) if by_kernels else step.measure_ns(phase)
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


@dataclass(frozen=True, slots=True)
class Place:
    """Where an event of the host belongs."""

    phase: str
    """"": in none."""
    region: str | None
    part: str


def attribute_step(step: ProfiledStep, *, by_kernels: bool = False) -> list[Slice]:
    """The operators inside of phases, each with its own time, or with that of its kernels."""
    trace = step.trace
    tree, above = make_tree(trace)
    places = find_places(step, tree)
    rows: Iterable[tuple[int, int, int, int]]
    if by_kernels:
        work = attribute(trace, tree, above)
        rows = zip(
            trace.work.name.tolist(), work.kind.tolist(), work.operator.tolist(),
            (trace.work.end - trace.work.start).tolist(), strict=True,
        )  # fmt: skip
    else:
        rows = _list_own_times(trace, tree)
    return [
        _make_slice(places[operator], trace.names[name], KINDS[kind], float(time_ns))
        for name, kind, operator, time_ns in rows
        if operator != NONE and places[operator].phase
    ]


def _list_own_times(trace: Trace, tree: HostTree) -> Iterator[tuple[int, int, int, int]]:
    """Of each operator its name, kind and place, and the time in which it calls no other."""
    segments, kinds = list_segments(trace.host), find_host_kinds(trace, tree)
    operators = tree.operator[segments.event]
    inside = operators != NONE
    times = np.bincount(
        operators[inside],
        weights=(segments.end - segments.start)[inside],
        minlength=len(trace.host),
    )
    for at in np.flatnonzero(tree.operator == np.arange(len(trace.host))).tolist():
        yield int(trace.host.name[at]), int(kinds[at]), at, int(times[at])


def find_places(step: ProfiledStep, tree: HostTree) -> list[Place]:
    """Of each event of the host."""
    host, names, phases = step.trace.host, step.trace.names, step.list_phases()
    found: dict[int, Place] = {}
    made_in: dict[int, str] = {}
    """By sequence number, the region of the last operator that had it."""
    latest: dict[int, str] = {}
    """Of each thread, the region of its latest node."""
    for at in np.lexsort((-host.end, host.start)).tolist():
        name, start, sequence = names[host.name[at]], int(host.start[at]), int(host.sequence[at])
        # By time, since on a GPU the backward pass runs in another thread.
        phase = next((each for each, begin, end in phases if begin <= start < end), "")
        around = found.get(int(tree.parent[at]), Place(phase, None, phase))
        region, part = around.region, around.part or phase
        if host.place[at] == ANNOTATION and name in step.regions:
            region, part = name, "recomputed" if phase == "backward" else phase
        elif name.startswith(NODE):
            # One that accumulates a gradient has no number: it follows the one that made it.
            region = latest.get(int(host.thread[at]), OTHER_REGION)
            if sequence != NONE:
                region = made_in.get(sequence, OTHER_REGION)
            latest[int(host.thread[at])] = region
            part = phase
        elif host.place[at] == OPERATOR and sequence != NONE and not is_scope(name):
            made_in[sequence] = region or OTHER_REGION
        found[at] = Place(phase, region, part)
    return [found[at] for at in range(len(host))]


def list_node_regions(step: ProfiledStep) -> list[str]:
    """Of autograd's nodes, in the order in which they ran."""
    host, names = step.trace.host, step.trace.names
    places = find_places(step, make_tree(step.trace)[0])
    return [
        places[at].region or OTHER_REGION
        for at in np.lexsort((-host.end, host.start)).tolist()
        if names[host.name[at]].startswith(NODE)
    ]


WITHOUT_REGION = {"forward": OTHER_REGION, "backward": "loss", "optimizer": "optimizer"}
"""By phase. In the backward pass it is the gradient of the loss itself, from which all begins."""


def _make_slice(place: Place, name: str, kind: Kind, time_ns: float) -> Slice:
    region = place.region or WITHOUT_REGION[place.phase]
    if region == "attention":
        region = INSIDE_ATTENTION.get(kind, region)
    return Slice(
        name=name,
        kind=kind,
        region=region,
        phase=place.phase,
        part=place.part,  # type: ignore[arg-type]
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
