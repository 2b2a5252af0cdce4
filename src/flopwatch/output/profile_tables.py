"""Where the time of a training step goes, and what low precision does to sums and to a model, as
tables and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flopwatch.analysis.profile_breakdown import (
    BETWEEN,
    PARTS,
    SOFTMAX_FLOPS,
    Entry,
    Operator,
    Work,
    compare_attention,
)
from flopwatch.analysis.profile_request import Profile
from flopwatch.devices.kinds import is_host
from flopwatch.output.background_load import WORTH_TELLING
from flopwatch.output.formats import make_value_sheet
from flopwatch.output.tables import Column, Sheet, number
from flopwatch.output.units import format_rate, format_time, plural
from flopwatch.traces.operation_kinds import KINDS
from flopwatch.worker.precision_effects import ADDEND, RECIPES, TIMES, Observed, Sum

REGIONS: dict[str, tuple[str, ...]] = {
    "embedding": (),
    "attention": (
        "qkv", "rotation", "scores", "softmax", "values", "matmuls", "fused", "output"
    ),
    "feed-forward": ("up", "activation", "down"),
    "norm": (),
    "head": (),
    "loss": (),
    "other": (),
    "optimizer": (),
}  # fmt: skip
"""In the order of a step, with their details."""
SPREAD = 1.5
"""Steps that differ by more than this factor were disturbed."""
REST = "rest"
"""Of a region with details: what is in none of them, such as the addition to the residual."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A row of a table that divides the step: times by part, in nanoseconds."""

    name: str
    parts_ns: dict[str, float]

    @property
    def total_ns(self) -> float:
        return sum(self.parts_ns.values())


def list_sheets(profile: Profile) -> list[Sheet]:
    if not profile.entries:
        return [_make_phase_sheet(profile)]
    attention = compare_attention(profile.entries, profile.request.job)
    nothing = "Python and autograd's own work" if is_host(profile.device) else "waiting"
    return [
        Sheet(
            title=_describe(profile),
            columns=_list_columns("region", profile),
            items=_list_regions(profile),
            conditions=f"{profile.device}, {plural(profile.threads, 'thread')}, torch "
            f"{profile.torch}; medians of {plural(profile.request.steps, 'step')} without the "
            "profiler, divided as with it",
        ),
        Sheet(
            title="by kind of operation",
            columns=_list_columns("kind", profile),
            items=[_list_kinds(profile)],
            conditions=f"bookkeeping: views, allocation and dispatch; {BETWEEN}: {nothing}",
        ),
        _make_operator_sheet(profile),
        *([_make_attention_sheet(attention)] if attention else []),
    ]


def list_sentences(profile: Profile, background_share: float | None = None) -> list[str]:
    """`background_share` is what other processes took of the cores."""
    sentences = [
        _describe_overhead(profile),
        *_describe_spread(profile),
        *_describe_load(background_share),
    ]
    if not profile.entries:
        return sentences
    attention = compare_attention(profile.entries, profile.request.job)
    inside = _describe_softmax(attention) if attention else HIDDEN
    return [_describe_matmuls(profile), inside, *sentences]


HIDDEN = (
    "The fused kernel of attention hides its softmax and its matmuls; --attention plain shows "
    "them apart."
)


def as_dict(profile: Profile) -> dict[str, Any]:
    """For ``--json``."""
    regions = _list_regions(profile)
    return {
        **asdict(profile),
        "step_ns": profile.step_ns,
        "slowdown": profile.slowdown,
        "regions": [asdict(line) for section in regions for line in section],
        "kinds": [asdict(line) for line in _list_kinds(profile)],
        "inside_attention": [
            asdict(w) for w in compare_attention(profile.entries, profile.request.job)
        ],
    }


def _describe(profile: Profile) -> str:
    job = profile.request.job
    parts = [
        f"profile {job.name}",
        f"{job.micro_batch} x {job.seq_len} tokens",
        job.precision,
        f"{profile.attention} attention",
        job.optimizer,
        *([f"recompute {job.recompute}"] if job.recompute != "none" else []),
    ]
    return ", ".join(parts)


def _make_phase_sheet(profile: Profile) -> Sheet:
    columns: list[Column[Line]] = [
        Column("phase", lambda line: line.name, "word"),
        number("time", "ns", lambda line: line.total_ns),
        number("share", "share", lambda line: line.total_ns / profile.step_ns),
    ]
    return Sheet(
        title=_describe(profile),
        columns=columns,
        items=[[Line(name=p.name, parts_ns={p.name: p.plain_ns}) for p in profile.phases]],
        conditions="regions and kernels are in the other profiler's report, as NVTX ranges",
    )


