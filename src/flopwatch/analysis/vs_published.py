"""Your results compared with published ones, by ratios: times of different hardware say nothing.

What is compared (`published.Matching` says what of it for each publication):

    speedup             over the baseline that was measured with it, where there are variants
    backward / forward  of a training step
    time                of a case over that of the first case that both have
    MFU                 of a training job, by the convention of the published tables

A case's partner is the published one of the same layout that has the same values of
`Matching.axes` and differs in as little else as possible; every such difference is named by its
field. Where variants are rivals, your results that are closest to their partner are taken, and
other forms of the same layer are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flopwatch.analysis.comparable import Differences, conditions
from flopwatch.analysis.record_job import assess_record
from flopwatch.analysis.statistics import (
    Estimate,
    as_interval,
    by_round,
    estimate_median,
    pair_ratio,
)
from flopwatch.analysis.summary import Row, compare_wholes, differences_as_dict
from flopwatch.devices.environment import look_up
from flopwatch.jobs.conventions import CONVENTIONS
from flopwatch.jobs.flops import BACKWARD, FORWARD
from flopwatch.jobs.precision import SPELLINGS
from flopwatch.records.published import PUBLICATIONS, Matching, Quantity
from flopwatch.records.record import Record
from flopwatch.suites.case import digest, format_value

GPU = "torch.gpu.name"
CONVENTION = CONVENTIONS["mosaic-2023"]
SAME_LAYERS = {"dyad:auto:": "dyad:it:"}
"""How a spec begins, and that of the published layer that it comes closest to."""
FORMS = (":published-cat", ":published", ":cat")
"""Of a DYAD layer: other ways to compute the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedComparison:
    """One quantity of a case; or a case without a partner."""

    own: Row | None
    published: Row | None
    quantity: str = ""
    own_value: Estimate | None = None
    published_value: Estimate | None = None
    differences: Differences = field(default_factory=dict)
    """By field: the own value and the published one. With any of them, and with what makes either
    side's own comparison unfair, the two are not comparable."""
    missing: str | None = None
    """Why there is nothing to compare."""

    @property
    def row(self) -> Row:
        """The own one, or where there is none, the published one."""
        row = self.own or self.published
        assert row is not None
        return row


def find_matching(record: Record) -> Matching | None:
    """None where the suite declares no published layout."""
    publication = PUBLICATIONS.get(record.layout or "")
    return None if publication is None else publication.matching


def compare_with_published(
    rows: Sequence[Row], published: Sequence[Row]
) -> list[PublishedComparison]:
    """Pairs in the order of your results; then what has no partner, on either side."""
    rivals = [row for row in published if _is_rival(row)]
    chosen, alone = _match([row for row in rows if _is_rival(row)], rivals)
    compared: list[PublishedComparison] = []
    for pair in chosen:
        matching = find_matching(pair.own.record)
        assert matching is not None  # or it would have no partner
        for quantity in matching.quantities:
            compared += QUANTITIES[quantity](pair, rows)
    compared += _compare_times(chosen)
    compared += alone
    met = {id(pair.published) for pair in chosen}
    for row in rivals:
        if id(row) not in met:
            status = row.record.status
            is_ok = status == "ok"
            why = "these results do not have it" if is_ok else f"it failed there ({status})"
            compared.append(PublishedComparison(own=None, published=row, missing=why))
    return compared


@dataclass(frozen=True, slots=True)
class Pair:
    own: Row
    published: Row
    differences: Differences

    @property
    def distance(self) -> tuple[bool, int]:
        """The same GPU is closer than anything else."""
        own, other = (look_up(row.record.environment, GPU) for row in (self.own, self.published))
        return own != other, len(self.differences)


def _is_rival(row: Row) -> bool:
    """Not a baseline that others are compared with, nor a breakdown, nor a figure without time."""
    record = row.record
    is_baseline = record.variant == record.baseline and not _has_no_rivals(record)
    return not (is_baseline or row.in_parts) and (row.total_ns is not None or record.status != "ok")


def _has_no_rivals(record: Record) -> bool:
    matching = find_matching(record)
    return matching is not None and bool(matching.times_along)


def _match(
    rows: Sequence[Row], published: Sequence[Row]
) -> tuple[list[Pair], list[PublishedComparison]]:
    pairs, alone = [], []
    for row in rows:
        found = [other for other in published if _is_same_case(row.record, other.record)]
        partners = [other for other in found if other.total_ns is not None]
        if row.total_ns is None or not partners:
            why = _explain(row, published, is_known=bool(found))
            alone.append(PublishedComparison(own=row, published=None, missing=why))
            continue
        compared = [Pair(row, other, _differ(row.record, other.record)) for other in partners]
        pairs.append(min(compared, key=lambda pair: pair.distance))
    fewest: dict[int, int] = {}
    for pair in pairs:
        key, number = id(pair.published), len(pair.differences)
        fewest[key] = min(number, fewest.get(key, number))
    chosen = []
    why = "another of these results is closer to its published partner"
    for pair in pairs:
        is_closest = len(pair.differences) == fewest[id(pair.published)]
        if is_closest or _has_no_rivals(pair.own.record):
            chosen.append(pair)
        else:
            alone.append(PublishedComparison(own=pair.own, published=None, missing=why))
    return chosen, alone


