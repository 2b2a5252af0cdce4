"""Why more than one warm-up step: the published tables, and what the first steps paid for."""

from __future__ import annotations

from collections.abc import Sequence

from flopwatch.analysis.statistics import THRESHOLD
from flopwatch.analysis.summary import Row
from flopwatch.analysis.warmup import (
    DISCARDED,
    STD_RATIO,
    STEPS,
    Costs,
    Warmup,
    Window,
    as_dict,
    compare_mean,
    compare_std,
    study,
)
from flopwatch.output.layouts import Printout
from flopwatch.output.layouts.layout_cs336 import (
    describe_table,
    draw_grid,
    make_headings,
    name_experiment,
    table_key,
)
from flopwatch.output.tables import Value, group_by
from flopwatch.output.units import format_signed_share, format_time, plural, three_figures
from flopwatch.records.record import Record
from flopwatch.suites.case import label

REMARKS = (
    "Times are in seconds: mean and sample standard deviation (divided by n - 1) of the next "
    f"{STEPS} steps, or of as many as the column Steps says, which are equally many in all tables "
    "of an experiment. The very first call is step 0.",
    f"Steps suffice when the whole step's mean is within {100 * THRESHOLD:g} % of the steady one, "
    "or within two standard errors where those are more, and its std at most "
    f"{STD_RATIO:g} times as large.",
    "Variants of one case share a process: one-time costs fall on the first of them.",
)
CONCLUSIONS = {
    0: "So no warm-up step is needed here.",
    1: "So one warm-up step suffices here.",
}
"""By how many are enough."""


def lay_out(rows: Sequence[Row]) -> Printout:
    studied = [study(row.record) for row in rows]
    tables = group_by(
        (warmup for warmup in studied if warmup.windows),
        lambda warmup: (table_key(warmup.record), *warmup.record.samples_ns),
    )
    lines = [line for table in tables for line in _describe_block(table)]
    lines += [*(REMARKS if tables else ()), *_answer(studied)]
    absent = ", ".join(
        f"{record.variant} {label(record.params)} ({_describe_absence(record)})"
        for record in (warmup.record for warmup in studied if not warmup.windows)
    )
    lines += [f"Without tables: {absent}."] if absent else []
    return Printout(lines=lines, content=[*map(as_dict, studied)])


def _answer(studied: Sequence[Warmup]) -> list[str]:
    """For all experiments together; none where no steady state is known."""
    needed = [warmup.enough for warmup in studied if warmup.enough is not None]
    if not needed:
        return []
    more = [enough for enough in needed if enough > 1]
    experiments = plural(len(needed), "experiment")
    return [
        f"Why more than one warm-up step? Because one is not enough in {len(more)} of "
        f"{experiments} here: up to {max(more)} are needed."
        if more
        else f"Why more than one warm-up step? No reason here: one is enough in {experiments}."
    ]


def _describe_block(table: Sequence[Warmup]) -> list[str]:
    lines = [describe_table(table[0].record), ""]
    for discarded in DISCARDED:
        chosen = [
            (w, window) for w in table for window in w.windows if window.discarded == discarded
        ]
        lines += _draw_table(f"{plural(discarded, 'step')} discarded", chosen)
    steady = [(warmup, warmup.steady) for warmup in table if warmup.steady is not None]
    numbers = sorted({window.discarded for _, window in steady})
    counts = f"{numbers[0]} to {numbers[-1]} steps" if len(numbers) > 1 else None
    lines += _draw_table(
        f"until the steady state: {counts or plural(sum(numbers), 'step')} discarded", steady
    )
    return [*lines, *(line for warmup in table for line in [*describe_warmup(warmup), ""])]


def _draw_table(title: str, rows: Sequence[tuple[Warmup, Window]]) -> list[str]:
    if not rows:
        return []
    headings = [*make_headings(list(rows[0][1].phases)), "Steps"]
    cells = [_make_cells(warmup, window) for warmup, window in rows]
    return [title, *draw_grid(headings, cells), ""]


def _make_cells(warmup: Warmup, window: Window) -> list[Value]:
    spreads = window.phases.values()
    times = [value for spread in spreads for value in (spread.mean_s, spread.std_s)]
    return [name_experiment(warmup.record), *times, warmup.steps]


