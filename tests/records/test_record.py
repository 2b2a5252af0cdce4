"""The record: what is written is what is read, and nonsense is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flopwatch.errors import CorruptFile, NewerSchema
from flopwatch.records import record as record_module
from flopwatch.records.record import Check, PhaseMemory, Rank, Record, Region, decode, encode
from flopwatch.settings import Settings
from tests.conftest import make_record

FULL = make_record(
    reason="a reason, with \u00fcmlauts and \x00",
    params={"dtype": "float32", "shape": [768, 3072], "bias": None},
    samples_ns={"forward": [3.5, 2.0], "backward": [7.0, 6.25]},
    rounds=[0, 1],
    loops=[1, 4],
    warmup_samples=1,
    flops={"forward": {"float32": 1e9}},
    bytes={"forward": 1e6},
    conditions={"autocast": "off"},
    facts={"parameters": 125e6},
    instrumented_ns=[3.0],
    regions={"forward/mlp": Region(calls=2, samples_ns=[1.5])},
    curves={"loss": [3.0, 2.5], "step": [1.0, 2.0]},
    peak_memory_bytes=2**40,
    memory={"call": PhaseMemory(peak_bytes=2**40, end_bytes=7)},
    held_bytes=2**41,
    memory_estimate_bytes={"parameters": 1e9},
    first_page_faults=123,
    check=Check(against="plain", errors={"output": 1e-6, "grad weight": None}, tolerance=1e-3),
    prediction={"step": 1.5},
    notes=["a warning"],
    settings=Settings(threads=4, memory_limit_bytes=10),
    environment={"host": "here", "load": {"average": [0.1]}},
    sources={"suite.py": "abc"},
)

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def content_of(record: Record) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(encode(record))
    return content


@pytest.mark.parametrize("record", [FULL, make_record(), make_record(status="oom", steady=None)])
def test_a_record_survives_being_written_and_read(record: Record) -> None:
    assert decode(encode(record)) == record


def test_a_record_is_one_line_that_ends_with_the_schema() -> None:
    line = encode(FULL)
    assert b"\n" not in line
    # query.py knows by this end that a line is whole and of this version.
    assert line.endswith(b',"schema":%d}' % record_module.SCHEMA)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"rounds": [0]}, "1 rounds but 2 loops"),
        ({"loops": [1, 1, 1]}, "2 rounds but 3 loops"),
        ({"samples_ns": {"forward": [1.0]}}, "2 rounds but 1 of forward"),
        ({"samples_ns": {"forward": [1.0, 2.0], "backward": []}}, "2 rounds but 0 of backward"),
        ({"samples_ns": {}}, "2 rounds but no samples"),
        ({"samples_ns": {"loops": [1.0]}}, "2 rounds but 1 of loops"),
        ({"warmup_samples": 3}, "3 warm-up samples of 2"),
        ({"warmup_samples": -1}, "-1 warm-up samples of 2"),
        ({"samples_ns": {"forward": [1.0, 0.0]}}, "forward has a sample of 0.0 ns"),
        ({"samples_ns": {"forward": [-1.0, 1.0]}}, "forward has a sample of -1.0 ns"),
        ({"samples_ns": {"forward": [1.0, 1e308]}}, "forward has a sample of 1e.308 ns"),
        ({"samples_ns": {"forward": [1e-300, 1.0]}}, "forward has a sample of 1e-300 ns"),
        ({"flops": {"forward": {"float32": 1e300}}}, "a number of FLOPs is less than 0 or beyond"),
        ({"bytes": {"forward": -1.0}}, "a number of bytes is less than 0"),
        ({"facts": {"tokens": 1e308}}, "the fact 'tokens' is 1e.308"),
        ({"environment": {"machine": "mine"}}, "the section 'machine' of its environment"),
        ({"environment": {"load": {"average": ["high"]}}}, "'average' of its load is not a number"),
        ({"rounds": [-1, 0]}, "a round is less than 0"),
        ({"rounds": [0, 2**63]}, "beyond 64 bits"),
        ({"params": {"size": reduce(lambda inside, _: [inside], range(100), 1)}}, "too deeply"),
        ({"rounds": [3, 3]}, "it has two samples of one round"),
        ({"loops": [0, 1]}, "a number of loops is less than 1"),
        ({"peak_memory_bytes": -1}, "a peak memory is less than 0"),
        ({"memory": {"call": {"peak_bytes": 1, "end_bytes": -1}}}, "a phase's memory is less"),
        ({"samples_ns": {"forward": [1.0, float("nan")]}}, "not a record"),
        ({"samples_ns": {"forward": [1.0, float("inf")]}}, "not a record"),
        ({"instrumented_ns": [1.0, 2.0]}, "2 instrumented runs but 1 samples"),
        ({"instrumented_ns": []}, "0 instrumented runs but 1 of forward/mlp"),
        ({"regions": {"f/a": Region(calls=0, samples_ns=[1.0])}}, "region f/a has 0 calls"),
        ({"curves": {"loss": [1.0], "step": []}}, "its curves differ in length"),
        ({"curves": {"loss": [float("nan")]}}, "not a record"),
        ({"facts": {"loss": float("inf")}}, "not a record"),
        ({"status": "splendid"}, "not a record"),
        ({"params": None}, "not a record"),
    ],
)
def test_what_no_measurement_gives_is_corrupt(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(CorruptFile, match=why):
        decode(encode(replace(FULL, **changes)))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"", "not JSON"),
        (b"hello", "not JSON"),
        (b"\x00" * 10, "not JSON"),
        (b'{"id":"\xff\xfe"}', "not JSON"),
        (b'{"id":"\\ud800"}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"params":' * 100_000, "not JSON"),
        (b"9" * 10_000, "not JSON"),
        (b'{"schema":1,"peak_memory_bytes":1e999}', "not JSON"),
        (b"[1]", "not an object"),
        (b"null", "not an object"),
        (b"{}", "no valid schema"),
        (b'{"schema":true}', "no valid schema"),
        (b'{"schema":"1"}', "no valid schema"),
        (b'{"schema":1.0}', "no valid schema"),
        (b'{"schema":0}', "no valid schema"),
        (b'{"schema":1}', "not a record"),
    ],
)
def test_a_line_that_is_no_record_is_corrupt(line: bytes, why: str) -> None:
    with pytest.raises(CorruptFile, match=why):
        decode(line)


@pytest.mark.parametrize("schema", [record_module.SCHEMA + 1, 10**30])
def test_a_newer_schema_asks_for_an_upgrade(schema: int) -> None:
    with pytest.raises(NewerSchema, match=f"schema {schema}.*upgrade flopwatch"):
        decode(json.dumps({"schema": schema}).encode())


def test_unknown_fields_are_ignored() -> None:
    content = {**content_of(FULL), "colour": "blue"}
    assert decode(json.dumps(content).encode()) == FULL


VERSION_1 = (
    b'{"id":"470b0ba25e235238","group":"e1b2","run":"20261116T080000-1a2b3c","suite":"demo",'
    b'"variant":"fast","baseline":"plain","params":{"size":4,"shape":[2,3]},"status":"ok",'
    b'"reason":null,"samples_ns":{"call":[9.5,8.0]},"rounds":[0,1],"loops":[1,4],'
    b'"warmup_samples":1,"steady":true,"stop":"precise","flops":{"call":{"float32":64.0}},'
    b'"bytes":{"call":128.0},"peak_memory_bytes":null,"check":{"against":"plain",'
    b'"errors":{"output":0.0},"tolerance":0.0001},"prediction":null,"notes":[],"settings":'
    b'{"device":"cpu","threads":2,"cache":"hot","allocator":"retain","target_interval":0.02,'
    b'"budget_s":10.0,"memory_limit_bytes":null,"silence_limit_s":300.0,"seed":0},'
    b'"environment":{"host":"here"},"sources":{"mine.py":"abc"},'
    b'"taken_at":"2026-11-16T08:00:01+00:00","schema":1}'
)


def test_a_record_of_version_1_is_read() -> None:
    record = decode(VERSION_1)
    assert (record.schema, record.variant, record.samples_ns) == (
        record_module.SCHEMA,
        "fast",
        {"call": [9.5, 8.0]},
    )
    assert record.conditions == record.facts == record.regions == record.curves == {}
    assert record.instrumented_ns == []


def test_a_record_of_version_2_is_read() -> None:
    later = b'"conditions":{"dtype":"float32"},"facts":{"parameters":3.0},"schema":2'
    record = decode(VERSION_1.replace(b'"schema":1', later))
    assert (record.schema, record.facts) == (record_module.SCHEMA, {"parameters": 3.0})
    assert (record.memory, record.held_bytes, record.first_page_faults) == ({}, None, None)


def test_a_record_of_version_3_is_read() -> None:
    later = b'"memory":{"call":{"peak_bytes":8,"end_bytes":4}},"held_bytes":2,"schema":3'
    record = decode(VERSION_1.replace(b'"schema":1', later))
    assert (record.schema, record.held_bytes) == (record_module.SCHEMA, 2)
    assert record.ranks == []


@pytest.mark.parametrize(
    ("rank", "reason"),
    [
        (Rank(samples_ns={"call": [1.0]}, waiting_ns=[], moving_ns=[0.0]), "0 of rank 0"),
        (Rank(samples_ns={"call": []}, waiting_ns=[0.0], moving_ns=[0.0]), "0 of rank 0"),
        (Rank(samples_ns={"call": [1.0]}, waiting_ns=[-1.0], moving_ns=[0.0]), "time of -1.0 ns"),
    ],
)
def test_ranks_that_no_measurement_gives_are_refused(rank: Rank, reason: str) -> None:
    samples = {"samples_ns": {"call": [1.0]}, "rounds": [0], "loops": [1], "warmup_samples": 0}
    with pytest.raises(CorruptFile, match=reason):
        decode(encode(make_record(**samples, ranks=[rank])))


def test_old_versions_are_upgraded_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_module, "SCHEMA", 3)
    monkeypatch.setattr(
        record_module,
        "UPGRADES",
        {
            1: lambda old: {**old, "name": old["old_name"]},
            2: lambda old: {**old, "variant": old["name"] + "!"},
        },
    )
    content = {**content_of(make_record()), "schema": 1, "old_name": "dense"}
    del content["variant"]
    assert decode(json.dumps(content).encode()) == make_record(variant="dense!", schema=3)
    half_way = {**content, "schema": 2, "name": "dyad"}
    assert decode(json.dumps(half_way).encode()) == make_record(variant="dyad!", schema=3)


@given(st.binary(max_size=200))
def test_decode_survives_any_bytes(line: bytes) -> None:
    with pytest.raises((CorruptFile, NewerSchema)):
        decode(line)


@given(field=st.sampled_from(sorted(content_of(FULL))), value=JSON_VALUES, drop=st.booleans())
def test_decode_survives_any_value_in_any_field(field: str, value: Any, drop: bool) -> None:
    content = {**content_of(FULL), field: value}
    if drop:
        del content[field]
    try:
        record = decode(json.dumps(content).encode())
    except (CorruptFile, NewerSchema):
        return
    lengths = {len(record.rounds), len(record.loops), *map(len, record.samples_ns.values())}
    assert len(lengths) == 1
    assert decode(encode(record)) == record