def _explain(row: Row, published: Sequence[Row], is_known: bool) -> str:
    """Why a case has no partner."""
    record = row.record
    if row.total_ns is None:
        return f"it was not measured here ({record.status})"
    if is_known:
        return "its published partner failed"
    matching = find_matching(record)
    comparable = [other.record for other in published if other.record.layout == record.layout]
    if matching is None or not comparable:
        return f"nothing of the suite {record.suite} was published there"
    axes = matching.axes
    if not any(_shares(record, other, axes) for other in comparable):
        return f"no case with the same {' and '.join(axes)} was published"
    return "no such variant of it was published"


def _is_same_case(own: Record, other: Record) -> bool:
    matching = find_matching(own)
    return (
        matching is not None
        and own.layout == other.layout
        and _shares(own, other, matching.axes)
        and (_has_no_rivals(own) or name_layer(own.variant) == name_layer(other.variant))
    )


def _shares(own: Record, other: Record, axes: Iterable[str]) -> bool:
    return all(axis in own.params and own.params[axis] == other.params.get(axis) for axis in axes)


def name_layer(variant: str) -> str:
    """What a variant computes, however it does so.

    >>> [name_layer(v) for v in ("dyad:it:4:cat", "dyad:auto:8", "switchback:global")]
    ['dyad:it:4', 'dyad:it:8', 'switchback:global']
    """
    plain = next((variant.removesuffix(end) for end in FORMS if variant.endswith(end)), variant)
    for start, known in SAME_LAYERS.items():
        plain = plain.replace(start, known)
    return plain


def _differ(own: Record, other: Record) -> Differences:
    """In axes and conditions that both have, and in the variant. Of a DYAD model the level is no
    difference: its layers are seen by instruments."""
    mine, theirs = ({**r.params, **r.conditions, "variant": r.variant} for r in (own, other))
    shared = {name: (_write(mine[name]), _write(theirs[name])) for name in mine if name in theirs}
    return {name: both for name, both in shared.items() if name != "level" and both[0] != both[1]}


def _write(value: Any) -> str:
    """Of two names of a precision, our own."""
    return SPELLINGS.get(format_value(value), format_value(value))


def _make(
    pair: Pair, quantity: str, own: Estimate | None, other: Estimate | None
) -> PublishedComparison:
    return PublishedComparison(
        own=pair.own,
        published=pair.published,
        quantity=quantity,
        own_value=own,
        published_value=other,
        differences=pair.differences,
        missing=None if own and other else "one side has no such ratio",
    )


def _compare_parts(pair: Pair, rows: Sequence[Row]) -> Iterator[PublishedComparison]:
    """Published layers are sums of parts; here they are sums too where parts were measured."""
    alike = [row for row in rows if row.record.group_id == pair.own.record.group_id]
    wholes = [whole for group in compare_wholes(alike) for whole in group]
    sums = [whole.parts_speedup for whole in wholes if whole.row is pair.own]
    if sums and sums[0] is not None:
        yield _make(pair, "speedup of sums of parts", sums[0], pair.published.speedup)


def _compare_wholes(pair: Pair, rows: Sequence[Row]) -> Iterator[PublishedComparison]:
    whole = _make(pair, "speedup", pair.own.speedup, pair.published.speedup)
    measured = {"measured": ("a whole layer", "a sum of parts")}
    yield replace(whole, differences={**whole.differences, **measured})


def _compare_inside(pair: Pair, rows: Sequence[Row]) -> Iterator[PublishedComparison]:
    """Published are times of feed-forward layers inside a model."""
    own = None
    if pair.own.against is not None:
        ratio = pair_ratio(_sum_regions(pair.own.record), _sum_regions(pair.own.against))
        own = None if ratio is None else ratio.inverse()
    made = _make(pair, "speedup of feed-forward layers", own, pair.published.speedup)
    why = "its feed-forward layers were not timed inside the model; measure it with instruments on"
    yield made if own is not None else replace(made, missing=why)


def _sum_regions(record: Record) -> dict[int, float]:
    """Both passes of the feed-forward layers, by round."""
    if not {FORWARD, BACKWARD} <= record.regions.keys():
        return {}
    both = (record.regions[name].samples_ns for name in (FORWARD, BACKWARD))
    return by_round(record, [sum(times) for times in zip(*both, strict=True)])


