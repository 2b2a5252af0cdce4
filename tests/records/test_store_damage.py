"""Damaged and foreign files: fixed or left alone, read or explained, but never made worse."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flopwatch.errors import CorruptFile, NewerSchema, StoreError
from flopwatch.records import store as store_module
from flopwatch.records.record import SCHEMA, encode
from flopwatch.records.store import Contents, Store, read
from tests.conftest import make_record

LINE = encode(make_record()) + b"\n"
NEWER = LINE.replace(b'"schema":%d' % SCHEMA, b'"schema":%d' % (SCHEMA + 1))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


def ids(contents: Contents) -> list[str]:
    return [record.case_id for record in contents.records]


# Torn lines


CUTS = [1, 2, 3, 10, 100, len(LINE) // 2, len(LINE) - 3, len(LINE) - 2]


@pytest.mark.parametrize(
    ("cut", "num_before"), [*((cut, 2) for cut in CUTS), *((cut, 0) for cut in CUTS[4:])]
)
def test_a_torn_line_is_cut_off_and_kept_next_to_the_file(
    path: Path, cut: int, num_before: int
) -> None:
    path.write_bytes(LINE * num_before + LINE[:cut])
    with Store.open(path) as store:
        assert store.repaired is not None
        assert f"its {cut} bytes were moved to {path}.torn" in store.repaired
        assert "killed" in store.repaired
        assert path.read_bytes() == LINE * num_before
        store.append(make_record(case_id="next"))
    assert ids(read(path)) == ["i"] * num_before + ["next"]
    torn = path.with_name(f"{path.name}.torn")
    assert torn.read_bytes() == LINE[:cut] + b"\n"
    path.write_bytes(LINE + LINE[:20])
    Store.open(path).close()
    assert torn.read_bytes() == LINE[:cut] + b"\n" + LINE[:20] + b"\n"


def test_where_a_fragment_cannot_be_kept_nothing_is_cut(path: Path) -> None:
    path.with_name(f"{path.name}.torn").symlink_to("elsewhere")
    path.write_bytes(LINE + LINE[:20])
    with pytest.raises(StoreError, match="cannot be written"):
        Store.open(path)
    assert path.read_bytes() == LINE + LINE[:20]


@pytest.mark.parametrize("line", [LINE, NEWER])
def test_a_whole_record_only_gets_its_newline(path: Path, line: bytes) -> None:
    path.write_bytes(LINE + line[:-1])
    with Store.open(path) as store:
        assert store.repaired is not None
        assert "nothing is lost" in store.repaired
    assert path.read_bytes() == LINE + line


def test_zeros_that_a_power_cut_left_are_cut_off(path: Path) -> None:
    path.write_bytes(LINE + bytes(5000))
    with Store.open(path) as store:
        assert store.repaired is not None
    assert path.read_bytes() == LINE


def test_a_torn_line_longer_than_a_chunk_is_found(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "CHUNK_BYTES", 64)
    path.write_bytes(LINE * 3 + LINE[:-20])
    with Store.open(path) as store:
        assert store.repaired is not None
    assert path.read_bytes() == LINE * 3


@pytest.mark.parametrize(
    "content",
    [
        b"Dear Ada,\nthe meeting is at noon",
        b'{"learning_rate": 0.1}',
        b'{\n  "learning_rate": 0.1\n}',
        b"\x7fELF\x02\x01",
        b'{"text":"' + b"x" * 3000 + b'"}',
        b'{"schema": 7, "name": "package"}',
        b'{"schema":1,"suite":"a"}\n',
        b'{"a": 1}\n{"case_id":"',
        b'{"case_id":"',
        bytes(5000),
        LINE + b"a log",
        LINE + b"a log\n" + LINE,
        b"a log\n" + LINE + LINE[:50],
        LINE + b'{"text": "',
    ],
)
@pytest.mark.parametrize("skip_corrupt", [False, True])
def test_a_foreign_file_is_left_alone(
    path: Path, content: bytes, skip_corrupt: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if skip_corrupt and b"a log\n" in content:
        pytest.skip("records among other lines are wanted then")
    monkeypatch.setattr(store_module, "MAX_LINE_BYTES", 2000)
    path.write_bytes(content)
    with pytest.raises(StoreError, match="is not a results file, or is .*; nothing was changed"):
        Store.open(path, skip_corrupt=skip_corrupt)
    assert path.read_bytes() == content
    assert os.listdir(path.parent) == [path.name]


def test_skipping_corrupt_lines_is_content_with_one_record(path: Path) -> None:
    path.write_bytes(b"a log\n" + LINE + LINE[:50])
    with Store.open(path, skip_corrupt=True) as store:
        assert store.repaired is not None
    assert path.read_bytes() == b"a log\n" + LINE


def test_records_that_another_program_has_written_again_are_ours(path: Path) -> None:
    spaced = json.dumps(json.loads(LINE), sort_keys=True).encode() + b"\n"
    path.write_bytes(spaced * 2 + LINE)
    with Store.open(path) as store:
        store.append(make_record())
    assert len(read(path).records) == 4


def test_append_repairs_what_another_run_left_meanwhile(path: Path) -> None:
    with Store.open(path) as store:
        store.append(make_record(case_id="1"))
        with path.open("ab") as other:
            other.write(LINE[:100])
        store.append(make_record(case_id="2"))
        assert "its 100 bytes were moved" in str(store.repaired)
    assert ids(read(path)) == ["1", "2"]


# Reading


def test_an_empty_file_has_no_records(path: Path) -> None:
    path.touch()
    assert read(path) == Contents(records=[], warnings=[])


def test_blank_lines_and_a_missing_last_newline_are_tolerated(path: Path) -> None:
    path.write_bytes(b"\n" + LINE + b"  \r\n\n" + LINE[:-1])
    assert ids(read(path)) == ["i", "i"]


def test_reading_a_torn_line_warns_and_leaves_the_file(path: Path) -> None:
    path.write_bytes(LINE * 2 + LINE[:200])
    contents = read(path)
    assert ids(contents) == ["i", "i"]
    assert len(contents.warnings) == 1
    assert f"{path}: line 3, the last, is cut short" in contents.warnings[0]
    assert path.read_bytes() == LINE * 2 + LINE[:200]


def test_a_corrupt_line_is_named(path: Path) -> None:
    path.write_bytes(LINE + b"\n" + b"oops\n" + LINE * 2 + b"oops again\n")
    with pytest.raises(CorruptFile) as caught:
        read(path)
    sentence = str(caught.value)
    assert f"{path}: line 3 is corrupt: it is not JSON" in sentence
    assert "the 3 other records are intact, and --skip-corrupt reads them" in sentence
    contents = read(path, skip_corrupt=True)
    assert len(contents.records) == 3
    assert [w.split(" was skipped")[0] for w in contents.warnings] == [
        f"{path}: line 3",
        f"{path}: line 6",
        f"{path}: 2 lines were skipped, 3 records were read",
    ]


def test_a_newer_schema_is_named_and_never_skipped(path: Path) -> None:
    path.write_bytes(LINE + NEWER + LINE)
    for skip_corrupt in (False, True):
        with pytest.raises(NewerSchema, match=rf"{path}: line 2 .*upgrade flopwatch"):
            read(path, skip_corrupt=skip_corrupt)


def test_what_is_no_results_file_is_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "model.bin").write_bytes(b"\x93NUMPY\x01\x00v\x00" + bytes(range(256)) * 4)
    (tmp_path / "config.json").write_bytes(b'{"learning_rate": 0.1}')
    for name, why in {
        "nothing.jsonl": "does not exist",
        "": "is a folder",
        "pipe": "is not a regular file",
        "model.bin": "is not a results file",
        "config.json": "is not a results file",
        "x" * 300: "cannot be read",
    }.items():
        with pytest.raises(StoreError, match=why):
            read(tmp_path / name)


def test_a_file_that_the_system_refuses_to_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(StoreError, match="cannot be read"):
        read(tmp_path / "a")


@pytest.mark.parametrize(
    "line",
    [
        b"x" * 100_000_000,
        b"\x00" * 1000,
        b'{"id":' + b"[" * 100_000,
        LINE.replace(b'"demo"', b'"\xff"').strip(),
        LINE.replace(b"100.0", b"1e999", 1).strip(),
        LINE.replace(b"100.0", b"NaN", 1).strip(),
        LINE.replace(b'"rounds":[0', b'"rounds":[' + b"9" * 5000).strip(),
    ],
    ids=["100 MB", "zeros", "nested", "not UTF-8", "infinite", "NaN", "huge"],
)
def test_a_hostile_line_is_corrupt_and_the_others_are_read(path: Path, line: bytes) -> None:
    path.write_bytes(LINE + line + b"\n" + LINE)
    with pytest.raises(CorruptFile, match="line 2 is corrupt"):
        read(path)
    assert len(read(path, skip_corrupt=True).records) == 2


def mutate(line: bytes, place: int, junk: bytes, drop: int) -> bytes:
    place %= len(line)
    return line[:place] + junk + line[place + drop :]


LINES = st.one_of(
    st.just(LINE),
    st.just(NEWER),
    st.just(b"\n"),
    st.binary(max_size=50),
    st.builds(mutate, st.just(LINE), st.integers(0), st.binary(max_size=5), st.integers(0, 20)),
)


@settings(
    max_examples=200,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(lines=st.lists(LINES, max_size=6), tail=LINES, skip_corrupt=st.booleans())
def test_reading_survives_anything(
    path: Path, lines: list[bytes], tail: bytes, skip_corrupt: bool
) -> None:
    path.write_bytes(b"".join(line.rstrip(b"\n") + b"\n" for line in lines) + tail)
    with contextlib.suppress(NewerSchema if skip_corrupt else StoreError):
        contents = read(path, skip_corrupt=skip_corrupt)
        assert len(contents.records) >= lines.count(LINE)


@settings(
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(lines=st.lists(LINES, max_size=4), tail=LINES)
def test_opening_changes_only_the_last_line(path: Path, lines: list[bytes], tail: bytes) -> None:
    before = b"".join(line.rstrip(b"\n") + b"\n" for line in lines)
    path.write_bytes(before + tail)
    try:
        Store.open(path).close()
    except StoreError:
        assert path.read_bytes() == before + tail
        return
    after = path.read_bytes()
    assert after.startswith(before)
    assert after == b"" or after.endswith(b"\n")


def test_neither_store_nor_query_imports_torch_or_duckdb() -> None:
    code = """
import sys, flopwatch.records.query, flopwatch.records.store
print({"torch", "duckdb", "numpy"} & set(sys.modules))
"""
    source = Path(store_module.__file__).parents[2]
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == "set()"
