"""What github-action-benchmark reads, as its tools customSmallerIsBetter and customBiggerIsBetter.

Both take a list of entries with a name, a value and a unit. One file is all of one kind: times and
memory are better smaller, rates and speedups bigger.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from flopwatch.analysis.summary import Row
from flopwatch.engine.environment import look_up
from flopwatch.errors import UsageError
from flopwatch.records.exchange.foreign import list_conditions
from flopwatch.records.exchange.metrics import (
    TOTAL,
    Metric,
    describe_statistic,
    list_metrics,
    name_case,
)
from flopwatch.records.record import Record

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
