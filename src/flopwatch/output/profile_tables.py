"""Where the time of a training step goes, and what low precision does to sums and to a model, as
tables and sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flopwatch.analysis.profile_breakdown import (
    BETWEEN,
    KINDS,
    PARTS,
    SOFTMAX_FLOPS,
    Entry,
    Operator,
    Work,
    compare_attention,
)
from flopwatch.analysis.profile_request import Profile
from flopwatch.output.formats import make_value_sheet
from flopwatch.output.tables import (
    Column,
    Sheet,
    count_column,
    lay_out,
    plain_time_column,
    share_column,
)
from flopwatch.output.units import format_rate, format_time, plural
from flopwatch.worker.precision_effects import ADDEND, RECIPES, TIMES, Cast, Observed, Sum

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
    return [
        _make_region_sheet(profile),
        _make_kind_sheet(profile),
        _make_operator_sheet(profile),
        *([_make_attention_sheet(attention)] if attention else []),
    ]


def list_sentences(profile: Profile) -> list[str]:
    sentences = [_describe_overhead(profile)]
    if profile.entries:
        attention = compare_attention(profile.entries, profile.request.job)
        sentences = [
            _describe_matmuls(profile),
            _describe_softmax(attention) if attention else HIDDEN,
            *sentences,
        ]
    return [*sentences, *_describe_profile_spread(profile)]


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


def _describe_conditions(profile: Profile) -> str:
    threads = plural(profile.threads, "thread")
    steps = plural(profile.request.steps, "step")
    return (
        f"{profile.device}, {threads}, torch {profile.torch}; medians of {steps} without the "
        "profiler, divided as with it"
    )


def _make_phase_sheet(profile: Profile) -> Sheet:
    lines = [Line(name=p.name, parts_ns={p.name: p.plain_ns}) for p in profile.phases]
    columns: list[Column[Line]] = [
        Column("phase", lambda line: line.name, "word"),
        plain_time_column("time", lambda line: line.total_ns),
        share_column("share", lambda line: line.total_ns / profile.step_ns),
    ]
    return Sheet(
        title=_describe(profile),
        conditions="regions and kernels are in the other profiler's report, as NVTX ranges",
        remarks=[],
        **lay_out(columns, [lines]),
    )


def _make_region_sheet(profile: Profile) -> Sheet:
    return Sheet(
        title=_describe(profile),
        conditions=_describe_conditions(profile),
        remarks=[],
        **lay_out(_list_columns("region", profile), _list_regions(profile)),
    )


def _make_kind_sheet(profile: Profile) -> Sheet:
    nothing = "waiting" if profile.device == "cuda" else "Python and autograd's own work"
    return Sheet(
        title="by kind of operation",
        conditions=f"bookkeeping: views, allocation and dispatch; {BETWEEN}: {nothing}",
        remarks=[],
        **lay_out(_list_columns("kind", profile), [_list_kinds(profile)]),
    )


def _list_columns(name: str, profile: Profile) -> list[Column[Line]]:
    known = {entry.part for entry in profile.entries}
    return [
        Column(name, lambda line: line.name, "word"),
        *(_part_column(part) for part in PARTS if part in known),
        plain_time_column("total", lambda line: line.total_ns),
        share_column("share", lambda line: line.total_ns / profile.step_ns),
    ]


def _part_column(part: str) -> Column[Line]:
    def cell(line: Line) -> str:
        return format_time(line.parts_ns[part]) if line.parts_ns.get(part) else ""

    return Column(part, cell, "phase", lambda line: line.parts_ns.get(part))


def _list_regions(profile: Profile) -> list[list[Line]]:
    """Sections: the regions with their details, what is between operations, and all of it."""
    entries = profile.entries
    lines = []
    for region, details in REGIONS.items():
        inside = [entry for entry in entries if entry.region.partition("/")[0] == region]
        lines += [_add_up(region, inside)]
        for detail in details:
            lines += [
                _add_up(f"  {detail}", (e for e in inside if e.region == f"{region}/{detail}"))
            ]
        if details:
            lines += [_add_up(f"  {REST}", (e for e in inside if e.region == region))]
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
    return "idle" if profile.device == "cuda" else BETWEEN


def _add_up(name: str, entries: Iterable[Entry]) -> Line:
    parts_ns: dict[str, float] = {}
    for entry in entries:
        parts_ns[entry.part] = parts_ns.get(entry.part, 0.0) + entry.time_ns
    return Line(name=name, parts_ns=parts_ns)


def _make_operator_sheet(profile: Profile) -> Sheet:
    word = "kernel" if profile.device == "cuda" else "operation"
    columns: list[Column[Operator]] = [
        Column(word, lambda one: one.name, "word"),
        Column("kind", lambda one: one.kind, "word"),
        count_column("calls", lambda one: one.calls),
        plain_time_column("each call", lambda one: one.time_ns / one.calls),
        plain_time_column("time", lambda one: one.time_ns),
        share_column("share", lambda one: one.time_ns / profile.step_ns),
    ]
    return Sheet(
        title=f"slowest {word}s of a step",
        conditions="",
        remarks=[],
        **lay_out(columns, [list(profile.operators)]),
    )


def _make_attention_sheet(works: Sequence[Work]) -> Sheet:
    def rate(flops: Callable[[Work], float], ns: Callable[[Work], float]) -> Callable[[Work], str]:
        return lambda w: format_rate(flops(w) / ns(w) * 1e9 if ns(w) else None, "FLOP/s")

    columns: list[Column[Work]] = [
        Column("inside attention", lambda w: w.name, "word"),
        plain_time_column("forward", lambda w: w.forward_ns),
        count_column("FLOPs", lambda w: w.forward_flops),
        Column("FLOP/s", rate(lambda w: w.forward_flops, lambda w: w.forward_ns)),
        plain_time_column("backward", lambda w: w.backward_ns),
        count_column("FLOPs", lambda w: w.backward_flops),
        Column("FLOP/s", rate(lambda w: w.backward_flops, lambda w: w.backward_ns)),
    ]
    return Sheet(
        title="softmax and matmuls inside attention",
        conditions=(
            "FLOPs by formula, not halved for the causal mask; of softmax "
            f"{SOFTMAX_FLOPS['forward']} an element forward, {SOFTMAX_FLOPS['backward']} backward"
        ),
        remarks=[],
        **lay_out(columns, [list(works)]),
    )


def _describe_matmuls(profile: Profile) -> str:
    def share(kind: str, parts: Sequence[str]) -> float:
        inside = [entry for entry in profile.entries if entry.part in parts]
        all_ns = sum(entry.time_ns for entry in inside)
        return sum(entry.time_ns for entry in inside if entry.kind == kind) / all_ns

    forward, whole = (share("matmul", parts) for parts in (["forward"], PARTS))
    told = (
        f"Matmuls take {100 * forward:.1f} % of the forward pass and {100 * whole:.1f} % "
        "of the whole step"
    )
    fused = [share("fused attention", parts) for parts in (["forward"], PARTS)]
    if not fused[1]:
        return f"{told}."
    return (
        f"{told}; fused attention, mostly matmuls too, {100 * fused[0]:.1f} % and "
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


def _describe_profile_spread(profile: Profile) -> list[str]:
    fastest_ns, slowest_ns = min(profile.plain_steps_ns), max(profile.plain_steps_ns)
    if slowest_ns <= SPREAD * fastest_ns:
        return []
    return [
        f"Steps without the profiler took from {format_time(fastest_ns)} to "
        f"{format_time(slowest_ns)}: the machine had other work, which slows small operations down "
        "most; repeat this when it is quiet."
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
    return make_value_sheet(
        title=f"{ADDEND} added {TIMES} times; without rounding, {TIMES * ADDEND:g}",
        columns=[
            *("", "sum", "number", "cast first"),
            *("as torch prints it", "exactly", "bits", "error"),
        ],
        rows=[
            [
                str(position),
                made.recipe.sum_dtype,
                made.recipe.number_dtype,
                "yes" if made.recipe.is_cast else "no",
                made.shown,
                made.exact,
                made.bits,
                f"{made.error:+.3g}",
            ]
            for position, made in enumerate(sums, start=1)
        ],
        remarks=[
            f"{position}. {LESSONS[made.recipe]}" for position, made in enumerate(sums, start=1)
        ],
    )


def _make_cast_sheet(observed: Observed) -> Sheet:
    """Parts of the model down, autocast across."""
    casts = observed.casts
    return make_value_sheet(
        title=f"linear, ReLU, layer norm, linear, cross-entropy on {observed.device}, by autocast",
        columns=["", *(cast.autocast for cast in casts)],
        rows=[[part, *(cast.dtypes[part] for cast in casts)] for part in casts[0].dtypes],
        remarks=[_name_unchanged(casts), _describe_norm(observed)],
    )


def _name_unchanged(casts: Sequence[Cast]) -> str:
    first = casts[0].dtypes
    same = [part for part in first if all(cast.dtypes[part] == first[part] for cast in casts)]
    return f"The same with and without autocast: {', '.join(same) or 'none of these'}."


def _describe_norm(observed: Observed) -> str:
    """The one layer that devices treat differently."""
    shown = {cast.dtypes["norm's output"] for cast in observed.casts if cast.autocast != "off"}
    if shown == {"float32"}:
        return f"On {observed.device}, autocast computes the layer norm in float32."
    return (
        f"On {observed.device}, autocast leaves the layer norm in the dtype that it is given. This "
        "depends on the device: run it where you train."
    )
