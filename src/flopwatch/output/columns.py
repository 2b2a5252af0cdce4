"""The columns of results: every quantity is declared once, in COLUMNS.

An entry says what a quantity is called, its unit, what it means, how it is found in a case's row,
and how important it is. Tables, ``--columns``, ``--where``, ``--sort``, ``--pivot``, the view
``cases`` of ``flopwatch query``, CSV, JSON and the page all read that list, so that a new quantity
is one entry here. What only one suite has is declared in its file (`Suite.column`), and stands in
its records. Values are raw and names have their units; an axis, a phase or a fact goes by its own
name, unless another column has it: then ``axis_``, ``phase_`` or ``fact_`` stands before it.

`Column` serves tables of anything else as well, of devices or of plans: those list theirs where the
table is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, cast, get_args

from flopwatch.analysis.comparable import conditions
from flopwatch.analysis.record_device import Standard
from flopwatch.analysis.statistics import Estimate, Verdict
from flopwatch.analysis.summary import Row, as_dict
from flopwatch.devices.environment import look_up
from flopwatch.errors import UsageError
from flopwatch.output.tables import (
    Column,
    Item,
    Kind,
    Mark,
    Unit,
    Value,
    drop_empty,
    interval_column,
    mark_imprecise,
    number,
    verdict_word,
)
from flopwatch.output.units import format_measured_ratio, format_measured_time
from flopwatch.records.record import Record
from flopwatch.suites.case import format_value

NOT_COMPARABLE = "not comparable"
OF_PEAK: dict[Standard, str] = {"nominal": "of peak", "measured": "of measured peak"}
MOST_NEAR = 3


@dataclass(frozen=True, slots=True)
class Family:
    """Columns that depend on the rows: of their axes, their phases, their facts or their suite."""

    kind: str
    list_all: Callable[[Sequence[Row]], Iterable[str]]
    list_in_table: Callable[[Sequence[Row]], Sequence[str]]
    make: Callable[[str, Sequence[Row]], Column[Row]]


Columns = Mapping[str, Column[Row]]
"""All columns of some rows, by name, in order."""


def list_columns(rows: Sequence[Row]) -> Columns:
    """All that can be asked of these rows."""
    taken = {each.name.casefold() for each in COLUMNS if isinstance(each, Column)}
    found: list[Column[Row]] = []
    for each in COLUMNS:
        found += [each] if isinstance(each, Column) else _list_family(each, rows, taken)
    return {column.name: column for column in found}


def _list_family(family: Family, rows: Sequence[Row], taken: set[str]) -> list[Column[Row]]:
    """With names that are not taken, which are taken then. DuckDB reads them in any case."""
    columns = []
    for found in dict.fromkeys(family.list_all(rows)):
        column = family.make(found, rows)
        name = column.name
        while name.casefold() in taken:
            name = f"{family.kind}_{name}"
        taken.add(name.casefold())
        columns.append(replace(column, name=name))
    return columns


def case_columns(rows: Sequence[Row]) -> list[Column[Row]]:
    """Of the usual table, with a line for every case."""
    columns: list[Column[Row]] = []
    for each in COLUMNS:
        if isinstance(each, Family):
            columns += [each.make(name, rows) for name in each.list_in_table(rows)]
        elif each.in_table(rows):
            columns.append(each)
    if not _choose_several_phases(rows):
        columns = [replace(c, heading="time") if c.name == "total_ns" else c for c in columns]
    return drop_empty(columns, rows)


def find_column(columns: Columns, name: str) -> Column[Row]:
    """By its name, in any case."""
    found = next((c for c in columns.values() if c.name.casefold() == name.casefold()), None)
    if found is None:
        raise UsageError(
            f"there is no column {name!r}{describe_near(columns, name)}; --columns help lists all"
        )
    return found


def describe_near(columns: Columns, name: str) -> str:
    """
    >>> describe_near(list_columns([]), "total")
    ' (did you mean total_ns, total_low_ns or total_high_ns?)'
    """
    wanted = name.casefold()
    begin = [each for each in columns if wanted and each.casefold().startswith(wanted)]
    near = [*begin, *get_close_matches(wanted, columns, n=MOST_NEAR, cutoff=0.6)]
    *others, last = list(dict.fromkeys(near))[:MOST_NEAR] or [""]
    named = " or ".join(filter(None, [", ".join(others), last]))
    return f" (did you mean {named}?)" if named else ""


def describe_columns(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the list of columns: ``--columns help``."""
    listed = list_columns(rows).values()
    return ["column", "unit", "meaning"], [[each.name, each.unit, each.meaning] for each in listed]


