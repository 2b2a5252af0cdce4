"""Monitored training loops: the answer in sentences, and narrow tables of the mean step, of the
wall clock, of slow steps and of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flopwatch.analysis.monitored_rates import Energy, RunUtilisation
from flopwatch.analysis.monitored_run import RunSummary
from flopwatch.analysis.monitored_steps import Start
from flopwatch.analysis.slow_steps import Cause, SlowStep
from flopwatch.analysis.stragglers import RankWait, Stragglers
from flopwatch.analysis.summary import Row
from flopwatch.output.tables import Column, Sheet, number
from flopwatch.output.units import (
    format_bytes,
    format_count,
    format_duration,
    format_interval,
    format_measured_time,
    format_rate,
    format_share,
    format_time,
    plural,
    three_figures,
)
from flopwatch.records.monitored import FlopsSource

MOST_SLOW = 10
"""Slow steps that a table lists; JSON has all."""
WORTH_SAYING = 0.01
"""Of the wall clock or of the steps' time."""
LOSSES = {
    "down": "down: from a death to the next start",
    "start-up": "start-up: before the first step",
    "repeated steps": "steps that a restart repeated",
}
"""How losses are called in a table, where their names do not say it."""


def answer_run(run: RunSummary) -> list[str]:
    """How fast it is, what the wall clock went to, and who waits for whom."""
    return [_describe_speed(run), *_describe_losses(run), *_describe_stragglers(run)]


def _describe_speed(run: RunSummary) -> str:
    used, tokens = run.utilisation, run.tokens
    facts = []
    if used is not None and used.mfu is not None:
        facts.append(f"{format_share(used.mfu)} MFU ({used.convention}, {describe_peak(used)})")
        if used.hfu is not None and abs(used.hfu - used.mfu) > 0.001:
            facts.append(f"{format_share(used.hfu)} HFU")
    if tokens is not None:
        facts.append(f"{format_count(tokens.per_s)} tokens/s")
    steps = plural(run.steady_steps, "steady step")
    ranks = f" on {plural(run.world_size, 'rank')}" if run.world_size > 1 else ""
    facts.append(f"{format_measured_time(run.step_ns)} a step, the median of {steps}{ranks}")
    missing = f"; no MFU: {run.missing}" if run.missing else ""
    return f"{', '.join(facts)}{missing}."


def describe_peak(used: RunUtilisation) -> str:
    """In few words; its source stands with the other facts."""
    if used.peak_flops_per_s is None:
        return "peak not known"
    return f"{used.peak} peak {format_rate(used.peak_flops_per_s, 'FLOP/s')} {used.dtype}"


def _describe_losses(run: RunSummary) -> list[str]:
    goodput = run.goodput
    parts = []
    if goodput is not None:
        over = f" over {len(goodput.starts)} starts" if len(goodput.starts) > 1 else ""
        parts.append(
            f"{format_share(goodput.share)} of {format_duration(goodput.wall_s)} advanced "
            f"training{over}"
        )
    data = run.data_share
    if data is not None:
        parts.append(f"{format_share(data)} of the wall clock waits for data")
    parts.append(_count_slow(run))
    if run.tokens is not None and run.tokens.padding_share > WORTH_SAYING:
        parts.append(f"{format_share(run.tokens.padding_share)} of the tokens are padding")
    return [f"{'; '.join(parts)}."]


def _count_slow(run: RunSummary) -> str:
    if not run.slow:
        return "no slow steps"
    lost = f"{plural(len(run.slow), 'slow step')} lost {format_time(run.slow_lost_ns)}"
    if len(run.slow_causes) == 1:
        (cause,) = run.slow_causes
        return f"{lost}: {name_cause(cause)}"
    counts = [f"{count} {name_cause(cause)}" for cause, count in run.slow_causes.items()]
    return f"{lost}: {', '.join(counts)}"


def name_cause(cause: Cause) -> str:
    return {"pause": "after a pause", "unknown": "of unknown cause"}.get(cause, cause)


def _describe_stragglers(run: RunSummary) -> list[str]:
    found = run.stragglers
    return [] if found is None else [describe_stragglers(found)]


def describe_stragglers(found: Stragglers) -> str:
    lost = f"{format_share(found.lost_share)} of the steps' time"
    if found.pattern == "none":
        return f"No straggler: {lost} goes to waiting for the last of {len(found.ranks)} ranks."
    if found.pattern == "varying":
        return f"Ranks wait for now one, now another of them: {lost}."
    worst = found.worst
    return (
        f"Rank {worst.rank} makes the others wait for {format_share(worst.lost_share)} of the "
        f"steps' time: it comes last in {format_share(worst.last_share)} of the steps."
    )


