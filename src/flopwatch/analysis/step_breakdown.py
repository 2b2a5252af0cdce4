"""Where the time of a measured step or layer went: rows that add up to it.

Some rows are measured (the optimizer's phase, attention where instruments saw it, ranks that wait
for each other or move data), some are counted (FLOPs over the peak, bytes over the bandwidth), some
are predicted by the cost model. What is left is a row too: "not explained", or where the others
come to more than was measured, "faster than predicted".

Phases are scaled so that their medians add up to the median of whole runs. Times are rounded to the
last digit of the measured one, and the last row is the exact difference: `math.fsum` of the rows is
the measured median to the last bit, unless each of them is longer than that by itself.

Between two sets of results the breakdowns of a case are compared row by row (`find_moved`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from flopwatch.analysis.comparable import Differences, Matched, find_differences, match_cases
from flopwatch.analysis.expectation import Attention, Expectation, expect
from flopwatch.analysis.hardware_limits import (
    NOTHING,
    OPTIMIZER,
    Limits,
    Operation,
    count_update_bytes,
    describe_missing,
    find_limits,
    place_operations,
)
from flopwatch.analysis.part_times import scale_phases, scale_regions, split_ranks
from flopwatch.analysis.record_device import count_ranks, name_arithmetic, sum_flops
from flopwatch.analysis.record_job import PASSES, Subject, count_flops, read_subject
from flopwatch.analysis.statistics import is_measured, measured_totals_ns, median
from flopwatch.devices.measured_peaks import read_setup
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.prediction.cost import Part
from flopwatch.records.record import Record

Bound = Literal["compute", "memory", "overhead", "network", "unknown"]
Basis = Literal["measured", "counted", "predicted", "left"]
"""counted: FLOPs or bytes over a rate; left: what the other rows do not account for."""

REST = "rest"
NAMES = {
    "matmuls": "matmuls at the peak",
    "shape": "matmuls: lost to shape",
    "dtype": "matmuls: lost to dtype",
    "attention": "attention",
    "elements": "element-wise at full bandwidth",
    "logits": "loss at full bandwidth",
    "memory": "memory at full bandwidth",
    "traffic": "memory: beyond the least",
    OPTIMIZER: "optimizer",
    "waiting": "waiting for other ranks",
    "bubble": "pipeline bubble",
    "transfer": "transfer between ranks",
    "gaps": "launches and framework",
    "computing": "computing",
    REST: "not explained",
}
"""Of rows, by key."""
ORDER = {key: position for position, key in enumerate(NAMES)}
FASTER = "faster than predicted"
"""The rest, where it is less than nothing."""
NS = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class BreakdownRow:
    key: str
    """One of NAMES, or a phase or region by its own name."""
    time_ns: float
    ideal_ns: float | None
    """What it would take at the least; None: not known."""
    bound: Bound
    basis: Basis

    @property
    def name(self) -> str:
        return FASTER if self.key == REST and self.time_ns < 0 else NAMES.get(self.key, self.key)

    @property
    def gain_ns(self) -> float | None:
        """The most that could be gained; None: not known."""
        return None if self.ideal_ns is None else max(0.0, self.time_ns - self.ideal_ns)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepBreakdown:
    record: Record
    total_ns: float
    """The median of whole runs."""
    fastest_ns: float
    """The shortest of them: where it is much less, other work on the machine took the rest."""
    rows: Sequence[BreakdownRow]
    limits: Limits
    arithmetics: Sequence[str]
    """That its matmuls are in, as peaks are listed by."""
    remarks: Sequence[str]
    """What is not known, and what to do about it."""

    @property
    def operations(self) -> list[Operation]:
        """Phases and regions against their roofs."""
        return place_operations(self.record, self.total_ns, self.limits)

    @property
    def is_explained(self) -> bool:
        """Whether something was counted against the hardware, and not only measured."""
        return any(row.basis == "counted" for row in self.rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Busy:
    """Matmuls, attention left out."""

    ideal_ns: float = 0.0
    dtype_ns: float = 0.0
    """What emulated arithmetic takes beyond the wider one."""
    remarks: tuple[str, ...] = ()


def make_breakdown(record: Record, limits: Limits | None = None) -> StepBreakdown | None:
    """None where nothing was measured. `limits` are taken in place of the record's own."""
    if not is_measured(record):
        return None
    totals_ns = measured_totals_ns(record)
    total_ns = median(totals_ns)
    limits = limits or find_limits(record)
    subject = read_subject(record)
    expected = expect(subject, limits)
    flops = {k: by for k, by in count_flops(record, subject).items() if k != OPTIMIZER}
    measured = list(_list_measured(record, total_ns, limits, subject))
    busy = _count_matmuls(record, flops, limits, total_ns, expected)
    counted = list(_list_counted(record, limits, busy))
    if expected is not None:
        counted += _list_expected(record, limits, busy, expected, total_ns)
    rows = [*counted, *measured] if counted else _list_phases(record, total_ns, measured)
    rows.sort(key=lambda row: ORDER.get(row.key, len(ORDER)))
    dtypes = dict.fromkeys(dtype for by_dtype in flops.values() for dtype in by_dtype)
    needs_memory = bool(record.bytes) or isinstance(subject, TrainingJob)
    missing = describe_missing(record, limits, dtypes) if dtypes or needs_memory else []
    return StepBreakdown(
        record=record,
        total_ns=total_ns,
        fastest_ns=min(totals_ns),
        rows=_close(rows, total_ns, is_whole=not counted),
        limits=limits,
        arithmetics=[*dict.fromkeys(name_arithmetic(record, dtype) for dtype in dtypes)],
        remarks=[*missing, *busy.remarks, *_describe_unseen(record, measured)],
    )