def _list_columns(name: str, profile: Profile) -> list[Column[Line]]:
    known = {entry.part for entry in profile.entries}
    return [
        Column(name, lambda line: line.name, "word"),
        *(_part_column(part) for part in PARTS if part in known),
        number("total", "ns", lambda line: line.total_ns),
        number("share", "share", lambda line: line.total_ns / profile.step_ns),
    ]


def _part_column(part: str) -> Column[Line]:
    return number(part, "ns", lambda line: line.parts_ns.get(part) or None, "phase")


def _list_regions(profile: Profile) -> list[list[Line]]:
    """Sections: the regions with their details, what is between operations, and all of it."""
    entries = profile.entries
    lines = []
    for region, details in REGIONS.items():
        inside = [entry for entry in entries if entry.region.partition("/")[0] == region]
        lines.append(_add_up(region, inside))
        for detail in details:
            of_detail = (e for e in inside if e.region == f"{region}/{detail}")
            lines.append(_add_up(f"  {detail}", of_detail))
        if details:
            lines.append(_add_up(f"  {REST}", (e for e in inside if e.region == region)))
    between = _add_up(_name_between(profile), (e for e in entries if e.region == BETWEEN))
    known = [line for line in [*lines, between] if line.total_ns]
    return [known, [_add_up("whole step", entries)]]


def _list_kinds(profile: Profile) -> list[Line]:
    lines = [
        _add_up(
            _name_between(profile) if kind == BETWEEN else kind,
            (entry for entry in profile.entries if entry.kind == kind),
        )
        for kind in KINDS
    ]
    return [line for line in lines if line.total_ns]


def _name_between(profile: Profile) -> str:
    return BETWEEN if is_host(profile.device) else "idle"


def _add_up(name: str, entries: Iterable[Entry]) -> Line:
    parts_ns: dict[str, float] = {}
    for entry in entries:
        parts_ns[entry.part] = parts_ns.get(entry.part, 0.0) + entry.time_ns
    return Line(name=name, parts_ns=parts_ns)


def _make_operator_sheet(profile: Profile) -> Sheet:
    word = "operation" if is_host(profile.device) else "kernel"
    columns: list[Column[Operator]] = [
        Column(word, lambda one: one.name, "word"),
        Column("kind", lambda one: one.kind, "word"),
        number("calls", "count", lambda one: one.calls),
        number("each call", "ns", lambda one: one.time_ns / one.calls),
        number("time", "ns", lambda one: one.time_ns),
        number("share", "share", lambda one: one.time_ns / profile.step_ns),
    ]
    return Sheet(title=f"slowest {word}s of a step", columns=columns, items=[profile.operators])


def _make_attention_sheet(works: Sequence[Work]) -> Sheet:
    columns: list[Column[Work]] = [Column("inside attention", lambda work: work.name, "word")]
    for phase in ("forward", "backward"):
        columns += _list_work_columns(phase)
    return Sheet(
        title="softmax and matmuls inside attention",
        columns=columns,
        items=[works],
        conditions="FLOPs by formula, not halved for the causal mask; of softmax "
        f"{SOFTMAX_FLOPS['forward']} an element forward, {SOFTMAX_FLOPS['backward']} backward",
    )


def _list_work_columns(phase: str) -> list[Column[Work]]:
    def find_flops(work: Work) -> float:
        flops: float = getattr(work, f"{phase}_flops")
        return flops

    def find_ns(work: Work) -> float:
        time_ns: float = getattr(work, f"{phase}_ns")
        return time_ns

    def write_rate(work: Work) -> str:
        time_ns = find_ns(work)
        return format_rate(find_flops(work) / time_ns * 1e9 if time_ns else None, "FLOP/s")

    return [
        number(phase, "ns", find_ns),
        number("FLOPs", "count", find_flops),
        Column("FLOP/s", write_rate),
    ]


def _describe_matmuls(profile: Profile) -> str:
    def share(kind: str, parts: Sequence[str]) -> float:
        inside = [entry for entry in profile.entries if entry.part in parts]
        all_ns = sum(entry.time_ns for entry in inside)
        return sum(entry.time_ns for entry in inside if entry.kind == kind) / all_ns

    forward, whole = (share("matmul", parts) for parts in (["forward"], PARTS))
    sentence = (
        f"Matmuls take {100 * forward:.1f} % of the forward pass and {100 * whole:.1f} % "
        "of the whole step"
    )
    fused = [share("attention", parts) for parts in (["forward"], PARTS)]
    if not fused[1]:
        return f"{sentence}."
    return (
        f"{sentence}; fused attention, mostly matmuls too, {100 * fused[0]:.1f} % and "
        f"{100 * fused[1]:.1f} %."
    )


