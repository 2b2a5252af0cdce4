"""Damaged files, through all commands that read one: never a traceback, never a wrong number.

What a command accepts is what plain JSON says; all else is refused, in one sentence.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flopwatch.cli.exchange import EXPORTS, IMPORTS
from flopwatch.cli.main import cli, run_command
from flopwatch.errors import StoreError
from flopwatch.records.exchange import read_file
from flopwatch.records.foreign import ForeignError
from flopwatch.records.published import PUBLICATIONS, read_text
from flopwatch.records.record import (
    Check,
    PhaseMemory,
    Rank,
    RankMemory,
    RankTimeline,
    Record,
    Region,
    encode,
)
from flopwatch.records.store import MAX_LINE_BYTES, read
from tests.conftest import make_record

DATA = Path(__file__).parents[1] / "data"
FILE, OUT = "FILE", "OUT"
"""Stand for paths in commands."""

VIEWS = ("records", "samples", "ranks", "regions", "curves")

COMMANDS: list[tuple[str, ...]] = [
    ("show", FILE),
    ("show", FILE, "--json"),
    ("show", FILE, "--skip-corrupt"),
    ("explain", FILE, "--roofline"),
    ("explain", FILE, "--json"),
    ("explain", FILE, FILE),
    ("show", FILE, "--columns", "suite,variant"),
    ("show", FILE, "--warmup"),
    ("show", FILE, "--warmup", "--json"),
    *(("query", f"SELECT * FROM {view}", FILE) for view in VIEWS),
    ("query", "SELECT median(ns) FROM samples", FILE, "--json"),
    ("report", FILE, "-o", OUT),
    *(("export", FILE, "--format", form) for form in EXPORTS),
    ("compare", FILE),
    ("compare", FILE, FILE),
    ("compare", FILE, "--json"),
    ("compare", FILE, "--with", "published:dyad"),
    ("check", FILE),
    ("check", FILE, "--json"),
    ("compare", FILE, "--break-even"),
    ("plot", FILE, "--list"),
    ("calibrate", FILE, "--out", OUT),
    ("validate", FILE),
]

QUICK = settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
THOROUGH = settings(QUICK, max_examples=600)

NUMBERS = [
    0, -1, 0.5, -0.0, 5e-324, 1e-300, 1e18, 2**53 + 1, 2**63, 2**70, 1e308, -1e308, 10**30,
    float("nan"), float("inf"), float("-inf"),
]  # fmt: skip
TEXTS = ["", " ", "\0", "a\nb", "[bold]", "</script>", "nan", "1", "é" * 300, "parts:x", "\ud800"]
DEEP = "too deep for JSON"
STRANGE = [None, True, False, [], {}, [None], {"": {"": []}}, DEEP, *NUMBERS, *TEXTS]


@dataclass(frozen=True)
class Outcome:
    code: int | str | None
    out: str
    err: str


def drive(command: Sequence[str], file: Path, out: Path) -> Outcome:
    """Run a command as the command line does; whatever it raises is a traceback there."""
    places = {FILE: str(file), OUT: str(out)}
    arguments = [places.get(word, word) for word in command]
    # As a real one: exports are written as bytes.
    printed, noted = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(noted):
        try:
            code = run_command(lambda: cli.main(args=arguments, standalone_mode=False))
        except SystemExit as end:
            code = end.code  # type: ignore[assignment]
    printed.seek(0)
    return Outcome(code, printed.read(), noted.getvalue())


def check_outcome(command: Sequence[str], outcome: Outcome) -> None:
    assert outcome.code in (0, 1, 2, 3), outcome
    told = outcome.err.rstrip("\n").split("\n")
    if outcome.code == 2:
        assert told[-1].startswith("flopwatch: "), outcome.err
    if outcome.code == 0 and ("--json" in command or command[0] == "export"):
        is_lines = "flopwatch" in command  # a results file
        for text in outcome.out.rstrip("\n").split("\n") if is_lines else [outcome.out]:
            json.loads(text or "null", parse_constant=refuse_constant)


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def drive_all(commands: Sequence[Sequence[str]], content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "file", Path(folder) / "out"
        file.write_bytes(content)
        for command in commands:
            check_outcome(command, drive(command, file, out))


# Results files


def make_full_record(**changes: object) -> Record:
    """With something in every field."""
    content: dict[str, object] = {
        "params": {"tokens": 512, "dtype": "float32", "shape": [4, 8], "model": "small"},
        "samples_ns": {"forward": [100.0 + i for i in range(12)], "backward": [200.0] * 12},
        "rounds": list(range(12)),
        "calls_per_sample": [2] * 12,
        "warmup_samples": 2,
        "flops": {"forward": {"float32": 1e6}, "forward/mlp": {"float32": 5e5}},
        "bytes": {"forward": 1e5},
        "conditions": {"autocast": "off"},
        "facts": {"tokens": 512.0, "parameters": 1e6, "compile_s": 2.0},
        "instrumented_ns": [310.0] * 10,
        "regions": {"forward/mlp": Region(calls=2, samples_ns=[50.0] * 10)},
        "curves": {"train_loss": [3.0, 2.0], "validation_loss": [3.1, 2.2]},
        "peak_memory_bytes": 1000,
        "memory": {"forward": PhaseMemory(peak_bytes=1000, end_bytes=500)},
        "resident_bytes": 100,
        "predicted_memory_bytes": {"weights": 1e6},
        "first_call_page_faults": 5,
        "check": Check(reference="a", errors={"output": 1e-6, "grad": None}, tolerance=1e-3),
        "notes": ["a warning"],
        "environment": {
            "machine": {"cpu_model": "Z80", "logical_cores": 2, "memory_total_bytes": 2**34},
            "software": {"python": "3.11.7", "packages": {"torch": "2.13"}},
            "torch": {"version": "2.13", "cpu_capability": "AVX2"},
            "load": {"average": [1.0, 1.0, 1.0], "steal_share": 0.1},
        },
        "sources": {"a.py": "abc"},
    }
    return make_record(**{**content, **changes})


def make_records() -> list[Record]:
    """Two groups of two variants, a failure, and a job of two ranks."""
    wide = {"tokens": 1024, "dtype": "float32", "shape": [4, 8], "model": "small"}
    rank = Rank(samples_ns={"forward": [90.0] * 12, "backward": [190.0] * 12},
                waiting_ns=[1.0] * 12, transfer_ns=[2.0] * 12, bubble_ns=[3.0] * 12)  # fmt: skip
    lane = RankTimeline(
        kind=["forward", "bubble"],
        begin_ns=[0.0, 90.0],
        end_ns=[90.0, 95.0],
        stage=[0, None],
        micro_batch=[1, None],
        exchange=["", "send to rank 1"],
    )
    memory = RankMemory(resident_bytes=100, peak_memory_bytes=200)
    return [
        make_full_record(),
        make_full_record(case_id="j", variant="b", conditions={"autocast": "bf16"}),
        make_full_record(case_id="k", group_id="h", params=wide),
        make_full_record(case_id="l", group_id="h", params=wide, variant="b"),
        make_record(case_id="m", variant="c", status="oom", message="it needs 3 GiB", samples_ns={},
                    rounds=[], calls_per_sample=[]),
        make_full_record(case_id="n", group_id="q", params={"ranks": 2}, ranks=[rank, rank],
                         timeline=[lane, lane], rank_memory=[memory, None]),
    ]  # fmt: skip


RECORDS = [json.loads(encode(record)) for record in make_records()]


def list_places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Every container inside, with each of its keys."""
    keys = content.keys() if isinstance(content, dict) else range(len(content))
    for key in keys:
        yield content, key
        if isinstance(content[key], dict | list):
            yield from list_places(content[key])


