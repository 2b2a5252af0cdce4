"""Warnings about the measurement itself: its samples, the machine and the software."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from flopwatch.analysis.comparable import flatten
from flopwatch.analysis.statistics import (
    Estimate,
    effective_count,
    estimate_median,
    fewest_samples,
    median,
)
from flopwatch.analysis.warning_findings import (
    LEAST_CHANGE,
    Case,
    Finding,
    Trend,
    find_modes,
    find_trend,
    group_cases,
)
from flopwatch.devices.environment import look_up
from flopwatch.records.record import Record
from flopwatch.settings import SETTLED_INTERVAL

CHANCE = 0.001
"""Of all trends that are reported, so large a share may be noise (Benjamini and Hochberg)."""
SETTLED_SHARE = 0.34
"""Where no more of a fall comes after the first third of the samples, that was warm-up."""
ROUNDING = 1.05
"""An interval that misses its target by a hair, as sampling stops at it, is no warning."""

STOPS = {
    "budget": "the time budget was spent",
    "stalled": "more rounds no longer helped",
    "interrupted": "it was interrupted",
}

Where = Literal["time", "speedup"]

STEAL_SHARE = 0.02
"""Of the cores' time, taken by others of the same host."""
BUSY_SHARE = 0.05
"""Of the cores' time, used by other processes; the system itself takes a percent or two."""
OTHERS_LOAD = 1.0
OTHERS_SHARE = 0.1
"""Load beyond the run's own threads: a process that computes, or a tenth of them if that is more;
a run of t threads makes a load of t, and the system itself some tenths."""
HOT_C = 90.0
"""From here on CPUs lower their clocks."""
FALLING_CLOCK = -0.1
FALLING_CHANCE = 0.01

LAUNCH_BOUND = 0.9
"""Of the device's time, that it takes to queue its work."""
DRAINED_NS = 2e6
"""A device that is this far behind still has work. A process that runs far ahead is stopped at some
length of the queue (about 1000 kernels of CUDA's), and then takes as long as the device itself; but
so many kernels that are long enough to be waited for take several times this long."""

SECTIONS = ("machine", "software", "project", "torch", "isa", "allocator")
"""Of the environment. Others have what happened meanwhile, or where a record was taken from."""
VOLATILE = (
    "machine.memory_available_bytes", "machine.swap_used_bytes",
    "project.dirty",  # a warning of its own
)  # fmt: skip
"""What changes without changing any time, or has a warning of its own."""
MOST_FIELDS = 4
"""So many are named; a new system differs in dozens."""
MOST_VALUES = 3


def find_unsteady(cases: Sequence[Case]) -> Iterator[Finding]:
    for case in cases:
        if case.record.steady is False and case.totals_ns:
            warmup = case.record.warmup_samples
            yield case.found(
                f"no steady state in {warmup} warm-up samples; {len(case.totals_ns)} were measured "
                "all the same",
                size=warmup,
            )


def find_unfinished_warmups(cases: Sequence[Case]) -> Iterator[Finding]:
    for case, trend in _list_trends(cases, lambda case: case.trend):
        if _is_warmup(case, trend):
            yield case.found(
                f"after the {case.record.warmup_samples} samples of its warm-up the time "
                f"still fell by {_percent(trend.change)} from the first to the last third of "
                f"{len(case.totals_ns)} samples",
                size=abs(trend.change),
            )


def find_drifts(cases: Sequence[Case]) -> Iterator[Finding]:
    for case, trend in _list_trends(cases, lambda case: case.trend):
        if not _is_warmup(case, trend):
            yield _describe_drift(case, trend, "time", 1 + trend.change)


def find_speedup_drifts(cases: Sequence[Case]) -> Iterator[Finding]:
    for case, trend in _list_trends(cases, lambda case: case.ratio_trend):
        yield _describe_drift(case, trend, "speedup", 1 / (1 + trend.change))


def _describe_drift(case: Case, trend: Trend, where: Where, ratio: float) -> Finding:
    count = len(case.totals_ns if where == "time" else case.ratios)
    return case.found(
        f"its {where} {'rose' if ratio > 1 else 'fell'} by {_percent(ratio - 1)} from the "
        f"first to the last third of {count} samples",
        size=abs(trend.change),
    )


def _is_warmup(case: Case, trend: Trend) -> bool:
    if trend.change > 0:
        return False
    settled = abs(trend.late_change) <= SETTLED_SHARE * abs(trend.change)
    return settled or case.record.steady is False


def _list_trends(
    cases: Sequence[Case], read: Callable[[Case], Trend | None]
) -> list[tuple[Case, Trend]]:
    """Those that noise does not explain, given how many were looked at, of a size that matters."""
    found = [(case, trend) for case in cases if (trend := read(case)) is not None]
    found.sort(key=lambda pair: pair[1].chance)
    known = [
        number
        for number, (_, trend) in enumerate(found, 1)
        if trend.chance <= CHANCE * number / len(found)
    ]
    return [
        (case, trend)
        for case, trend in found[: max(known, default=0)]
        if abs(trend.change) >= LEAST_CHANGE
    ]


