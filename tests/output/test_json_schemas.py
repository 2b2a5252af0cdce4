"""What every command prints with --json is valid by its schema, and has no field that it lacks."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from flopwatch import read
from flopwatch.cli.main import cli, main
from flopwatch.errors import UsageError
from flopwatch.output.json_schemas import OUTPUTS, list_types, make_schema, read_meanings
from flopwatch.output.json_types import MeasuredCase
from flopwatch.records.record import Record, encode
from tests.cli.test_look import write
from tests.plot_tools import BREAKDOWN, GALLERY
from tests.prediction.test_calibration import RECORDS as CALIBRATING
from tests.traces.trace_maker import TraceMaker, make_training_step

RELEASED = Path(__file__).parent.parent / "data" / "json_fields.json"
SUITE = """
import flopwatch

suite = flopwatch.Suite("sums", axes={"size": [10, 20]}, variants=["a", "b", "c"])

@suite.build
def build(case):
    if case.variant == "c":
        raise flopwatch.Unsupported("no such thing")
    return lambda: sum(range(case.size))

@suite.column(unit="ns")
def twice(row):
    "Twice the time"
    return 2 * row.total_ns.value
"""
ROWS = (
    "d_model,n_layers,seq_len,n_gpus,gpu_type,micro_batch_seqs,tokens_per_s\n"
    "4096,32,2048,8,A100-80GB,4,30000\n"
    "4096,32,2048,8,A100-80GB,2,\n"
)
JOB = ("--model", "7b", "--seq-len", "2048", "--hardware")
SMALL = ("--model", "decoder:hidden_size=64:layers=2:vocabulary=256", "--seq-len", "32")
COMMANDS: list[tuple[str, ...]] = [
    ("suites", "run", "--list"),
    ("preview", "run", "suite.py", "--dry-run"),
    ("preview", "run", "dyad", "--quick", "--dry-run"),
    ("cases", "run", "suite.py", "--case-budget", "0.05s", "--out", "sums.jsonl"),
    *(("cases", "show", f"{name}.jsonl") for name in GALLERY),
    *(("cases", "show", f"published:{name}") for name in ("dyad", "mosaic")),
    ("table", "show", "breakdown.jsonl", "--columns", "variant,total_ns,speedup,comparable"),
    ("table", "show", "breakdown.jsonl", "--columns", "help"),
    ("table", "show", "break-even.jsonl", "--pivot", "row=variant,col=tokens,value=speedup"),
    ("warmup", "show", "breakdown.jsonl", "--warmup"),
    ("warmup", "show", "samples.jsonl", "--warmup"),
    ("published", "show", "published"),
    ("layout-dyad", "show", "published:dyad", "--layout", "dyad"),
    ("layout-cs336", "show", "published:cs336", "--layout", "published"),
    ("layout-cs336", "show", "laid-out.jsonl", "--layout", "cs336"),
    ("layout-mosaic", "show", "published:mosaic", "--layout", "mosaic"),
    ("layout-switchback", "show", "published:switchback", "--layout", "switchback"),
    ("query", "query", "select suite, params, count(*) from records group by all", "parts.jsonl"),
    ("explain", "explain", "breakdown.jsonl"),
    ("explain", "explain", "scaling.jsonl"),
    ("explain-change", "explain", "breakdown.jsonl", "slower.jsonl"),
    ("explain-trace", "explain", "trace.json"),
    ("explain-trace-change", "explain", "trace.json", "trace.json"),
    ("plot", "plot", "breakdown.jsonl", "-o", "plot.vl.json"),
    ("plot-list", "plot", "breakdown.jsonl", "--list"),
    ("compare", "compare", "speedups.jsonl"),
    ("compare", "compare", "breakdown.jsonl", "slower.jsonl"),
    ("compare", "compare", "published:dyad"),
    ("compare", "compare", "timeline.jsonl", "goodput.jsonl"),
    ("check", "check", "timeline.jsonl"),
    ("compare-published", "compare", "published:switchback", "--with", "published:switchback"),
    ("break-even", "compare", "published:switchback", "--break-even", "--axis", "tokens"),
    ("break-even", "compare", "break-even.jsonl", "--break-even"),
    ("check", "check", "published:dyad"),
    ("check-list", "check", "--list"),
    ("predict", "predict", *JOB, "8xA100-80GB,8xH100-SXM", "--micro-batch", "4"),
    ("predict-rows", "predict", "--rows", "jobs.csv"),
    ("plan", "plan", *JOB, "64xA100-80GB", "--price", "2", "--emit", "megatron"),
    ("plan-comparison", "plan", *JOB, "8xA100-80GB,8xH100-SXM,8xT4", "--price", "h100=2"),
    ("plan-deadline", "plan", *JOB, "A100-80GB,8xH100-SXM", "--days", "100"),
    ("memory", "memory", "--model", "small,7b"),
    ("memory", "memory", *JOB, "8xA100-80GB"),
    ("mfu", "mfu", *JOB, "8xA100-80GB", "--tokens-per-s", "25651"),
    ("mfu", "mfu", "--model", "7b", "--seq-len", "2048", "--tokens-per-s", "25651"),
    ("mfu-formula", "mfu", "--formula"),
    ("models", "models", "deepseek"),
    ("validate-results", "validate", "predicted.jsonl"),
    ("calibrate", "calibrate", "calibrating.jsonl", "--out", "calibration.jsonl"),
    ("doctor", "doctor"),
    ("low-precision", "doctor", "--low-precision"),
    ("profile", "profile", *SMALL, "--steps", "1", "--attention", "plain"),
    ("devices", "peaks", "H100-SXM"),
    ("devices", "peaks", "--list"),
]
SLOW: list[tuple[str, ...]] = [
    ("ab", "ab", "HEAD", "--suite", "suite.py", "--filter", "size=10", "--case-budget", "0.1s"),
    ("peaks", "peaks", "--quick", "--dtype", "float32", "--ranks", "2", "--out", "peaks.jsonl"),
    ("validate", "validate"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With results of every kind."""
    monkeypatch.chdir(tmp_path)
    Path("suite.py").write_text(SUITE)
    Path("jobs.csv").write_text(ROWS)
    prediction = {"step_s": 0.01, "low_s": 0.008, "high_s": 0.02, "phases_s": {"forward": 0.003}}
    slow = {**BREAKDOWN[0].samples_ns, "optimizer": [3e6] * 20}
    others = {
        "slower": [replace(BREAKDOWN[0], samples_ns=slow, run_id="x"), BREAKDOWN[1]],
        "predicted": [replace(record, prediction=prediction) for record in BREAKDOWN],
        "laid-out": [replace(record, layout="cs336") for record in BREAKDOWN],
        "calibrating": CALIBRATING,
    }
    for name, records in {**GALLERY, **others}.items():
        write(tmp_path / f"{name}.jsonl", records)
    maker = TraceMaker()
    make_training_step(maker)
    maker.write(tmp_path / "trace.json")
    return tmp_path