def make_run_sheets(rows: Sequence[Row]) -> list[Sheet]:
    """All tables of monitored runs."""
    return [sheet for row in rows if row.monitored for sheet in list_run_sheets(row.monitored)]


def list_run_sheets(run: RunSummary, *, is_brief: bool = False) -> list[Sheet]:
    """Those that say something of the run; the brief ones are what a terminal shows first."""
    title = "" if is_brief else f"{run.name}, "
    return [
        *_make_parts_sheet(run, title),
        *_make_clock_sheet(run, title),
        *_make_slow_sheet(run, title),
        *_make_rank_sheet(run, title),
        *([] if is_brief else _make_fact_sheet(run, title)),
    ]


@dataclass(frozen=True, slots=True)
class Line:
    """A row of a table of times that add up."""

    name: str
    time_ns: float
    share: float
    detail: str = ""


def _make_times_sheet(title: str, heading: str, lines: Sequence[Line], **words: str) -> Sheet:
    columns: list[Column[Line]] = [
        Column(heading, lambda line: line.name, "word"),
        number("time", "ns", lambda line: line.time_ns, cell=_write_time),
        number("share", "share", lambda line: line.share),
    ]
    if any(line.detail for line in lines):
        columns.append(Column("of that", lambda line: line.detail, "word"))
    return Sheet(title=title, columns=columns, items=[lines], labels=1, **words)


def _write_time(line: Line) -> str:
    return format_time(line.time_ns) if line.time_ns < 60e9 else format_duration(line.time_ns / 1e9)


def _make_parts_sheet(run: RunSummary, title: str) -> list[Sheet]:
    if not run.parts:
        return []
    lines = [Line(part.name, part.mean_ns, part.share) for part in run.parts]
    lines.append(Line("mean step", run.mean_step_ns, 1.0))
    return [_make_times_sheet(f"{title}the mean step".strip(), "part", lines)]


def list_clock_lines(run: RunSummary) -> Iterator[Line]:
    """What the wall clock went to; the lines add up to it."""
    goodput = run.goodput
    if goodput is None:
        return
    yield Line(
        "training",
        goodput.training_s * 1e9,
        goodput.share,
        f"{goodput.steps:,} steps at their usual speed",
    )
    details = _list_details(run)
    for reason, time_s in sorted(goodput.lost_s.items(), key=lambda item: -item[1]):
        if reason == "pauses":
            for pause in run.pauses:
                share = pause.total_ns / 1e9 / goodput.wall_s
                yield Line(f"pause: {pause.name}", pause.total_ns, share,
                           f"{pause.count:,} of up to {format_time(pause.longest_ns)}")  # fmt: skip
            continue
        yield Line(
            LOSSES.get(reason, reason), time_s * 1e9, time_s / goodput.wall_s,
            details.get(reason, "")
        )  # fmt: skip


def _list_details(run: RunSummary) -> dict[str, str]:
    details = {}
    if run.first is not None:
        details["first steps"] = (
            f"{run.first.count:,} steps, beyond their usual time: compilation, allocation"
        )
    is_repeated = run.goodput is not None and run.goodput.repeated_steps
    if run.slow:
        some = "those not repeated" if is_repeated else f"{len(run.slow):,} steps"
        details["slow steps"] = f"{some}, beyond their usual time"
    if run.goodput is not None and run.goodput.repeated_steps:
        details["repeated steps"] = f"{run.goodput.repeated_steps:,} steps"
    return details


def _make_clock_sheet(run: RunSummary, title: str) -> list[Sheet]:
    lines = list(list_clock_lines(run))
    if not lines or run.goodput is None:
        return []
    lines.append(Line("wall clock", run.goodput.wall_s * 1e9, 1.0))
    return [_make_times_sheet(f"{title}the wall clock".strip(), "went to", lines)]


def _make_slow_sheet(run: RunSummary, title: str) -> list[Sheet]:
    if not run.slow:
        return []
    worst = sorted(run.slow, key=lambda pair: -pair[1].excess_ns)[:MOST_SLOW]
    kept = {id(pair) for pair in worst}
    shown = [pair for pair in run.slow if id(pair) in kept]
    columns: list[Column[tuple[Start, SlowStep]]] = [
        Column("step", lambda pair: f"{pair[1].number:,}", "word", lambda pair: pair[1].number),
        number("time", "ns", lambda pair: pair[1].step_ns),
        number("usual", "ns", lambda pair: pair[1].step_ns - pair[1].excess_ns),
        Column("likely cause", lambda pair: describe_cause(pair[1]), "word"),
    ]
    left = len(run.slow) - len(shown)
    return [
        Sheet(
            title=f"{title}slow steps".strip(),
            columns=columns,
            items=[shown],
            labels=1,
            remarks=[f"and {left:,} more that lost less; --json has all"] if left else [],
        )
    ]


