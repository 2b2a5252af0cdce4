"""The DYAD benchmark: mean times of one feed-forward layer inside a model, by name.

A name says the layer and sometimes the model; the heading above it says the rest. Rows above the
line "No Auto Cast" ran the sparse layers under float16 autocast, and the dense ones in float32. A
dense row is the baseline of both kinds, so that it becomes two records: one in the group of the
published comparison (autocast=published), one in that which is comparable (autocast=off).

The level is "feed-forward", not "model": the time is that of a layer, not of a training step.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace

from flopwatch.errors import UsageError
from flopwatch.jobs.model_shapes import find_shape
from flopwatch.layers import registry
from flopwatch.records.foreign import make_published, name_run, parse_count, parse_figure
from flopwatch.records.record import Record
from flopwatch.suites.case import Case

BASELINE = "dense"
BATCH = re.compile(r"Batch Size - (\d+), seq_len - (\d+)")
BLOCK = re.compile(r"-{3,} *\w.*-{3,}$")
TIMES = re.compile(r"total avg: (\S+), fwd_avg: (\S+), bwd_avg: (\S+)$")
NAME = re.compile(
    r"(?P<kind>sparse|dense)(?:[-_](?P<blocks>\d{1,9}))?(?:[-_](?P<form>out|d)_?T)?"
    r"(?:[-_](?P<size>\d+m))?(?: hidden_size (?P<width>\d{1,9}))?",
    re.IGNORECASE,
)
SPEEDUP = re.compile(r"(\d+) - (\d+\.\d+)$")
FORMS = {None: "it", "out": "ot", "d": "dt"}
CONCATENATED = "concat"
TRANSPOSED_NOTE = (
    "it stands above the line 'No Auto Cast', but its time is close to that of float32 rows: "
    "whether autocast was on is not known"
)
FORM_NOTE = (
    "the text does not say whether both halves were one matmul; at width 768 the time is close to "
    "that of the rows where they were"
)
SLIP_NOTE = "the text prints the speedup at width 2048 as that of 4096, which it has no times of"


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """A row of the text."""

    line: int
    block: str
    """The heading above, dashes included; empty above the first one."""
    name: str
    times_ms: list[float]
    """Total, forward, backward."""
    batch: list[int]
    """Sequences, tokens of each."""


def read_dyad(text: str) -> list[Record]:
    """What is neither a name with times nor a heading is passed over."""
    run = name_run("dyad", text)
    batch: list[int] = []
    block = name = ""
    records: list[Record] = []
    for number, line in enumerate((line.strip() for line in text.splitlines()), 1):
        if found := BATCH.search(line):
            batch = _parse_batch(number, found)
        elif BLOCK.match(line):
            block = line
        elif found := TIMES.match(line):
            if not batch:
                raise UsageError("there is no line 'Batch Size - N, seq_len - N' above the times")
            try:
                times = [parse_figure(time) for time in found.groups()]
            except ValueError:
                raise UsageError(
                    f"line {number} has a time that is no number above 0; mend it"
                ) from None
            row = Figures(line=number, block=block, name=name, times_ms=times, batch=batch)
            records += _make_records(run, row)
        elif found := SPEEDUP.match(line):
            records = _add_speedup(records, number, found[1], found[2])
        name = line or name
    if not records:
        raise UsageError(
            "there are no times of the DYAD benchmark in it; give its text, with lines "
            "'total avg: ..., fwd_avg: ..., bwd_avg: ...'"
        )
    return records


def _parse_batch(number: int, found: re.Match[str]) -> list[int]:
    try:
        return [parse_count(count) for count in found.groups()]
    except ValueError:
        raise UsageError(f"line {number} has a batch that is too large; mend it") from None


def _make_records(run: str, row: Figures) -> list[Record]:
    parsed = NAME.fullmatch(row.name)
    if parsed is None:
        raise UsageError(
            f"line {row.line} has times of {row.name!r:.60}, which is no name of the DYAD "
            "benchmark; it has Dense, Sparse, Sparse_8, Sparse_out_T and the like"
        )
    is_dense = parsed["kind"].lower() == "dense"
    casts = ["off"] if row.block else ["published"]
    if is_dense and not row.block:
        casts = ["published", "off"]  # it is what the rows below "No Auto Cast" compare with
    return [_make_record(run, row, parsed, autocast) for autocast in casts]


def _make_record(run: str, row: Figures, parsed: re.Match[str], autocast: str) -> Record:
    _, forward_ms, backward_ms = row.times_ms
    model, variant = _find_model(row, parsed), _find_variant(row, parsed)
    shape = find_shape(model)
    is_cast = autocast == "published" and variant != BASELINE
    params = {
        "level": "feed-forward",
        "model": model,
        "micro_batch": row.batch[0],
        "seq_len": row.batch[1],
        "dtype": "float32",
        "autocast": autocast,
    }
    return make_published(
        run,
        Case(suite="dyad", variant=variant, params=params),
        printed=asdict(row),
        times_ns={"forward": forward_ms * 1e6, "backward": backward_ms * 1e6},
        baseline=BASELINE,
        conditions={"dtype": "float32", "autocast": "float16" if is_cast else "off"},
        flops=registry.count_flops_by_dtype(
            variant,
            row.batch[0] * row.batch[1],
            shape.hidden_size,
            shape.feed_forward_size,
            "float16" if is_cast else "float32",
        ),
        facts={"hidden_size": float(shape.hidden_size), "layers": float(shape.layers)},
        notes=_find_notes(parsed, variant, is_cast),
    )


def _find_model(row: Figures, parsed: re.Match[str]) -> str:
    if parsed["width"]:
        return f"opt-6l-{parsed['width']}"
    if "pythia" in row.block.lower():
        return "pythia-160m"
    return f"opt-{parsed['size'] or '125m'}"


def _find_variant(row: Figures, parsed: re.Match[str]) -> str:
    if parsed["kind"].lower() == BASELINE:
        return BASELINE
    form = FORMS[parsed["form"] and parsed["form"].lower()]
    end = ":published-cat" if CONCATENATED in row.block.lower() else ""
    return f"dyad:{form}:{parsed['blocks'] or 4}{end}"


def _find_notes(parsed: re.Match[str], variant: str, is_cast: bool) -> list[str]:
    warnings = {
        TRANSPOSED_NOTE: is_cast and parsed["form"] is not None,
        FORM_NOTE: variant != BASELINE and parsed["width"] is not None,
    }
    return [note for note, is_due in warnings.items() if is_due]


def _add_speedup(records: list[Record], number: int, width: str, speedup: str) -> list[Record]:
    """Give a printed speedup to the sparse layer of that width, or where there is none, to the
    widest: the text has such a slip."""
    sparse = [
        record
        for record in records
        if record.variant != BASELINE
        and "hidden_size" in record.environment["published"]["printed"]["name"]
    ]
    if not sparse:
        return records  # it is of something else
    fitting = [r for r in sparse if r.facts["hidden_size"] == float(width)]
    chosen = (fitting or [max(sparse, key=lambda r: r.facts["hidden_size"])])[0]
    printed = {
        **chosen.environment["published"]["printed"],
        "speedup": {"line": number, "width": width, "value": float(speedup)},
    }
    changed = replace(
        chosen,
        notes=chosen.notes if fitting else [*chosen.notes, SLIP_NOTE],
        environment={"published": {"printed": printed}},
    )
    return [changed if record is chosen else record for record in records]
