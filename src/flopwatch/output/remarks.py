"""Sentences about results: how cases were measured, failures, peaks, and warnings."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from flopwatch.analysis.part_times import estimate_instruments
from flopwatch.analysis.record_device import PeakShare, Standard, sum_flops
from flopwatch.analysis.summary import Row
from flopwatch.analysis.warnings import KINDS, SEVERITIES, ResultWarning
from flopwatch.devices.environment import look_up
from flopwatch.output.columns import NOT_COMPARABLE, choose_peaks
from flopwatch.output.units import format_change, format_rate, plural
from flopwatch.records.record import Record
from flopwatch.suites.case import label


def describe_conditions(record: Record) -> str:
    """
    >>> from flopwatch.settings import Settings
    >>> record = Record(case_id="", group_id="", run_id="", suite="", variant="", baseline="",
    ...     params={}, status="ok", settings=Settings(threads=2, cache="cold"),
    ...     environment={"machine": {"cpu_model": "Z80"}, "torch": {"version": "2.13.0"}})
    >>> describe_conditions(record)
    'cpu, 2 threads, cold cache, allocator retain, Z80, torch 2.13.0'
    """
    if "published" in record.environment:
        return describe_publication(record)
    if "imported" in record.environment:
        return describe_import(record)
    settings = record.settings
    version = look_up(record.environment, "torch.version")
    cap = look_up(record.environment, "isa.onednn_max_cpu_isa")
    parts = [
        settings.device,
        plural(settings.threads, "thread"),
        f"{settings.cache} cache",
        f"allocator {settings.allocator}",
        look_up(record.environment, "torch.gpu.name")
        or look_up(record.environment, "machine.cpu_model"),
        f"torch {version}" if version else None,
        f"oneDNN capped at {cap}" if cap else None,
    ]
    return ", ".join(str(part) for part in parts if part)


def describe_publication(record: Record) -> str:
    """Instead of settings, which a published figure does not tell: theirs are unknown.

    >>> record = Record(case_id="", group_id="", run_id="", suite="", variant="", baseline="",
    ...     params={}, status="ok", environment={"published": {"source": "DYAD", "year": 2023}})
    >>> describe_publication(record)
    'published: DYAD, 2023; hardware not stated; means, without intervals'
    """
    source, year = (look_up(record.environment, f"published.{key}") for key in ("source", "year"))
    told = ", ".join(str(part) for part in (source, year) if part)
    hardware = look_up(record.environment, "torch.gpu.name")
    return (
        f"published: {told or 'source not stated'}; {hardware or 'hardware not stated'}; "
        "means, without intervals"
    )


def describe_import(record: Record) -> str:
    """Instead of settings, which other programs do not tell, what their files say.

    >>> record = Record(case_id="", group_id="", run_id="", suite="", variant="", baseline="",
    ...     params={}, status="ok", environment={"imported": {"format": "pyperf"},
    ...     "software": {"python": "3.12.1"}})
    >>> describe_import(record)
    'imported from pyperf, python 3.12.1; not taken side by side'
    """
    known = {
        "imported from": "imported.format",
        "": "torch.gpu.name",
        "on": "machine.cpu_model",
        "torch": "torch.version",
        "python": "software.python",
    }
    told = {name: look_up(record.environment, path) for name, path in known.items()}
    parts = [f"{name} {value}".strip() for name, value in told.items() if value]
    return f"{', '.join(parts)}; not taken side by side"


STOP_REASONS = {
    "budget": "the time budget was spent (--case-budget)",
    "stalled": "more rounds no longer helped: the machine is unsteady",
    "interrupted": "it was interrupted",
}


def describe_differences(row: Row) -> str:
    """In what a case and its baseline differ that a fair comparison has in common."""
    differences = "; ".join(
        f"{name} {theirs or 'unknown'} in the baseline, {mine or 'unknown'} here"
        for name, (theirs, mine) in row.differences.items()
    )
    return f"{NOT_COMPARABLE}: {differences}"


def group_remarks(rows: Sequence[Row]) -> list[str]:
    """What a reader should know about one group: failures and imprecision."""
    params = label(rows[0].record.params)
    remarks = [
        f"{row.record.variant} {params}: {row.record.status}: {row.record.message}"
        for row in rows
        if row.record.status != "ok"
    ]
    measured = [row for row in rows if row.total_ns is not None]
    unsteady = [row.record.variant for row in measured if row.record.steady is False]
    if unsteady:
        remarks.append(f"{params}: no steady state was detected; times may still be changing")
    imprecise = [row for row in measured if row.record.stop_reason in STOP_REASONS]
    if imprecise:
        record, rounds = imprecise[0].record, imprecise[0].total_ns
        assert record.stop_reason is not None
        assert rounds is not None
        remarks.append(
            f"{params}: ±{100 * record.settings.target_interval:g} % was not reached in "
            f"{plural(rounds.samples, 'round')}: {STOP_REASONS[record.stop_reason]}"
        )
    return remarks


def case_remarks(rows: Sequence[Row]) -> list[str]:
    """What makes comparisons unfair, and warnings that arose while measuring, each once for all the
    cases of a table."""
    told: dict[str, list[Record]] = {}
    for row in rows:
        if row.differences:
            told.setdefault(describe_differences(row), []).append(row.record)
    for row in rows:
        record = row.record
        unchecked = [] if record.unchecked is None else [f"not checked: {record.unchecked}"]
        throttled = [f"the GPU lowered its clocks because of {why}" for why in record.throttled]
        for note in (*record.notes, *unchecked, *throttled):
            told.setdefault(note, []).append(record)
    return [f"{_name_cases(records)}: {sentence}" for sentence, records in told.items()]


IMPOSSIBLE: dict[Standard, str] = {
    "nominal": "which is impossible: the peak is wrong, or the FLOPs are",
    "measured": "which is impossible: the peak was measured too low (measure it again by "
    "`flopwatch peaks`), or the FLOPs are wrong",
}


def peak_remarks(rows: Sequence[Row]) -> list[str]:
    """Which peaks a table compares with, and what cannot be true about them."""
    remarks = []
    for standard, title in choose_peaks(rows).items():
        found = [row for row in rows if standard in row.of_peak]
        remarks += [
            f"{title}: {peaks}"
            for peaks in _describe_peaks([row.of_peak[standard] for row in found])
        ]
        beyond = [row for row in found if row.of_peak[standard].share > 1]
        if beyond:
            most = max(row.of_peak[standard].share for row in beyond)
            cases = _name_cases([row.record for row in beyond])
            up_to = "up to " if len(beyond) > 1 else ""
            remarks.append(f"{cases}: {up_to}{100 * most:.1f} % {title}, {IMPOSSIBLE[standard]}")
    return [*remarks, *_utilisation_remarks(rows)] or _unknown_peak_remarks(rows)


def _utilisation_remarks(rows: Sequence[Row]) -> list[str]:
    """By what MFU and HFU are counted, and which of them cannot be."""
    known = [row for row in rows if row.utilisation and row.utilisation.mfu is not None]
    counted = dict.fromkeys(_describe_utilisation(row) for row in known)
    return [*counted, *_impossible_remarks(known)]


def _impossible_remarks(rows: Sequence[Row]) -> list[str]:
    """None or one, with the largest of the numbers."""
    beyond = [
        (row.utilisation.hfu or 0.0, row.utilisation.impossible, row.record)
        for row in rows
        if row.utilisation and row.utilisation.impossible
    ]
    if not beyond:
        return []
    _, sentence, _ = max(beyond, key=lambda each: each[0])
    cases = _name_cases([record for *_, record in beyond])
    return [f"{cases}: {'up to ' if len(beyond) > 1 else ''}{sentence}"]


def _describe_utilisation(row: Row) -> str:
    assert row.utilisation is not None
    return (
        f"MFU and HFU: by the convention {row.utilisation.convention}, of "
        f"{format_rate(row.utilisation.peak_flops_per_s, 'FLOP/s')} a rank "
        f"({row.utilisation.peak_source}); `flopwatch mfu` has other conventions"
    )


def _describe_peaks(found: Sequence[PeakShare]) -> list[str]:
    """One sentence, or one each for single devices and for several ranks."""
    by_source: dict[bool, dict[str, dict[str, None]]] = {}
    for share in found:
        told = by_source.setdefault(share.devices > 1, {})
        for dtype, peak in share.peaks.items():
            rate = f"{dtype} {format_rate(peak.flops_per_s, 'FLOP/s')}"
            told.setdefault(peak.source, {})[rate] = None
    return [
        "; ".join(f"{', '.join(rates)} ({source})" for source, rates in told.items())
        + (", for each rank" if has_ranks else "")
        for has_ranks, told in by_source.items()
    ]


def _unknown_peak_remarks(rows: Sequence[Row]) -> list[str]:
    """None where there is nothing to compare with a peak, or where nobody can measure one."""
    own = [row for row in rows if "published" not in row.record.environment]
    counted = [row.record for row in own if row.flops_per_s is not None]
    dtypes = dict.fromkeys(dtype for record in counted for dtype in sum_flops(record.flops))
    if not dtypes or "unknown" in dtypes:
        return []
    return [
        f"the peak for {' and '.join(dtypes)} is not known here: measure it by `flopwatch peaks`, "
        "and later runs are compared with it"
    ]


def _name_cases(records: Sequence[Record]) -> str:
    variants = ", ".join(dict.fromkeys(record.variant for record in records))
    groups = {record.group_id for record in records}
    if len(groups) > 1:
        return f"{variants} in {plural(len(groups), 'group')}"
    return f"{variants} {label(records[0].params)}"


def instrument_remarks(rows: Sequence[Row]) -> list[str]:
    """What instruments cost in one group."""
    cost = estimate_instruments(row.record for row in rows if row.regions)
    if cost is None:
        return []
    return [f"{label(rows[0].record.params)}: instruments cost {format_change(cost)}"]


WARNING_INDENT = 4


def write_warnings(warnings: Sequence[ResultWarning], width: int) -> list[str]:
    """Lines; none where there is no warning."""
    lines: list[str] = []
    for severity, meaning in SEVERITIES.items():
        chosen = [warning for warning in warnings if warning.severity == severity]
        if chosen:
            lines += ["", meaning.capitalize()] if lines else [meaning.capitalize()]
        for warning in chosen:
            lines += _write_warning(warning, width)
    return lines


def _write_warning(warning: ResultWarning, width: int) -> list[str]:
    return [
        f"  {warning.kind}",
        *_wrap_warning(warning.sentence, width, WARNING_INDENT),
        *_wrap_warning(f"→ {warning.advice}", width, WARNING_INDENT, hang=2),
    ]


def count_warnings(warnings: Sequence[ResultWarning], num_records: int) -> str:
    """One sentence for the end.

    >>> count_warnings([], 12)
    'no warnings about 12 records'
    """
    if not warnings:
        return f"no warnings about {plural(num_records, 'record')}"
    counts = [
        f"{number} {one if number == 1 else several}"
        for severity, one, several in (
            ("spoils", "that spoils a number", "that spoil a number"),
            ("widens", "that makes one less certain", "that make one less certain"),
            ("note", "worth knowing", "worth knowing"),
        )
        if (number := sum(warning.severity == severity for warning in warnings))
    ]
    total, records = plural(len(warnings), "warning"), plural(num_records, "record")
    return f"{total} about {records}: {', '.join(counts)}"


def write_kinds(width: int) -> list[str]:
    """What is looked for, how, and what to do."""
    lines: list[str] = []
    for severity, meaning in SEVERITIES.items():
        lines += ["", meaning.capitalize()] if lines else [meaning.capitalize()]
        for name, kind in KINDS.items():
            if kind.severity == severity:
                lines.append(f"  {name}: {kind.meaning}")
                lines += _wrap_warning(f"found by: {kind.method}", width, WARNING_INDENT, hang=2)
                lines += _wrap_warning(f"→ {kind.advice}", width, WARNING_INDENT, hang=2)
    return lines


def _wrap_warning(text: str, width: int, indent: int, hang: int = 0) -> list[str]:
    return textwrap.wrap(
        text,
        width=max(width, 40),
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hang),
        break_long_words=False,
        break_on_hyphens=False,
    )