def describe_cause(step: SlowStep) -> str:
    """With how much of the excess it explains, and where the time went if nothing does."""
    name = name_cause(step.cause)
    if step.rank is not None:
        name = f"rank {step.rank} came late"
    if step.explained_ns is not None:
        share = min(1.0, step.explained_ns / step.excess_ns)
        return f"{name}, {100 * share:.0f} % of the excess"
    if step.part is not None:
        return f"{name}, in {step.part}"
    return name


def _make_rank_sheet(run: RunSummary, title: str) -> list[Sheet]:
    if run.stragglers is None:
        return []
    columns: list[Column[RankWait]] = [
        Column("rank", lambda one: str(one.rank), "word", lambda one: one.rank),
        number("waits", "share", lambda one: one.waiting_share),
        number("comes last", "share", lambda one: one.last_share),
        number("others wait for it", "share", lambda one: one.lost_share),
    ]
    worst = sorted(run.stragglers.ranks, key=lambda one: -one.lost_ns)
    shown = sorted(worst[:MOST_SLOW], key=lambda one: one.rank)
    left = len(worst) - len(shown)
    remarks = [f"and {left:,} more ranks that others wait for less"] if left else []
    if run.ranks_seen < run.world_size:
        remarks.append(f"{run.ranks_seen} of {run.world_size} ranks have a monitor")
    return [
        Sheet(
            title=f"{title}ranks".strip(),
            columns=columns,
            items=[shown],
            labels=1,
            conditions="of the steps' time; comes last: of the steps",
            remarks=remarks,
        )
    ]


def _make_fact_sheet(run: RunSummary, title: str) -> list[Sheet]:
    facts = dict(list_facts(run))
    columns: list[Column[tuple[str, str]]] = [
        Column("fact", lambda fact: fact[0], "word"),
        Column("value", lambda fact: fact[1], "word"),
    ]
    items = [list(facts.items())]
    return [Sheet(title=f"{title}facts", columns=columns, items=items, labels=1)] if facts else []


def list_facts(run: RunSummary) -> Iterator[tuple[str, str]]:
    """What has no table of its own."""
    yield "median step", f"{format_measured_time(run.step_ns)}, {format_interval(run.step_ns)}"
    if run.tokens is not None:
        yield "tokens/s", format_count(run.tokens.per_s)
        yield "tokens of a step", format_count(run.tokens.per_step)
        yield "padding", format_share(run.tokens.padding_share)
    if run.utilisation is not None:
        yield from _list_rates(run.utilisation)
    if run.memory.peak_bytes is not None:
        yield "peak memory", format_bytes(run.memory.peak_bytes)
    for phase, size_bytes in run.memory.phases_bytes.items():
        yield f"memory after {phase}", format_bytes(size_bytes)
    if run.energy is not None:
        yield from _list_energies(run.energy)
    if run.collections is not None:
        count, total = run.collections.count, format_time(run.collections.total_ns)
        yield "garbage collections", f"{count:,}, {total}"


def _list_rates(used: RunUtilisation) -> Iterator[tuple[str, str]]:
    if used.mfu is not None:
        yield "MFU", format_share(used.mfu)
    if used.hfu is not None:
        yield "HFU", format_share(used.hfu)
    yield "model FLOP/s", format_rate(used.model_flops_per_s, "FLOP/s")
    yield "FLOPs from", f"{SOURCES[used.source]}, convention {used.convention}"
    if used.peak_flops_per_s is not None:
        each = f" of each of {used.devices} devices" if used.devices > 1 else ""
        yield "peak", f"{describe_peak(used)}{each}"
        yield "peak from", str(used.peak_source)


def _list_energies(energy: Energy) -> Iterator[tuple[str, str]]:
    if energy.j_per_token is not None:
        yield "energy of a token", f"{three_figures(1e3 * energy.j_per_token)} mJ"
    yield "mean power", f"{three_figures(energy.power_w)} W of {plural(energy.ranks, 'meter')}"


SOURCES: dict[FlopsSource, str] = {
    "job": "the training job",
    "config": "the model's configuration",
    "module": "the operators of a step",
    "number": "the number that was given",
}
