"""SQL over results files: the same rows, warnings and errors as reading them one by one."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flopwatch.errors import CorruptFile, FlopwatchError, NewerSchema, StoreError, UsageError
from flopwatch.records import query as query_module
from flopwatch.records.query import VIEWS, query
from flopwatch.records.record import (
    LARGEST_UNSIGNED,
    SCHEMA,
    Check,
    Rank,
    Record,
    Region,
    encode,
)
from flopwatch.records.store import read
from flopwatch.settings import Settings
from tests.conftest import make_record
from tests.monitor_tools import make_stalled_run

COUNT = "SELECT count(*) FROM records"
LINE = encode(make_record()) + b"\n"
NEWER = LINE.replace(b'"schema":%d' % SCHEMA, b'"schema":%d' % (SCHEMA + 1))

RECORDS = [
    make_record(
        case_id="1",
        variant="dense",
        params={"dtype": "float32", "shape": [768, 3072]},
        samples_ns={"forward": [30.0, 10.0, 11.0], "backward": [60.5, 20.0, 22.0]},
        rounds=[0, 1, 2],
        calls_per_sample=[1, 2, 2],
        warmup_samples=1,
        check=Check(reference="plain", errors={"output": 1e-6}, tolerance=1e-3),
        settings=Settings(threads=2),
        environment={"host": "here"},
        notes=["a warning"],
        peak_memory_bytes=2**40,
        conditions={"autocast": "off"},
        facts={"parameters": 1.5e8},
        instrumented_ns=[35.5, 36.0],
        regions={
            "forward/mlp": Region(calls=2, samples_ns=[4.0, 4.5]),
            "backward/mlp": Region(calls=1, samples_ns=[9.0, 8.0]),
        },
        curves={"loss": [3.0, 2.5, 2.25], "step": [1.0, 2.0, 3.0]},
    ),
    make_record(
        case_id="2",
        variant="dyad",
        status="oom",
        message="it's too big",
        params={"dtype": "int8", "layers": 2},
        samples_ns={},
        rounds=[],
        calls_per_sample=[],
        steady=None,
        stop_reason=None,
    ),
    make_record(
        case_id="3", suite="other", samples_ns={"call": [5.0]}, rounds=[7], calls_per_sample=[1]
    ),
]


def write(path: Path, *records: Record) -> Path:
    path.write_bytes(b"".join(encode(record) + b"\n" for record in records))
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "results.jsonl", *RECORDS)


def rows(path: Path, sql: str) -> list[tuple[Any, ...]]:
    result = query([path], sql)
    assert result.warnings == []
    return result.rows


def expected_samples(records: list[Record]) -> list[tuple[Any, ...]]:
    """The samples view, in plain Python."""
    return [
        (r.case_id, r.group_id, r.run_id, r.suite, r.variant, r.params)
        + (phase, i, r.rounds[i], r.calls_per_sample[i], i < r.warmup_samples, ns)
        for r in records
        for phase, times_ns in r.samples_ns.items()
        for i, ns in enumerate(times_ns)
    ]


def queried_samples(path: Path) -> list[tuple[Any, ...]]:
    found = query([path], "FROM samples").rows
    return [(*row[:5], json.loads(row[5]), *row[6:]) for row in found]


# The views


def test_records_has_a_row_a_record(path: Path) -> None:
    result = query([path], "FROM records ORDER BY case_id")
    assert result.columns == list(VIEWS["records"])
    row = dict(zip(result.columns, result.rows[0], strict=True))
    assert json.loads(row.pop("params")) == {"dtype": "float32", "shape": [768, 3072]}
    assert json.loads(row.pop("check"))["tolerance"] == 1e-3
    assert json.loads(row.pop("settings"))["threads"] == 2
    assert row.pop("file") == str(path)
    assert row.pop("samples") == 3
    documents = ("flops", "bytes", "environment", "sources", "conditions", "facts", "columns")
    for name in (*documents, "memory", "predicted_memory_bytes", "rank_memory", "timeline"):
        assert json.loads(row.pop(name)) == getattr(RECORDS[0], name)
    assert row == {name: getattr(RECORDS[0], name) for name in row}


def test_every_field_of_a_record_is_reachable() -> None:
    fields = set(Record.__dataclass_fields__)
    assert set(query_module.FIELDS) == fields
    assert fields - set(VIEWS["records"]) == {
        *("samples_ns", "rounds", "calls_per_sample"),  # in samples
        "ranks",
        *("instrumented_ns", "regions"),  # in regions
        "curves",
    }


def test_samples_has_a_row_a_sample_and_phase(path: Path) -> None:
    result = query([path], "FROM samples")
    assert result.columns == list(VIEWS["samples"])
    assert len(result.rows) == 7
    assert sorted(queried_samples(path), key=str) == sorted(expected_samples(RECORDS), key=str)


def test_ranks_has_a_row_a_rank_and_sample(tmp_path: Path) -> None:
    ranks = [
        Rank(
            samples_ns={"a": [1.0, 2.0], "b": [4.0, 4.0]},
            waiting_ns=[None, w],
            transfer_ns=[3.0, 3.0],
            overlapped_ns=overlapped_ns,
            bubble_ns=bubble_ns,
        )
        for w, overlapped_ns, bubble_ns in ((0.5, [None, 2.0], [None, 7.0]), (1.5, [], []))
    ]
    samples = {"a": [1.0, 2.0], "b": [4.0, 4.0]}
    job = make_record(
        samples_ns=samples, rounds=[0, 1], calls_per_sample=[1, 1], warmup_samples=1, ranks=ranks
    )
    path = write(tmp_path / "job.jsonl", job)
    times = "ns, waiting_ns, transfer_ns, overlapped_ns, bubble_ns"
    asked = f"SELECT rank, sample, warmup, {times} FROM ranks ORDER BY ALL"
    assert query([path], asked).rows == [
        (0, 0, True, 5.0, None, 3.0, None, None),
        (0, 1, False, 6.0, 0.5, 3.0, 2.0, 7.0),
        (1, 0, True, 5.0, None, 3.0, None, None),
        (1, 1, False, 6.0, 1.5, 3.0, None, None),
    ]


def test_regions_has_a_row_a_region_and_instrumented_run(path: Path) -> None:
    result = query([path], "SELECT * EXCLUDE (params) FROM regions ORDER BY region, sample")
    assert result.columns == [name for name in VIEWS["regions"] if name != "params"]
    head = ("1", "g", "r", "demo", "dense")
    assert result.rows == [
        (*head, "backward", "backward/mlp", 1, 1, 1, 9.0, 35.5),
        (*head, "backward", "backward/mlp", 1, 2, 2, 8.0, 36.0),
        (*head, "forward", "forward/mlp", 2, 1, 1, 4.0, 35.5),
        (*head, "forward", "forward/mlp", 2, 2, 2, 4.5, 36.0),
    ]
    beside_plain = (
        "SELECT sum(s.ns) FROM regions r JOIN samples s USING (run_id, case_id, sample, phase)"
    )
    assert rows(path, beside_plain) == [(10.0 + 11.0 + 20.0 + 22.0,)]


def test_curves_has_a_row_a_point(path: Path) -> None:
    result = query([path], "SELECT * EXCLUDE (params) FROM curves ORDER BY curve, point")
    assert result.columns == [name for name in VIEWS["curves"] if name != "params"]
    assert [row[5:] for row in result.rows] == [
        *(("loss", 0, 3.0), ("loss", 1, 2.5), ("loss", 2, 2.25)),
        *(("step", 0, 1.0), ("step", 1, 2.0), ("step", 2, 3.0)),
    ]
    assert {row[:5] for row in result.rows} == {("1", "g", "r", "demo", "dense")}


INSIDE = encode(RECORDS[0]) + b"\n"


@pytest.mark.parametrize(
    ("view", "bad"),
    [
        ("regions", INSIDE.replace(b"[4.0,4.5]", b"[4.0]")),
        ("regions", INSIDE.replace(b"[4.0,4.5]", b"[4.0,null]")),
        ("regions", INSIDE.replace(b'"calls":2', b'"calls":0')),
        ("regions", INSIDE.replace(b"[35.5,36.0]", b"[35.5]")),
        ("regions", INSIDE.replace(b'"warmup_samples":1', b'"warmup_samples":2')),
        ("curves", INSIDE.replace(b"2.25]", b"null]")),
        ("curves", INSIDE.replace(b"2.25]", b"1e999]")),
    ],
)
def test_a_corrupt_region_or_curve_gives_the_error_of_read(
    tmp_path: Path, view: str, bad: bytes
) -> None:
    assert bad != INSIDE
    path = tmp_path / "results.jsonl"
    path.write_bytes(LINE + bad + INSIDE)
    with pytest.raises(CorruptFile) as expected:
        read(path)
    with pytest.raises(CorruptFile) as caught:
        query([path], f"FROM {view}")
    assert str(caught.value) == str(expected.value)
    good = query([path], f"SELECT count(*) FROM {view}", skip_corrupt=True)
    assert good.rows == [({"regions": 4, "curves": 6}[view],)]


def test_json_and_aggregates(path: Path) -> None:
    assert rows(path, "SELECT params->>'dtype' FROM records ORDER BY case_id") == [
        ("float32",),
        ("int8",),
        (None,),
    ]
    assert rows(path, "SELECT environment->>'host' FROM records WHERE case_id = '1'") == [("here",)]
    sql = "SELECT phase, median(ns) FROM samples WHERE NOT warmup GROUP BY ALL ORDER BY ALL"
    assert rows(path, sql) == [("backward", 21.0), ("call", 5.0), ("forward", 10.5)]
    assert rows(path, 'SELECT group_id, "check" IS NULL FROM records ORDER BY case_id')[1] == (
        "g",
        True,
    )
    pivot = "PIVOT records ON status IN ('ok', 'oom') USING count(*) GROUP BY suite ORDER BY suite"
    assert rows(path, pivot) == [("demo", 1, 1), ("other", 1, 0)]


def test_several_files_and_the_same_one_twice(tmp_path: Path, path: Path) -> None:
    other = write(tmp_path / "other.jsonl", make_record(case_id="4"))
    link = tmp_path / "link.jsonl"
    link.symlink_to(other)
    result = query([path, other, path, link], "SELECT file, count(*) FROM records GROUP BY ALL")
    assert sorted(result.rows) == [(str(link), 1), (str(path), 3)]


def test_relative_paths_are_named_as_given(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    assert rows(Path(path.name), "SELECT DISTINCT file FROM records") == [(path.name,)]
    assert os.listdir() == [path.name]


@pytest.mark.parametrize("name", ["a*[b]?.jsonl", 'it\'s "a" {b}.jsonl', "\u00fc n\n.jsonl.gz"])
@pytest.mark.parametrize("torn", [b"", LINE[:50]])
def test_any_file_name(tmp_path: Path, name: str, torn: bytes) -> None:
    write(tmp_path / "axbx.jsonl", *RECORDS)  # what the first name would find as a pattern
    path = tmp_path / name
    path.write_bytes(LINE + torn)
    assert query([path], "SELECT file, count(*) FROM records GROUP BY ALL").rows == [(str(path), 1)]


def test_an_empty_file_and_a_record_of_many_samples(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    assert rows(tmp_path / "empty.jsonl", COUNT) == [(0,)]
    num_samples = 1_300_000
    long = make_record(
        samples_ns={"call": [123456.78901234567] * num_samples},
        rounds=list(range(num_samples)),
        calls_per_sample=[1] * num_samples,
    )
    # DuckDB's own limit is 16 MiB, and it lets twice that pass.
    assert len(encode(long)) > 2**25
    path = write(tmp_path / "long.jsonl", make_record(), long)
    assert rows(path, "SELECT count(*), max(round) FROM samples") == [
        (num_samples + 20, num_samples - 1)
    ]


# Damaged, old and new files: as store.read has it


def test_a_torn_line_is_a_warning(path: Path) -> None:
    with path.open("ab") as file:
        file.write(LINE[:100])
    result = query([path], COUNT)
    assert result.rows == [(3,)]
    assert result.warnings == read(path).warnings != []
    assert path.read_bytes().endswith(LINE[:100])


def test_a_last_record_without_newline_counts(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])
    assert rows(path, COUNT) == [(3,)]


@pytest.mark.parametrize(
    "bad",
    [
        b"oops\n",
        b"{}\n",
        b"[1]\n",
        b"\x00\x00\n",
        b'oops,"schema":%d}\n' % SCHEMA,
        LINE.replace(b'"demo"', b'"\xff"'),
        LINE.replace(b"100.0", b"0.0", 1),
        LINE.replace(b"100.0", b"1e999", 1),
        LINE.replace(b"100.0", b"null", 1),
        LINE.replace(b"[100.0,", b"[", 1),
        LINE.replace(b'"rounds":[0,', b'"rounds":[', 1),
        LINE.replace(b'"calls_per_sample":[1,', b'"calls_per_sample":[', 1),
        LINE.replace(b'"calls_per_sample":[1,', b'"calls_per_sample":[0,', 1),
        LINE.replace(b'"rounds":[0,', b'"rounds":["a",', 1),
        # What DuckDB takes for a record, and nothing else does.
        LINE.replace(b'"status":"ok"', b'"status":"bogus"'),
        LINE.replace(b'"rounds":[0,1,', b'"rounds":[1,1,', 1),
        LINE.replace(b'"warmup_samples":0', b'"warmup_samples":-5'),
    ],
)
def test_a_corrupt_line_gives_the_error_of_read(tmp_path: Path, bad: bytes) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(LINE + bad + LINE)
    assert bad not in LINE
    with pytest.raises(CorruptFile) as expected:
        read(path)
    sql = "SELECT count(DISTINCT case_id), sum(ns) FROM samples"
    for asked in (sql, COUNT):
        with pytest.raises(CorruptFile) as caught:
            query([path], asked)
        assert str(caught.value) == str(expected.value)
    assert query([path], COUNT, skip_corrupt=True).rows == [(2,)]
    result = query([path], sql, skip_corrupt=True)
    assert result.rows == [(1, 2 * 20 * 100.0)]
    assert result.warnings == read(path, skip_corrupt=True).warnings != []


def test_a_newer_schema_gives_the_error_of_read(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(LINE + NEWER + LINE)
    for sql in (COUNT, "SELECT 1", "FROM records LIMIT 0"):
        for skip_corrupt in (False, True):
            with pytest.raises(NewerSchema, match=f"{path}: line 2.*upgrade flopwatch"):
                query([path], sql, skip_corrupt=skip_corrupt)


def test_files_that_cannot_be_read_are_told(tmp_path: Path, path: Path) -> None:
    for other in (tmp_path / "nothing.jsonl", tmp_path):
        with pytest.raises(StoreError):
            query([path, other], COUNT)
    with pytest.raises(UsageError, match="no results file"):
        query([], COUNT)
    with pytest.raises(UsageError, match="not UTF-8"):
        query([Path(os.fsdecode(b"\xff.jsonl"))], COUNT)


def test_no_room_for_a_copy_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(record: Record) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(query_module, "encode", full)
    with pytest.raises(StoreError, match="No space left on device.*TMPDIR"):
        query([path], COUNT)


NUMBERS = st.integers(-LARGEST_UNSIGNED, LARGEST_UNSIGNED)
PARAMS = st.dictionaries(st.text(max_size=3), NUMBERS | st.text(max_size=5), max_size=3)
PHASES = st.sets(st.text(max_size=5), max_size=3)


@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    params=PARAMS,
    phases=PHASES,
    times_ns=st.lists(st.floats(min_value=1e-3, max_value=1e15), max_size=5),
    torn=st.sampled_from([b"", LINE[:9]]),
)
def test_samples_are_what_read_gives(
    tmp_path: Path, params: dict[str, Any], phases: set[str], times_ns: list[float], torn: bytes
) -> None:
    count = len(times_ns) if phases else 0
    record = make_record(
        params=params,
        samples_ns=dict.fromkeys(phases, times_ns),
        rounds=[*range(2, 2 + count)],
        calls_per_sample=[3] * count,
        warmup_samples=count // 2,
    )
    path = tmp_path / "results.jsonl"
    path.write_bytes(encode(record) + b"\n" + torn)
    expected = expected_samples(read(path).records)
    assert sorted(queried_samples(path), key=str) == sorted(expected, key=str)


@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(place=st.integers(0, len(LINE) - 20), junk=st.binary(max_size=5))
def test_a_query_survives_anything(tmp_path: Path, place: int, junk: bytes) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(LINE + LINE[:place] + junk + LINE[place:] + LINE)
    for sql in ("FROM records", "FROM samples"):
        try:
            assert len(query([path], sql).rows) >= 2
        except FlopwatchError as error:
            with pytest.raises(type(error)):
                read(path)


def test_steps_of_monitored_runs_have_a_view_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    file.write_bytes(b"".join(encode(record) + b"\n" for record in make_stalled_run()))
    found = query(
        [file],
        "SELECT rank, count(*), sum(first::INT), count(communication_ns), count(tokens), "
        "min(step), max(step) FROM steps GROUP BY rank ORDER BY rank",
    )
    assert found.rows == [(rank, 500, 10, 500, 0, 0, 479) for rank in range(4)]
    # What a record says of the run itself is there without its steps.
    kept = query([file], "SELECT monitored->>'end', len(monitored->'$.ranks[*]') FROM records")
    assert kept.rows == [(None, 0), ("closed", 0)]
    assert query([file], "SELECT count(*) FROM samples").rows == [(500,)]
