"""Verdicts of two sets of results, as tables and sentences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby

from flopwatch.analysis.comparable import Differences
from flopwatch.analysis.part_times import MovedPart, find_common_parts
from flopwatch.analysis.ratio_tests import Missing
from flopwatch.analysis.record_device import find_background_share
from flopwatch.analysis.run_shifts import BaselineShift
from flopwatch.analysis.statistics import Verdict
from flopwatch.analysis.verdicts import Basis, Comparison, Judgement
from flopwatch.output.background_load import describe_load
from flopwatch.output.columns import NOT_COMPARABLE, label_columns
from flopwatch.output.remarks import describe_drift
from flopwatch.output.tables import (
    Column,
    Sheet,
    choose_axes,
    group_by,
    number,
    suite_and_axes,
    verdict_column,
)
from flopwatch.output.units import (
    format_change,
    format_signed_share,
    format_signed_time,
    format_slight_change,
    plural,
)
from flopwatch.records.record import Record
from flopwatch.suites.case import label

WIDE = 0.1
"""What is known no better than that is not at the threshold: it is not known where it is."""
MOST_OF_ALL = 0.75
MOST_SENTENCES = 8
"""Of one kind; more are counted."""
MOST_PARTS = 4
MOST_NAMED = 3
CAPTIONS: dict[Basis, str] = {
    "absolute": "",
    "turns": "time: the median of the ratios within rounds, which both took in turns",
    "relative": "old and new are speedups over the baseline of the same run; time: the change of "
    "the ratio to the baseline's time",
}
ALONE = (
    "`flopwatch show` and the report judge every case by itself, at 99 %; here all are judged "
    "together, so that what is faster or slower there may be unclear here"
)
ORDER: tuple[Verdict, ...] = (
    "slower",
    "faster",
    "slightly slower",
    "slightly faster",
    "same",
    "unclear",
)


def make_compare_sheets(judgement: Judgement, *, is_between_runs: bool) -> list[Sheet]:
    """One for every suite, set of axes and basis."""
    divided = group_by(judgement.comparisons, lambda one: (suite_and_axes(one.new), one.basis))
    return [_make_sheet(some, is_between_runs) for some in divided]


def _make_sheet(comparisons: Sequence[Comparison], is_between_runs: bool) -> Sheet:
    basis = comparisons[0].basis
    title, axes = choose_axes([one.new for one in comparisons])
    baselines = (
        [] if is_between_runs else list(dict.fromkeys(one.old.variant for one in comparisons))
    )
    names = ("old", "new") if is_between_runs else ("baseline", "time")
    over: Column[Comparison] = Column("over", lambda one: one.old.variant, "word")
    columns: list[Column[Comparison]] = [
        *label_columns(axes, lambda one: one.new, *([over] if len(baselines) > 1 else [])),
        *(_middle_column(name, place, basis) for place, name in enumerate(names)),
        _ratio_column(is_between_runs),
        verdict_column("verdict", describe_verdict),
    ]
    groups = [list(group) for _, group in groupby(comparisons, lambda one: one.new.group_id)]
    if len(groups) == len(comparisons):  # a rule below every line would only be in the way
        groups = [list(comparisons)]
    return Sheet(
        title=f"{title} over={baselines[0]}" if len(baselines) == 1 else title,
        columns=columns,
        items=groups,
        conditions=CAPTIONS[basis] if is_between_runs else "",
    )


def _middle_column(name: str, place: int, basis: Basis) -> Column[Comparison]:
    if basis != "relative":
        return number(name, "ns", lambda one: one.middles[place])
    # A ratio to the baseline's time is shown as a speedup over it, like everywhere.
    return number(name, "ratio", lambda one: 1 / one.middles[place])


def _ratio_column(is_between_runs: bool) -> Column[Comparison]:
    """Between runs the change of the time; between variants the speedup."""
    if not is_between_runs:
        return number("speedup", "ratio", lambda one: one.speedup)
    return Column(
        "time",
        lambda one: format_change(one.speedup.inverse()),
        value=lambda one: one.speedup.inverse().value - 1,
    )


def describe_verdict(one: Comparison) -> str:
    """The verdict's own word comes first; of an unclear one, what would settle it."""
    missing = describe_missing(one.missing) if one.verdict == "unclear" else ""
    if missing and one.missing is None and (one.speedup.half_width or 0.0) > WIDE:
        missing = "too noisy"
    if one.speedup.samples == 1:  # as published results have them
        missing = "single values"
    if one.is_shifted:
        missing = "machine shift"
    return ", ".join(
        filter(None, [one.verdict, missing, NOT_COMPARABLE if one.differences else ""])
    )


