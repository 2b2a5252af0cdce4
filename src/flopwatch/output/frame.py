"""Results as one flat table: a row a case, a field for everything that is known of it.

What a field is called is also what ``--columns``, ``--sort``, ``--where`` and ``--pivot`` call it,
and the heading of its column in CSV and JSON: units are in the names, and values are raw. An axis,
a phase or a fact goes by its own name, unless another field has it: then ``axis_``, ``phase_`` or
``fact_`` stands before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from flopwatch.analysis.record_device import Standard
from flopwatch.analysis.statistics import Estimate
from flopwatch.analysis.summary import Row, conditions
from flopwatch.devices.environment import look_up
from flopwatch.errors import UsageError
from flopwatch.output.columns import (
    Value,
    find_peak_share,
    find_utilisation_share,
    format_fact,
    middle,
    name_fact,
    verdict_cell,
)
from flopwatch.output.units import (
    format_bytes,
    format_count,
    format_measured_ratio,
    format_measured_time,
    format_rate,
    format_ratio,
    format_share,
    format_speedup,
    format_time,
)
from flopwatch.suites.case import format_value

MOST_NEAR = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    name: str
    heading: str
    """For people: the unit stands in the cells."""
    about: str
    find: Callable[[Row], Value]
    """The raw value; None where nothing is known."""
    form: Callable[[Row], str]
    """The value as people read it, with what belongs to it; empty where nothing is known."""
    brief: Callable[[Row], str] | None = None
    """The same without an interval, for a table that has many of them."""
    is_word: bool = False
    is_axis: bool = False


Frame = Mapping[str, Field]
"""The fields of some rows, by name, in order."""


def make_frame(rows: Sequence[Row]) -> Frame:
    """All that can be asked of these rows."""
    axes = dict.fromkeys(axis for row in rows for axis in row.record.params)
    phases = dict.fromkeys(phase for row in rows for phase in row.record.samples_ns)
    facts = dict.fromkeys(fact for row in rows for fact in row.record.facts)
    names = {field.name.casefold() for field in (*WHAT, *OUTCOME, *MEASURED, *CONDITIONS)}
    own_axes = _rename("axis", map(_axis_field, axes), names)
    own_phases = _rename("phase", map(_phase_field, phases), names)
    own_facts = _rename("fact", map(_fact_field, facts), names)
    suite, *others = WHAT
    fields = [suite, *own_axes, *others, *OUTCOME, *own_phases, *MEASURED, *own_facts, *CONDITIONS]
    return {field.name: field for field in fields}


def find_field(frame: Frame, name: str) -> Field:
    """By its name, in any case."""
    found = next((f for f in frame.values() if f.name.casefold() == name.casefold()), None)
    if found is None:
        raise UsageError(
            f"there is no column {name!r}{describe_near(frame, name)}; --columns help lists all"
        )
    return found


def describe_near(frame: Frame, name: str) -> str:
    """
    >>> describe_near(make_frame([]), "total")
    ' (did you mean total_ns, total_low_ns or total_high_ns?)'
    """
    wanted = name.casefold()
    begin = [each for each in frame if wanted and each.casefold().startswith(wanted)]
    near = [*begin, *get_close_matches(wanted, frame, n=MOST_NEAR, cutoff=0.6)]
    *others, last = list(dict.fromkeys(near))[:MOST_NEAR] or [""]
    named = " or ".join(filter(None, [", ".join(others), last]))
    return f" (did you mean {named}?)" if named else ""


def _rename(kind: str, fields: Iterable[Field], names: set[str]) -> list[Field]:
    """With names that are not taken, which are taken then. DuckDB reads them in any case."""
    renamed = []
    for field in fields:
        name = field.name
        while name.casefold() in names:
            name = f"{kind}_{name}"
        names.add(name.casefold())
        renamed.append(replace(field, name=name))
    return renamed


def _axis_field(axis: str) -> Field:
    def find(row: Row) -> Value:
        value = row.record.params.get(axis)
        return value if value is None or isinstance(value, int | float) else format_value(value)

    field = _word(axis, "an axis of the suite", find)
    return replace(field, heading=axis, is_axis=True)


def _phase_field(phase: str) -> Field:
    return _time(f"{phase}_ns", f"the phase {phase}, median", lambda row: row.phases_ns.get(phase))


def _fact_field(fact: str) -> Field:
    def form(row: Row) -> str:
        value = row.record.facts.get(fact)
        return "" if value is None else format_fact(fact, value)

    return Field(
        name=fact,
        heading=name_fact(fact),
        about="a fact of the workload",
        find=lambda row: row.record.facts.get(fact),
        form=form,
    )


def _word(name: str, about: str, find: Callable[[Row], Value]) -> Field:
    def form(row: Row) -> str:
        value = find(row)
        return "" if value is None else format_value(value)

    return Field(
        name=name,
        heading=name.replace("_", " "),
        about=about,
        find=find,
        form=form,
        is_word=True,
    )


def _time(name: str, about: str, find: Callable[[Row], Estimate | None]) -> Field:
    return Field(
        name=name,
        heading=name.removesuffix("_ns").replace("_", " "),
        about=about,
        find=lambda row: middle(find(row)),
        form=lambda row: format_measured_time(find(row)),
    )


def _number(
    name: str, about: str, find: Callable[[Row], float | None], form: Callable[[float], str]
) -> Field:
    def cell(row: Row) -> str:
        value = find(row)
        return "" if value is None else form(value)

    return Field(
        name=name,
        heading=HEADINGS.get(name, name.removesuffix("_ns").replace("_", " ")),
        about=about,
        find=find,
        form=cell,
    )


HEADINGS = {
    "total_half_width": "±",
    "flops_per_s": "FLOP/s",
    "bytes_per_s": "bandwidth",
    "tokens_per_s": "tokens/s",
    "of_nominal_peak": "of peak",
    "mfu": "MFU",
    "hfu": "HFU",
    "peak_memory_bytes": "peak memory",
}


def _form_total(row: Row) -> str:
    return format_measured_time(row.total_ns) or row.record.status


def _form_speedup(row: Row) -> str:
    return "" if row.speedup is None else format_speedup(row.speedup)


def _form_speedup_briefly(row: Row) -> str:
    if row.speedup is None or row.speedup.low is None:
        return _form_speedup(row)  # that there is no interval is told everywhere
    return format_measured_ratio(row.speedup)


def _find_end(name: str, end: str) -> Callable[[Row], float | None]:
    """A number of an estimate of the row: its low or high end, or its half width."""

    def find(row: Row) -> float | None:
        estimate = getattr(row, name)
        return None if estimate is None else getattr(estimate, end)

    return find


def _share_of(standard: Standard) -> Callable[[Row], float | None]:
    return lambda row: find_peak_share(row, standard)


def _is_like(row: Row) -> bool | None:
    return None if row.against is None else not row.unlike


def _look_up(*paths: str) -> Callable[[Row], str | None]:
    """The first of the environment's entries that is known."""

    def find(row: Row) -> str | None:
        known = filter(None, (look_up(row.record.environment, path) for path in paths))
        return next(map(str, known), None)

    return find


