"""Verdicts: variants against their baselines inside runs, and two runs of the same cases.

    compare_variants    rows of one set of results, paired by round
    compare_runs        old and new records of the same cases

All comparisons of a call are judged together, so that many at once give no more false alarms than
one (`ratio_tests.choose_confidence`). A verdict is about times only; in what the sides differ that
makes a comparison unfair is listed with it, by field (`differences`).

Which part of a run moved when its time did: phases, and regions where instruments saw them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from flopwatch.analysis.comparable import Differences, Pair, find_differences, is_named, match_cases
from flopwatch.analysis.part_times import part_times_ns
from flopwatch.analysis.ratio_tests import (
    Evidence,
    Missing,
    Paired,
    Sides,
    Spread,
    choose_confidence,
    find_spread,
    take,
    weigh,
)
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

SMALLEST_SHARE = 0.05
"""Of the whole change; what moved less is left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MovedPart:
    name: str
    """A phase; a region as ``phase/region``; what is left of a phase with regions by its name."""
    old_ns: float | None
    """None: there was no such part."""
    new_ns: float | None
    share: float
    """Of the change of the whole run; negative where it moved the other way."""

    @property
    def change_ns(self) -> float:
        return (self.new_ns or 0.0) - (self.old_ns or 0.0)


def find_moved_parts(old: Record, new: Record) -> list[MovedPart]:
    """In order of their share in the change, the largest first; empty for what has one part, and
    where the whole did not change."""
    before, after = part_times_ns(old), part_times_ns(new)
    change_ns = sum(after.values()) - sum(before.values())
    names = list({**before, **after})
    if len(names) < 2 or change_ns == 0:
        return []
    parts = [
        MovedPart(
            name=name,
            old_ns=before.get(name),
            new_ns=after.get(name),
            share=(after.get(name, 0.0) - before.get(name, 0.0)) / change_ns,
        )
        for name in names
    ]
    return sorted(
        (part for part in parts if abs(part.share) >= SMALLEST_SHARE),
        key=lambda part: -part.share,
    )


def find_common_parts(parts: Sequence[Sequence[MovedPart]]) -> dict[str, float]:
    """Over many cases: the mean share of each part in the changes, the largest first."""
    names = dict.fromkeys(part.name for case in parts for part in case)
    shares = {
        name: sum(part.share for case in parts for part in case if part.name == name) / len(parts)
        for name in names
    }
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


FALSE_SHARE = 0.01
FALSE_SHARE_OF_RUNS = 0.02
"""Of what is called faster or slower: the share that is expected to be so by chance."""

Measure = Literal["time", "relative"]
"""relative: the time over that of the baseline in the same rounds."""

Timed = Mapping[tuple[str, str, str], Record]
"""Measured records by run, group and variant: among them, what others are compared with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    old: Record
    """Or the baseline."""
    new: Record
    middles: tuple[float, float]
    """Old and new: the median time in ns, or its ratio to the baseline's (`Measure`); of several
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """All comparisons of a call, and how they were judged."""

    comparisons: list[Comparison]
    confidence: float
    """Of every interval."""
    false_share: float
    """Of what is called faster or slower: the share that is expected to be so by chance."""
    threshold: float
    measure: Measure = "time"
    spread: Spread | None = None
    """Between runs; None: one run alone, or not known."""
    common: float | None = None
    """Between runs: the median speedup over all cases."""
    broken: list[Record] = field(default_factory=list)
    fixed: list[Record] = field(default_factory=list)
    only_old: list[Record] = field(default_factory=list)
    only_new: list[Record] = field(default_factory=list)
    too_few: list[Record] = field(default_factory=list)
    """Cases that both have, with too few samples for any verdict."""


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
    measure: Measure = "time",
) -> Judgement:
    matched = match_cases(old, new)
    timed = {(r.run_id, r.group_id, r.variant): r for r in (*old, *new) if is_timed(r)}
    taken = _take_sides(matched.pairs, timed if measure == "relative" else None)
    spread = find_spread([sides for _, sides in taken])
    weighed = [(pair, sides, weigh(sides, spread)) for pair, sides in taken]
    known = [(pair, sides, evidence) for pair, sides, evidence in weighed if evidence is not None]
    confidence = choose_confidence([evidence for *_, evidence in known], FALSE_SHARE_OF_RUNS)
    comparisons = [
        Comparison(
            old=pair.old[-1],
            new=pair.new[-1],
            middles=(math.exp(sides.log_old), math.exp(sides.log_new)),
            differences={**pair.moved, **find_differences(pair.old[-1], pair.new[-1])},
            old_runs=len(pair.old),
            new_runs=len(pair.new),
            **_judge(pair.old[-1], pair.new[-1], evidence, confidence, threshold),
        )
        for pair, sides, evidence in known
    ]
    return Judgement(
        comparisons=comparisons,
        confidence=confidence,
        false_share=FALSE_SHARE_OF_RUNS,
        threshold=threshold,
        measure=measure,
        spread=spread,
        common=math.exp(-median([e.log_ratio for *_, e in known])) if len(known) > 1 else None,
        too_few=[pair.new[-1] for pair, _, evidence in weighed if evidence is None],
        broken=matched.broken,
        fixed=matched.fixed,
        only_old=matched.only_old,
        only_new=matched.only_new,
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
        "parts": find_moved_parts(old, new) if verdict in ("faster", "slower") else [],
    }


def _find_target(speedup: float, threshold: float) -> float:
    """How near an interval must come to this value to allow a verdict."""
    distance = abs(math.log(speedup))
    if distance >= math.log1p(threshold):
        return math.expm1(distance)  # to exclude 1
    return math.expm1(math.log1p(threshold) - distance)  # to lie within the threshold


def _take_sides(pairs: Sequence[Pair], timed: Timed | None) -> list[tuple[Pair, Sides]]:
    """By times; or where `timed` is given, by ratios to the baselines among it, without pairs in
    which a record has none."""
    if timed is None:
        return [
            (pair, Sides(old=[take(one) for one in pair.old], new=[take(one) for one in pair.new]))
            for pair in pairs
        ]
    taken = []
    for pair in pairs:
        old, new = (
            [take(one, found) for one in side if (found := _find_baseline(one, timed)) is not None]
            for side in (pair.old, pair.new)
        )
        if (len(old), len(new)) == (len(pair.old), len(pair.new)):
            taken.append((pair, Sides(old=old, new=new)))
    return taken


def _find_baseline(record: Record, timed: Timed) -> Record | None:
    """The other variant that it was measured with, in rounds that both took part in."""
    found = timed.get((record.run_id, record.group_id, record.baseline))
    if found is None or record.variant == record.baseline:
        return None
    return found if ratios_by_round(record, found) else None