def _describe_unseen(record: Record, measured: Sequence[BreakdownRow]) -> list[str]:
    if len(record.ranks) < 2 or any(row.key == "waiting" for row in measured):
        return []
    return ["how long ranks waited for collectives is not known: other rows include it"]


def _count_matmuls(
    record: Record,
    by_phase: Mapping[str, Mapping[str, float]],
    limits: Limits,
    total_ns: float,
    expected: Expectation | None,
) -> _Busy:
    flops = sum_flops(by_phase)
    attention = expected.attention if expected else None
    if attention is not None and attention.dtype in flops:
        flops[attention.dtype] = max(0.0, flops[attention.dtype] - attention.flops)
    ideal_ns = dtype_ns = 0.0
    remarks = []
    for dtype, count in flops.items():
        arithmetic = name_arithmetic(record, dtype)
        peak, wider = limits.peaks.get(arithmetic), limits.find_wider(arithmetic)
        if peak is None:
            continue
        own_ns = count / peak.flops_per_s * NS
        wide_ns = own_ns if wider is None else count / wider[1].flops_per_s * NS
        ideal_ns += wide_ns
        if wider is not None and own_ns > total_ns:
            remarks.append(
                f"matmuls in {dtype} were faster than any that was measured for its peak, and are "
                f"held against the peak in {wider[0]}"
            )
        else:
            dtype_ns += own_ns - wide_ns
    return _Busy(ideal_ns=ideal_ns, dtype_ns=dtype_ns, remarks=tuple(remarks))


def _list_counted(record: Record, limits: Limits, busy: _Busy) -> Iterator[BreakdownRow]:
    if busy.ideal_ns:
        yield _row("matmuls", busy.ideal_ns, "compute", "counted", ideal_ns=busy.ideal_ns)
    if busy.dtype_ns:
        yield _row("dtype", busy.dtype_ns, "compute", "counted")
    memory_ns = _count_memory_ns(record, limits)
    if memory_ns:
        yield _row("memory", memory_ns, "memory", "counted", ideal_ns=memory_ns)


def _list_expected(
    record: Record, limits: Limits, busy: _Busy, expected: Expectation, total_ns: float
) -> Iterator[BreakdownRow]:
    """By the cost model. What published records do not separate is predicted, too: the optimizer in
    a step of one phase, and what ranks exchange."""
    if busy.ideal_ns:
        lost_ns = (busy.ideal_ns + busy.dtype_ns) * expected.lost_share
        # The bytes that a record itself declares have a row of their own.
        traffic_ns = 0.0 if record.bytes else NS * expected.traffic_s
        bound: Bound = "memory" if traffic_ns > lost_ns else "compute"
        yield _row("shape", lost_ns + traffic_ns, bound, "predicted")
    if expected.attention is not None:
        yield _find_attention(record, limits, expected, expected.attention, total_ns)
    elements = [part for part in expected.parts if part.name == "element-wise"]
    logits = [part for part in expected.parts if part.name == "loss"]
    for key, parts in (("elements", elements), ("logits", logits)):
        least_ns = NS * sum(part.ideal_s for part in parts)
        if least_ns:
            yield _row(key, least_ns, "memory", "counted", ideal_ns=least_ns)
    # More passes over memory than the least, and less than its full bandwidth.
    excess_s = sum(max(0.0, part.time_s - part.ideal_s) for part in (*elements, *logits))
    gaps = [p for p in expected.parts if p.name == "overhead" and p.phase != OPTIMIZER]
    # Phases and ranks that were measured have rows of their own.
    has_phases = len(record.samples_ns) > 1 or record.samples_ns.keys() & {*PASSES, OPTIMIZER}
    updates = [] if has_phases else [p for p in expected.parts if p.phase == OPTIMIZER]
    exchanged = [] if record.ranks else [p for p in expected.parts if p.name == "communication"]
    least_ns = NS * sum(part.ideal_s for part in updates)
    rows = (
        _row("traffic", NS * excess_s, "memory", "predicted"),
        _row("gaps", NS * _sum_s(gaps), "overhead", "predicted"),
        _row(OPTIMIZER, NS * _sum_s(updates), "memory", "predicted", ideal_ns=least_ns),
        _row("transfer", NS * _sum_s(exchanged), "network", "predicted"),
    )
    yield from (row for row in rows if row.time_ns)


