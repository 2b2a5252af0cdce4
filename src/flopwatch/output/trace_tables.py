"""Explained traces as sentences, tables and JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from flopwatch.analysis.hardware_limits import Operation
from flopwatch.devices.device_table import Device
from flopwatch.output.tables import Column, Sheet, drop_empty, number
from flopwatch.output.units import (
    format_rate,
    format_share,
    format_signed_share,
    format_signed_time,
    format_time,
    plural,
    three_figures,
)
from flopwatch.traces.explained_trace import ExplainedTrace
from flopwatch.traces.kernel_summary import KernelUse, find_trace_device, place_kernel
from flopwatch.traces.operation_kinds import KINDS, Kind
from flopwatch.traces.rank_traces import RankComparison, RankShare
from flopwatch.traces.trace_breakdown import Breakdown
from flopwatch.traces.trace_comparison import MovedWork, TraceComparison

NAMES: dict[str, str] = {"communication": "communication, exposed"}
"""Of rows, where the kind's own says too little."""
WORDS: dict[Kind, str] = {"communication": "exposed communication", "matmul": "matmuls"}
"""The same in sentences."""
OVERLAPPED = "communication, overlapped"
MEANINGS: dict[Kind, str] = {
    "communication": "exposed: nothing is computed meanwhile",
    "memory movement": "memory movement: what copies, gathers or concatenates in memory",
    "memory copies": "memory copies: transfers and fills by the driver",
    "bookkeeping": "bookkeeping: views, allocation and dispatch",
    "launch gaps": "launch gaps: the host had queued nothing",
    "waiting for data": "waiting for data: the host was in the data loader",
    "idle": "idle: something was queued, and had not begun",
    "between operations": "between operations: Python and autograd's own work",
}
LONGEST_NAME = 44
"""Of a kernel, in a table."""
NOISE = re.compile(
    r"^void |at::native::|\(anonymous namespace\)::|c10::|std::|cutlass::Kernel2?<"
    r"|gpu_kernel_impl\w*<|(?<=elementwise_kernel<)(\d+, )+|(vectorized|unrolled)_(?=elementwise)"
)
"""In names of kernels: what says nothing about what they do."""
ADVICE: dict[Kind, str] = {
    "communication": "overlap it, or send less",
    "launch gaps": "torch.compile or CUDA graphs launch with less work of the host",
    "waiting for data": "more workers of the data loader, or prefetching",
    "memory copies": "pinned memory and non_blocking=True let copies overlap",
}
WORTH_ADVICE = 0.1
"""The share of a step from which on there is advice."""


@dataclass(frozen=True, slots=True)
class Line:
    """A row of a breakdown."""

    name: str
    times_ns: Sequence[float]
    """Of an average step of each trace."""
    totals_ns: Sequence[float]
    in_sum: bool = True


def name_row(kind: Kind) -> str:
    return NAMES.get(kind, kind)


def shorten_kernel(name: str) -> str:
    """Without what most names share, and without arguments.

    >>> shorten_kernel("void at::native::reduce_kernel<512, 1, at::native::MeanOps<float> >(int)")
    'reduce_kernel<512, 1, MeanOps<float> >'
    >>> shorten_kernel("Memcpy HtoD (Pinned -> Device)")
    'Memcpy HtoD (Pinned -> Device)'
    """
    text = NOISE.sub("", name)
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth <= 0 and place and text[place - 1] != " ":
            text = text[:place]
            break
    if len(text) <= LONGEST_NAME:
        return text
    if "<" in text:  # what comes first in a template says most; of other names the end does, too
        return f"{text[: LONGEST_NAME - 1]}…"
    half = LONGEST_NAME // 2
    return f"{text[: half - 1]}…{text[-half:]}"


# One trace, or ranks


