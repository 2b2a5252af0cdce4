"""Verdicts: variants against their baselines inside runs, and two runs of the same cases.

    compare_variants    rows of one set of results, paired by round
    compare_runs        old and new records of the same cases

All comparisons of a call are judged together, so that many at once give no more false alarms than
one (`ratio_tests.choose_confidence`). A verdict is about times only; in what the sides differ that
makes a comparison unfair is listed with it, by field (`differences`).

Two runs may have met the machine in different states. Where both have measured a case together with
its baseline, the ratio to the baseline is compared (`Basis`), which the machine's speed does not
change. The baseline cannot be judged so: its own shift is listed. Where all cases, the baselines
among them, moved alike, times alone say nothing about the code, and what is compared by time is
unclear; where only the baselines moved, times are compared (`run_shifts`).

Two revisions that took turns (`flopwatch ab`) were measured in the same rounds of the same runs: a
ratio is taken within rounds, and the machine's speed cancels without any baseline.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from flopwatch.analysis.comparable import (
    Differences,
    Matched,
    Pair,
    find_differences,
    is_named,
    match_cases,
)
from flopwatch.analysis.part_times import MovedPart, find_moved_parts
from flopwatch.analysis.ratio_tests import (
    Evidence,
    Missing,
    Paired,
    Separate,
    Sides,
    Spread,
    Take,
    choose_confidence,
    find_spread,
    find_visit_spread,
    take,
    weigh,
    weigh_visits,
)
from flopwatch.analysis.run_shifts import NO_SHIFTS, Key, RunShifts, find_shifts, key_of
from flopwatch.analysis.statistics import (
    THRESHOLD,
    Estimate,
    Verdict,
    estimate_total_ns,
    is_timed,
    judge,
    median,
    ratios_by_round,
)
from flopwatch.analysis.summary import Row
from flopwatch.records.record import Record

FALSE_SHARE = 0.01
FALSE_SHARE_OF_RUNS = 0.02
"""Of what is called faster or slower: the share that is expected to be so by chance."""

Basis = Literal["turns", "relative", "absolute"]
"""turns: the time over that of the other side in the same rounds; relative: the time over that of
the baseline in the same rounds, on each side; absolute: the time."""

Timed = Mapping[Key, Record]
"""Measured records: among them, what others are compared with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    old: Record
    """Or the baseline."""
    new: Record
    middles: tuple[float, float]
    """Old and new: the median time in ns, or its ratio to the baseline's (`Basis`); of several
    runs their mean."""
    speedup: Estimate
    """More than 1: the new one is faster. At the confidence of all comparisons together."""
    verdict: Verdict
    differences: Differences = field(default_factory=dict)
    """In what the two differ that a fair comparison has in common."""
    missing: Missing | None = None
    """Of an unclear one: what would settle it; None: more than is worth suggesting."""
    parts: list[MovedPart] = field(default_factory=list)
    """Of a faster or slower one: what moved."""
    old_runs: int = 1
    new_runs: int = 1
    basis: Basis = "absolute"
    is_shifted: bool = False
    """Whether it is unclear because the machine was in another state."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """All comparisons of a call, and how they were judged."""

    comparisons: list[Comparison]
    confidence: float
    """Of every interval."""
    false_share: float
    """Of what is called faster or slower: the share that is expected to be so by chance."""
    threshold: float
    basis: Basis = "absolute"
    """Between runs; where it is relative, cases that have no baseline are still compared by time,
    unless that was ruled out."""
    spread: Spread | None = None
    """Between runs, of the ratios that `basis` names; None: one run alone, or not known."""
    common: float | None = None
    """Between runs: the median speedup over all cases."""
    shifts: RunShifts = NO_SHIFTS
    """Between runs: of all cases, or of their baselines."""
    broken: list[Record] = field(default_factory=list)
    fixed: list[Record] = field(default_factory=list)
    only_old: list[Record] = field(default_factory=list)
    only_new: list[Record] = field(default_factory=list)
    too_few: list[Record] = field(default_factory=list)
    """Cases that both have, with too few samples for any verdict."""
    no_baseline: list[Record] = field(default_factory=list)
    """Cases that both have, and that were not compared for want of a baseline on both sides."""


def compare_variants(rows: Sequence[Row], threshold: float = THRESHOLD) -> Judgement:
    found = [row for row in rows if row.speedup is not None and row.against is not None]
    evidence: list[Evidence] = [
        Paired(ratios=ratios_by_round(row.record, row.against)) for row in found if row.against
    ]
    confidence = choose_confidence(evidence, FALSE_SHARE)
    comparisons = [
        Comparison(
            old=row.against,
            new=row.record,
            middles=(estimate_total_ns(row.against).value, estimate_total_ns(row.record).value),
            differences=row.differences,
            **_judge(row.against, row.record, one, confidence, threshold),
        )
        for row, one in zip(found, evidence, strict=True)
        if row.against is not None
    ]
    return Judgement(
        comparisons=comparisons,
        confidence=confidence,
        false_share=FALSE_SHARE,
        threshold=threshold,
    )


def compare_runs(
    old: Sequence[Record],
    new: Sequence[Record],
    *,
    threshold: float = THRESHOLD,
    basis: Basis | None = None,
    confidence: float | None = None,
) -> Judgement:
    """Without a basis: in turns where both sides have the same runs, otherwise relative wherever
    they have a common baseline, unless the baselines alone have moved. Without a confidence: one
    for all comparisons together."""
    matched = match_cases(old, new)
    in_turns = _list_in_turns(matched.pairs) if basis in (None, "turns") else []
    if in_turns:
        return _compare_in_turns(matched, in_turns, threshold, confidence)
    timed = {key_of(r): r for r in (*old, *new) if is_timed(r)}
    found = [(pair, _find_baselines(pair, timed)) for pair in matched.pairs]
    yardsticks = {key_of(one) for _, known in found if known for side in known for one in side}
    shifts = find_shifts(matched.pairs, yardsticks, threshold)
    is_measure = bool(shifts.baselines) and shifts.lone_baseline is None
    chosen = basis or ("relative" if is_measure else "absolute")
    by_ratio = [(pair, known) for pair, known in found if known and chosen == "relative"]
    left = [
        pair
        for pair, known in found
        if chosen == "absolute" or (not known and key_of(pair.new[-1]) not in yardsticks)
    ]
    by_time = [] if basis == "relative" else left
    taken = [*_take(by_ratio), *_take([(pair, None) for pair in by_time])]
    known = [(one, one.evidence) for one in taken if one.evidence is not None]
    confidence = confidence or choose_confidence(
        [evidence for _, evidence in known], FALSE_SHARE_OF_RUNS
    )
    return Judgement(
        comparisons=[
            _compare(one, evidence, confidence, threshold, shifts) for one, evidence in known
        ],
        confidence=confidence,
        false_share=FALSE_SHARE_OF_RUNS,
        threshold=threshold,
        basis=chosen,
        spread=taken[0].spread if taken else None,
        common=math.exp(-median([e.log_ratio for _, e in known])) if len(known) > 1 else None,
        shifts=shifts,
        too_few=[one.pair.new[-1] for one in taken if one.evidence is None],
        no_baseline=[pair.new[-1] for pair in left] if basis == "relative" else [],
        broken=matched.broken,
        fixed=matched.fixed,
        only_old=matched.only_old,
        only_new=matched.only_new,
    )


def _list_in_turns(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs with only the records that both sides took in the same rounds."""
    found = []
    for pair in pairs:
        old = {key_of(record): record for record in pair.old}
        new = {key_of(record): record for record in pair.new}
        shared = [key for key in old if key in new and _is_in_turns(old[key], new[key])]
        if shared:
            both = [old[key] for key in shared], [new[key] for key in shared]
            found.append(replace(pair, old=both[0], new=both[1]))
    return found