def _sum_s(parts: Sequence[Part]) -> float:
    return sum(part.time_s for part in parts)


def _find_attention(
    record: Record, limits: Limits, expected: Expectation, attention: Attention, total_ns: float
) -> BreakdownRow:
    """From what instruments saw of it in both passes, less the layers around it; or as predicted,
    also where those alone would have taken longer."""
    ideal_ns = NS * attention.ideal_s
    peak = limits.peaks.get(name_arithmetic(record, attention.dtype))
    regions = scale_regions(record, total_ns)
    inside = [regions.get(f"{phase}/attention") for phase in ("forward", "backward")]
    known = [time_ns for time_ns in inside if time_ns is not None]
    if peak is not None and len(known) == len(inside):
        around_ns = attention.projection_flops / peak.flops_per_s * NS * (1 + expected.lost_share)
        own_ns = sum(known) - around_ns - NS * attention.projection_traffic_s
        if own_ns > ideal_ns:
            return _row("attention", own_ns, "compute", "measured", ideal_ns=ideal_ns)
    return _row("attention", NS * attention.time_s, "compute", "predicted", ideal_ns=ideal_ns)


def _count_memory_ns(record: Record, limits: Limits) -> float:
    """What the bytes that a record declares take beyond the arithmetic that they are moved for."""
    if limits.bandwidth is None:
        return 0.0
    left_ns = 0.0
    for phase, size_bytes in record.bytes.items():
        if phase == OPTIMIZER or "/" in phase:
            continue
        busy_ns = sum(
            count / peak.flops_per_s * NS
            for dtype, count in record.flops.get(phase, {}).items()
            if (peak := limits.peaks.get(name_arithmetic(record, dtype))) is not None
        )
        left_ns += max(0.0, size_bytes / limits.bandwidth.bytes_per_s * NS - busy_ns)
    return left_ns


def _list_measured(
    record: Record, total_ns: float, limits: Limits, subject: Subject | None
) -> Iterator[BreakdownRow]:
    phases_ns = scale_phases(record, total_ns)
    if OPTIMIZER in phases_ns and len(phases_ns) > 1:
        size_bytes = count_update_bytes(record, subject)
        ideal_ns = None
        if size_bytes is not None and limits.bandwidth is not None:
            ideal_ns = size_bytes / limits.bandwidth.bytes_per_s * NS
        bound: Bound = "unknown" if ideal_ns is None else "memory"
        yield _row(OPTIMIZER, phases_ns[OPTIMIZER], bound, "measured", ideal_ns=ideal_ns)
    splits = [split for split in split_ranks(record) if split.step_ns > 0]
    kinds = ("waiting", "bubble", "transfer") if len(splits) > 1 else ()
    for name in kinds:  # of an average rank
        shares = [
            part_ns / split.step_ns
            for split in splits
            if (part_ns := getattr(split, f"{name}_ns")) is not None
        ]
        if len(shares) == len(splits):
            yield _row(name, total_ns * sum(shares) / len(shares), "network", "measured")


def _list_phases(
    record: Record, total_ns: float, measured: Sequence[BreakdownRow]
) -> list[BreakdownRow]:
    """Where nothing can be counted: phases and regions, or of a job what its ranks did. The last
    one takes what rounding leaves."""
    known = {row.key for row in measured}
    if "waiting" in known:
        rest_ns = total_ns - sum(row.time_ns for row in measured)
        return [*measured, _row("computing", rest_ns, "unknown", "measured", ideal_ns=None)]
    own = [
        _row(name, time_ns, "unknown", "measured", ideal_ns=None)
        for name, time_ns in scale_regions(record, total_ns).items()
        if name not in known
    ]
    return [*measured, *own]