def describe_case(row: Row) -> dict[str, Any]:
    """For JSON: the columns that all cases have, and what a table cannot hold. A time and a speedup
    have their intervals."""
    columns = [each for each in COLUMNS if isinstance(each, Column)]
    return {**{column.name: column.find_value(row) for column in columns}, **as_dict(row)}


def axis_column(axis: str, record_of: Callable[[Item], Record]) -> Column[Item]:
    def value(item: Item) -> Value:
        found = record_of(item).params.get(axis)
        is_plain = found is None or isinstance(found, int | float)
        return found if is_plain else format_value(found)

    return Column(
        axis,
        lambda item: format_value(record_of(item).params.get(axis, "")),
        "word",
        value,
        heading=axis,
        meaning="an axis of the suite",
        is_axis=True,
    )


def label_columns(
    axes: Iterable[str], record_of: Callable[[Item], Record], *between: Column[Item]
) -> list[Column[Item]]:
    """What the rows of most tables begin with: their axes and their variant. What a group has in
    common comes before the variant."""
    variant: Column[Item] = Column("variant", lambda item: record_of(item).variant, "word")
    return [*(axis_column(axis, record_of) for axis in axes), *between, variant]


def quantity(
    name: str,
    unit: Unit,
    meaning: str,
    find: Callable[[Row], Estimate | Value],
    importance: Kind | None = None,
    **details: Any,
) -> Column[Row]:
    """An entry of the registry. Without an importance it is shown on request only; details are
    other fields of a Column, where what follows from the unit does not do."""
    fields = {
        "heading": name.removesuffix("_ns").removesuffix("_bytes").replace("_", " "),
        "has_words": not unit,
        "in_table": lambda _: importance is not None,
        **details,
    }
    kind = importance or ("number" if unit else "word")
    return number(name, unit, find, kind, meaning=meaning, **fields)


def _list_differing_axes(rows: Sequence[Row]) -> list[str]:
    axes = dict.fromkeys(axis for row in rows for axis in row.record.params)
    return [a for a in axes if len({format_value(row.record.params.get(a)) for row in rows}) > 1]


def choose_phases(rows: Sequence[Row]) -> list[str]:
    """The phases that have a column: the baseline's, or where none was measured, those of the first
    row that was. All others are parts, with a table of their own."""
    measured = [row for row in rows if row.phases_ns]
    baselines = [row for row in measured if row.record.variant == row.record.baseline]
    chosen = baselines or measured[:1]
    return list(dict.fromkeys(phase for row in chosen for phase in row.phases_ns))


def _choose_several_phases(rows: Sequence[Row]) -> list[str]:
    """None where the total is all there is."""
    known = {phase for row in rows for phase in row.phases_ns}
    return choose_phases(rows) if len(known) > 1 else []


def _phase_column(phase: str, _: Sequence[Row]) -> Column[Row]:
    def find(row: Row) -> Estimate | None:
        return row.phases_ns.get(phase)

    meaning = f"the phase {phase}, median"
    return quantity(f"{phase}_ns", "ns", meaning, find, "phase", heading=phase,
                    marks=lambda row: _mark_time(row, find(row)))  # fmt: skip


def _list_differing_facts(rows: Sequence[Row]) -> list[str]:
    """Facts in which variants of one group differ, or that only some of them have."""
    groups: dict[str, list[Mapping[str, float]]] = {}
    for row in rows:
        if row.total_ns is not None:  # what has failed has none
            groups.setdefault(row.record.group_id, []).append(row.record.facts)
    names = dict.fromkeys(name for row in rows for name in row.record.facts)
    return [
        name
        for name in names
        if any(len({facts.get(name) for facts in group}) > 1 for group in groups.values())
    ]


def _fact_column(name: str, _: Sequence[Row]) -> Column[Row]:
    unit: Unit = "bytes" if name.endswith("_bytes") else "count"
    meaning = "a fact of the workload"
    return quantity(name, unit, meaning, lambda row: row.record.facts.get(name), "fact",
                    heading=name_fact(name))  # fmt: skip


def _list_suite_columns(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.record.columns))


def _suite_column(name: str, rows: Sequence[Row]) -> Column[Row]:
    """One that the suite declares: in any unit, with numbers or with words."""
    known = [row.record.columns[name] for row in rows if name in row.record.columns]
    unit = known[0].unit
    is_known = unit in get_args(Unit)
    title = name.removesuffix(f"_{unit.lower()}").replace("_", " ")

    def find(row: Row) -> Value:
        return row.record.columns[name].value if name in row.record.columns else None

    column = number(
        name,
        cast(Unit, unit) if unit and is_known else "count",
        find,
        "throughput",  # among the last that a narrow terminal leaves out
        heading=title if is_known else f"{title} ({unit})",
        meaning=known[0].meaning,
        has_words=all(isinstance(each.value, str | bool) for each in known),
    )
    return replace(column, unit=unit)


