"""How many warm-up steps to discard, and what the first ones paid for: one table, and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flopwatch.analysis.comparable import conditions
from flopwatch.analysis.statistics import THRESHOLD
from flopwatch.analysis.summary import Row
from flopwatch.analysis.warmup import (
    DISCARDED,
    SLOW,
    STD_RATIO,
    STEPS,
    Costs,
    Spread,
    Warmup,
    as_dict,
    study,
)
from flopwatch.output.columns import label_columns
from flopwatch.output.remarks import describe_conditions
from flopwatch.output.tables import Column, Sheet, choose_axes, group_by, number, suite_and_axes
from flopwatch.output.units import format_time, plural
from flopwatch.records.record import Record
from flopwatch.suites.case import label

METHOD = (
    f"0, 1, 2, 5 discarded: mean and standard deviation of the next {STEPS} steps, or of as many "
    "as there are, the same number in a row; the very first call is step 0",
    "discard: the fewest steps after which the mean is within "
    f"{100 * THRESHOLD:g} % of the steady one, or two standard errors where those are more, the "
    f"standard deviation at most {STD_RATIO:g} times the steady one, and the next step at most "
    f"{SLOW:g} times as long",
    "variants of a case share a process: what is paid once falls on the first of them",
)
UNSURE = "?: the times vary too much, or no steady state was detected"
OF_MEANS = (
    "steps of short cases are means of several calls, and have an untimed call before them; --json "
    "has the number of calls"
)
REST = "the rest: threads and kernels started for the first time, new memory, cold caches"
NOTABLE = 0.1
"""Of a steady step: what the first one may have taken more, and is not worth a sentence."""
MOST_SENTENCES = 8
"""More cases are counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmupAnswer:
    answer: str
    """In one sentence."""
    sheets: list[Sheet]
    content: list[dict[str, object]]
    """For ``--json``."""


def answer_warmup(rows: Sequence[Row]) -> WarmupAnswer:
    studied = [study(row.record) for row in rows]
    shown = [warmup for warmup in studied if warmup.windows]
    tables = group_by(shown, lambda w: (suite_and_axes(w.record), conditions(w.record)))
    return WarmupAnswer(
        answer=_conclude(studied),
        sheets=[_make_sheet(table) for table in tables],
        content=[*map(as_dict, studied)],
    )


def _conclude(studied: Sequence[Warmup]) -> str:
    """What a reader would do, of all cases together."""
    known = [warmup for warmup in studied if warmup.enough is not None]
    unknown = [warmup for warmup in studied if warmup.enough is None and warmup.windows]
    absent = [warmup.record for warmup in studied if not warmup.windows]
    sentences = [
        *([_count_needed(known)] if known else []),
        *([_count_slow(unknown)] if unknown else []),
        *([f"not in the table: {_name_absent(absent)}"] if absent else []),
    ]
    return "; ".join(sentences)


def _count_slow(unknown: Sequence[Warmup]) -> str:
    """Where no steady state is known."""
    most = max(warmup.at_least for warmup in unknown)
    slow = f": discard {plural(most, 'step')} there at the least" if most else ""
    return f"no steady state is known of {plural(len(unknown), 'case')}{slow}"


def _count_needed(known: Sequence[Warmup]) -> str:
    most = max(warmup.enough or 0 for warmup in known)
    cases = plural(len(known), "case")
    unsure = sum(not warmup.is_sure for warmup in known)
    warning = f", though times vary too much to be sure in {unsure} of them" if unsure else ""
    if most == 0:
        return f"no step has to be discarded in {cases}{warning}"
    if most == 1:
        return f"discard one step: that is enough in {cases}{warning}"
    more = sum((warmup.enough or 0) > 1 for warmup in known)
    return f"discard {most} steps: one is not enough in {more} of {cases}{warning}"


def _name_absent(records: Sequence[Record]) -> str:
    named = [
        f"{_name(record, list(record.params))} ({_describe_absence(record)})" for record in records
    ]
    more = f" and {len(named) - MOST_SENTENCES} more" if len(named) > MOST_SENTENCES else ""
    return ", ".join(named[:MOST_SENTENCES]) + more


def _describe_absence(record: Record) -> str:
    return f"only {plural(len(record.rounds), 'step')}" if record.status == "ok" else record.status


