"""The tables of a CS336 write-up: seconds of a forward and a backward pass, model by model.

A table does not say how it was made: the words above it do. They are searched for a number of
warm-up steps and for a profiler. Sums in short floating-point numbers, as torch prints them, are
figures of the write-up too; they have no time.
"""

from __future__ import annotations

import re
from typing import Any

from flopwatch.errors import UsageError
from flopwatch.records.foreign import (
    find_printed,
    make_published,
    name_run,
    parse_count,
    parse_figure,
)
from flopwatch.records.record import Record
from flopwatch.suites.case import Case

HEADINGS = ["experiment_name", "forward time", "forward std", "backward time", "backward std"]
USUAL_WARMUP_STEPS = 5
"""Of the first table, which does not say: later ones are compared with that number."""
WARMUP = re.compile(r"\b(no|\d+)[ -]warm-?up", re.IGNORECASE)
PROFILER = re.compile(r"\bnsys", re.IGNORECASE)
OUT_OF_MEMORY = re.compile(r"(\d\S*?B)\b[^\n.]*out of memory", re.IGNORECASE)
SUM = re.compile(r"^tensor\((?P<sum>[\d.]+)(?:, dtype=torch\.(?P<dtype>\w+))?\)", re.M)
SUMS = ("float32", "float16", "float16 to float32", "float16 cast to float32")
"""The write-up's order: the dtype of the number, and of the sum where it is another."""
COMPILED_NOTE = "torch.compile was on, as the later version of the write-up says"
UNSAID_NOTE = "the text does not say whether torch.compile was on; it is taken to be off"


def read_cs336(text: str) -> list[Record]:
    """Prose between the tables is passed over but for what it says of them."""
    run = name_run("cs336", text)
    compiled = "torch.compile" in text
    records: list[Record] = []
    said: list[str] = []
    table: dict[str, Any] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith(("|", "+")):
            said, table = [*([] if table else said), line], None
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if [cell.lower() for cell in cells] == HEADINGS:
            table = _describe_table("\n".join(said))
        elif table and line.startswith("|"):
            records.append(_make_record(run, number, cells, table, compiled))
    if not records:
        raise UsageError(
            "there is no table of a CS336 write-up in it; give one with the headings "
            "Experiment_name, Forward time, Forward std, backward time and backward std"
        )
    models = dict.fromkeys(OUT_OF_MEMORY.findall(text))
    return [*records, *(_lack_memory(records[0], m) for m in models), *_make_sums(run, text)]


def _describe_table(said: str) -> dict[str, Any]:
    """The axes that the words above a table give."""
    if PROFILER.search(said):
        return {"profiler": "nsys"}  # and no word of a warm-up
    steps = WARMUP.search(said)
    if steps is None:
        return {"warmup_steps": USUAL_WARMUP_STEPS}
    try:
        return {"warmup_steps": 0 if steps[1].lower() == "no" else parse_count(steps[1])}
    except ValueError:
        raise UsageError("it has a number of warm-up steps that is too large; mend it") from None


def _make_record(
    run: str, number: int, cells: list[str], axes: dict[str, Any], compiled: bool
) -> Record:
    model, *figures = cells
    try:
        forward_s, backward_s = map(parse_figure, figures[::2])
        forward_std_s, backward_std_s = (parse_figure(figure, 0.0) for figure in figures[1::2])
    except ValueError:
        raise UsageError(
            f"line {number} does not have a name, two times and two deviations; mend or delete it"
        ) from None
    warmup_steps = axes.get("warmup_steps")
    variant = "compiled" if compiled else "eager"
    return make_published(
        run,
        Case(suite="steps", variant=variant, params={"model": model, **axes}),
        printed={"line": number},
        times_ns={"forward": forward_s * 1e9, "backward": backward_s * 1e9},
        baseline="eager",
        facts={"forward_std_s": forward_std_s, "backward_std_s": backward_std_s},
        conditions={
            "compile": "on" if compiled else "unknown",
            "profiler": axes.get("profiler", "off"),
            "warm-up": "unknown" if warmup_steps is None else f"{warmup_steps} steps",
        },
        notes=[COMPILED_NOTE if compiled else UNSAID_NOTE],
    )


def _lack_memory(first: Record, model: str) -> Record:
    """The same as the first of all tables, of a model that was too large."""
    params = {**first.params, "model": model}
    return make_published(
        first.run_id,
        Case(suite=first.suite, variant=first.variant, params=params),
        printed=find_printed(first) or {},
        baseline=first.baseline,
        status="oom",
        message="it ran out of the GPU's memory",
        conditions=first.conditions,
    )


def _make_sums(run: str, text: str) -> list[Record]:
    """None where they are not those four that the assignment asks for."""
    found = [float(match["sum"]) for match in SUM.finditer(text)]
    if len(found) != len(SUMS):
        return []
    return [
        make_published(
            run,
            Case(suite="precision", variant=dtypes, params={"addend": 0.01, "times": 1000}),
            printed={"sum": place},
            baseline=SUMS[0],
            facts={"sum": total},
            notes=[f"the sum came to {total}; no time was published"],
        )
        for place, (dtypes, total) in enumerate(zip(SUMS, found, strict=True))
    ]