@pytest.fixture
def repository(folder: Path) -> Path:
    for words in ("init -q", "add suite.py", "commit -qm suite"):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", *identity, *words.split()], cwd=folder, check=True)
    return folder


def close(schema: Any) -> Any:
    """The schema without room for other fields."""
    if isinstance(schema, list):
        return [close(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: close(value) for key, value in schema.items()}
    is_object = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
    return {"additionalProperties": False, **closed} if is_object else closed


@cache
def make_validator(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(close(make_schema(name)))


def find_errors(name: str, content: Any) -> list[str]:
    errors = make_validator(name).iter_errors(content)
    return [f"{each.json_path}: {each.message}" for each in errors]


def assert_valid(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    name, *command = words
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main([*command, "--json"])
    printed = capsys.readouterr()
    content = json.loads(printed.out)
    assert content, printed.err
    assert find_errors(name, content) == []


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_output_is_valid(
    words: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_valid(words, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("words", SLOW, ids=" ".join)
def test_slow_output_is_valid(
    words: tuple[str, ...], repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_valid(words, capsys)


def test_records_are_valid(folder: Path) -> None:
    files = list(folder.glob("*.jsonl"))
    lines = [line for file in files for line in file.read_bytes().splitlines()]
    published = [encode(record) for name in ("dyad", "mosaic") for record in read_published(name)]

    assert len(lines) > 40
    for line in [*lines, *published]:
        assert find_errors("record", json.loads(line)) == []


def read_published(name: str) -> list[Record]:
    return read(f"published:{name}").records


def test_a_record_that_is_none_is_not_valid() -> None:
    record = json.loads(encode(BREAKDOWN[0]))
    assert find_errors("record", record) == []
    for change in ({"status": "fine"}, {"samples_ns": {"call": [-1.0]}}, {"rounds": None}):
        assert find_errors("record", {**record, **change}) != []
    del record["case_id"]
    assert find_errors("record", record) == ["$: 'case_id' is a required property"]


def test_every_schema_and_every_command_is_tried() -> None:
    tried = [*COMMANDS, *SLOW]
    with_json = {
        name
        for name, command in cli.commands.items()
        if any("--json" in parameter.opts for parameter in command.params)
    }

    assert {name for name, *_ in tried} | {"record"} == set(OUTPUTS)
    assert {command for _, command, *_ in tried} == with_json


@pytest.mark.parametrize("name", OUTPUTS)
def test_schemas_are_schemas(name: str) -> None:
    schema = make_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"urn:flopwatch:schema:{name}:{OUTPUTS[name].version}"
    assert ">>>" not in json.dumps(schema)


def test_schemas_say_what_fields_mean() -> None:
    record = make_schema("record")["$defs"]["Record"]["properties"]
    assert record["samples_ns"]["description"] == (
        "By phase, time of one call, in order of taking, warm-up first."
    )
    case = make_schema("cases")["$defs"]["MeasuredCase"]
    assert case["properties"]["mfu"]["description"]
    assert {"mfu", "total_ns", "params"} <= set(case["required"])
    assert set(read_meanings(MeasuredCase)) == {"instruments"}
    assert len(list(list_types(list[MeasuredCase]))) > 10


def list_paths(schema: dict[str, Any]) -> Iterator[str]:
    for title, part in schema["$defs"].items():
        yield from (f"{title}.{field}" for field in part.get("properties", {}))


def test_a_released_version_loses_no_field() -> None:
    """Raise the version of a schema in OUTPUTS if this fails; then write the file anew, with
    {name: {"version": ..., "fields": [...]}}. Fields may be added without either."""
    released = json.loads(RELEASED.read_text())

    assert set(released) <= set(OUTPUTS)
    for name, known in released.items():
        assert OUTPUTS[name].version >= known["version"]
        if OUTPUTS[name].version == known["version"]:
            assert set(known["fields"]) - set(list_paths(make_schema(name))) == set(), name


def test_the_command_prints_schemas(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["schema"])
    listed = capsys.readouterr().out
    assert all(name in listed for name in OUTPUTS)
    with pytest.raises(SystemExit, match="0"):
        main(["schema", "record"])
    assert json.loads(capsys.readouterr().out) == make_schema("record")
    with pytest.raises(UsageError, match="there is no schema 'recor'; choose one of record, cases"):
        make_schema("recor")