def find_two_modes(cases: Sequence[Case]) -> Iterator[Finding]:
    # A step has two levels, too, and is reported as a drift.
    trending = {id(case) for case, _ in _list_trends(cases, lambda case: case.trend)}
    for case in (case for case in cases if id(case) not in trending):
        modes = find_modes(case.totals_ns, num_series=len(cases))
        if modes is not None and modes.distance >= LEAST_CHANGE:
            yield case.found(
                f"{_percent(modes.high_share)} of {len(case.totals_ns)} samples lie around a "
                f"level of their own, {_percent(modes.distance)} above the others, with nothing "
                "between them",
                size=modes.distance,
            )


def find_few_samples(cases: Sequence[Case]) -> Iterator[Finding]:
    for case in cases:
        if not case.totals_ns:
            continue
        time = estimate_median(case.totals_ns)
        if time.low is None:
            yield _describe_no_interval(case, time)
            continue
        target, stop = case.record.settings.target_interval, case.record.stop_reason
        widths = [(time.half_width or 0.0, "time")] if stop != "settled" else []
        if case.ratios and case.is_rival:
            widths.append((estimate_median(case.ratios).half_width or 0.0, "speedup"))
        width, name = max(widths, default=(0.0, ""))
        wanted = target or SETTLED_INTERVAL
        if width > ROUNDING * wanted and not case.is_foreign:
            why = STOPS.get(stop or "")
            reached = "is too noisy" if width > 1 else f"is known to ±{_percent(width)}"
            # Without a target, sampling is to end with verdicts, which need no such width.
            asked = f", and ±{_percent(wanted)} was asked for" if target else ""
            yield case.found(
                f"its {name} {reached} from {time.samples} samples{asked}"
                f"{f' ({why})' if why else ''}",
                size=width,
                cause="wide",
            )


def _describe_no_interval(case: Case, time: Estimate) -> Finding:
    if time.samples == 1:
        return case.found(
            "it is a single value, with unknown scatter",
            cause="single",
            advice="do not rely on small differences to it",
        )
    worth = round(effective_count(case.totals_ns))
    moving = f" that move together, worth {worth} independent ones," if worth < time.samples else ""
    return case.found(
        f"{time.samples} samples{moving} give no interval; {fewest_samples()} independent "
        "ones would",
        size=1 / max(worth, 1),
        cause="none",
        advice="take more samples" if case.is_foreign else None,
    )


def _percent(share: float) -> str:
    """
    >>> _percent(-0.0512), _percent(0.123), _percent(2.5)
    ('5.1 %', '12 %', '250 %')
    """
    percentage = 100 * abs(share)
    # As many digits as the number is known to.
    return f"{percentage:.1f} %" if percentage < 9.95 else f"{percentage:.0f} %"


def find_throttled(cases: Sequence[Case]) -> Iterator[Finding]:
    for case in cases:
        for reason in case.record.throttled:
            fact = f"the GPU lowered its clocks because of {reason}"
            yield case.found(fact, cause=reason)
        temperature_c = _read(case.record, "load.cpu_temperature_c")
        if temperature_c is not None and temperature_c >= HOT_C:
            yield case.found(
                f"the CPU was at {temperature_c:.0f} °C, where it lowers its clocks",
                size=temperature_c,
                cause="hot",
            )
    yield from _find_falling_clocks(cases)


def _find_falling_clocks(cases: Sequence[Case]) -> Iterator[Finding]:
    """Over a run, not from one reading to the next: a core that has just become idle is slow."""
    for run in group_cases(cases, lambda case: case.record.run_id):
        groups = group_cases(run, lambda case: case.record.group_id)
        in_order = sorted(groups, key=lambda group: min(case.record.measured_at for case in group))
        read = [_read(group[0].record, "load.cpu_frequency_hz") for group in in_order]
        known_hz = [frequency_hz for frequency_hz in read if frequency_hz]
        trend = find_trend(known_hz)
        if trend is None or trend.change > FALLING_CLOCK or trend.chance > FALLING_CHANCE:
            continue
        third = len(in_order) // 3
        for case in (case for group in in_order[-third:] for case in group):
            yield case.found(
                f"the CPU's clock fell by {-100 * trend.change:.0f} % over the run's "
                f"{len(in_order)} groups, to {min(known_hz) / 1e9:.2f} GHz",
                size=-trend.change,
                cause="falling",
            )


def find_launch_bound(cases: Sequence[Case]) -> Iterator[Finding]:
    for case in cases:
        shares = _list_enqueue_shares(case.record) if case.totals_ns else []
        if shares and median(shares) >= LAUNCH_BOUND:
            share = min(median(shares), 1.0)
            yield case.found(
                f"launch-bound: {_percent(share)} of the time the device waited for Python, which "
                "was still queueing work",
                size=share,
            )


