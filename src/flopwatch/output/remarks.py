"""Sentences about results: how cases were measured, failures, peaks, and warnings."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from flopwatch.analysis.part_times import estimate_instruments
from flopwatch.analysis.record_device import (
    PeakShare,
    Standard,
    find_background_share,
    sum_flops,
)
from flopwatch.analysis.statistics import Estimate, estimate_total_ns, is_contradicted
from flopwatch.analysis.summary import Row
from flopwatch.analysis.warnings import KINDS, SEVERITIES, ResultWarning
from flopwatch.devices.environment import look_up
from flopwatch.output.background_load import describe_load
from flopwatch.output.columns import NOT_COMPARABLE, choose_peaks
from flopwatch.output.tables import group_by
from flopwatch.output.units import format_change, format_rate, format_ratio, format_time, plural
from flopwatch.records.record import Record
from flopwatch.settings import TARGET_INTERVAL
from flopwatch.suites.case import label


def describe_conditions(record: Record) -> str:
    """
    >>> from flopwatch.settings import Settings
    >>> def describe(**fields):
    ...     return describe_conditions(Record(case_id="", group_id="", run_id="", suite="",
    ...         variant="", baseline="", params={}, status="ok", **fields))
    >>> describe(settings=Settings(threads=2, cache="cold"),
    ...     environment={"machine": {"cpu_model": "Z80"}, "torch": {"version": "2.13.0"}})
    'cpu, 2 threads, cold cache, allocator retain, Z80, torch 2.13.0'

    Others do not state such settings. What their files do:

    >>> describe(environment={"published": {"source": "DYAD", "year": 2023}})
    'published: DYAD, 2023; hardware not stated; means, without intervals'
    >>> describe(environment={"imported": {"format": "pyperf"}, "software": {"python": "3.12.1"}})
    'imported from pyperf, python 3.12.1; not taken side by side'
    """

    def find(path: str, words: str = "{}") -> list[str]:
        value = look_up(record.environment, path)
        return [words.format(value)] if value else []

    gpu, cpu = find("torch.gpu.name"), find("machine.cpu_model")
    torch = find("torch.version", "torch {}")
    if "published" in record.environment:
        source = ", ".join([*find("published.source"), *find("published.year")])
        hardware = (*gpu, "hardware not stated")[0]
        stated = f"{source or 'source not stated'}; {hardware}"
        return f"published: {stated}; means, without intervals"
    if "imported" in record.environment:
        on = find("machine.cpu_model", "on {}")
        python = find("software.python", "python {}")
        facts = [*find("imported.format", "imported from {}"), *gpu, *on, *torch, *python]
        return f"{', '.join(facts)}; not taken side by side"
    settings = record.settings
    if record.monitored is not None:  # whose loop it is decides on threads and caches
        ranks = plural(record.monitored.world_size, "rank")
        return ", ".join([settings.device, ranks, *(gpu or cpu), *torch])
    return ", ".join(
        [
            settings.device,
            plural(settings.threads, "thread"),
            f"{settings.cache} cache",
            f"allocator {settings.allocator}",
            *(gpu or cpu),
            *torch,
            *find("isa.onednn_max_cpu_isa", "oneDNN capped at {}"),
        ]
    )


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


def list_remarks(rows: Sequence[Row]) -> list[str]:
    """What a reader of a table should know about its cases."""
    groups = group_by(rows, lambda row: row.record.group_id)
    return [
        *(remark for group in groups for remark in _group_remarks(group)),
        *list_drift_remarks(rows),
        *describe_load(find_background_share(row.record for row in rows if row.total_ns)),
        *_case_remarks(rows),
        *_peak_remarks(rows),
    ]


def _group_remarks(rows: Sequence[Row]) -> list[str]:
    """Failures and imprecision, of one group."""
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
    aim = _name_missed(measured)
    if imprecise and aim:
        record, rounds = imprecise[0].record, imprecise[0].total_ns
        assert record.stop_reason is not None
        assert rounds is not None
        remarks.append(
            f"{params}: {aim} in "
            f"{plural(rounds.samples, 'round')}: {STOP_REASONS[record.stop_reason]}"
        )
    return remarks


def _name_missed(rows: Sequence[Row]) -> str:
    """What the sampling of a group was for, as far as it was not reached; empty where it was."""
    targets = {row.record.settings.target_interval for row in rows}
    compared = [row for row in rows if row.verdict is not None]
    if targets == {None} and compared:
        unclear = [row.record.variant for row in compared if row.verdict == "unclear"]
        return f"the verdict on {', '.join(unclear)} was not settled" if unclear else ""
    target = max((each or TARGET_INTERVAL for each in targets), default=TARGET_INTERVAL)
    known = [one for row in rows for one in (row.total_ns, row.speedup) if one is not None]
    is_reached = all(one.half_width is not None and one.half_width <= target for one in known)
    return "" if is_reached else f"±{100 * target:g} % was not reached"


def describe_drift(cases: Sequence[tuple[str, float, float, Estimate]]) -> list[str]:
    """Of cases by name, with the baseline's time, their own and their speedup: why the speedup is
    not the ratio of the two times, where it is not.

    >>> speedup = Estimate(value=2.81, low=2.7, high=2.9, samples=9)
    >>> describe_drift([("fast", 6.71e6, 5.99e6, speedup)])
    ['fast: 6.71 ms over 5.99 ms would be 1.12x, not 2.81x: times drifted between rounds; speedups \
are medians of the ratios within rounds, which drift does not change']
    """
    found = [case for case in cases if is_contradicted(case[3], case[1], case[2])]
    if not found:
        return []
    name, old_ns, new_ns, speedup = found[0]
    others = f" (and {plural(len(found) - 1, 'other case')})" if len(found) > 1 else ""
    return [
        f"{name}{others}: {format_time(old_ns)} over {format_time(new_ns)} would be "
        f"{format_ratio(old_ns / new_ns)}, not {format_ratio(speedup.value)}: times drifted "
        "between rounds; speedups are medians of the ratios within rounds, which drift does not "
        "change"
    ]


def list_drift_remarks(rows: Sequence[Row]) -> list[str]:
    return describe_drift(
        [
            (
                " ".join(filter(None, [row.record.variant, label(row.record.params)])),
                estimate_total_ns(row.against).value,
                row.total_ns.value,
                row.speedup,
            )
            for row in rows
            if row.against is not None and row.speedup is not None and row.total_ns is not None
        ]
    )


def _case_remarks(rows: Sequence[Row]) -> list[str]:
    """What makes comparisons unfair, and warnings that arose while measuring, each once for all the
    cases of a table."""
    by_sentence: dict[str, list[Record]] = {}
    for row in rows:
        if row.differences:
            by_sentence.setdefault(describe_differences(row), []).append(row.record)
    for row in rows:
        record = row.record
        unchecked = [] if record.unchecked is None else [f"not checked: {record.unchecked}"]
        throttled = [f"the GPU lowered its clocks because of {why}" for why in record.throttled]
        for note in (*record.notes, *unchecked, *throttled):
            by_sentence.setdefault(note, []).append(record)
    return [f"{_name_cases(records)}: {sentence}" for sentence, records in by_sentence.items()]


IMPOSSIBLE: dict[Standard, str] = {
    "nominal": "which is impossible: the peak is wrong, or the FLOPs are",
    "measured": "which is impossible: the peak was measured too low (measure it again by "
    "`flopwatch peaks`), or the FLOPs are wrong",
}


def _peak_remarks(rows: Sequence[Row]) -> list[str]:
    """Which peaks a table compares with, and what cannot be true about them."""
    remarks = []
    for standard, title in choose_peaks(rows).items():
        found = [row for row in rows if standard in row.of_peak]
        remarks += [
            f"{title}: {peaks}"
            for peaks in _describe_peaks([row.of_peak[standard] for row in found])
        ]
        beyond = [row for row in found if row.of_peak[standard].burst_share > 1]
        if beyond:
            most = max(row.of_peak[standard].share for row in beyond)
            cases = _name_cases([row.record for row in beyond])
            up_to = "up to " if len(beyond) > 1 else ""
            remarks.append(f"{cases}: {up_to}{100 * most:.1f} % {title}, {IMPOSSIBLE[standard]}")
    return [*remarks, *_utilisation_remarks(rows)] or _unknown_peak_remarks(rows)


def _utilisation_remarks(rows: Sequence[Row]) -> list[str]:
    """By what MFU and HFU are counted, and the largest of them that cannot be."""
    known = [
        (row.utilisation, row.record)
        for row in rows
        if row.utilisation and row.utilisation.mfu is not None
    ]
    counted = dict.fromkeys(
        f"MFU and HFU: by the convention {one.convention}, of "
        f"{format_rate(one.peak_flops_per_s, 'FLOP/s')} a rank ({one.peak_source}); "
        "`flopwatch mfu` has other conventions"
        for one, _ in known
    )
    beyond = [(one, record) for one, record in known if one.impossible]
    if not beyond:
        return list(counted)
    worst, _ = max(beyond, key=lambda each: each[0].hfu or 0.0)
    cases = _name_cases([record for _, record in beyond])
    return [*counted, f"{cases}: {'up to ' if len(beyond) > 1 else ''}{worst.impossible}"]


def _describe_peaks(found: Sequence[PeakShare]) -> list[str]:
    """One sentence, or one each for single devices and for several ranks."""
    by_source: dict[bool, dict[str, dict[str, None]]] = {}
    for share in found:
        rates_by_source = by_source.setdefault(share.devices > 1, {})
        for dtype, peak in share.peaks.items():
            rate = f"{dtype} {format_rate(peak.flops_per_s, 'FLOP/s')}"
            rates_by_source.setdefault(peak.source, {})[rate] = None
    return [
        "; ".join(f"{', '.join(rates)} ({source})" for source, rates in rates_by_source.items())
        + (", for each rank" if has_ranks else "")
        for has_ranks, rates_by_source in by_source.items()
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
            lines += _write_heading(meaning, is_first=not lines)
        for warning in chosen:
            lines += [f"  {warning.kind}", *_wrap(warning.sentence, width)]
            lines += _wrap(f"→ {warning.advice}", width, hang=2)
    return lines


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
        lines += _write_heading(meaning, is_first=not lines)
        for name, kind in KINDS.items():
            if kind.severity == severity:
                lines.append(f"  {name}: {kind.meaning}")
                lines += _wrap(f"found by: {kind.method}", width, hang=2)
                lines += _wrap(f"→ {kind.advice}", width, hang=2)
    return lines


def _write_heading(meaning: str, is_first: bool) -> list[str]:
    return [meaning.capitalize()] if is_first else ["", meaning.capitalize()]


def _wrap(text: str, width: int, hang: int = 0) -> list[str]:
    return textwrap.wrap(
        text,
        width=max(width, 40),
        initial_indent=" " * WARNING_INDENT,
        subsequent_indent=" " * (WARNING_INDENT + hang),
        break_long_words=False,
        break_on_hyphens=False,
    )
