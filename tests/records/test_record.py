"""The record: what is written is what is read, and nonsense is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import reduce
from pathlib import Path
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
    message="a reason, with \u00fcmlauts and \x00",
    params={"dtype": "float32", "shape": [768, 3072], "bias": None},
    samples_ns={"forward": [3.5, 2.0], "backward": [7.0, 6.25]},
    rounds=[0, 1],
    calls_per_sample=[1, 4],
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
    resident_bytes=2**41,
    predicted_memory_bytes={"parameters": 1e9},
    first_call_page_faults=123,
    check=Check(reference="plain", errors={"output": 1e-6, "grad weight": None}, tolerance=1e-3),
    prediction={"step": 1.5},
    notes=["a warning"],
    settings=Settings(threads=4, memory_limit_bytes=10),
    environment={"host": "here", "load": {"average": [0.1]}},
    sources={"suite.py": "abc"},
)

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64) + 1, 2**64 - 1)
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


def test_a_record_is_one_line() -> None:
    assert b"\n" not in encode(FULL)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"rounds": [0], "warmup_samples": 0}, "1 rounds but 2 of calls_per_sample"),
        ({"calls_per_sample": [1, 1, 1]}, "2 rounds but 3 of calls_per_sample"),
        ({"samples_ns": {"forward": [1.0]}}, "2 rounds but 1 of forward"),
        ({"samples_ns": {"forward": [1.0, 2.0], "backward": []}}, "2 rounds but 0 of backward"),
        ({"samples_ns": {}}, "2 rounds but no samples"),
        ({"samples_ns": {"other": [1.0]}}, "2 rounds but 1 of other"),
        ({"warmup_samples": 3}, "3 warm-up samples of 2"),
        ({"warmup_samples": -1}, ">= 0 - at `$.warmup_samples`"),
        ({"samples_ns": {"forward": [1.0, 0.0]}}, ">= 1e-12 - at `$.samples_ns"),
        ({"samples_ns": {"forward": [-1.0, 1.0]}}, ">= 1e-12 - at `$.samples_ns"),
        ({"samples_ns": {"forward": [1.0, 1e308]}}, "< 9.22.*e.18 - at `$.samples_ns"),
        ({"samples_ns": {"forward": [1e-300, 1.0]}}, ">= 1e-12 - at `$.samples_ns"),
        ({"flops": {"forward": {"float32": 1e300}}}, "<= 1e.100 - at `$.flops"),
        ({"bytes": {"forward": -1.0}}, ">= 0.0 - at `$.bytes"),
        ({"facts": {"tokens": 1e308}}, "<= 1e.100 - at `$.facts"),
        ({"environment": {"machine": "mine"}}, "the section 'machine' of its environment"),
        ({"environment": {"load": {"average": ["high"]}}}, "'average' of its load is not a number"),
        ({"rounds": [-1, 0]}, ">= 0 - at `$.rounds"),
        ({"rounds": [0, 2**63]}, "- at `$.rounds"),
        ({"params": {"size": reduce(lambda inside, _: [inside], range(100), 1)}}, "too deeply"),
        ({"params": {"size": [1, 2**64]}}, "a whole number of more than 64 bits"),
        ({"job": {"ranks": -(2**64)}}, "a whole number of more than 64 bits"),
        ({"environment": {"load": {"steal_share": 10**400}}}, "of more than 64 bits"),
        ({"settings": Settings(threads=10**400)}, "a whole number of more than 64 bits"),
        ({"rebuilt_rounds": [10**400]}, "- at `$.rebuilt_rounds"),
        ({"rounds": [3, 3]}, "it has two samples of one round"),
        ({"calls_per_sample": [0, 1]}, ">= 1 - at `$.calls_per_sample"),
        ({"peak_memory_bytes": -1}, ">= 0 - at `$.peak_memory_bytes"),
        ({"memory": {"call": {"peak_bytes": 1, "end_bytes": -1}}}, ">= 0 - at `$.memory"),
        ({"samples_ns": {"forward": [1.0, float("nan")]}}, "not a record"),
        ({"samples_ns": {"forward": [1.0, float("inf")]}}, "not a record"),
        ({"instrumented_ns": [1.0, 2.0]}, "2 instrumented runs but 1 samples"),
        ({"instrumented_ns": []}, "0 instrumented runs but 1 of forward/mlp"),
        ({"regions": {"f/a": Region(calls=0, samples_ns=[1.0])}}, ">= 1 - at `$.regions"),
        ({"curves": {"loss": [1.0], "step": []}}, "its curves differ in length"),
        ({"curves": {"loss": [float("nan")]}}, "not a record"),
        ({"facts": {"loss": float("inf")}}, "not a record"),
        ({"status": "splendid"}, "not a record"),
        ({"params": None}, "not a record"),
    ],
)
def test_what_no_measurement_gives_is_corrupt(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(CorruptFile, match=why.replace("$.", r"\$\.")):
        decode(encode(replace(FULL, **changes)))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"", "not JSON"),
        (b"hello", "not JSON"),
        (b"\x00" * 10, "not JSON"),
        (b'{"schema":1,"case_id":"\xff\xfe"}', "not JSON"),
        (b'{"case_id":"\\ud800"}', "not JSON"),
        (b"[" * 100_000, "not a record"),
        (b'{"params":' * 100_000, "not JSON"),
        (b"9" * 10_000, "not a record"),
        (b'{"schema":1,"peak_memory_bytes":1e999}', "not a record"),
        (b"[1]", "Expected `object`"),
        (b"null", "Expected `object`"),
        (b"{}", "missing required field `schema`"),
        (b'{"schema":true}', "at `.*schema`"),
        (b'{"schema":"1"}', "at `.*schema`"),
        (b'{"schema":1.0}', "at `.*schema`"),
        (b'{"schema":0}', "at `.*schema`"),
        (b'{"schema":1}', "not a record"),
    ],
)
def test_a_line_that_is_no_record_is_corrupt(line: bytes, why: str) -> None:
    with pytest.raises(CorruptFile, match=why):
        decode(line)


@pytest.mark.parametrize("schema", [record_module.SCHEMA + 1, 10**30])
def test_another_schema_asks_to_upgrade_or_measure_again(schema: int) -> None:
    with pytest.raises(NewerSchema, match=f"schema {schema}.*upgrade flopwatch or measure again"):
        decode(json.dumps({"schema": schema}).encode())


def test_unknown_fields_are_ignored() -> None:
    content = {**content_of(FULL), "colour": "blue"}
    assert decode(json.dumps(content).encode()) == FULL


@pytest.mark.parametrize(
    ("rank", "reason"),
    [
        (Rank(samples_ns={"call": [1.0]}, waiting_ns=[], transfer_ns=[0.0]), "0 of rank 0"),
        (
            Rank(
                samples_ns={"call": [1.0]},
                waiting_ns=[0.0],
                transfer_ns=[0.0],
                bubble_ns=[1.0, 2.0],
            ),
            "2 of rank 0",
        ),
        (Rank(samples_ns={"call": []}, waiting_ns=[0.0], transfer_ns=[0.0]), "0 of rank 0"),
        (Rank(samples_ns={"call": [1.0]}, waiting_ns=[-1.0], transfer_ns=[0.0]), "waiting_ns"),
    ],
)
def test_ranks_that_no_measurement_gives_are_refused(rank: Rank, reason: str) -> None:
    samples = {
        "samples_ns": {"call": [1.0]},
        "rounds": [0],
        "calls_per_sample": [1],
        "warmup_samples": 0,
    }
    with pytest.raises(CorruptFile, match=reason):
        decode(encode(make_record(**samples, ranks=[rank])))


def test_every_field_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "records.md").read_text()
    assert [name for name in content_of(FULL) if f"`{name}`" not in page] == []


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
    lengths = {
        len(record.rounds),
        len(record.calls_per_sample),
        *map(len, record.samples_ns.values()),
    }
    assert len(lengths) == 1
    assert decode(encode(record)) == record