def _make_sheet(table: Sequence[Warmup]) -> Sheet:
    title, axes = choose_axes([warmup.record for warmup in table])
    columns: list[Column[Warmup]] = [
        *label_columns(axes, lambda warmup: warmup.record),
        number("first step", "s", lambda warmup: warmup.first_s),
        *(_window_column(discarded) for discarded in DISCARDED),
        Column("steady", _describe_steady, value=_find_steady_s),
        Column("discard", _describe_enough, value=lambda warmup: warmup.enough),
    ]
    return Sheet(
        title=f"warm-up of {title}",
        columns=columns,
        items=[table],
        conditions=describe_conditions(table[0].record),
        remarks=_list_remarks(table, axes),
    )


def _window_column(discarded: int) -> Column[Warmup]:
    def find(warmup: Warmup) -> Spread | None:
        found = [window for window in warmup.windows if window.discarded == discarded]
        return found[0].total if found else None

    def cell(warmup: Warmup) -> str:
        spread = find(warmup)
        return "" if spread is None else _format_spread(spread)

    return Column(
        f"{discarded} discarded",
        cell,
        "fact" if discarded <= 1 else "detail",
        value=lambda warmup: getattr(find(warmup), "mean_s", None),
    )


def _format_spread(spread: Spread) -> str:
    """
    >>> _format_spread(Spread(mean_s=0.192, std_s=0.081))
    '192 ms ± 42 %'
    """
    time = _time(spread.mean_s)
    return time if spread.std_s is None else f"{time} ± {100 * spread.std_s / spread.mean_s:.0f} %"


def _find_steady_s(warmup: Warmup) -> float | None:
    return None if warmup.costs is None else warmup.costs.measured_s


def _describe_steady(warmup: Warmup) -> str:
    steady_s = _find_steady_s(warmup)
    return "" if steady_s is None else _time(steady_s) + ("" if warmup.record.steady else "?")


def _describe_enough(warmup: Warmup) -> str:
    if warmup.enough is None:
        return f"at least {warmup.at_least}" if warmup.at_least else "unknown"
    return f"{warmup.enough}{'' if warmup.is_sure else '?'}"


def _list_remarks(table: Sequence[Warmup], axes: Sequence[str]) -> list[str]:
    is_doubtful = any(not (w.is_sure and w.record.steady) for w in table)
    has_means = any(w.calls != w.discarded for warmup in table for w in warmup.windows)
    told = [sentence for warmup in table for sentence in describe_costs(warmup, axes)]
    left = len(told) - MOST_SENTENCES
    return [
        *told[:MOST_SENTENCES],
        *([f"and {left} more like that (--json has all)"] if left > 0 else []),
        *([REST] if any("the rest" in sentence for sentence in told) else []),
        *METHOD,
        *([OF_MEANS] if has_means else []),
        *([UNSURE] if is_doubtful else []),
    ]


def describe_costs(warmup: Warmup, axes: Sequence[str]) -> list[str]:
    """What the first steps paid for, in a case that is named by these axes; nothing where they took
    no longer than others."""
    costs, record = warmup.costs, warmup.record
    if costs is None:
        return []
    kind = "steady" if record.steady else "measured"
    said = [*_describe_first(costs, kind), *_describe_later(costs, kind, record)]
    return [f"{_name(record, axes)}: {'; '.join(said)}"] if said else []


def _describe_first(costs: Costs, kind: str) -> list[str]:
    if costs.excess_s <= NOTABLE * costs.measured_s:
        return []
    named = {"compilation": costs.compilation_s, "the optimizer's first step": costs.optimizer_s}
    known = {what: paid_s for what, paid_s in named.items() if paid_s is not None}
    if known and costs.rest_s is not None:
        known["the rest"] = costs.rest_s
    paid = ", ".join(f"{_time(paid_s)} for {what}" for what, paid_s in known.items())
    faults = costs.page_faults
    pages = "" if faults is None else f" ({plural(faults, 'new page')} of memory)"
    excess = f"the first step took {_time(costs.excess_s)} more than a {kind} one{pages}"
    return [f"{excess}: {paid}" if paid else excess]


def _describe_later(costs: Costs, kind: str, record: Record) -> list[str]:
    """Of the warm-up steps after the first."""
    if not costs.later_steps:
        return []
    return [
        f"{costs.later_steps} of the next {plural(record.warmup_samples - 1, 'step')} took longer "
        f"than any {kind} one, {_time(costs.later_s)} more in all"
    ]


def _name(record: Record, axes: Sequence[str]) -> str:
    shown = {axis: record.params[axis] for axis in axes if axis in record.params}
    return " ".join(filter(None, [record.variant, label(shown)]))


def _time(seconds: float) -> str:
    return format_time(seconds * 1e9)
