"""The suite dyad's models in the layout of the published DYAD benchmark.

It prints averages: of one feed-forward layer, over the layers of a model and the runs of it, for
the forward and the backward pass, and their sum. Its speedups are ratios of those sums. The usual
tables below it have medians, intervals and ratios within rounds.

A name is that of the published layer; the spec next to it says in which form we computed it. The
published code itself is the form ``published``.

Published figures are printed as they were, in their order and with all their digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from flopwatch.analysis.comparable import conditions
from flopwatch.analysis.statistics import by_round, judge, pair_ratio
from flopwatch.analysis.summary import Row, differences_as_dict
from flopwatch.errors import UsageError
from flopwatch.jobs.flops import BACKWARD, FORWARD
from flopwatch.output.columns import NOT_COMPARABLE
from flopwatch.output.layouts import Printout, find_missing, warn_of_imprecise
from flopwatch.output.remarks import describe_conditions, describe_differences
from flopwatch.output.tables import group_by
from flopwatch.records.foreign import find_printed
from flopwatch.records.record import Record, identify
from flopwatch.suites.case import format_value

PUBLISHED_FORMS = {":published-cat": "CONCAT ", ":published": "", ":cat": "CONCAT "}
"""By the end of a spec: what stands before the published name."""
PUBLISHED_NAMES = {
    "dense": "Dense",
    "dyad:it:4": "Sparse",
    "dyad:it:8": "Sparse_8",
    "dyad:ot:4": "Sparse_out_T",
    "dyad:dt:4": "Sparse_d_T",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One variant of one model; times are None where no instrumented run was made."""

    row: Row
    forward_ms: float | None = None
    backward_ms: float | None = None
    total_ms: float | None = None
    speedup: float | None = None
    """Over the baseline of its own run."""
    is_unclear: bool = False
    """Whether the ratios of single runs do not even show who is faster."""

    @property
    def record(self) -> Record:
        return self.row.record


def lay_out(rows: Sequence[Row]) -> Printout:
    entries = [_make_entry(row) for row in rows if _is_of_a_model(row.record)]
    published = [_quote_entry(row) for row in rows if _is_quoted(row.record)]
    if not entries and not published:
        raise UsageError(
            "the layout 'dyad' shows models of suites that declare it, and there are none; "
            "measure some with: flopwatch run dyad --filter level=model"
        )
    lines: list[str] = []
    for alike in group_by(entries, lambda entry: conditions(entry.record)):
        lines += [describe_conditions(alike[0].record), ""]
        for chapter in group_by(alike, lambda entry: _describe_batch(entry.record)):
            lines += [_describe_batch(chapter[0].record), ""]
            for model in group_by(chapter, lambda entry: _model(entry.record)):
                lines += _model_lines(model)
            for variant in group_by(chapter, lambda entry: entry.record.variant):
                lines += _speedup_lines(variant)
    lines += _quote_lines(published)
    return Printout(
        lines=lines,
        content=[_as_dict(entry) for entry in [*entries, *published]],
        remarks=warn_of_imprecise([entry.row for entry in entries]),
    )


def published_name(variant: str) -> str:
    """
    >>> [published_name(v) for v in ("dense", "dyad:it:8", "dyad:it:4:cat", "dyad:auto:4")]
    ['Dense', 'Sparse_8', 'CONCAT Sparse', 'dyad:auto:4']
    """
    end = next((end for end in PUBLISHED_FORMS if variant.endswith(end)), "")
    plain = variant.removesuffix(end)
    if plain not in PUBLISHED_NAMES:
        return variant
    return PUBLISHED_FORMS.get(end, "") + PUBLISHED_NAMES[plain]


def _is_of_a_model(record: Record) -> bool:
    params = record.params
    needed = {"model", "micro_batch", "seq_len"}
    return record.layout == "dyad" and params.get("level") == "model" and needed <= params.keys()


def _make_entry(row: Row) -> Entry:
    if row.total_ns is None:
        return Entry(row=row)
    total_ms = _total_ms(row.record)
    baseline_ms = None if row.against is None else _total_ms(row.against)
    return Entry(
        row=row,
        forward_ms=_average_ms(row.record, FORWARD),
        backward_ms=_average_ms(row.record, BACKWARD),
        total_ms=total_ms,
        speedup=baseline_ms / total_ms if baseline_ms and total_ms else None,
        is_unclear=row.against is not None and _is_unclear(row.record, row.against),
    )


def _is_unclear(record: Record, baseline: Record) -> bool:
    mine, theirs = (by_round(one, _sum_regions(one)) for one in (record, baseline))
    ratio = pair_ratio(mine, theirs)
    return ratio is None or judge(ratio) == "unclear"


def _sum_regions(record: Record) -> list[float]:
    """Of every run with instruments."""
    known = [
        record.regions[name].samples_ns for name in (FORWARD, BACKWARD) if name in record.regions
    ]
    return [sum(times_ns) for times_ns in zip(*known, strict=False)]


def _total_ms(record: Record) -> float | None:
    forward_ms, backward_ms = _average_ms(record, FORWARD), _average_ms(record, BACKWARD)
    return None if forward_ms is None or backward_ms is None else forward_ms + backward_ms