def answer_trace(trace: ExplainedTrace) -> list[str]:
    """What a step takes, what of it is computing, and what the largest loss is."""
    total = trace.total
    where = f" on {trace.device}" if trace.device else ""
    of_all = "" if trace.world_size is None else f" of {trace.world_size}"
    is_alone = trace.rank is None or trace.world_size == 1
    whose = "" if is_alone else f", rank {trace.rank}{of_all}"
    steps = (
        f"{plural(len(trace.steps), 'step')} of {format_time(trace.step_ns)}"
        f"{' on average' if len(trace.steps) > 1 else ''}"
        if trace.steps
        else f"{format_time(trace.step_ns)} without marked steps"
    )
    shares = {kind: time / total.total_ns for kind, time in total.rows.items()}
    computing = total.computing_ns / total.total_ns
    what = "The device computes" if trace.is_of_device else "Operators compute"
    told = [f"{what} {format_share(computing)} of the time"]
    most = max(shares, key=lambda kind: shares[kind])
    told.append(f"the largest part is {WORDS.get(most, most)}, {format_share(shares[most])}")
    sentences = [f"{trace.label}{where}{whose}: {steps}. {'; '.join(told)}."]
    lost = {kind: share for kind, share in shares.items() if kind in ADVICE}
    worst = max(lost, key=lambda kind: lost[kind], default=None)
    if worst is not None and lost[worst] >= WORTH_ADVICE:
        time = format_time(lost[worst] * trace.step_ns)
        sentences.append(
            f"Most to gain: {WORDS.get(worst, worst)}, {time} of a step ({ADVICE[worst]})."
        )
    return sentences


def list_sheets(trace: ExplainedTrace, most: int) -> list[Sheet]:
    return [
        make_breakdown_sheet([trace]),
        *([_make_step_sheet(trace, most)] if len(trace.steps) > 1 else []),
        *([make_kernel_sheet(trace, most)] if trace.kernels else []),
    ]


def make_breakdown_sheet(traces: Sequence[ExplainedTrace]) -> Sheet:
    """Parts of an average step down, traces across."""
    lines = list(_list_lines(traces))
    columns: list[Column[Line]] = [Column("part", lambda line: line.name, "word")]
    for place, trace in enumerate(traces):
        prefix = f"rank {trace.rank} " if len(traces) > 1 else ""
        columns += _list_time_columns(place, prefix)
    known = {kind for trace in traces for kind in trace.total.rows}
    meanings = [meaning for kind, meaning in MEANINGS.items() if kind in known]
    overlapped = [line for line in lines if not line.in_sum]
    steps = "an average step" if traces[0].steps else "the whole trace"
    if len(traces[0].steps) == 1:
        steps = traces[0].steps[0].name
    return Sheet(
        title=f"{traces[0].label if len(traces) == 1 else 'ranks'}, breakdown of {steps}",
        columns=columns,
        items=[[line for line in lines if line.in_sum], *([overlapped] if overlapped else [])],
        conditions="; ".join(meanings),
        remarks=traces[0].remarks if len(traces) == 1 else (),
    )


def list_remarks(traces: Sequence[ExplainedTrace]) -> list[str]:
    """Of several traces, with their names."""
    if len(traces) == 1:
        return list(traces[0].remarks)
    return [
        remark if remark.startswith(trace.file) else f"{trace.label}: {remark}"
        for trace in traces
        for remark in trace.remarks
    ]


def _list_time_columns(place: int, prefix: str) -> list[Column[Line]]:
    return [
        number(f"{prefix}time", "ns", lambda line: line.times_ns[place] or None),
        number(
            f"{prefix}share",
            "share",
            lambda line: line.times_ns[place] / line.totals_ns[place] or None,
        ),
    ]


def _list_lines(traces: Sequence[ExplainedTrace]) -> Iterator[Line]:
    totals = [trace.step_ns for trace in traces]
    means = [trace.mean_rows_ns for trace in traces]
    for kind in KINDS:
        if any(kind in rows for rows in means):
            yield Line(name_row(kind), [rows.get(kind, 0.0) for rows in means], totals)
    yield Line("total", totals, totals)
    overlapped = [trace.total.overlapped_ns / trace.count for trace in traces]
    if any(overlapped):
        yield Line(f"{OVERLAPPED} (not in the sum)", overlapped, totals, in_sum=False)


GROUPS: dict[str, Callable[[Breakdown], float]] = {
    "computing": lambda one: one.computing_ns,
    "communication, exposed": lambda one: one.rows.get("communication", 0),
    OVERLAPPED: lambda one: one.overlapped_ns,
    **{
        kind: lambda one, kind=kind: one.rows.get(kind, 0)  # type: ignore[misc]
        for kind in (
            "memory copies",
            "waiting for data",
            "launch gaps",
            "idle",
            "between operations",
        )  # fmt: skip
    },
}
"""What a table of steps or ranks has of each; all but the overlapped add up to the step."""


