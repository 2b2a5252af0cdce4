"""JSON schemas of records and of what every command prints with ``--json``, made from their types.

A schema has a version. It stays the same where a field is added, so that readers must pass over
fields that they do not know; it rises where a field goes, is renamed or changes its meaning. The
version of records is in each of them (`schema`).
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from itertools import pairwise
from typing import Any, get_args, get_type_hints, is_typeddict

import msgspec

from flopwatch import __version__
from flopwatch.errors import UsageError
from flopwatch.output import json_job_types as jobs
from flopwatch.output import json_trace_types as traces
from flopwatch.output import json_types as types
from flopwatch.output.columns import COLUMNS
from flopwatch.output.tables import Column
from flopwatch.records.record import SCHEMA, Record
from flopwatch.worker.precision_effects import Observed

DIALECT = "https://json-schema.org/draft/2020-12/schema"
REFERENCE = "#/$defs/"
BASES = {**types.BASES, **jobs.BASES, **traces.BASES}
SCALAR = {"type": ["string", "number", "boolean", "null"]}


@dataclass(frozen=True, slots=True)
class Output:
    """What some commands print."""

    command: str
    type: Any
    version: int = 1


OUTPUTS = {
    "record": Output("a line of a results file", Record, SCHEMA),
    "cases": Output("run SUITE, show RESULTS", list[types.MeasuredCase]),
    "suites": Output("run --list", list[types.SuiteName]),
    "preview": Output("run SUITE --dry-run", types.Preview),
    "profile": Output("profile", types.Profile, 2),
    "table": Output(
        "show RESULTS --columns ... or --pivot ...",
        list[dict[str, types.Value | dict[str, types.Value]]],
    ),
    "warmup": Output("show RESULTS --warmup", list[types.WarmupStudy]),
    "published": Output("show published", list[types.PublishedBenchmark]),
    "layout-dyad": Output("show RESULTS --layout dyad", list[types.DyadEntry]),
    "layout-cs336": Output("show RESULTS --layout cs336", list[types.Cs336Entry]),
    "layout-mosaic": Output("show RESULTS --layout mosaic", list[types.MosaicEntry]),
    "layout-switchback": Output(
        "show RESULTS --layout switchback", list[dict[str, float | bool | None]]
    ),
    "query": Output("query SQL", list[dict[str, Any]]),
    "explain": Output("explain RESULTS", list[types.Breakdown]),
    "explain-change": Output("explain OLD NEW", types.BreakdownChanges),
    "explain-trace": Output("explain TRACES", traces.TraceExplanation),
    "explain-trace-change": Output("explain OLD NEW, of traces", traces.TraceChange),
    "plot": Output("plot RESULTS", list[types.DrawnPlot]),
    "plot-list": Output("plot RESULTS --list", list[types.PlotKind]),
    "compare": Output("compare RESULTS, compare OLD NEW", types.Judgement),
    "compare-published": Output(
        "compare RESULTS --with published:NAME", list[types.PublishedComparison]
    ),
    "break-even": Output("compare RESULTS --break-even", list[types.BreakEvenSeries]),
    "ab": Output("ab BASE [HEAD]", types.JudgedRevisions),
    "check": Output("check RESULTS", list[types.FoundWarning]),
    "check-list": Output("check --list", list[types.WarningKind]),
    "predict": Output("predict", list[jobs.Prediction]),
    "predict-rows": Output("predict --rows FILE", list[dict[str, types.Value]]),
    "plan": Output("plan", jobs.Plan),
    "plan-comparison": Output("plan, of several models or hardware", jobs.PlanComparison),
    "plan-deadline": Output("plan --days N", jobs.Deadlines),
    "memory": Output("memory", list[jobs.PredictedMemory]),
    "mfu": Output("mfu", jobs.ComputedMfu),
    "mfu-formula": Output("mfu --formula", list[jobs.Formulas]),
    "models": Output("models", list[jobs.ListedModel]),
    "validate": Output("validate", jobs.Validation),
    "validate-results": Output("validate RESULTS", jobs.Scores),
    "calibrate": Output("calibrate RESULTS", jobs.FittedCalibration),
    "doctor": Output("doctor", jobs.Diagnosis),
    "low-precision": Output("doctor --low-precision", Observed),
    "peaks": Output("peaks", jobs.MeasuredPeaks),
    "devices": Output("peaks DEVICE, peaks --list", list[jobs.NominalDevice]),
}
"""By the name of the schema."""


def make_schema(name: str) -> dict[str, Any]:
    """
    >>> make_schema("suites")["items"]
    {'$ref': '#/$defs/SuiteName'}
    """
    if name not in OUTPUTS:
        raise UsageError(f"there is no schema {name!r}; choose one of {', '.join(OUTPUTS)}")
    output = OUTPUTS[name]
    used = {each.__name__: each for each in list_types(output.type)}
    bases = {own: base for own, base in BASES.items() if own.__name__ in used}
    wanted = [output.type, *(base for base, _ in bases.values())]
    (schema, *_), parts = msgspec.json.schema_components(
        wanted, ref_template=f"{REFERENCE}{{name}}"
    )
    for title, part in parts.items():
        _describe_part(part, used.get(title), is_printed=name != "record")
    for own, (base, without) in bases.items():
        _add_base(parts[own.__name__], parts[base.__name__], without)
    if name == "cases":
        _add_columns(parts["MeasuredCase"])
    return {
        "$schema": DIALECT,
        "$id": f"urn:flopwatch:schema:{name}:{output.version}",
        "title": name,
        "description": f"flopwatch {__version__}: {output.command}",
        **schema,
        "$defs": {title: parts[title] for title in sorted(_list_referenced(schema, parts))},
    }


def list_types(kind: Any) -> Iterator[Any]:
    """The dataclasses and typed dictionaries that a type is made of."""
    if not is_dataclass(kind) and not is_typeddict(kind):
        for argument in get_args(kind):
            yield from list_types(argument)
        return
    yield kind
    base, _ = BASES.get(kind, (None, ()))
    hints = [*get_type_hints(kind).values(), *([] if base is None else [base])]
    for hint in hints:
        yield from list_types(hint)


def _describe_part(part: dict[str, Any], kind: Any, *, is_printed: bool) -> None:
    """Meanings of fields; and of dataclasses, that all fields are there, as `asdict` writes them,
    where a reader of records takes the default of one that is missing."""
    meanings = {} if kind is None else read_meanings(kind)
    for field, content in part.get("properties", {}).items():
        if is_printed:
            content.pop("default", None)
        if field in meanings:
            content["description"] = meanings[field]
    if is_printed and is_dataclass(kind):
        part["required"] = list(part["properties"])
    about = part.pop("description", "").partition(">>>")[0].strip()
    if about:
        part["description"] = about


def read_meanings(kind: Any) -> dict[str, str]:
    """The strings below the fields of a class, in one line each; none where its source is lost."""
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError):
        return {}
    assert isinstance(tree, ast.ClassDef)
    return {
        field.target.id: " ".join(below.value.value.split())
        for field, below in pairwise(tree.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }


def _add_base(part: dict[str, Any], base: dict[str, Any], without: tuple[str, ...]) -> None:
    inherited = {field: c for field, c in base["properties"].items() if field not in without}
    part["properties"] = {**inherited, **part["properties"]}
    part["required"] = [*inherited, *part.get("required", [])]


def _add_columns(case: dict[str, Any]) -> None:
    """A case has all columns of tables, by name; `json_types` has those that are no plain value."""
    for column in COLUMNS:
        if isinstance(column, Column) and column.name not in case["properties"]:
            unit = f", in {column.unit}" if column.unit else ""
            case["properties"][column.name] = {
                **SCALAR,
                "description": f"{column.meaning}{unit}",
            }
            case["required"].append(column.name)


def _list_referenced(schema: Any, parts: dict[str, Any]) -> set[str]:
    found: set[str] = set()
    left = [schema]
    while left:
        text = msgspec.json.encode(left.pop()).decode()
        names = {name for name in parts if f'"{REFERENCE}{name}"' in text}
        left += [parts[name] for name in names - found]
        found |= names
    return found