def _average_ms(record: Record, name: str) -> float | None:
    region = record.regions.get(name)
    if region is None or not region.samples_ns:
        return None
    return fmean(region.samples_ns) / region.calls / 1e6


def _is_quoted(record: Record) -> bool:
    return record.layout == "dyad" and "name" in (find_printed(record) or {})


def _quote_entry(row: Row) -> Entry:
    printed = find_printed(row.record) or {}
    total_ms, forward_ms, backward_ms = printed["times_ms"]
    speedup = None if row.speedup is None else row.speedup.value
    return Entry(
        row=row,
        forward_ms=forward_ms,
        backward_ms=backward_ms,
        total_ms=total_ms,
        speedup=printed["speedup"]["value"] if "speedup" in printed else speedup,
    )


def _quote_lines(entries: Sequence[Entry]) -> list[str]:
    """In the order of the text. A dense layer stands there once, and serves two comparisons."""
    by_line = {find_place(entry.record): entry for entry in entries}
    lines: list[str] = []
    batch = block = ""
    for _, entry in sorted(by_line.items()):
        printed = find_printed(entry.record) or {}
        head = _describe_sizes(entry.record)
        lines += [head, ""] if head != batch else []
        lines += [printed["block"]] if printed["block"] != block else []
        batch, block = head, printed["block"]
        lines += [
            printed["name"],
            f"total avg: {entry.total_ms}, fwd_avg: {entry.forward_ms}, "
            f"bwd_avg: {entry.backward_ms}",
            "",
        ]
    found = [(find_printed(entry.record) or {}).get("speedup") for entry in by_line.values()]
    speedups = sorted((each for each in found if each), key=lambda each: each["line"])
    by_width = [f"{each['width']} - {each['value']}" for each in speedups]
    return [*lines, *(["speedup", *by_width, ""] if by_width else [])]


def find_place(record: Record) -> int:
    """The line of the text that it is from."""
    return int((find_printed(record) or {})["line"])


def _describe_sizes(record: Record) -> str:
    params = record.params
    return f"Batch Size - {params['micro_batch']}, seq_len - {params['seq_len']} (time in ms)"


def _describe_batch(record: Record) -> str:
    rest = {k: format_value(v) for k, v in record.params.items()}
    for shown in ("level", "model", "micro_batch", "seq_len"):
        del rest[shown]
    dtype = [rest.pop("dtype")] if "dtype" in rest else []
    others = [f"{axis} {value}" for axis, value in rest.items()]
    return ", ".join([_describe_sizes(record), *dtype, *others])


def _model(record: Record) -> str:
    return format_value(record.params["model"])


def _model_lines(entries: Sequence[Entry]) -> list[str]:
    facts = next((entry.record.facts for entry in entries if entry.record.facts), {})
    known = {"hidden_size": "hidden_size {:.0f}", "layers": "{:.0f} num_hidden_layers"}
    size = ", ".join(text.format(facts[name]) for name, text in known.items() if name in facts)
    heading = f"{_model(entries[0].record)} ({size})" if size else _model(entries[0].record)
    lines = [f"--------{heading}-----------", ""]
    for entry in entries:
        lines += [_describe_variant(entry.record.variant), _describe_times(entry), ""]
    return lines


def _describe_variant(variant: str) -> str:
    name = published_name(variant)
    return name if name == variant else f"{name} ({variant})"


def _describe_times(entry: Entry) -> str:
    if entry.record.status != "ok":
        return f"{entry.record.status}: {entry.record.message}"
    if entry.total_ms is None:
        return "no run with instruments was made"
    times = (
        f"total avg: {entry.total_ms:.4f}, fwd_avg: {entry.forward_ms:.4f}, "
        f"bwd_avg: {entry.backward_ms:.4f}"
    )
    differences = describe_differences(entry.row) if entry.row.differences else ""
    return ", ".join(filter(None, [times, find_missing(entry.row), differences]))


def _speedup_lines(entries: Sequence[Entry]) -> list[str]:
    """Of one variant, by the width of the model."""
    known = [entry for entry in entries if entry.speedup and "hidden_size" in entry.record.facts]
    if not known:
        return []
    lines = [f"speedup, {_describe_variant(known[0].record.variant)}"]
    widths = [entry.record.facts["hidden_size"] for entry in known]
    for width, entry in sorted(zip(widths, known, strict=True), key=lambda pair: pair[0]):
        # Models of one width would look the same.
        model = f" ({_model(entry.record)})" if widths.count(width) > 1 else ""
        mark = ", unclear" if entry.is_unclear else ""
        fairness = f", {NOT_COMPARABLE}" if entry.row.differences else ""
        lines.append(f"{width:.0f} - {entry.speedup:.2f}{model}{mark}{fairness}")
    return [*lines, ""]


def _as_dict(entry: Entry) -> dict[str, Any]:
    record = entry.record
    return {
        **identify(record),
        "published_name": published_name(record.variant),
        "hidden_size": record.facts.get("hidden_size"),
        "total_ms": entry.total_ms,
        "forward_ms": entry.forward_ms,
        "backward_ms": entry.backward_ms,
        "speedup": entry.speedup,
        "unclear": entry.is_unclear,
        "differences": differences_as_dict(entry.row),
        "measured_on": describe_conditions(record),
    }