def _make_step_sheet(trace: ExplainedTrace, most: int) -> Sheet:
    columns: list[Column[Breakdown]] = [
        Column("step", lambda one: one.name.removeprefix("step "), "word"),
        number("total", "ns", lambda one: one.total_ns),
        *(_group_column(name, find) for name, find in GROUPS.items()),
    ]
    shown = trace.steps[:most]
    left = len(trace.steps) - len(shown)
    return Sheet(
        title="steps",
        columns=drop_empty(columns, shown),
        items=[shown],
        remarks=[f"{plural(left, 'more step')}: --most {len(trace.steps)}"] if left else [],
    )


def _group_column(name: str, find: Callable[[Breakdown], float]) -> Column[Breakdown]:
    return number(name, "ns", lambda one: find(one) or None, "phase")


def make_kernel_sheet(trace: ExplainedTrace, most: int) -> Sheet:
    device = find_trace_device(trace.device)
    step_ns, count = trace.step_ns, trace.count
    word = "kernel" if trace.is_of_device else "operator"
    operations = {id(use): place_kernel(use, device) for use in trace.kernels[:most]}

    def limit(find: Callable[[Operation], float]) -> Callable[[KernelUse], float | None]:
        def found(use: KernelUse) -> float | None:
            operation = operations[id(use)]
            return None if operation is None else find(operation)

        return found

    columns: list[Column[KernelUse]] = [
        Column(word, lambda use: shorten_kernel(use.name), "word"),
        Column("kind", lambda use: use.kind, "word"),
        *([Column("operator", _name_operator, "detail", has_words=True)] if device or
          trace.is_of_device else []),
        number("calls", "count", lambda use: use.calls / count),
        number("time", "ns", lambda use: use.time_ns / count),
        number("share", "share", lambda use: use.time_ns / count / step_ns),
        number("reached", "FLOP/s", lambda use: use.flops_per_s, "rate"),
        Column("FLOPs/byte", lambda use: _write_intensity(operations[id(use)]), "limit"),
        number("of limit", "share", limit(lambda one: one.share), "throughput"),
        Column("bound by", lambda use: one.bound if (one := operations[id(use)]) else "", "fact",
               has_words=True),
    ]  # fmt: skip
    shown = trace.kernels[:most]
    return Sheet(
        title=f"longest {word}s, calls and time of a step",
        columns=drop_empty(columns, shown),
        items=[shown],
        conditions=_describe_limits(trace, shown, device),
        remarks=_describe_left(trace, most, word),
    )


def _name_operator(use: KernelUse) -> str:
    return shorten_kernel(use.operator or "")


def _write_intensity(operation: Operation | None) -> str:
    return "" if operation is None else three_figures(operation.intensity)


def _describe_limits(
    trace: ExplainedTrace, shown: Sequence[KernelUse], device: Device | None
) -> str:
    names = {use.arithmetic for use in shown if use.arithmetic}
    if not trace.is_of_device:
        return ""
    if not any(use.flops for use in trace.kernels):
        return "no FLOP/s: the shapes of matmuls were not recorded (record_shapes=True)"
    if not names:
        return ""
    if device is None:
        who = trace.device or "this device, which the trace does not name"
        return f"no peak is known of {who}"
    rates = [
        f"{name} {format_rate(peak.flops_per_s, 'FLOP/s')} ({peak.source})"
        for name in sorted(names)
        if (peak := device.find_peak(name)) is not None
    ]
    return (
        f"limit: of {device.name}, {', '.join(rates)}, or its memory's bandwidth times FLOPs for "
        "each byte, whichever is less; attention counts all scores, as if it were not causal"
    )


def _describe_left(trace: ExplainedTrace, most: int, word: str) -> list[str]:
    left = trace.kernels[most:]
    if not left:
        return []
    time_ns = sum(use.time_ns for use in left) / trace.count
    return [
        f"{plural(len(left), f'more {word}')} of {format_time(time_ns)} together; --json has all"
    ]


# Ranks


