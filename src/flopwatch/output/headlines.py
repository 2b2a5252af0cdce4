"""What was measured and what was found, in plain sentences, with their uncertainty."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from flopwatch.analysis.break_even import AXIS, find_break_evens
from flopwatch.analysis.quality import assess
from flopwatch.analysis.statistics import THRESHOLD, Estimate, Verdict
from flopwatch.analysis.summary import Row, is_foreign
from flopwatch.output.case_tables import describe_break_even
from flopwatch.output.columns import NOT_COMPARABLE, OF_PEAK
from flopwatch.output.remarks import describe_conditions
from flopwatch.output.tables import group_by
from flopwatch.output.units import (
    format_count,
    format_interval,
    format_speedup,
    format_time,
    plural,
)
from flopwatch.records.record import Record
from flopwatch.suites.case import format_value

MOST_LISTED = 6
"""Of one kind in a summary; the tables have all."""

ALONE = (
    "Verdicts are on each case by itself, at 99 %; `flopwatch compare` judges all of them "
    "together, and may call unclear what is faster or slower here."
)

VERDICTS: dict[Verdict | None, str] = {
    "faster": "is faster than",
    "slower": "is slower than",
    "slightly faster": "is slightly faster than",
    "slightly slower": "is slightly slower than",
    "same": "is as fast as",
    "unclear": "vs",
}
SLIGHT = ("slightly faster", "slightly slower")


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Cases that failed in the same way."""

    suite: str
    status: str
    reason: str
    cases: list[str]
    """Each with its variant and parameters."""


def describe_whole(rows: Sequence[Row]) -> list[str]:
    """What was measured, when, on what, and what failed."""
    if not rows:
        return ["There are no records."]
    own, foreign = split_foreign(rows)
    others = f"{plural(len(foreign), 'case')} of {_join_suites(foreign)} measured by others: "
    return [
        *([_count_own(own)] if own else []),
        *([f"{others}published, or imported."] if foreign else []),
        _describe_machines(rows),
        *([ALONE] if sum(map(has_interval, rows)) > 1 else []),
    ]