@st.composite
def damaged(draw: st.DrawFn, content: Any) -> bytes:
    """A JSON text of something like `content`, one to three places of which are strange; and
    sometimes not even that."""
    content = json.loads(json.dumps(content))
    for _ in range(draw(st.integers(1, 3))):
        places = list(list_places(content))
        container, key = places[draw(st.integers(0, len(places) - 1))]
        match draw(st.sampled_from(["alike", "alike", "strange", "missing", "added"])):
            case "alike":
                container[key] = draw_alike(draw, container[key])
            case "strange":
                container[key] = draw(st.sampled_from(STRANGE))
            case "missing":
                del container[key]
            case "added" if isinstance(container, dict):
                container[draw(st.sampled_from(TEXTS[:-1]))] = draw(st.sampled_from(STRANGE))
    lines = content if isinstance(content, list) else [content]
    text = "\n".join(json.dumps(line) for line in lines) + "\n"
    data = text.replace(json.dumps(DEEP), "[" * 1100 + "]" * 1100).encode()
    cut = draw(st.one_of(st.none(), st.none(), st.none(), st.integers(0, len(data))))
    return data[:cut]


def draw_alike(draw: st.DrawFn, value: Any) -> Any:
    """Of the same kind, so that more of it is accepted."""
    if isinstance(value, list) and value:
        return [draw_alike(draw, value[0])] * len(value)
    kind = TEXTS if isinstance(value, str) else NUMBERS
    return draw(st.sampled_from(kind if isinstance(value, str | int | float) else STRANGE))