def name_fact(name: str) -> str:
    """A fact's heading.

    >>> [name_fact(name) for name in ("kept_for_backward_bytes", "compile_s")]
    ['kept for backward', 'compile (s)']
    """
    title = name.removesuffix("_bytes").replace("_", " ")
    # "compile s" would read as a plural.
    return f"{title.removesuffix(' s')} (s)" if title.endswith(" s") else title


def choose_peaks(rows: Sequence[Row]) -> dict[Standard, str]:
    """What part of which peaks has a column: where there is an MFU, that says it."""
    has_mfu = any(row.utilisation and row.utilisation.mfu is not None for row in rows)
    return {} if has_mfu else OF_PEAK


def _recomputes(rows: Sequence[Row]) -> bool:
    """Whether any HFU is not the MFU."""
    used = [row.utilisation for row in rows if row.utilisation]
    return any(each.hfu != each.mfu for each in used)


def _peak_share(standard: Standard) -> Callable[[Row], float | None]:
    return lambda row: row.of_peak[standard].share if standard in row.of_peak else None


UNCLEAR = Mark("?", "unclear, the interval is too wide for a verdict or there is none")
SLIGHT = Mark("~", "slightly faster or slower, by less than the threshold")
UNFAIR = Mark("*", f"{NOT_COMPARABLE}, the usual table says why")
VERDICT_MARKS = {"unclear": UNCLEAR, "slightly faster": SLIGHT, "slightly slower": SLIGHT}


def mark_speedup(row: Row) -> Sequence[Mark]:
    """What a speedup needs that stands without its interval and its verdict."""
    if row.speedup is None:
        return ()
    mark = None if _is_published(row) else VERDICT_MARKS.get(row.verdict or "")
    return (*([mark] if mark else ()), *((UNFAIR,) if row.differences else ()))


def _mark_time(row: Row, time_ns: Estimate | None) -> Sequence[Mark]:
    return () if _is_published(row) else mark_imprecise(time_ns)


def _is_published(row: Row) -> bool:
    """The conditions below a table say once that published figures have no intervals."""
    return "published" in row.record.environment


FROM_TOTAL: dict[str, Any] = {
    "interval": "total_half_width",
    "marks": lambda row: _mark_time(row, row.total_ns),
    "estimate": lambda row: row.total_ns,
}
"""Of the total and of whatever is computed from it."""


def _end(name: str, end: str) -> Callable[[Row], float | None]:
    """A number of an estimate of the row: its low or high end, or its half width."""
    return lambda row: getattr(getattr(row, name), end, None)


def _environment(*paths: str) -> Callable[[Row], str | None]:
    """The first of the environment's entries that is known."""

    def find(row: Row) -> str | None:
        known = filter(None, (look_up(row.record.environment, path) for path in paths))
        return next(map(str, known), None)

    return find


def _setting(name: str) -> Callable[[Row], Any]:
    """None for published figures, whose settings are not known."""
    return lambda row: (
        None if "published" in row.record.environment else getattr(row.record.settings, name)
    )


def _verdict_cell(row: Row) -> str:
    if row.in_parts:
        return "in parts"
    return "" if row.total_ns is None else describe_verdict(row, row.verdict)


def describe_verdict(row: Row, verdict: Verdict | None) -> str:
    """A verdict on the row or a part of it. The verdict's own word comes first: `verdict_word`."""
    if row.record.variant == row.record.baseline:
        return "baseline"
    return ", ".join(filter(None, [verdict, NOT_COMPARABLE if row.differences else None]))