def split_foreign(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """What was measured here, and what others have measured."""
    own = [row for row in rows if not is_foreign(row.record)]
    return own, [row for row in rows if is_foreign(row.record)]


def _count_own(rows: Sequence[Row]) -> str:
    measured = [row for row in rows if row.total_ns is not None]
    runs = len({row.record.run_id for row in rows})
    days = sorted({row.record.measured_at[:10] for row in rows if row.record.measured_at})
    when = f", {' to '.join(dict.fromkeys([days[0], days[-1]]))}" if days else ""
    return (
        f"{plural(len(measured), 'case')} of {_join_suites(rows)} measured in "
        f"{plural(runs, 'run')}{when}; {_count_failures([row.record for row in rows])}."
    )


def _join_suites(rows: Sequence[Row]) -> str:
    return join_words(list(dict.fromkeys(row.record.suite for row in rows)))


def _describe_machines(rows: Sequence[Row]) -> str:
    conditions = list(dict.fromkeys(describe_conditions(row.record) for row in rows))
    if len(conditions) == 1:
        return f"Measured on: {conditions[0]}."
    shown = "; ".join(conditions[:MOST_LISTED])
    more = f"; and {len(conditions) - MOST_LISTED} more" if len(conditions) > MOST_LISTED else ""
    return f"Measured under {len(conditions)} conditions, in tables of their own: {shown}{more}."


def _count_failures(records: Sequence[Record]) -> str:
    misfits = sum(record.is_misfit for record in records)
    absent = sum(record.status == "unsupported" for record in records)
    failed = sum(
        record.status not in ("ok", "unsupported") and not record.is_misfit for record in records
    )
    counts = [f"{failed:,} failed" if failed else "none failed"]
    counts += [f"{misfits:,} did not fit into memory"] if misfits else []
    counts += [f"{absent:,} unsupported"] if absent else []
    return ", ".join(counts)


def group_failures(rows: Sequence[Row]) -> list[Failure]:
    """All that has no times, together where suite, status and reason are the same; what fails most
    comes first."""
    failed = [row for row in rows if row.record.status != "ok"]
    groups = group_by(failed, lambda r: (r.record.suite, r.record.status, r.record.message or ""))
    failures = [
        Failure(
            suite=group[0].record.suite,
            status=group[0].record.status,
            reason=group[0].record.message or "",
            cases=[name_row(row, row.record.params) for row in group],
        )
        for group in groups
    ]
    return sorted(failures, key=lambda failure: -len(failure.cases))


def describe_suite(rows: Sequence[Row]) -> list[str]:
    """The findings of one suite: the main ones first; those of others after your own."""
    own, foreign = split_foreign(rows)
    by_others = (
        [f"Measured by others: {sentence}" for sentence in _find(foreign)] if foreign else []
    )
    return [*(_find(own) if own or not foreign else []), *by_others]


def _find(rows: Sequence[Row]) -> list[str]:
    axes = list_differing_axes(rows)
    return [
        *(_describe_speedups(rows, axes) or describe_times(rows, axes)),
        *_describe_fastest(rows),
        *_describe_unclear(rows),
        *_describe_break_evens(rows, axes),
        *_describe_quality(rows),
        *_describe_throughput(rows, axes),
        *_describe_peaks(rows, axes),
    ]


def list_differing_axes(rows: Sequence[Row]) -> set[str]:
    """Axes with more than one value in these rows."""
    values: dict[str, set[str]] = {}
    for row in rows:
        for axis, value in row.record.params.items():
            values.setdefault(axis, set()).add(format_value(value))
    return {axis for axis, found in values.items() if len(found) > 1}


def _place(row: Row, axes: set[str]) -> str:
    """Where a case lies, without what all cases have in common."""
    params = row.record.params
    return " ".join(f"{axis}={format_value(params[axis])}" for axis in params if axis in axes)


def name_row(row: Row, axes: set[str] | Mapping[str, object]) -> str:
    return " ".join(filter(None, [row.record.variant, _place(row, set(axes))]))


def _describe_speedups(rows: Sequence[Row], axes: set[str]) -> list[str]:
    """Variant by variant, the fastest first."""
    compared = group_by(
        (row for row in rows if row.speedup is not None),
        lambda row: (row.record.variant, row.record.baseline, bool(row.differences)),
    )
    ordered = sorted(compared, key=lambda found: -median(map(find_speedup, found)))
    sentences = [describe_range(found, axes) for found in ordered[:MOST_LISTED]]
    left = len(ordered) - MOST_LISTED
    if left > 0:
        sentences.append(f"{plural(left, 'other variant')} less fast than these: see the tables.")
    return sentences


def find_speedup(row: Row) -> float:
    assert row.speedup is not None
    return row.speedup.value


def describe_range(rows: Sequence[Row], axes: set[str]) -> str:
    """Of one variant over one baseline."""
    low, high = min(rows, key=find_speedup), max(rows, key=find_speedup)
    variant, baseline = low.record.variant, low.record.baseline
    fairness = f" ({NOT_COMPARABLE})" if low.differences else ""
    assert low.speedup is not None
    assert high.speedup is not None
    if len(rows) == 1 and low.speedup.low is None:
        return f"{variant} over {baseline}{fairness}: {format_speedup(low.speedup)}."
    if len(rows) == 1:
        pair = f"{variant} {VERDICTS[low.verdict]} {baseline}:"
        unclear = " no clear difference," if low.verdict == "unclear" else ""
        below = f", below the threshold of {100 * THRESHOLD:g} %" if low.verdict in SLIGHT else ""
        return f"{pair}{unclear} {format_speedup(low.speedup)}{below}{fairness}."
    ends = [f"{format_speedup(low.speedup)}{name_place(low, axes)}",
            f"{format_speedup(high.speedup)}{name_place(high, axes)}"]  # fmt: skip
    return f"{variant} over {baseline}{fairness}: {' to '.join(ends)}; {_count_verdicts(rows)}."


def name_place(row: Row, axes: set[str], word: str = " at") -> str:
    place = _place(row, axes)
    return f"{word} {place}" if place else ""


def has_interval(row: Row) -> bool:
    return row.speedup is not None and row.speedup.low is not None


def _count_verdicts(rows: Sequence[Row]) -> str:
    if not any(map(has_interval, rows)):
        return f"{plural(len(rows), 'case')}, no intervals"
    counts = Counter(row.verdict for row in rows)
    if len(counts) == 1:
        all_of_them = "both cases" if len(rows) == 2 else f"all {plural(len(rows), 'case')}"
        return f"{next(iter(counts))} in {all_of_them}"
    listed = [f"{verdict} in {counts[verdict]}" for verdict in VERDICTS if counts[verdict]]
    return f"{join_words(listed)} of {plural(len(rows), 'case')}"


def describe_times(rows: Sequence[Row], axes: set[str]) -> list[str]:
    """Where nothing was compared."""
    timed = [(row, row.total_ns) for row in rows if row.total_ns is not None]
    if not timed:
        return ["Nothing was measured."]
    timed.sort(key=lambda timing: timing[1].value)
    shortest, longest = timed[0], timed[-1]
    extremes = [
        f"{name_row(row, axes)} takes {format_time(total_ns.value)}{_describe_width(total_ns)}"
        for row, total_ns in ((shortest, longest) if len(timed) > 1 else timed)
    ]
    return [f"{', '.join(extremes)}."]


def _describe_width(estimate: Estimate) -> str:
    """
    >>> _describe_width(Estimate(value=1.0, low=None, high=None, samples=1))
    ' (single value)'
    """
    text = format_interval(estimate)
    return f" {text}" if text.startswith("±") else f" ({text})"


def _describe_fastest(rows: Sequence[Row]) -> list[str]:
    """Which variant won how many groups; a variant wins by its verdict, else the baseline does."""
    groups = group_by(
        (row for row in rows if has_interval(row) and not row.differences),
        lambda row: (row.record.group_id, row.record.baseline, row.conditions_digest),
    )
    if len(groups) < 2 or max(map(len, groups)) < 2:
        return []
    fastest = [max(group, key=find_speedup) for group in groups]
    winners = Counter(
        row.record.variant if row.verdict == "faster" else row.record.baseline for row in fastest
    )
    counted = [f"{variant} in {count}" for variant, count in winners.most_common(MOST_LISTED)]
    return [
        f"Fastest: {join_words(counted)} of {plural(len(groups), 'group')} (by medians; the "
        "baseline where nothing is clearly faster)."
    ]


def _describe_unclear(rows: Sequence[Row]) -> list[str]:
    compared = [row for row in rows if row.speedup is not None]
    of_all = f" of {plural(len(compared), 'comparison')}"
    bare = sum(not has_interval(row) for row in compared)
    wide = sum(row.verdict == "unclear" for row in compared) - bare
    return [
        f"{number:,}{of_all} {'has' if number == 1 else 'have'} no verdict: {why}."
        for number, why in (
            (wide, "the interval is too wide for one"),
            (bare, "too few independent samples for an interval"),
        )
        if number
    ]


def _describe_break_evens(rows: Sequence[Row], axes: set[str]) -> list[str]:
    found = find_break_evens(rows)
    if len(found) > MOST_LISTED:
        paying = sum(bool(break_even.paying) for break_even in found)
        return [
            f"Over the {AXIS}, {paying} of {len(found)} series are faster at their largest batch: "
            f"see the tables of speedup by {AXIS}."
        ]
    return [
        f"{name_row(one.rows[0], axes - {AXIS})} is faster {describe_break_even(one)}."
        for one in found
        if one.paying
    ]


def _describe_quality(rows: Sequence[Row]) -> list[str]:
    gained = [
        f"At equal loss {quality.row.record.variant} gains {format_speedup(quality.gain)} over "
        f"{quality.row.record.baseline}, from one training each."
        for group in assess(rows)
        for quality in group
        if quality.gain is not None
    ]
    return gained[:MOST_LISTED]


def _describe_throughput(rows: Sequence[Row], axes: set[str]) -> list[str]:
    known = [(r.tokens_per_s, r) for r in rows if r.tokens_per_s is not None and not r.in_parts]
    if not known:
        return []
    tokens_per_s, best = max(known, key=lambda each: each[0])
    rate = f"{format_count(tokens_per_s)} tokens/s{_bracket_interval(best)}"
    return [f"Highest throughput: {rate}, by {name_row(best, axes)}."]


def _bracket_interval(row: Row) -> str:
    """Of the time that a rate or a share is computed from."""
    return "" if row.total_ns is None else f" ({format_interval(row.total_ns)})"


def _describe_peaks(rows: Sequence[Row], axes: set[str]) -> list[str]:
    """MFU of training jobs, of others the part of the peak."""
    jobs = [row for row in rows if row.utilisation and row.utilisation.mfu is not None]
    if jobs:
        best, worst = max(jobs, key=find_mfu), min(jobs, key=find_mfu)
        assert best.utilisation is not None
        span = f"{100 * find_mfu(worst):.1f} % to " if len(jobs) > 1 else ""
        return [
            f"MFU: {span}{100 * find_mfu(best):.1f} %{_bracket_interval(best)}, the most by "
            f"{name_row(best, axes)}; convention "
            f"{best.utilisation.convention}, peak {best.utilisation.peak_source}."
        ]
    sentences = []
    for standard, title in OF_PEAK.items():
        # More than 1 is impossible: the remarks below the table say so.
        known = [r for r in rows if standard in r.of_peak and r.of_peak[standard].burst_share <= 1]
        if known:
            best = max(known, key=lambda row: row.of_peak[standard].share)
            share = f"{100 * best.of_peak[standard].share:.1f} %"
            reach = _bracket_interval(best)
            sentences.append(f"At most {share} {title}{reach}, by {name_row(best, axes)}.")
    return sentences


def find_mfu(row: Row) -> float:
    return (row.utilisation.mfu if row.utilisation else None) or 0.0


def join_words(words: Sequence[str]) -> str:
    """
    >>> join_words(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
