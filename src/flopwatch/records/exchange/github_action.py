"""What github-action-benchmark reads, as its tools customSmallerIsBetter and customBiggerIsBetter.

Both take a list of entries with a name, a value and a unit. One file is all of one kind: times and
memory are better smaller, rates and speedups bigger.

A row becomes single numbers, each with its unit and statistic.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flopwatch.analysis.statistics import CONFIDENCE, Estimate
from flopwatch.analysis.summary import Row
from flopwatch.devices.environment import look_up
from flopwatch.errors import UsageError
from flopwatch.records.foreign import list_conditions, scale
from flopwatch.records.record import Record
from flopwatch.suites.case import label

TOTAL = "total"
MS_DIGITS = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    name: str
    """With its unit, as in ``forward_ms``."""
    unit: str
    value: float
    low: float | None = None
    high: float | None = None
    statistic: str
    """What the value is, in words."""
    phase: str | None = None
    """Where it is the time of one of several phases."""
    is_smaller_better: bool = False


def list_metrics(row: Row) -> Iterator[Metric]:
    """Times first; nothing where nothing was measured."""
    if row.total_ns is None:
        return
    yield _make_time(TOTAL, row.total_ns, None)
    if len(row.phases_ns) > 1:
        for phase, estimate_ns in row.phases_ns.items():
            yield _make_time(phase, estimate_ns, phase)
    if row.record.peak_memory_bytes is not None:
        yield Metric(
            name="peak_memory_bytes",
            unit="bytes",
            value=row.record.peak_memory_bytes,
            statistic="most that one run held beyond what was there before it",
            is_smaller_better=True,
        )
    yield from _list_rates(row)


def _list_rates(row: Row) -> Iterator[Metric]:
    """Whose numerators are constants, so that they are rates at the median time."""
    rates = {"tokens/s": row.tokens_per_s, "FLOP/s": row.flops_per_s, "bytes/s": row.bytes_per_s}
    for unit, rate in rates.items():
        if rate is not None:
            name = unit.replace("FLOP", "flops").replace("/", "_per_")
            yield Metric(name=name, unit=unit, value=rate, statistic="rate at the median time")
    if row.speedup is not None:
        speedup = row.speedup
        yield Metric(
            name="speedup",
            unit="x",
            value=speedup.value,
            low=speedup.low,
            high=speedup.high,
            statistic=f"median of {speedup.samples} ratios within rounds, over the baseline "
            f"{row.record.baseline}",
        )


def _make_time(name: str, estimate_ns: Estimate, phase: str | None) -> Metric:
    low, high = (
        None if bound is None else scale(bound, -MS_DIGITS)
        for bound in (estimate_ns.low, estimate_ns.high)
    )
    return Metric(
        name=f"{name}_ms",
        unit="ms",
        value=scale(estimate_ns.value, -MS_DIGITS),
        low=low,
        high=high,
        statistic=f"median of {estimate_ns.samples} samples",
        phase=phase,
        is_smaller_better=True,
    )


def describe_statistic(metric: Metric) -> str:
    """
    >>> describe_statistic(Metric(name="total_ms", unit="ms", value=2.0, low=1.5, high=2.5,
    ...     statistic="median of 20 samples"))
    'median of 20 samples, 99 % interval 1.5 to 2.5 ms'
    """
    if metric.low is None or metric.high is None:
        return metric.statistic
    interval = f"{metric.low:.6g} to {metric.high:.6g} {metric.unit}"
    return f"{metric.statistic}, {100 * CONFIDENCE:g} % interval {interval}"


def name_case(record: Record, part: str | None, taken: set[str]) -> str:
    """A name that nothing in `taken` has: the same case under other conditions is numbered."""
    words = [record.suite, record.variant, label(record.params), part]
    name = " ".join(" ".join(filter(None, words)).splitlines())
    number, unique = 2, name
    while unique in taken:
        unique = f"{name} ({number})"
        number += 1
    taken.add(unique)
    return unique


SOFTWARE = {
    "torch": "torch.version",
    "python": "software.python",
    "flopwatch": "software.flopwatch",
    "commit": "project.commit",
}


def export_smaller(rows: Sequence[Row]) -> str:
    return _export(rows, is_smaller_better=True)


def export_bigger(rows: Sequence[Row]) -> str:
    return _export(rows, is_smaller_better=False)


def _export(rows: Sequence[Row], *, is_smaller_better: bool) -> str:
    taken: set[str] = set()
    entries = [
        _write_entry(row.record, metric, taken)
        for row in rows
        for metric in list_metrics(row)
        if metric.is_smaller_better == is_smaller_better
    ]
    if not entries:  # which the action takes for an error
        kind, other = ("time", "bigger") if is_smaller_better else ("rate or speedup", "smaller")
        raise UsageError(f"no case has a {kind} to export; take --format github-action-{other}")
    return json.dumps(entries, indent=2, ensure_ascii=False)


def _write_entry(record: Record, metric: Metric, taken: set[str]) -> dict[str, Any]:
    part = metric.name.removesuffix(f"_{metric.unit}")
    entry: dict[str, Any] = {
        "name": name_case(record, None if part == TOTAL else part.replace("_", " "), taken),
        "unit": metric.unit,
        "value": metric.value,
        "extra": "\n".join([describe_statistic(metric), *_describe_conditions(record)]),
    }
    if metric.low is not None and metric.high is not None:
        # The action reads a plus-minus sign and one number.
        reach = max(metric.high - metric.value, metric.value - metric.low)
        entry["range"] = f"± {reach:.6g}"
    return entry


def _describe_conditions(record: Record) -> list[str]:
    device = look_up(record.environment, "torch.gpu.name")
    device = device or look_up(record.environment, "machine.cpu_model")
    software = {name: look_up(record.environment, path) for name, path in SOFTWARE.items()}
    known = {"on": device, **list_conditions(record), **software}
    return [f"{name}: {value}" for name, value in known.items() if value]