def describe_warmup(warmup: Warmup) -> list[str]:
    """What the first steps paid for, and how many are enough."""
    record, costs = warmup.record, warmup.costs
    sentences = [*_describe_answer(warmup), *_describe_calls(warmup)]
    if costs is not None:
        kind = "steady" if record.steady else "measured"
        later = _describe_later(costs, kind, record.warmup_samples - 1)
        sentences = [*_describe_first(costs, kind), *later, *sentences]
    name = f"{name_experiment(record)}, {record.variant}:"
    return [name, *(f"  {sentence}" for sentence in sentences)]


def _describe_first(costs: Costs, kind: str) -> list[str]:
    first, later = _time(costs.first_s), _time(costs.measured_s)
    if costs.excess_s <= 0:
        return [f"The first step took {first}, no more than a {kind} one ({later})."]
    sentences = [
        f"The first step took {first}, a {kind} one {later}: {_time(costs.excess_s)} more, for"
    ]
    named = {
        "compilation": costs.compilation_s,
        "the optimizer's first step, in which it makes what state it has": costs.optimizer_s,
        "other (threads and kernels started for the first time, new memory, cold caches)":
            costs.rest_s,
    }  # fmt: skip
    sentences += [f"  {_time(s):>8}  {what}" for what, s in named.items() if s is not None]
    if costs.page_faults is not None:
        sentences.append(
            f"Allocation: the system provided {plural(costs.page_faults, 'page')} in that step, "
            "of 4 KiB, or of 2 MiB where the allocator uses huge ones; what they cost is in the "
            "times above, and cannot be separated."
        )
    return sentences


def _describe_later(costs: Costs, kind: str, others: int) -> list[str]:
    """Of the warm-up steps after the first."""
    if others < 1:
        return []
    if not costs.later_steps:
        return [f"None of the next {plural(others, 'step')} took longer than {kind} ones."]
    return [
        f"Of the next {plural(others, 'step')}, {costs.later_steps} took longer than any {kind} "
        f"one, {_time(costs.later_s)} more in all."
    ]


def _describe_answer(warmup: Warmup) -> list[str]:
    steady = warmup.steady
    if steady is None:
        lack = "measured for long enough" if warmup.record.steady else "detected"
        return [f"No steady state was {lack}: how many steps suffice is not known."]
    assert warmup.enough is not None
    earlier = [window for window in warmup.windows if window.discarded < steady.discarded]
    compared = "; ".join(_compare(window, steady) for window in earlier)
    return [
        f"A steady state was detected after {plural(steady.discarded, 'step')}, including the ones "
        "that show it.",
        *([f"Mean and std compared with the steady ones: {compared}."] if compared else []),
        CONCLUSIONS.get(
            warmup.enough,
            f"So one warm-up step is not enough here: it takes {warmup.enough}.",
        ),
    ]


def _compare(window: Window, steady: Window) -> str:
    change = format_signed_share(compare_mean(window.total, steady.total))
    ratio = compare_std(window.total, steady.total)
    spread = "" if ratio is None else f" and {three_figures(ratio)} times"
    return f"with {window.discarded} discarded, {change}{spread}"


def _describe_calls(warmup: Warmup) -> list[str]:
    """Where a step is not one call."""
    record, windows = warmup.record, warmup.windows
    sentences = []
    if any(window.calls != window.discarded for window in windows):
        pairs = ", ".join(f"{w.calls}" for w in windows if w.discarded)
        steps = ", ".join(f"{w.discarded}" for w in windows if w.discarded)
        sentences.append(
            f"Counted in calls, {steps} discarded steps are {pairs}: short samples have an untimed "
            "call before them."
        )
    most = max(record.calls_per_sample)
    if most > 1:
        first = next(
            position for position, loops in enumerate(record.calls_per_sample) if loops > 1
        )
        sentences.append(
            f"From step {first} on a sample is the mean of up to {most:,} calls, and single calls "
            "vary more than such means."
        )
    return sentences


def _time(seconds: float) -> str:
    return format_time(seconds * 1e9)


def _describe_absence(record: Record) -> str:
    return f"only {plural(len(record.rounds), 'step')}" if record.status == "ok" else record.status