def _is_in_turns(old: Record, new: Record) -> bool:
    """Whether two records of one run are of two sides; one that both files hold is not."""
    return old.samples_ns != new.samples_ns and bool(ratios_by_round(new, old))


def _compare_in_turns(
    matched: Matched, pairs: Sequence[Pair], threshold: float, confidence: float | None
) -> Judgement:
    takes = [
        [take(new, old) for old, new in zip(pair.old, pair.new, strict=True)] for pair in pairs
    ]
    taken = [
        _Taken(
            pair=pair,
            sides=Sides(old=_take_side(pair.old, None), new=_take_side(pair.new, None)),
            spread=None,
            evidence=evidence,
            basis="turns",
        )
        for pair, evidence in zip(pairs, weigh_visits(takes), strict=True)
    ]
    known = [(one, one.evidence) for one in taken if one.evidence is not None]
    confidence = confidence or choose_confidence([evidence for _, evidence in known], FALSE_SHARE)
    compared = {key_of(pair.new[-1]) for pair in pairs}
    return Judgement(
        comparisons=[
            _compare(one, evidence, confidence, threshold, NO_SHIFTS) for one, evidence in known
        ],
        confidence=confidence,
        false_share=FALSE_SHARE,
        threshold=threshold,
        basis="turns",
        spread=find_visit_spread(takes),
        too_few=[
            *(one.pair.new[-1] for one in taken if one.evidence is None),
            *(p.new[-1] for p in matched.pairs if key_of(p.new[-1]) not in compared),
        ],
        broken=matched.broken,
        fixed=matched.fixed,
        only_old=matched.only_old,
        only_new=matched.only_new,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Taken:
    pair: Pair
    sides: Sides
    spread: Spread | None
    evidence: Separate | None
    """None: there are too few samples."""
    basis: Basis


Baselines = tuple[list[Record], list[Record]]
"""Of the old and the new records of a case, one by one."""


def _take(pairs: Sequence[tuple[Pair, Baselines | None]]) -> list[_Taken]:
    """Cases of one basis, which scatter alike from run to run."""
    sides = [
        Sides(old=_take_side(pair.old, known and known[0]),
              new=_take_side(pair.new, known and known[1]))
        for pair, known in pairs
    ]  # fmt: skip
    spread = find_spread(sides)
    return [
        _Taken(
            pair=pair,
            sides=one,
            spread=spread,
            evidence=weigh(one, spread),
            basis="relative" if known else "absolute",
        )
        for (pair, known), one in zip(pairs, sides, strict=True)
    ]


def _take_side(records: Sequence[Record], baselines: Sequence[Record] | None) -> list[Take]:
    if baselines is None:
        return [take(record) for record in records]
    return [take(record, known) for record, known in zip(records, baselines, strict=True)]


def _compare(
    taken: _Taken,
    evidence: Separate,
    confidence: float,
    threshold: float,
    shifts: RunShifts,
) -> Comparison:
    old, new = taken.pair.old[-1], taken.pair.new[-1]
    judged = _judge(old, new, evidence, confidence, threshold)
    is_shifted = shifts.machine is not None and taken.basis == "absolute"
    if is_shifted:
        judged |= {"verdict": "unclear", "missing": None, "parts": []}
    return Comparison(
        old=old,
        new=new,
        middles=(math.exp(taken.sides.log_old), math.exp(taken.sides.log_new)),
        differences={**taken.pair.moved, **find_differences(old, new)},
        old_runs=len(taken.pair.old),
        new_runs=len(taken.pair.new),
        basis=taken.basis,
        is_shifted=is_shifted,
        **judged,
    )


def excuse(judgement: Judgement, names: Sequence[str]) -> list[Comparison]:
    """The comparisons that are fair, but for differences in the fields named."""
    return [
        one
        for one in judgement.comparisons
        if all(is_named(field_name, names) for field_name in one.differences)
    ]


def _judge(
    old: Record, new: Record, evidence: Evidence, confidence: float, threshold: float
) -> dict[str, Any]:
    """The fields of a Comparison that follow from the evidence."""
    speedup = evidence.at(confidence).inverse()
    verdict = judge(speedup, threshold)
    target = _find_target(speedup.value, threshold)
    return {
        "speedup": speedup,
        "verdict": verdict,
        "missing": evidence.find_missing(target, confidence) if verdict == "unclear" else None,
        "parts": find_moved_parts(old, new, 1 / speedup.value)
        if verdict in ("faster", "slower")
        else [],
    }


def _find_target(speedup: float, threshold: float) -> float:
    """How near an interval must come to this value to allow a verdict: to exclude 1, or to lie
    within the threshold, whichever is the wider one."""
    distance = abs(math.log(speedup))
    return math.expm1(max(distance, math.log1p(threshold) - distance))


def _find_baselines(pair: Pair, timed: Timed) -> Baselines | None:
    """Of every record of the pair, the same variant everywhere."""
    old, new = (
        [found for one in side if (found := _find_baseline(one, timed)) is not None]
        for side in (pair.old, pair.new)
    )
    is_whole = (len(old), len(new)) == (len(pair.old), len(pair.new))
    is_same = len({one.variant for one in (*old, *new)}) == 1
    return (old, new) if is_whole and is_same else None


def _find_baseline(record: Record, timed: Timed) -> Record | None:
    """The other variant that it was measured with, in rounds that both took part in."""
    found = timed.get((record.run_id, record.group_id, record.baseline))
    if found is None or record.variant == record.baseline:
        return None
    return found if ratios_by_round(record, found) else None