def _describe_softmax(works: Sequence[Work]) -> str:
    _, matmuls, softmax = works
    times = softmax.forward_ns / matmuls.forward_ns if matmuls.forward_ns else 0.0
    flops = softmax.forward_flops / matmuls.forward_flops
    return (
        f"Inside attention, softmax takes {100 * times:.0f} % of the time of the matmuls of "
        f"scores and values in the forward pass, with {100 * flops:.1f} % of their FLOPs."
    )


def _describe_overhead(profile: Profile) -> str:
    added = profile.slowdown - 1
    if added <= 0:
        return "Profiling added no more to a step than noise."
    return f"Profiling added {100 * added:.1f} % to a step, which is taken out of all times."


def _describe_spread(profile: Profile) -> list[str]:
    fastest_ns, slowest_ns = min(profile.plain_steps_ns), max(profile.plain_steps_ns)
    if slowest_ns <= SPREAD * fastest_ns:
        return []
    return [
        f"Steps without the profiler took from {format_time(fastest_ns)} to "
        f"{format_time(slowest_ns)}: the machine had other work, which slows small operations down "
        "most; repeat this when it is quiet."
    ]


def _describe_load(share: float | None) -> list[str]:
    if share is None or share < WORTH_TELLING:
        return []
    return [
        f"Other processes took {100 * share:.0f} % of the cores meanwhile: all times are longer, "
        "and shares may be off; end them, and repeat this."
    ]


LESSONS = dict(
    zip(
        RECIPES,
        (
            "Even float32 rounds 0.01 and every partial sum; the errors stay in the sixth digit.",
            "All in float16, a sum above 8 moves in steps of 1/128, so that each 0.01 is added as "
            "less: the sum must be wider than the numbers.",
            "With a float32 sum no addition rounds any more; what is left is that 0.01 was rounded "
            "to float16 once, a thousand times the same error.",
            "Casting each number first changes no bit: torch does it anyway, and no cast brings "
            "back what rounding took.",
        ),
        strict=True,
    )
)


def make_precision_sheets(observed: Observed) -> list[Sheet]:
    """What low precision does to a sum, and which dtypes autocast chooses."""
    return [_make_sum_sheet(observed.sums), _make_cast_sheet(observed)]


def _make_sum_sheet(sums: Sequence[Sum]) -> Sheet:
    numbered = [(str(position), made) for position, made in enumerate(sums, start=1)]
    columns: list[Column[tuple[str, Sum]]] = [
        Column("", lambda row: row[0], "word"),
        Column("sum", lambda row: row[1].recipe.sum_dtype, "word"),
        Column("number", lambda row: row[1].recipe.number_dtype, "word"),
        Column("cast first", lambda row: "yes" if row[1].recipe.is_cast else "no", "word"),
        Column("as torch prints it", lambda row: row[1].shown, "word"),
        Column("exactly", lambda row: row[1].exact, "word"),
        Column("bits", lambda row: row[1].bits, "word"),
        Column("error", lambda row: f"{row[1].error:+.3g}", "word"),
    ]
    return Sheet(
        title=f"{ADDEND} added {TIMES} times; without rounding, {TIMES * ADDEND:g}",
        columns=columns,
        items=[numbered],
        labels=1,
        remarks=[f"{position}. {LESSONS[made.recipe]}" for position, made in numbered],
    )


def _make_cast_sheet(observed: Observed) -> Sheet:
    """Parts of the model down, autocast across."""
    casts, first = observed.casts, observed.casts[0].dtypes
    same = [part for part in first if all(cast.dtypes[part] == first[part] for cast in casts)]
    # The norm is the one layer that devices treat differently.
    of_norms = {cast.dtypes["norm's output"] for cast in casts if cast.autocast != "off"}
    norm = (
        "computes the layer norm in float32."
        if of_norms == {"float32"}
        else "leaves the layer norm in the dtype that it is given. This depends on the device: run "
        "it where you train."
    )
    return make_value_sheet(
        title=f"linear, ReLU, layer norm, linear, cross-entropy on {observed.device}, by autocast",
        columns=["", *(cast.autocast for cast in casts)],
        rows=[[part, *(cast.dtypes[part] for cast in casts)] for part in first],
        remarks=[
            f"The same with and without autocast: {', '.join(same) or 'none of these'}.",
            f"On {observed.device}, autocast {norm}",
        ],
    )