def _list_enqueue_shares(record: Record) -> list[float]:
    """Of the device's time in each measured sample; 0 where it still had work in the end."""
    if record.queue is None:
        return []
    times_ns = [sum(phases) for phases in zip(*record.samples_ns.values(), strict=True)]
    rows = zip(times_ns, record.queue.enqueue_ns, record.queue.drain_ns, strict=True)
    return [
        enqueue_ns / time_ns if drain_ns <= DRAINED_NS else 0.0
        for time_ns, enqueue_ns, drain_ns in list(rows)[record.warmup_samples :]
        if enqueue_ns is not None and drain_ns is not None
    ]


def find_loaded(cases: Sequence[Case]) -> Iterator[Finding]:
    for group in group_cases(cases, lambda case: (case.record.run_id, case.record.group_id)):
        # Shares are of the time since the record before, so that only a group's first has them.
        steal = max((_read(case.record, "load.steal_share") or 0.0) for case in group)
        others = [_read(case.record, "load.background_share") for case in group]
        busy = max((share for share in others if share is not None), default=None)
        for case in (case for case in group if case.totals_ns):
            if steal >= STEAL_SHARE:
                fact = f"{100 * steal:.1f} % of the cores' time went to others on the same host"
                yield case.found(fact, size=steal, cause="steal")
            if busy is not None and busy >= BUSY_SHARE:
                fact = f"other processes used {100 * busy:.0f} % of the cores' time"
                yield case.found(fact, size=busy, cause="others")
            elif busy is None and not case.is_foreign:
                yield from _find_high_load(case)


def _find_high_load(case: Case) -> Iterator[Finding]:
    """In older records, which do not separate the run's own processes from others."""
    average = look_up(case.record.environment, "load.average")
    threads = case.record.settings.threads
    load = float(average[0]) if average else 0.0
    if load - threads >= max(OTHERS_LOAD, OTHERS_SHARE * threads):
        yield case.found(
            f"the load of the machine was {load:.1f}, and the run's own {threads} threads make "
            f"{threads}",
            size=load - threads,
            cause="load",
        )


def find_changes(cases: Sequence[Case]) -> Iterator[Finding]:
    """Inside a table, and inside a run."""
    fields: dict[int, dict[str, str]] = {}
    last: tuple[Any, dict[str, str]] = (None, {})
    for case in cases:
        content = {name: case.record.environment.get(name) for name in SECTIONS}
        content["sources"] = case.record.sources  # the project's files, by their digests
        # Most records say what the one before them says, and comparing is quicker than writing.
        last = last if content == last[0] else (content, _write_fields(content))
        fields[id(case)] = last[1]
    tables = group_cases(cases, lambda case: case.table)
    runs = group_cases(cases, lambda case: case.record.run_id)
    for together in (*tables, *runs):
        in_order = sorted(together, key=lambda case: case.record.measured_at)
        yield from _find_changes(in_order, [fields[id(case)] for case in in_order])


def _write_fields(content: Mapping[str, Any]) -> dict[str, str]:
    """By path, as text; what is volatile or unknown is left out."""
    return {
        path: str(value)
        for path, value in flatten(content).items()
        if value is not None and path not in VOLATILE
    }


def _find_changes(
    cases: Sequence[Case], environments: Sequence[Mapping[str, str]]
) -> Iterator[Finding]:
    """Fields that have changed in the same records are one finding."""
    if all(each is environments[0] for each in environments):
        return
    changes: dict[tuple[int, ...], list[str]] = {}
    for name in dict.fromkeys(name for each in environments for name in each):
        values = [each.get(name) for each in environments]
        known = list(dict.fromkeys(value for value in values if value is not None))
        if len(known) > 1:
            changed = tuple(
                place for place, value in enumerate(values) if value not in (None, known[0])
            )
            if len(known) > MOST_VALUES:
                known[MOST_VALUES - 1 : -1] = ["..."]
            changes.setdefault(changed, []).append(f"{name} {' → '.join(known)}")
    for places, texts in changes.items():
        more = f", and {len(texts) - MOST_FIELDS} more fields" if len(texts) > MOST_FIELDS else ""
        fact = f"{', '.join(texts[:MOST_FIELDS])}{more}"
        for place in places:
            yield cases[place].found(fact, cause=fact)


def find_dirty(cases: Sequence[Case]) -> Iterator[Finding]:
    for case in cases:
        if look_up(case.record.environment, "project.dirty") is True and case.totals_ns:
            commit = look_up(case.record.environment, "project.commit")
            yield case.found(
                f"tracked files differed from commit {commit}",
                cause=str(commit),
            )


def _read(record: Record, path: str) -> float | None:
    value = look_up(record.environment, path)
    return float(value) if isinstance(value, int | float) else None
