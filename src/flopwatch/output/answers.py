"""What a terminal says first: of each suite one to three sentences and one narrow table, then the
conditions and the warnings, a line each.

Everything else (phases, parts, regions, memory, remarks) is in `case_tables`, one option away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from flopwatch.analysis.break_even import AXIS, BreakEven, find_break_evens
from flopwatch.analysis.monitored_run import RunSummary
from flopwatch.analysis.summary import Row, is_foreign
from flopwatch.analysis.warnings import ResultWarning, find_warnings
from flopwatch.output.case_tables import describe_break_even
from flopwatch.output.columns import NOT_COMPARABLE, case_columns, describe_verdict
from flopwatch.output.headlines import (
    describe_range,
    describe_times,
    find_mfu,
    find_speedup,
    group_failures,
    has_interval,
    join_words,
    list_differing_axes,
    name_place,
    name_row,
    rank_variants,
)
from flopwatch.output.monitor_tables import answer_run, list_facts, list_run_sheets
from flopwatch.output.remarks import describe_conditions, list_drift_remarks
from flopwatch.output.tables import Column, Kind, Mark, Sheet, choose_axes, divide, group_by
from flopwatch.output.units import (
    format_bytes,
    format_count,
    format_ratio,
    format_speedup,
    plural,
)
from flopwatch.suites.case import label

SHOWN: tuple[Kind, ...] = ("word", "number", "throughput")
"""Columns of the narrow table: axes, variant, time, speedup, verdict, and the throughput and MFU of
training jobs."""
MOST_ROWS = 40
"""Of the narrow table: with more, the sentences above it would leave the screen."""
MOST_WARNINGS = 4
LESS_ASKED_FOR = ("hfu",)
IDLE = ("speedup", "verdict")
"""Where nothing was compared."""
MOST_BREAK_EVENS = 2
MOST_WINNERS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class SuiteAnswer:
    title: str
    sentences: list[str]
    sheets: list[Sheet]
    """One, unless cases differ in their axes or conditions."""
    hidden: list[str]
    """Columns that only the long tables have."""


def answer_suites(rows: Sequence[Row], *, is_sorted: bool = False) -> list[SuiteAnswer]:
    """`is_sorted`: the rows are in an order that somebody has asked for."""
    has_several = len(list_conditions(rows)) > 1
    measured = [row for row in rows if row.monitored is None]
    found = []
    for suite_rows in group_by(measured, lambda row: (row.record.suite, is_foreign(row.record))):
        tables = divide(suite_rows)
        titles = [choose_axes([row.record for row in table])[0] for table in tables]
        sheets = [make_brief_sheet(table, is_sorted=is_sorted) for table in tables]
        if has_several:
            sheets = [
                replace(sheet, conditions=describe_conditions(table[0].record))
                for sheet, table in zip(sheets, tables, strict=True)
            ]
        title = titles[0] if len(tables) == 1 else suite_rows[0].record.suite
        by_others = ", measured by others" if is_foreign(suite_rows[0].record) else ""
        named = [""] if len(tables) == 1 else titles
        found.append(
            SuiteAnswer(
                title=f"{title}{by_others}",
                sentences=answer_suite(suite_rows),
                sheets=[replace(s, title=t) for s, t in zip(sheets, named, strict=True)],
                hidden=_list_hidden(tables, sheets),
            )
        )
    return [*found, *(_answer_run(row, row.monitored) for row in rows if row.monitored)]


def _answer_run(row: Row, run: RunSummary) -> SuiteAnswer:
    """Of a monitored training loop."""
    return SuiteAnswer(
        title=f"{row.record.suite} {row.record.variant} {label(row.record.params)}".rstrip(),
        sentences=answer_run(run),
        sheets=list_run_sheets(run, is_brief=True),
        hidden=[name for name, _ in list_facts(run)],
    )


def answer_suite(rows: Sequence[Row]) -> list[str]:
    """What is fastest, from where on, and what is not known."""
    monitored = [row.monitored for row in rows if row.monitored is not None]
    if monitored:
        return answer_run(monitored[-1])
    axes = list_differing_axes(rows)
    compared = [row for row in rows if row.speedup is not None]
    job = _describe_job(rows, axes)
    more = [*_describe_break_evens(rows, axes), *job, *_describe_winners(compared)]
    if compared:
        found = [_describe_best(compared, axes), *more[:1]]
    else:
        found = job or describe_times(rows, axes)
    return [*found, *_describe_unknown(rows)]


def _describe_best(compared: Sequence[Row], axes: set[str]) -> str:
    """Of the variant that ranks first."""
    best, *others = rank_variants(compared)
    if any(row.verdict == "faster" for row in best):
        return _describe_winner(best, axes)
    variants = [
        found
        for found in (best, *others)
        if bool(found[0].differences) == bool(best[0].differences)
    ]
    if len(variants) == 1 or not any(has_interval(row) for found in variants for row in found):
        return describe_range(best, axes)
    top = max(best, key=find_speedup)
    assert top.speedup is not None
    size = f"{format_speedup(top.speedup)}{name_place(top, axes, ' for')}"
    return (
        f"None of {len(variants)} variants is clearly faster than {top.record.baseline}: the "
        f"first, {top.record.variant} at {size}, is {top.verdict}."
    )


def _describe_winner(rows: Sequence[Row], axes: set[str]) -> str:
    won = [row for row in rows if row.verdict == "faster"]
    low, top = min(won, key=find_speedup), max(won, key=find_speedup)
    assert low.speedup is not None
    assert top.speedup is not None
    sizes = [format_speedup(top.speedup)]
    if len(won) > 1 and len(won) == len(rows):
        sizes = [format_speedup(low.speedup), *sizes]
    up_to = "up to " if len(won) > 1 and len(won) < len(rows) else ""
    fairness = f" ({NOT_COMPARABLE})" if top.differences else ""
    cases = f"; faster in {len(won)} of {plural(len(rows), 'case')}" if len(rows) > 1 else ""
    return (
        f"{top.record.variant} is {up_to}{' to '.join(sizes)} faster than {top.record.baseline}"
        f"{fairness}{name_place(top, axes)}{_describe_limit(top)}{cases}."
    )


def _describe_limit(row: Row) -> str:
    """How much of what the FLOPs allow was reached."""
    if row.limit is None or row.speedup is None:
        return ""
    share, limit = row.speedup.value / row.limit, format_ratio(row.limit)
    if share > 1:
        return f" (its FLOPs alone would give {limit})"
    return f" ({100 * share:.0f} % of the {limit} that its FLOPs allow)"


def _describe_winners(compared: Sequence[Row]) -> list[str]:
    """Where different variants win in different groups."""
    groups = group_by(compared, lambda row: (row.record.group_id, row.conditions_digest))
    fastest = [max(group, key=find_speedup) for group in groups]
    winners = Counter(row.record.variant for row in fastest if row.verdict == "faster")
    if len(winners) < 2:
        return []
    counted = [f"{variant} in {count}" for variant, count in winners.most_common(MOST_WINNERS)]
    return [f"Fastest: {join_words(counted)} of {plural(len(groups), 'group')}."]


def _describe_break_evens(rows: Sequence[Row], axes: set[str]) -> list[str]:
    """Where a variant is slower at first and faster later."""
    series = find_break_evens(rows)
    found = [one for one in series if one.outcome == "from"]
    if len(found) <= MOST_BREAK_EVENS:
        parts = [f"{_name_series(one, axes)} is faster {describe_break_even(one)}" for one in found]
        return [f"{'; '.join(parts)}."] if parts else []
    starts = sorted(_find_start(one) for one in found)
    ends = " to ".join(map(str, dict.fromkeys([starts[0], starts[-1]])))
    return [
        f"{len(found)} of {len(series)} series break even, from {ends} {AXIS} on: "
        "`flopwatch compare --break-even` lists them."
    ]


def _find_start(break_even: BreakEven) -> int:
    """The smallest measured value from which on it is faster."""
    first = break_even.paying[0] if break_even.paying else break_even.crossings[-1].above
    return break_even.place(first)


def _name_series(break_even: BreakEven, axes: set[str]) -> str:
    return name_row(break_even.rows[0], axes - {break_even.axis})


def _describe_job(rows: Sequence[Row], axes: set[str]) -> list[str]:
    """Throughput, MFU and memory of the best training job."""
    jobs = [row for row in rows if row.utilisation and row.tokens_per_s and not row.in_parts]
    if not jobs:
        return []
    best = max(jobs, key=lambda row: row.tokens_per_s or 0.0)
    used = best.utilisation
    facts = [f"{format_count(best.tokens_per_s or 0.0)} tokens/s"]
    if used is not None and used.mfu is not None:
        facts.append(
            f"{100 * find_mfu(best):.1f} % MFU ({used.convention}, peak {used.peak_source})"
        )
    if best.record.peak_memory_bytes:
        facts.append(f"{format_bytes(best.record.peak_memory_bytes)} at its peak")
    return [f"{name_row(best, axes)} has the highest throughput: {', '.join(facts)}."]


def _describe_unknown(rows: Sequence[Row]) -> list[str]:
    compared = [row for row in rows if has_interval(row) or row.verdict]
    unclear = sum(row.verdict == "unclear" for row in compared)
    failed = sum(
        row.record.status not in ("ok", "unsupported") and not row.record.is_misfit for row in rows
    )
    misfits = sum(row.record.is_misfit for row in rows)
    parts = []
    if unclear and len(compared) > 1 and not is_foreign(rows[0].record):
        parts.append(
            f"{unclear} of {plural(len(compared), 'comparison')} "
            f"{'is' if unclear == 1 else 'are'} unclear; more time (--case-budget) or a quieter "
            "machine settles them"
        )
    parts += [f"{plural(failed, 'case')} failed"] if failed else []
    parts += [f"{plural(misfits, 'case')} did not fit into memory"] if misfits else []
    return [f"{'; '.join(parts)}."] if parts else []


def make_brief_sheet(rows: Sequence[Row], *, is_sorted: bool = False) -> Sheet:
    shown = [row for row in rows if not row.in_parts] or list(rows)
    groups = [shown] if is_sorted else _group(shown)
    return Sheet(
        columns=_choose_columns(shown),
        items=groups,
        labels=1 if is_sorted else None,
        rest_in="-v",
    )


def _group(rows: Sequence[Row]) -> list[list[Row]]:
    return [list(group) for _, group in groupby(rows, lambda row: row.record.group_id)]


def _choose_columns(rows: Sequence[Row]) -> list[Column[Row]]:
    """Without what says nothing here: speedups and verdicts where nothing was compared."""
    is_compared = any(row.speedup is not None for row in rows)
    idle = (*LESS_ASKED_FOR, *(() if is_compared else IDLE))
    shown = [c for c in case_columns(rows) if c.kind in SHOWN and c.name not in idle]
    return [replace(column, **CHANGED.get(column.name, {})) for column in shown]


UNFAIR = Mark("*", f"{NOT_COMPARABLE}; -v says why")
CHANGED: dict[str, dict[str, Any]] = {
    "total_ns": {"heading": "time"},
    "verdict": {
        "cell": lambda row: describe_verdict(row, row.verdict).partition(",")[0],
        "marks": lambda row: (UNFAIR,) if row.differences else (),
    },
}
"""In the narrow table."""


def _list_hidden(tables: Sequence[Sequence[Row]], sheets: Sequence[Sheet]) -> list[str]:
    shown = {*IDLE, *(column.name for sheet in sheets for column in sheet.columns)}
    every = [column for rows in tables for column in case_columns(rows)]
    return list(dict.fromkeys(column.title for column in every if column.name not in shown))


def list_conditions(rows: Sequence[Row]) -> list[str]:
    """Of all tables, each once."""
    return list(dict.fromkeys(describe_conditions(row.record) for row in rows))


def list_warnings(rows: Sequence[Row]) -> list[str]:
    """Failures and warnings, a line each, the most important first. What there is to say of others'
    results is said by their source."""
    own = [row for row in rows if not is_foreign(row.record)]
    seen = [
        record
        for row in own
        for record in (row.record, row.against, *(row.monitored.records if row.monitored else ()))
    ]
    records = {id(one): one for one in seen if one is not None}
    kinds = group_by(find_warnings(list(records.values()), own), lambda warning: warning.kind)
    lines = [
        *(
            f"{_name_some(failure.cases)}: {failure.status}: {failure.reason}"
            for failure in group_failures(rows)
        ),
        *list_drift_remarks(own),  # else the table contradicts itself
        *map(_describe_warnings, kinds),
    ]
    left = len(lines) - MOST_WARNINGS
    more = [f"and {left} more: `flopwatch check` lists them"] if left > 0 else []
    return [*lines[:MOST_WARNINGS], *more]


def _describe_warnings(alike: Sequence[ResultWarning]) -> str:
    """Of one kind: of how many cases, and what is known of the worst."""
    cases = sum(len(warning.cases) for warning in alike)
    return f"{alike[0].kind} ({plural(cases, 'case')}): {alike[0].fact}"


def _name_some(names: Sequence[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