COLUMNS: tuple[Column[Row] | Family, ...] = (
    quantity("suite", "", "the suite's name", lambda row: row.record.suite),
    Family("axis", lambda rows: (axis for row in rows for axis in row.record.params),
           _list_differing_axes, lambda axis, _: axis_column(axis, lambda row: row.record)),
    quantity("variant", "", "the variant", lambda row: row.record.variant, "word"),
    quantity("baseline", "", "the variant it is compared with", lambda row: row.record.baseline),
    quantity("status", "", "ok, or the code of what went wrong", lambda row: row.record.status),
    quantity("message", "", "what went wrong, in a sentence", lambda row: row.record.message),
    Family("phase", lambda rows: (phase for row in rows for phase in row.record.samples_ns),
           _choose_several_phases, _phase_column),
    quantity("total_ns", "ns", "all phases together, median", lambda row: row.total_ns, "number",
             cell=lambda row: format_measured_time(row.total_ns) or row.record.status,
             **FROM_TOTAL),
    quantity("total_low_ns", "ns", "low end of total_ns's interval", _end("total_ns", "low")),
    quantity("total_high_ns", "ns", "high end of total_ns's interval", _end("total_ns", "high")),
    quantity("total_half_width", "share", "half width of the interval of total_ns, relative to it",
             _end("total_ns", "half_width"), "interval", heading="±",
             cell=interval_column(lambda row: row.total_ns).cell),
    quantity("tokens_per_s", "tokens/s", "tokens per second, of all ranks",
             lambda row: row.tokens_per_s, "throughput", heading="tokens/s", **FROM_TOTAL),
    quantity("flops_per_s", "FLOP/s", "FLOPs that the suite declares, per second",
             lambda row: row.flops_per_s, "rate", heading="FLOP/s", **FROM_TOTAL),
    quantity("of_nominal_peak", "share", "share of the nominal peak",
             _peak_share("nominal"), "share", heading=OF_PEAK["nominal"],
             in_table=lambda rows: "nominal" in choose_peaks(rows), **FROM_TOTAL),
    quantity("of_measured_peak", "share", "share of the peak that `flopwatch peaks` measured",
             _peak_share("measured"), "share", heading=OF_PEAK["measured"],
             in_table=lambda rows: "measured" in choose_peaks(rows), **FROM_TOTAL),
    quantity("mfu", "share", "model FLOPs utilisation of a training job, by the convention exact",
             lambda row: getattr(row.utilisation, "mfu", None), "throughput", heading="MFU",
             **FROM_TOTAL),
    quantity("hfu", "share", "hardware FLOPs utilisation of a training job",
             lambda row: getattr(row.utilisation, "hfu", None), "throughput", heading="HFU",
             in_table=_recomputes, **FROM_TOTAL),
    quantity("bytes_per_s", "B/s", "bytes that the suite declares, per second",
             lambda row: row.bytes_per_s, "rate", heading="bandwidth", **FROM_TOTAL),
    quantity("peak_memory_bytes", "bytes", "the most that a run allocates beyond what was there",
             lambda row: row.record.peak_memory_bytes, "memory"),
    Family("fact", lambda rows: (fact for row in rows for fact in row.record.facts),
           _list_differing_facts, _fact_column),
    Family("column", _list_suite_columns, _list_suite_columns, _suite_column),
    quantity("limit", "ratio", "the speedup that the FLOPs alone would give",
             lambda row: row.limit, "limit"),
    quantity("speedup", "ratio", "over the baseline, median of the ratios within rounds",
             lambda row: row.speedup, "number", marks=mark_speedup,
             brief=lambda row: "" if row.speedup is None else format_measured_ratio(row.speedup)),
    quantity("speedup_low", "ratio", "low end of speedup's interval", _end("speedup", "low")),
    quantity("speedup_high", "ratio", "high end of speedup's interval", _end("speedup", "high")),
    quantity("verdict", "", "faster, slower, slightly faster, slightly slower, same or unclear",
             lambda row: row.verdict, "word", cell=_verdict_cell,
             tone=lambda row: verdict_word(_verdict_cell(row))),
    quantity("comparable", "", "whether case and baseline ran under the same conditions",
             lambda row: None if row.against is None else not row.differences),
    quantity("samples", "count", "samples after warm-up",
             lambda row: len(row.record.rounds) - row.record.warmup_samples
             if row.monitored is None else row.monitored.steady_steps),
    quantity("goodput", "share", "of the wall clock of a monitored run, that advanced training",
             lambda row: getattr(getattr(row.monitored, "goodput", None), "share", None)),
    quantity("data_share", "share", "of the wall clock of a monitored run, that waited for data",
             lambda row: getattr(row.monitored, "data_share", None)),
    quantity("slow_steps", "count", "of a monitored run: much longer than their neighbours",
             lambda row: None if row.monitored is None else len(row.monitored.slow)),
    quantity("steady", "", "whether a steady state was detected", lambda row: row.record.steady),
    quantity("stop_reason", "", "why sampling ended", lambda row: row.record.stop_reason),
    quantity("device", "", "cpu or cuda", _setting("device")),
    quantity("threads", "count", "threads that were used", _setting("threads")),
    quantity("cache", "", "hot or cold", _setting("cache")),
    quantity("allocator", "", "what the C library did with freed memory", _setting("allocator")),
    quantity("device_model", "", "the GPU, or the CPU",
             _environment("torch.gpu.name", "machine.cpu_model")),
    quantity("torch", "", "torch's version", _environment("torch.version")),
    quantity("conditions_id", "", "a hash, equal for cases that are comparable",
             lambda row: conditions(row.record)),
    quantity("run_id", "", "one `flopwatch run`", lambda row: row.record.run_id),
    quantity("case_id", "", "hash of suite, variant, params", lambda row: row.record.case_id),
    quantity("measured_at", "", "when, UTC", lambda row: row.record.measured_at),
)  # fmt: skip
"""In the order of tables and of CSV."""