def describe_missing(missing: Missing | None) -> str:
    """
    >>> describe_missing(Missing(count=12, unit="sample"))
    '12 more samples'
    >>> describe_missing(Missing(count=1, unit="run", at_least=True))
    'at least 1 more run'
    """
    if missing is None:
        return "at the threshold"
    return (
        f"{'at least ' if missing.at_least else ''}{plural(missing.count, f'more {missing.unit}')}"
    )


def count_verdicts(comparisons: Sequence[Comparison]) -> str:
    counts = Counter(one.verdict for one in comparisons)
    counted = [f"{counts[verdict]} {verdict}" for verdict in ORDER if counts[verdict]]
    not_comparable = sum(bool(one.differences) for one in comparisons)
    end = f" ({not_comparable} {NOT_COMPARABLE})" if not_comparable else ""
    return f"{plural(len(comparisons), 'comparison')}: {', '.join(counted)}{end}"


def describe_judgement(judgement: Judgement, *, is_between_runs: bool) -> list[str]:
    """What a reader should know, the most important first."""
    comparisons = judgement.comparisons
    if not comparisons:  # reported as an error
        return _describe_unmatched(judgement)
    has_intervals = any(one.speedup.low is not None for one in comparisons)
    sides = ("before", "now") if is_between_runs else ("in the baseline", "here")
    return [
        count_verdicts(comparisons),
        *count_differences([one.differences for one in comparisons], sides),
        *([] if is_between_runs else _describe_drift(comparisons)),
        *([] if is_between_runs else describe_load(_find_load(comparisons))),
        *_limit(_list_moved(comparisons)),
        *_limit(_list_slight(judgement)),
        *_describe_common(judgement),
        *_describe_unclear(comparisons),
        *_describe_unmatched(judgement),
        *(_describe_method(judgement, is_between_runs) if has_intervals else []),
    ]


def _find_load(comparisons: Sequence[Comparison]) -> float | None:
    return find_background_share(record for one in comparisons for record in (one.old, one.new))


def _describe_drift(comparisons: Sequence[Comparison]) -> list[str]:
    return describe_drift([(name_case(one.new), *one.middles, one.speedup) for one in comparisons])


def describe_nothing(judgement: Judgement, *, is_between_runs: bool) -> str:
    """Why there is no comparison, and what to do."""
    if not is_between_runs:
        return (
            "nothing was comparable: no variant has a baseline that was measured in the same run; "
            "measure both in one, or name an old and a new file"
        )
    if judgement.too_few:
        return "nothing was comparable: all that both sides have has too few samples; take more"
    if judgement.basis == "relative":
        return (
            "nothing was comparable: no case was measured on both sides, each with its baseline; "
            "leave --relative out to compare times"
        )
    return "nothing was comparable: no case was measured on both sides"


def describe_basis(judgement: Judgement) -> list[str]:
    """Above the tables of two runs: what is compared, and what the baseline itself did."""
    shifts = judgement.shifts.baselines
    if judgement.basis == "turns":
        basis = "basis: in turns, each case's time over that of the other side in the same rounds"
    elif judgement.basis == "relative":
        basis = (
            "basis: relative, each case's time over that of its baseline in the same run, which "
            "the machine's speed does not change (--absolute: times)"
        )
    else:
        why = (
            "--relative: each case over its baseline, which the machine's speed does not change"
            if shifts
            else "there is no baseline that both files have measured with other variants"
        )
        basis = f"basis: absolute times ({why})"
    return [basis, *map(_describe_shift, _group_shifts(shifts))]


def _group_shifts(shifts: Sequence[BaselineShift]) -> list[list[BaselineShift]]:
    return group_by(shifts, lambda one: one.new.variant)


