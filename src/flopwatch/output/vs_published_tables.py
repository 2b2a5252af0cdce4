"""Your results next to published ones, as tables and sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from flopwatch.analysis.comparable import conditions
from flopwatch.analysis.statistics import Estimate
from flopwatch.analysis.summary import Row
from flopwatch.analysis.vs_published import PublishedComparison, find_matching
from flopwatch.output.columns import NOT_COMPARABLE, label_columns
from flopwatch.output.remarks import describe_conditions
from flopwatch.output.tables import Column, Sheet, choose_axes, group_by, number, suite_and_axes
from flopwatch.output.units import format_share, format_speedup, plural
from flopwatch.suites.case import format_value, label


def make_published_comparison_sheets(found: Sequence[PublishedComparison]) -> list[Sheet]:
    """One for every suite and everything that it was measured on; none where nothing has a
    partner."""

    def find_table(one: PublishedComparison) -> Hashable:
        sides = [side.record for side in (one.own, one.published) if side]
        return *suite_and_axes(one.row.record), *map(conditions, sides)

    paired = [one for one in found if one.missing is None and one.own and one.published]
    return [_make_sheet(alike) for alike in group_by(paired, find_table)]


def _make_sheet(found: Sequence[PublishedComparison]) -> Sheet:
    title, axes = choose_axes([one.row.record for one in found])
    columns: list[Column[PublishedComparison]] = [
        *label_columns(axes, lambda one: one.row.record),
        Column("ratio", lambda one: one.quantity, "word"),
        _value_column("here", lambda one: one.own_value),
        _value_column("published", lambda one: one.published_value),
        number("here over published", "ratio", _divide),
        Column("fair", describe_fairness, "word"),
    ]
    first = found[0]
    assert first.own
    assert first.published
    return Sheet(
        title=f"{title}, vs published",
        columns=columns,
        items=group_by(found, lambda one: (one.row.record.group_id, one.row.record.variant)),
        conditions=f"here: {describe_conditions(first.own.record)}; "
        f"{describe_conditions(first.published.record)}",
    )


def _value_column(
    name: str, find: Callable[[PublishedComparison], Estimate | None]
) -> Column[PublishedComparison]:
    def cell(one: PublishedComparison) -> str:
        estimate = find(one)
        if estimate is None:
            return ""
        is_share = one.quantity.startswith("MFU")
        return format_share(estimate.value) if is_share else format_speedup(estimate)

    return number(name, "ratio", find, cell=cell)


def _divide(one: PublishedComparison) -> float | None:
    if one.own_value is None or one.published_value is None or not one.published_value.value:
        return None
    return one.own_value.value / one.published_value.value


def describe_fairness(one: PublishedComparison) -> str:
    """The fields that make the comparison unfair; what they are is said once, below."""
    fields = [
        *one.differences,
        *(f"{name} here" for name in (one.own.differences if one.own else ())),
        *(f"{name} there" for name in (one.published.differences if one.published else ())),
    ]
    return f"{NOT_COMPARABLE}: {', '.join(fields)}" if fields else ""


def describe_published_comparison(found: Sequence[PublishedComparison]) -> list[str]:
    """What makes comparisons unfair, and what has no partner and why."""
    return [*_describe_differences(found), *_describe_missing(found)]


def suggest_case(found: Sequence[PublishedComparison], name: str) -> str:
    """How to measure something that was published."""
    published = [one.published for one in found if one.published and one.published.total_ns]
    if not published:
        return f"`flopwatch show published:{name}` has all"
    # The fastest: it asks least of the reader's machine.
    record = min(published, key=lambda row: row.total_ns.value if row.total_ns else 0).record
    matching = find_matching(record)
    axes = () if matching is None else matching.axes
    words = [f"--set {axis}={format_value(record.params[axis])}" for axis in axes]
    return f"measure what was published, as by: flopwatch run {record.suite} {' '.join(words)}"


def _describe_differences(found: Sequence[PublishedComparison]) -> list[str]:
    """Each once, with how many ratios it concerns."""
    counts: Counter[str] = Counter()
    for one in found:
        if one.missing is None:
            counts.update(f"{n}: {own} here, {o} there" for n, (own, o) in one.differences.items())
            counts.update(_describe_row(one.own, "here"))
            counts.update(_describe_row(one.published, "there"))
    return [
        f"{NOT_COMPARABLE}: {sentence} ({plural(count, 'ratio')})"
        for sentence, count in counts.items()
    ]


def _describe_row(row: Row | None, where: str) -> list[str]:
    return [
        f"{name} {where}: {theirs or 'unknown'} in the baseline, {mine or 'unknown'} in the variant"
        for name, (theirs, mine) in (row.differences if row else {}).items()
    ]


def _describe_missing(found: Sequence[PublishedComparison]) -> list[str]:
    """One sentence for each side and reason, with an example."""
    missing = [one for one in found if one.missing is not None]
    sentences = []
    for cases in group_by(missing, lambda one: (one.own is None, one.missing)):
        first, record = cases[0], cases[0].row.record
        count = plural(len(cases), "published case" if first.own is None else "own case")
        such_as = "" if len(cases) == 1 else "such as "
        example = f"{such_as}{record.variant} {label(record.params)}"
        sentences.append(f"{count} without a partner, {example}: {first.missing}")
    return sentences