def _row(
    key: str, time_ns: float, bound: Bound, basis: Basis, *, ideal_ns: float | None = 0.0
) -> BreakdownRow:
    return BreakdownRow(key=key, time_ns=time_ns, ideal_ns=ideal_ns, bound=bound, basis=basis)


def _close(rows: Sequence[BreakdownRow], total_ns: float, *, is_whole: bool) -> list[BreakdownRow]:
    """With a last row that makes them add up. Phases are the whole of a run: their last one takes
    what rounding leaves."""
    step_ns = math.ulp(total_ns)
    rounded = [_change(row, round(row.time_ns / step_ns) * step_ns) for row in rows]
    if is_whole:
        *others, last = rounded
        closed = [*others, _change(last, _subtract(total_ns, others))]
    else:
        closed = [*rounded, _row(REST, _subtract(total_ns, rounded), "unknown", "left")]
    # A rest of several times the whole has no room for its last digits: the shortest row has.
    shortest = min(range(len(closed)), key=lambda place: abs(closed[place].time_ns))
    left_ns = _subtract(total_ns, closed)
    closed[shortest] = _change(closed[shortest], closed[shortest].time_ns + left_ns)
    return closed


def _subtract(total_ns: float, rows: Sequence[BreakdownRow]) -> float:
    """Rounded once, at the end."""
    return math.fsum([total_ns, *(-row.time_ns for row in rows)])


def _change(row: BreakdownRow, time_ns: float) -> BreakdownRow:
    # Where the ideal is the time itself, it stays so.
    ideal_ns = time_ns if row.ideal_ns == row.time_ns else row.ideal_ns
    return replace(row, time_ns=time_ns, ideal_ns=ideal_ns)


@dataclass(frozen=True, kw_only=True, slots=True)
class MovedRow:
    key: str
    name: str
    old_ns: float | None
    """None: there was no such row."""
    new_ns: float | None

    @property
    def change_ns(self) -> float:
        return (self.new_ns or 0.0) - (self.old_ns or 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Movement:
    """Of one case."""

    old: StepBreakdown
    new: StepBreakdown
    rows: Sequence[MovedRow]
    """What moved most comes first, in whatever direction. Their changes add up to that of the
    whole."""
    differences: Differences

    @property
    def change_ns(self) -> float:
        return self.new.total_ns - self.old.total_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    movements: Sequence[Movement]
    matched: Matched
    """With what has no counterpart."""


def find_moved(old: Sequence[Record], new: Sequence[Record]) -> Moved:
    """The newest record of each case on either side."""
    matched = match_cases(old, new)
    found = [_compare(pair.old[-1], pair.new[-1], pair.moved) for pair in matched.pairs]
    return Moved(movements=[one for one in found if one is not None], matched=matched)


def _compare(old: Record, new: Record, moved: Differences) -> Movement | None:
    limits = _choose_limits(old, new)
    before, after = make_breakdown(old, limits[0]), make_breakdown(new, limits[1])
    if before is None or after is None:
        return None
    if before.is_explained != after.is_explained:  # the sides would have different rows
        before, after = (
            make_breakdown(old, NOTHING) or before,
            make_breakdown(new, NOTHING) or after,
        )
    return Movement(
        old=before,
        new=after,
        rows=_list_moved(before, after),
        differences={**moved, **find_differences(old, new)},
    )


def _choose_limits(old: Record, new: Record) -> tuple[Limits, Limits]:
    """The same ones on the same machine: peaks that were measured again must not look like a change
    of the work."""
    own = find_limits(old), find_limits(new)
    setups = [read_setup(record.environment, record.settings) for record in (old, new)]
    if setups[0] != setups[1] or count_ranks(old) != count_ranks(new):
        return own
    best = own[1] if own[1].peaks else own[0]
    return best, best


def _list_moved(old: StepBreakdown, new: StepBreakdown) -> list[MovedRow]:
    before = {row.key: row.time_ns for row in old.rows}
    after = {row.key: row.time_ns for row in new.rows}
    rows = []
    for key in {**before, **after}:
        is_negative = before.get(key, 0.0) < 0 and after.get(key, 0.0) < 0
        name = FASTER if key == REST and is_negative else NAMES.get(key, key)
        rows.append(MovedRow(key=key, name=name, old_ns=before.get(key), new_ns=after.get(key)))
    return sorted(rows, key=lambda row: -abs(row.change_ns))