def _describe_shift(shifts: Sequence[BaselineShift]) -> str:
    """Of one baseline, in all its cases."""
    changes = sorted(one.ratio - 1 for one in shifts)
    size = " to ".join(
        dict.fromkeys(format_signed_share(change) for change in (changes[0], changes[-1]))
    )
    return f"the baseline {shifts[0].new.variant} itself: time {size}, by the clock"


def count_differences(
    found: Sequence[Differences], sides: tuple[str, str] = ("before", "now")
) -> list[str]:
    """Each difference once, with how many it concerns.

    >>> count_differences([{"settings.threads": ("2", "1")}, {}])
    ['not comparable in 1 of 2: settings.threads 2 before, 1 now']
    """
    counts = Counter(
        f"{name} {old or 'unknown'} {sides[0]}, {new or 'unknown'} {sides[1]}"
        for differences in found
        for name, (old, new) in differences.items()
    )
    return [
        f"{NOT_COMPARABLE}{'' if n == len(found) else f' in {n} of {len(found)}'}: {difference}"
        for difference, n in counts.items()
    ]


def _list_moved(comparisons: Sequence[Comparison]) -> list[str]:
    """What moved in each case that got slower, then in those that got faster; before them, where
    they are many, what moved in most."""
    sentences = []
    for verdict in ("slower", "faster"):
        moved = [one for one in comparisons if one.verdict == verdict and one.parts]
        moved.sort(key=lambda one: one.speedup.value, reverse=verdict == "faster")
        if len(moved) > MOST_SENTENCES:
            shares = find_common_parts([one.parts for one in moved])
            average = [f"{name} {format_signed_share(s, 0, '-')}" for name, s in shares.items()]
            sentences.append(
                f"the {len(moved)} {verdict} ones: of the change, on average, "
                f"{', '.join(average[:MOST_PARTS])}"
            )
        else:
            sentences += [
                f"{name_case(one.new)}: {verdict}: {_list_parts(one.parts)}" for one in moved
            ]
    if sentences and any(one.basis == "relative" for one in comparisons):
        sentences.append("parts: old times are scaled to the new run's speed, by the baseline")
    return sentences


def _list_slight(judgement: Judgement) -> list[str]:
    """By how much, in words: the name of the verdict has no size."""
    return [
        f"{name_case(one.new)}: {format_slight_change(one.speedup, judgement.threshold)}"
        for one in judgement.comparisons
        if one.verdict in ("slightly faster", "slightly slower")
    ]


def _list_parts(parts: Sequence[MovedPart]) -> str:
    """What moved with the whole; then, after "but", what moved the other way."""

    def write(some: Sequence[MovedPart]) -> str:
        return ", ".join(
            f"{part.name} {format_signed_time(part.change_ns, plus='+')} "
            f"({format_signed_share(part.share, 0, '-')} of it)"
            for part in some
        )

    shown = parts[:MOST_PARTS]
    along, against = ([p for p in shown if (p.share > 0) is way] for way in (True, False))
    return f"{write(along)}; but {write(against)}" if against else write(along)


def _describe_common(judgement: Judgement) -> list[str]:
    """Where most cases moved together, that is the first thing to know."""
    common, far = judgement.common, math.log1p(judgement.threshold)
    if common is None or abs(math.log(common)) < far:
        return []
    logs = [math.log(one.speedup.value) for one in judgement.comparisons]
    moved = [log for log in logs if abs(log) >= far and (log > 0) == (common > 1)]
    if len(moved) < MOST_OF_ALL * len(logs):  # a median between those that moved and the rest
        return []
    change = format_signed_share(1 / common - 1)
    shared = f"the cases together moved by {change} (median): something that most of them share"
    if judgement.basis == "relative":
        is_known = any(one.verdict != "unclear" for one in judgement.comparisons)
        return [f"{shared}, or their baseline, which all are compared with"] if is_known else []
    if judgement.shifts.machine is not None:  # said above the table
        return []
    if judgement.shifts.baselines:
        return [f"{shared}, or the machine itself; --relative does not depend on its speed"]
    return [
        f"{shared}, or the machine itself; a variant that never changes, as the baseline, would "
        "show which"
    ]