def _setting(name: str) -> Callable[[Row], Any]:
    """None for published figures, whose settings are not told."""
    return lambda row: (
        None if "published" in row.record.environment else getattr(row.record.settings, name)
    )


def _form_half_width(half_width: float) -> str:
    return f"±{format_share(half_width)}"


def _form_rate(per_second: float) -> str:
    return format_rate(per_second, "").rstrip()


def _form_bandwidth(bytes_per_s: float) -> str:
    return format_rate(bytes_per_s, "B/s")


WHAT = (
    _word("suite", "the suite's name", lambda row: row.record.suite),
    _word("variant", "the variant", lambda row: row.record.variant),
    _word("baseline", "what it is compared with", lambda row: row.record.baseline),
)
OUTCOME = (
    _word("status", "ok, or what went wrong", lambda row: row.record.status),
    _word("reason", "what went wrong, in a sentence", lambda row: row.record.reason),
)
MEASURED = (
    Field(
        name="total_ns",
        heading="total",
        about="all phases together, median",
        find=lambda row: middle(row.total_ns),
        form=_form_total,
    ),
    _number("total_low_ns", "low end of its interval", _find_end("total_ns", "low"), format_time),
    _number("total_high_ns", "high end of its interval", _find_end("total_ns", "high"),
            format_time),
    _number("total_half_width", "how far the interval reaches, relative to the median",
            _find_end("total_ns", "half_width"), _form_half_width),
    Field(
        name="speedup",
        heading="speedup",
        about="over the baseline, median of the ratios within rounds",
        find=lambda row: middle(row.speedup),
        form=_form_speedup,
        brief=_form_speedup_briefly,
    ),
    _number("speedup_low", "low end of its interval", _find_end("speedup", "low"), format_ratio),
    _number("speedup_high", "high end of its interval", _find_end("speedup", "high"), format_ratio),
    Field(
        name="verdict",
        heading="verdict",
        about="faster, slower, same or unclear",
        find=lambda row: row.verdict,
        form=verdict_cell,
        is_word=True,
    ),
    _word("like_for_like", "whether case and baseline had the same conditions", _is_like),
    _number("limit", "the speedup that arithmetic alone would give", lambda row: row.limit,
            format_ratio),
    _number("flops_per_s", "FLOPs that the suite declares, a second",
            lambda row: row.flops_per_s, _form_rate),
    _number("bytes_per_s", "bytes that the suite declares, a second",
            lambda row: row.bytes_per_s, _form_bandwidth),
    _number("tokens_per_s", "tokens a second, of all ranks",
            lambda row: row.tokens_per_s, _form_rate),
    _number("of_nominal_peak", "share of the peak of the data sheet", _share_of("nominal"),
            format_share),
    _number("of_measured_peak", "share of the peak that `flopwatch peaks` measured",
            _share_of("measured"), format_share),
    _number("mfu", "model FLOPs utilisation of a training job, by the convention exact",
            lambda row: find_utilisation_share(row, "mfu"), format_share),
    _number("hfu", "hardware FLOPs utilisation of a training job",
            lambda row: find_utilisation_share(row, "hfu"), format_share),
    _number("peak_memory_bytes", "the most that one run holds beyond what was there before",
            lambda row: row.record.peak_memory_bytes, format_bytes),
    _number("samples", "samples after warm-up",
            lambda row: len(row.record.rounds) - row.record.warmup_samples, format_count),
    _word("steady", "whether a steady state was detected", lambda row: row.record.steady),
    _word("stop", "why sampling ended", lambda row: row.record.stop),
)  # fmt: skip
CONDITIONS = (
    _word("device", "cpu or cuda", _setting("device")),
    _number("threads", "threads that were used", _setting("threads"), format_count),
    _word("cache", "hot or cold", _setting("cache")),
    _word("allocator", "what the C library did with freed memory",
          _setting("allocator")),
    _word("machine", "the GPU, or the CPU", _look_up("torch.gpu.name", "machine.cpu_model")),
    _word("torch", "torch's version", _look_up("torch.version")),
    _word("conditions", "a hash, equal for cases that are like for like",
          lambda row: conditions(row.record)),
    _word("run", "one `flopwatch run`", lambda row: row.record.run),
    _word("id", "hash of suite, variant and parameters", lambda row: row.record.id),
    _word("taken_at", "when, UTC", lambda row: row.record.taken_at),
)  # fmt: skip