def answer_ranks(found: RankComparison) -> list[str]:
    ranks = found.ranks
    slowest = max(ranks, key=lambda share: share.trace.total.computing_ns / share.trace.count)
    times = [share.trace.step_ns for share in ranks]
    of_all = "" if found.world_size in (None, len(ranks)) else f" of {found.world_size}"
    sentences = [
        f"{len(ranks)} ranks{of_all}: a step takes {format_time(sum(times) / len(times))}; rank "
        f"{slowest.rank} computes longest, "
        f"{format_time(slowest.trace.total.computing_ns / slowest.trace.count)} of it."
    ]
    late = found.straggler
    if not found.collectives:
        sentences.append("They have no collectives in common that say who waits for whom.")
    elif late is None:
        sentences.append("No rank makes the others wait in particular.")
    else:
        assert late.caused_ns is not None
        sentences.append(
            f"Straggler: rank {late.rank} comes last to {late.last_in} of {found.collectives} "
            f"collectives; the others wait {format_time(late.caused_ns)} a step for it."
        )
    return sentences


def list_rank_sheets(found: RankComparison, most: int) -> list[Sheet]:
    columns: list[Column[RankShare]] = [
        Column("rank", lambda share: str(share.rank), "word"),
        number("step", "ns", lambda share: share.trace.step_ns),
        *(_rank_column(name, find) for name, find in GROUPS.items()),
        number("waits for others", "ns", lambda share: share.waiting_ns),
        number("others wait for it", "ns", lambda share: share.caused_ns),
        number("comes last", "integer", lambda share: share.last_in),
    ]
    shares = list(found.ranks)
    return [
        Sheet(
            title="ranks, an average step of each",
            columns=drop_empty(columns, shares),
            items=[shares],
            conditions="all ranks leave a collective together, so that the one with the shortest "
            f"kernel came last: of {plural(found.collectives, 'collective')}",
            remarks=list_remarks([share.trace for share in shares]),
        ),
        make_breakdown_sheet([share.trace for share in shares[:most]]),
    ]


def _rank_column(name: str, find: Callable[[Breakdown], float]) -> Column[RankShare]:
    return number(
        name, "ns", lambda share: find(share.trace.total) / share.trace.count or None, "phase"
    )


# Comparison


def answer_comparison(found: TraceComparison) -> list[str]:
    old, new = found.old, found.new
    ratio = new.step_ns / old.step_ns
    devices = [trace.device for trace in (old, new)]
    where = (
        f" ({devices[0]} against {devices[1]})"
        if None not in devices and len(set(devices)) > 1
        else ""
    )
    word = "longer" if ratio > 1 else "shorter"
    moved = found.rows[0]
    return [
        f"A step takes {format_time(new.step_ns)} instead of {format_time(old.step_ns)}{where}: "
        f"{format_time(abs(found.change_ns))} {word}, {three_figures(ratio)} times as long. "
        f"Moved most: {moved.name}, by "
        f"{format_signed_time(moved.change_ns, '+')}."
    ]


def list_comparison_sheets(found: TraceComparison, most: int) -> list[Sheet]:
    whole = MovedWork(name="total", kind="", old_ns=found.old.step_ns, new_ns=found.new.step_ns)
    left = max(0, len(found.operators) - most)
    return [
        Sheet(
            title=f"{found.old.label} and {found.new.label}, what moved in an average step",
            columns=_list_moved_columns(found, with_kind=False),
            items=[[whole, *found.rows]],
            conditions="what moved most comes first",
            remarks=list_remarks([found.old, found.new]),
        ),
        Sheet(
            title="by operator: time of its kernels" if found.new.is_of_device else "by operator",
            columns=_list_moved_columns(found, with_kind=True),
            items=[found.operators[:most]],
            remarks=[f"{plural(left, 'more operator')}: --json has all"] if left else [],
        ),
    ]


def _list_moved_columns(found: TraceComparison, *, with_kind: bool) -> list[Column[MovedWork]]:
    change_ns = found.change_ns
    return [
        Column("operator" if with_kind else "part", _name_moved, "word"),
        *([Column("kind", lambda row: row.kind, "word")] if with_kind else []),
        number("old", "ns", lambda row: row.old_ns),
        number("new", "ns", lambda row: row.new_ns),
        Column("change", lambda row: format_signed_time(row.change_ns, "+"), "number",
               lambda row: row.change_ns),
        number("ratio", "ratio", lambda row: row.ratio),
        *([] if with_kind or not change_ns else [
            Column("of the change",
                   lambda row: format_signed_share(row.change_ns / change_ns, sign="-"),
                   "number", lambda row: row.change_ns / change_ns)]),
    ]  # fmt: skip


def _name_moved(row: MovedWork) -> str:
    return shorten_kernel(NAMES.get(row.name, row.name))