def check_results(data: st.DataObject, num_commands: int) -> None:
    content = data.draw(damaged(RECORDS))
    commands = data.draw(
        st.lists(st.sampled_from(COMMANDS), min_size=num_commands, max_size=num_commands)
    )
    drive_all(commands, content)
    check_numbers(content)


def check_numbers(content: bytes) -> None:
    """What is accepted is what plain JSON reads."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.jsonl"
        path.write_bytes(content)
        try:
            records = read(path, skip_corrupt=True).records
        except StoreError:
            return
    # Python's own reader takes more, so that a line which is a record is JSON there.
    plain = [each for line in content.split(b"\n") if (each := parse_plainly(line)) is not None]
    for record in records:
        assert any((record.samples_ns, record.facts, record.params) == each for each in plain)


def round_numbers(content: Any) -> Any:
    """Whole numbers beyond 2^53 are what a float can say of them."""
    if isinstance(content, dict):
        return {key: round_numbers(value) for key, value in content.items()}
    if isinstance(content, list):
        return [round_numbers(value) for value in content]
    is_whole = isinstance(content, int) and not isinstance(content, bool)
    return float(content) if is_whole and abs(content) < 2**1000 else content


def parse_plainly(line: bytes) -> tuple[Any, Any, Any] | None:
    try:
        content = json.loads(line)
        if not isinstance(content, dict):
            return None
        times_ns, facts = (round_numbers(content.get(name, {})) for name in ("samples_ns", "facts"))
    except (ValueError, RecursionError):
        return None
    return times_ns, facts, content.get("params")


@QUICK
@given(st.data())
def test_damaged_results_are_read_rightly_or_refused(data: st.DataObject) -> None:
    check_results(data, num_commands=2)


@pytest.mark.slow
@THOROUGH
@given(st.data())
def test_many_damaged_results_are_read_rightly_or_refused(data: st.DataObject) -> None:
    check_results(data, num_commands=4)


LINE = encode(make_full_record())
HAND_MADE = {
    "empty": b"",
    "blank lines": b"\n \n\r\n",
    "an opening brace": b"{",
    "a list": b"[]\n",
    "nothing but null": b"null\n",
    "an object": b"{}\n",
    "not UTF-8": b'{"suite":"\xff\xfe"}\n',
    "not text": bytes(range(256)),
    "zeros": bytes(4096),
    "a byte order mark": b"\xef\xbb\xbf" + LINE + b"\n",
    "twice the same record": (LINE + b"\n") * 2,
    "no line end": LINE,
    "lines of Windows": LINE + b"\r\n" + LINE + b"\r\n",
    "two records in a line": LINE + LINE + b"\n",
    "half a record": LINE[: len(LINE) // 2],
    "half a record, then a whole one": LINE[: len(LINE) // 2] + b"\n" + LINE + b"\n",
    "a key twice": LINE.replace(b'"suite":', b'"suite":"x","suite":', 1) + b"\n",
    "fields in another order": json.dumps(dict(reversed(RECORDS[0].items()))).encode() + b"\n",
    "NaN": LINE.replace(b"100.0", b"NaN", 1) + b"\n",
    "infinity": LINE.replace(b"100.0", b"1e400", 1) + b"\n",
    "a number of 5,000 digits": LINE.replace(b"100.0", b"9" * 5000, 1) + b"\n",
    "a number of 401 digits where anything may be": LINE.replace(b'"float32"', b"9" * 401, 1)
    + b"\n",
    "a schema of 401 digits": LINE.replace(b'"schema":1', b'"schema":' + b"9" * 401) + b"\n",
    "half a character": LINE.replace(b'"demo"', b'"\\ud800"', 1) + b"\n",
    "nested deeply": LINE.replace(b'"float32"', b"[" * 4000 + b"]" * 4000, 1) + b"\n",
    "nested, and cut off": b'{"a":' * 4000,
    "a newer schema": LINE.replace(b'"schema":1', b'"schema":99') + b"\n",
}


@pytest.mark.parametrize("number", range(len(HAND_MADE)))
def test_commands_read_or_refuse(number: int) -> None:
    """Each file through a few commands, so that each command meets a few files."""
    content = list(HAND_MADE.values())[number]
    drive_all(COMMANDS[number % 6 :: 6], content)
    check_numbers(content)


@pytest.mark.slow
@pytest.mark.parametrize("name", HAND_MADE)
def test_every_command_reads_or_refuses(name: str) -> None:
    drive_all(COMMANDS, HAND_MADE[name])


@pytest.mark.parametrize("name", ["twice the same record", "no line end", "a key twice"])
def test_what_is_only_odd_is_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(HAND_MADE[name])
    assert drive(("show", FILE), path, path).code == 0


def test_a_line_of_100_mb_is_refused_in_moderate_memory(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with path.open("wb") as file:
        file.write(b'{"a":"')
        file.truncate(100 * 2**20)  # with a hole, which takes no room on the disk
    assert path.stat().st_size > MAX_LINE_BYTES
    for command in (("show", FILE), ("query", "SELECT * FROM samples", FILE)):
        outcome = drive(command, path, tmp_path / "out")
        assert outcome.code == 2
        assert f"longer than {MAX_LINE_BYTES} bytes" in outcome.err


# Files of other programs


FOREIGN: dict[str, Any] = {
    "google-benchmark": json.loads((DATA / "google_benchmark.json").read_text()),
    "pyperf": {
        "version": "1.0",
        "metadata": {"cpu_count": 2, "python_version": "3.12.1 (64-bit)", "hostname": "here"},
        "benchmarks": [
            {
                "metadata": {"name": name, "loops": 4, "unit": "second"},
                "runs": [{"values": [1.5e-7, 2.9e-6], "warmups": [[1, 3e-7]],
                          "metadata": {"date": "2026-01-01 00:00:00", "mem_max_rss": 4096}}] * 2,
            }
            for name in ("sort", "search")
        ],
    },
    "pytorch": [
        {
            "benchmark": {"name": "llm", "mode": "inference", "extra_info": {"dynamic": False}},
            "model": {"name": "llama", "backend": "inductor", "origins": ["hub"]},
            "metric": {"name": name, "benchmark_values": [12.5, 13.0]},
            "runners": [{"cpu_info": "x86_64", "cpu_count": 8}],
            "dependencies": {"torch": {"version": "2.9"}},
            "timestamp": 1760000000,
        }
        for name in ("latency_ms", "tokens_per_s")
    ],
}  # fmt: skip


def check_import(form: str, content: bytes, *, is_named: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "file", Path(folder) / "out.jsonl"
        file.write_bytes(content)
        command = ["import", FILE, "-o", OUT, *(["--format", form] if is_named else [])]
        outcome = drive(command, file, out)
        assert outcome.code in (0, 2), outcome
        if outcome.code == 2:
            assert outcome.err.startswith("flopwatch: ")
            assert outcome.err.count("\n") == 1, "one sentence"
            assert not out.exists()
            return
        check_times(content, read_file(file, form if is_named else None)[1].records)
        for command in (["show", FILE], ["check", FILE], ["export", FILE, "--format", "pyperf"]):
            check_outcome(command, drive(command, out, out))


DIGITS = {"second": 9, "ns": 0, "us": 3, "ms": 6, "s": 9}


def check_times(content: bytes, records: Sequence[Record]) -> None:
    """Every sample is a number of the file, by a power of ten."""
    try:
        documents = [json.loads(content)]
    except ValueError:
        documents = [json.loads(line) for line in content.splitlines() if line.strip()]
    found = {
        float(Decimal(repr(float(container[key]))).scaleb(digits))
        for container, key in list_places(documents)
        if isinstance(container[key], int | float) and abs(container[key]) < 1e300
        for digits in DIGITS.values()
    }
    for record in records:
        assert {ns for times_ns in record.samples_ns.values() for ns in times_ns} <= found


@QUICK
@given(st.data(), st.sampled_from(list(FOREIGN)), st.booleans())
def test_damaged_foreign_files_are_read_rightly_or_refused(
    data: st.DataObject, form: str, is_named: bool
) -> None:
    check_import(form, data.draw(damaged(FOREIGN[form])), is_named=is_named)


@pytest.mark.slow
@THOROUGH
@given(st.data(), st.sampled_from(list(FOREIGN)), st.booleans())
def test_many_damaged_foreign_files_are_read_rightly_or_refused(
    data: st.DataObject, form: str, is_named: bool
) -> None:
    check_import(form, data.draw(damaged(FOREIGN[form])), is_named=is_named)


@st.composite
def garbled(draw: st.DrawFn, text: str) -> bytes:
    """A text some of whose bytes are others, are missing, or are too many."""
    content = text.encode()
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = start + draw(st.integers(0, 40))
        pieces = [b"", b"-", b"nan", b"1e308", b"1e400", b"|", b"\t", b"\n", b"9" * 40, b"{", b"0"]
        content = content[:start] + draw(st.sampled_from([*pieces, b"\xff"])) + content[end:]
    return content


def check_published(data: st.DataObject, form: str) -> None:
    content = data.draw(garbled("\n".join(read_text(form).splitlines()[:60])))
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "file", Path(folder) / "out.jsonl"
        file.write_bytes(content)
        outcome = drive(("import", FILE, "--format", form, "-o", OUT), file, out)
        assert outcome.code in (0, 2), outcome
        assert outcome.err.startswith("flopwatch: ")
        if outcome.code == 0:
            check_outcome(["show"], drive(("show", FILE), out, out))


@QUICK
@given(st.data(), st.sampled_from(list(PUBLICATIONS)))
def test_garbled_published_texts_are_read_or_refused(data: st.DataObject, form: str) -> None:
    check_published(data, form)


@pytest.mark.slow
@THOROUGH
@given(st.data(), st.sampled_from(list(PUBLICATIONS)))
def test_many_garbled_published_texts_are_read_or_refused(data: st.DataObject, form: str) -> None:
    check_published(data, form)


@pytest.mark.parametrize("form", [None, *IMPORTS])
def test_every_importer_refuses_what_is_not_its_own(form: str | None, tmp_path: Path) -> None:
    for name, content in HAND_MADE.items():
        path = tmp_path / "file"
        path.write_bytes(content)
        with pytest.raises(ForeignError) as refusal:
            read_file(path, form)
        assert str(refusal.value), name


@pytest.mark.parametrize("form", FOREIGN)
def test_undamaged_foreign_files_are_imported(form: str) -> None:
    check_import(form, json.dumps(FOREIGN[form]).encode(), is_named=False)