def _compare_phases(pair: Pair, rows: Sequence[Row]) -> Iterator[PublishedComparison]:
    found = [_find_backward_ratio(row.record) for row in (pair.own, pair.published)]
    if all(found):
        yield _make(pair, "backward / forward", *found)


def _find_backward_ratio(record: Record) -> Estimate | None:
    if not {"forward", "backward"} <= record.samples_ns.keys():
        return None
    forward, backward = (
        by_round(record, record.samples_ns[phase][record.warmup_samples :])
        for phase in ("forward", "backward")
    )
    return pair_ratio(backward, forward)


def _compare_utilisation(pair: Pair, rows: Sequence[Row]) -> Iterator[PublishedComparison]:
    quantity = f"MFU, {CONVENTION.name}"
    own, why = _find_mfu(pair.own)
    made = _make(pair, quantity, own, _find_mfu(pair.published)[0])
    yield made if own is not None else replace(made, missing=why)


QUANTITIES: dict[Quantity, Callable[[Pair, Sequence[Row]], Iterator[PublishedComparison]]] = {
    "speedup-of-parts": _compare_parts,
    "speedup": _compare_wholes,
    "speedup-of-feed-forward": _compare_inside,
    "backward-over-forward": _compare_phases,
    "mfu": _compare_utilisation,
}


def _find_mfu(row: Row) -> tuple[Estimate | None, str | None]:
    found = assess_record(row.record, row.tokens_per_s, conventions=[CONVENTION]).utilisations
    if not found or found[0].mfu is None or row.total_ns is None:
        return None, found[0].missing if found else "its tokens/s are not known"
    return row.total_ns.inverse().scale(found[0].mfu * row.total_ns.value), None


def _compare_times(pairs: Sequence[Pair]) -> Iterator[PublishedComparison]:
    """Times over that of the first case, among those that differ in nothing but the axes along
    which times are compared."""
    families: dict[str, list[tuple[Pair, Matching]]] = {}
    for pair in pairs:
        matching = find_matching(pair.own.record)
        if matching is not None and matching.times_along:
            families.setdefault(_name_family(pair, matching), []).append((pair, matching))
    for (first, matching), *others in families.values():
        params = first.own.record.params
        reference = " ".join(format_value(params[axis]) for axis in matching.axes)
        what = "time of a token" if matching.of_jobs else "time"
        for pair, _ in others:
            own, other = (
                _divide(_find_time(row, matching), _find_time(base, matching))
                for row, base in ((pair.own, first.own), (pair.published, first.published))
            )
            made = _make(pair, f"{what} over that of {reference}", own, other)
            yield replace(made, differences={**first.differences, **pair.differences})


def _name_family(pair: Pair, matching: Matching) -> str:
    def fix(record: Record) -> dict[str, Any]:
        left_out = matching.times_along
        return {axis: value for axis, value in record.params.items() if axis not in left_out}

    own, other = pair.own.record, pair.published.record
    is_same_variant = {} if matching.of_jobs else {"variant": own.variant}
    return digest(
        [own.layout, is_same_variant, fix(own), conditions(own), fix(other), conditions(other)]
    )


def _find_time(row: Row, matching: Matching) -> Estimate:
    """Of a token where a job says how many it has; otherwise of both passes, since the published
    tables have no optimizer."""
    record = row.record
    assert row.total_ns is not None
    if matching.of_jobs and record.facts.get("tokens"):
        return row.total_ns.scale(1 / record.facts["tokens"])
    phases = [times for name, times in record.samples_ns.items() if name in ("forward", "backward")]
    totals_ns = [sum(times) for times in zip(*phases, strict=True)]
    return estimate_median(totals_ns[record.warmup_samples :])


def _divide(time: Estimate, reference: Estimate) -> Estimate:
    """Of cases that were not measured in the same rounds: from the ends of both intervals, which is
    wider than need be."""
    return Estimate(
        value=time.value / reference.value,
        low=time.low / reference.high if time.low and reference.high else None,
        high=time.high / reference.low if time.high and reference.low else None,
        samples=min(time.samples, reference.samples),
    )


def as_dict(one: PublishedComparison) -> dict[str, Any]:
    """For ``--json``: plain numbers."""
    record = one.row.record
    return {
        "suite": record.suite,
        "params": record.params,
        "variant": record.variant,
        "quantity": one.quantity or None,
        "own": as_interval(one.own_value),
        "published": as_interval(one.published_value),
        "differences": {
            name: {"own": own, "published": other} for name, (own, other) in one.differences.items()
        },
        "own_differences": differences_as_dict(one.own) if one.own else {},
        "published_differences": differences_as_dict(one.published) if one.published else {},
        "missing": one.missing,
    }