def _describe_unclear(comparisons: Sequence[Comparison]) -> list[str]:
    """What the numbers next to "unclear" mean."""
    if any(one.missing is not None and one.basis == "turns" for one in comparisons):
        return [
            "unclear, so many more samples or runs: a longer --case-budget gives more pairs of "
            "processes, --threads 1 disturbs less where other programs use the cores, too"
        ]
    units = {one.missing.unit for one in comparisons if one.missing is not None}
    sentences = {
        "sample": "unclear, so many more samples: about as many, on each side, would settle it "
        "(a longer --case-budget, a smaller --target-interval)",
        "run": "unclear, so many more runs: the cases differ too much from run to run for more "
        "samples to help; about as many runs of both sides, in turns, into the same files, would",
    }
    return [sentence for unit, sentence in sentences.items() if unit in units]


def _describe_unmatched(judgement: Judgement) -> list[str]:
    broken = [
        f"{name_case(r)}: no longer measured: {': '.join(filter(None, [r.status, r.message]))}"
        for r in judgement.broken
    ]
    fixed = [f"{name_case(record)}: failed before, measured now" for record in judgement.fixed]
    few = [f"{name_case(r)}: too few samples for a verdict" for r in judgement.too_few]
    left = {
        "only in the old results": judgement.only_old,
        "only in the new results": judgement.only_new,
        "without a baseline on both sides, and so not compared": judgement.no_baseline,
    }
    return [*_limit(broken), *_limit(fixed), *_limit(few), *describe_left(left)]


def describe_left(left: Mapping[str, Sequence[Record]]) -> list[str]:
    """Cases that were not compared, by why: how many, and the first of them."""
    sentences = []
    for why, records in left.items():
        named = ", ".join(name_case(record) for record in records[:MOST_NAMED])
        more = " …" if len(records) > MOST_NAMED else ""
        sentences += [f"{plural(len(records), 'case')} {why}: {named}{more}"] if records else []
    return sentences


def _describe_method(judgement: Judgement, is_between_runs: bool) -> list[str]:
    count = len(judgement.comparisons)
    together = "" if count == 1 else (
        f", so that of all that are called faster or slower {100 * judgement.false_share:g} % is "
        "expected to be so by chance "
        f"(Benjamini and Hochberg, {count} comparisons)"
    )  # fmt: skip
    method = (
        f"intervals are at {100 * judgement.confidence:.4g} %{together}; faster or slower: by at "
        f"least {100 * judgement.threshold:g} %; slightly: surely, but by less; same: the interval "
        "lies within that"
    )
    if is_between_runs:
        return [method, *_describe_spread(judgement)]
    return [method, *([ALONE] if count > 1 else [])]


def _describe_spread(judgement: Judgement) -> list[str]:
    if judgement.spread is None and judgement.basis == "turns":
        return ["what differs from process to process is not in the intervals: there is one pair"]
    if judgement.spread is None:
        return [
            "what differs from run to run is not in the intervals: there is one run on each side, "
            "and too few cases to see it; run both sides again into the same files to know it"
        ]
    if judgement.spread.source == "visits":
        return [
            "from one pair of processes to the next a ratio differs by "
            f"{100 * judgement.spread.deviation:.1f} % (standard deviation), which is in the "
            "intervals"
        ]
    sources: dict[str, str] = {
        "repeats": "by the repeated runs",
        "cases": "by how the cases scatter, most of which are taken not to have changed",
    }
    return [
        f"from run to run a case differs by {100 * judgement.spread.deviation:.1f} % (standard "
        f"deviation, {sources[judgement.spread.source]}), which is in the intervals"
    ]


def name_case(record: Record) -> str:
    return " ".join(filter(None, [record.variant, label(record.params)]))


def _limit(sentences: Sequence[str]) -> list[str]:
    left = len(sentences) - MOST_SENTENCES
    if left <= 1:  # to say that there is one more takes as much room as the one
        return list(sentences)
    return [*sentences[:MOST_SENTENCES], f"and {left} more like that (--json has all)"]
