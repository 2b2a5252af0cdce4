"""Files as profilers write them, in pieces of any length, whole, cut off, damaged and foreign."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flopwatch.errors import FlopwatchError
from flopwatch.traces import trace_files, trace_reader
from flopwatch.traces.trace_events import Trace
from flopwatch.traces.trace_files import is_trace, list_traces
from flopwatch.traces.trace_reader import read_trace
from tests.traces.trace_maker import TraceMaker, make_training_step


def make_steps(count: int = 3) -> TraceMaker:
    maker = TraceMaker(distributedInfo={"rank": 1, "world_size": 4})
    for number in range(count):
        make_training_step(maker, 100.0 * number, number)
    return maker


def assert_same(found: Trace, wanted: Trace) -> None:
    assert found.names == wanted.names
    for table in ("host", "launches", "work"):
        one, other = getattr(found, table), getattr(wanted, table)
        for field in one.__slots__:
            assert np.array_equal(getattr(one, field), getattr(other, field)), (table, field)
    assert [json.loads(shape.dims) for shape in found.shapes] == [
        json.loads(shape.dims) for shape in wanted.shapes
    ]
    assert (found.rank, found.world_size, found.device_names) == (1, 4, wanted.device_names)


def write_text(path: Path, content: dict[str, Any] | str | bytes) -> Path:
    text = json.dumps(content) if isinstance(content, dict) else content
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_every_way_to_write_it_reads_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = make_steps()
    content = maker.to_dict()
    wanted = read_trace(maker.write(tmp_path / "plain.json"))
    assert (len(wanted.host), len(wanted.work), len(wanted.launches.start)) == (39, 24, 24)
    behind = {"traceEvents": content["traceEvents"], **maker.about, "INFO": ["a}, {b", {"x": []}]}
    text = json.dumps(content)
    half = len(text) // 2
    packed = gzip.compress(text[:half].encode()) + gzip.compress(text[half:].encode())
    ways = [
        write_text(tmp_path / "indented.json", json.dumps(content, indent=2)),
        write_text(tmp_path / "behind.json", behind),
        write_text(tmp_path / "bare.json", "\n " + json.dumps(behind, separators=(",", ":"))),
        maker.write(tmp_path / "packed.json.gz"),
        write_text(tmp_path / "two_members.gz", packed),
    ]
    for size in (300, 1000, 5000, 4 * 2**20):
        monkeypatch.setattr(trace_reader, "PIECE_BYTES", size)
        monkeypatch.setattr(trace_files, "READ_BYTES", min(size, 2**20))
        for way in ways:
            assert_same(read_trace(way), wanted)
            assert not read_trace(way).remarks


def test_a_bare_list_of_events_is_a_trace(tmp_path: Path) -> None:
    maker = make_steps(1)
    found = read_trace(write_text(tmp_path / "list.json", json.dumps(maker.events)))
    assert len(found.work) == 8
    assert found.rank is None


def test_strings_and_lists_that_look_like_cuts_do_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_reader, "PIECE_BYTES", 400)
    monkeypatch.setattr(trace_files, "READ_BYTES", 64)
    maker = TraceMaker()
    for number in range(40):
        maker.operator('a"}, {"b": [{"c": 1}, {"d": 2}], "', 10.0 * number, 5)
        maker.events[-1]["args"]["list"] = [{"x": 1}, {"y": "] } ,"}, {"z": []}]
    found = read_trace(maker.write(tmp_path / "odd.json"))
    assert len(found.host) == 40
    assert found.names == ['a"}, {"b": [{"c": 1}, {"d": 2}], "']
    assert not found.remarks


def test_times_are_whole_nanoseconds(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.operator("aten::mm", 4458676522690.655, 1.001)
    maker.operator("aten::mm", 1661203462598738, 19)
    host = read_trace(maker.write(tmp_path / "times.json")).host
    assert host.start.tolist() == [4458676522690655, 1661203462598738000]
    assert (host.end - host.start).tolist() == [1001, 19000]


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_whole_of_a_file_that_was_cut_off_is_read(tmp_path: Path, packed: bool) -> None:
    """Cut anywhere: the events before the cut are all there, and it is said that there is more."""
    maker = make_steps(2)
    text = json.dumps(maker.to_dict()).encode()
    whole = read_trace(write_text(tmp_path / "whole.json", text))
    first, chance = text.index(b'"traceEvents"'), random.Random(0)
    for _ in range(60):
        cut = chance.randrange(first + 400, len(text) - 1)
        content = text[:cut]
        if packed:
            compressed = gzip.compress(text)
            content = compressed[: max(400, cut * len(compressed) // len(text))]
        path = write_text(tmp_path / "cut.json", content)
        found = read_trace(path)
        assert "cut off or damaged: what is whole of it was read" in found.remarks[0]
        size = len(found.host)
        assert found.host.start.tolist() == whole.host.start.tolist()[:size]
        if not packed:
            missing = text[cut:].count(b'"cpu_op"') + text[cut:].count(b'"user_annotation"')
            assert size in (len(whole.host) - missing, len(whole.host) - missing - 1)


def test_what_profilers_write_though_it_is_no_json_is_read(tmp_path: Path) -> None:
    text = json.dumps(make_steps().to_dict()).encode()
    text = text.replace(b'"stream": 7', b'"stream": 7, "memory bandwidth (GB/s)": -inf, "x": nan')
    text = text.replace(b'"aten::linear"', rb'"C:\Users\me\aten::linear"')
    text = text.replace(b'"cudaLaunchKernel"', b'"cuda\xff"')
    found = read_trace(write_text(tmp_path / "odd.json", text))
    assert (len(found.host), len(found.work)) == (39, 24)
    assert not found.remarks


def test_events_that_cannot_be_read_are_left_out_and_counted(tmp_path: Path) -> None:
    maker = make_steps(1)
    bad = [7, "x", None, {"ph": "X", "ts": "soon"}, {"ph": "X", "cat": "kernel", "ts": 1e300},
           {"ph": "X", "cat": "cpu_op", "ts": [], "args": 3}]  # fmt: skip
    content = maker.to_dict()
    content["traceEvents"] = [*bad, *maker.events]
    found = read_trace(write_text(tmp_path / "bad.json", content))
    assert len(found.work) == 8
    assert "6 events that cannot be read; they are left out" in found.remarks[0]


REFUSED: dict[str, tuple[bytes, str]] = {
    "empty": (b"  \n", "is empty; record a trace again"),
    "text": (b"hello", "is not a trace of torch.profiler: it is not JSON"),
    "json": (b'{"a": [1, 2]}', "it is JSON without a list traceEvents"),
    "nothing": (
        b'{"schemaVersion": 1, "traceEvents": []}',
        "has no operators and no kernels; let the profiler run over at least one step",
    ),
    "chrome": (
        b'{"traceEvents": [{"ph": "X", "cat": "v8", "name": "f", "ts": 1, "dur": 2}]}',
        "is a Chrome trace of another program",
    ),
    "nsys": (b"SQLite format 3\0 and more", "is an SQLite database, as Nsight Systems writes"),
    "cut": (gzip.compress(b'{"schemaVersion": 1, "x": "' + b"y" * 999)[:20], "cut off before its"),
    "binary": (bytes(range(256)) * 9, "it is not JSON"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_trace_is_refused_in_a_sentence(tmp_path: Path, name: str) -> None:
    content, sentence = REFUSED[name]
    path = write_text(tmp_path / "x.json", content)
    with pytest.raises(FlopwatchError) as caught:
        read_trace(path)
    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_not_there_and_folders_without_traces(tmp_path: Path) -> None:
    with pytest.raises(FlopwatchError, match="does not exist; check the name"):
        read_trace(tmp_path / "none.json")
    (tmp_path / "notes.txt").write_text("no trace")
    with pytest.raises(FlopwatchError, match="has no traces, no file that ends in .json"):
        list_traces(tmp_path)
    files = [make_steps(1).write(tmp_path / name) for name in ("b.json.gz", "a.json")]
    assert list_traces(tmp_path) == sorted(files)


def test_traces_are_known_by_name_or_content(tmp_path: Path) -> None:
    assert is_trace(make_steps(1).write(tmp_path / "trace.json.gz"))
    assert is_trace(make_steps(1).write(tmp_path / "trace"))
    assert is_trace(tmp_path)
    assert not is_trace(write_text(tmp_path / "steps.jsonl", '{"case_id": "x"}\n'))
    assert not is_trace(write_text(tmp_path / "steps.json", '{"case_id":"x"}\n'))
    assert not is_trace(tmp_path / "none.jsonl")


def test_what_was_read_is_reported(tmp_path: Path) -> None:
    path = make_steps().write(tmp_path / "trace.json.gz")
    seen: list[int] = []
    read_trace(path, seen.append)
    assert seen[-1] == path.stat().st_size


def test_a_recorded_trace_is_read(recorded: Path) -> None:
    found = read_trace(recorded)
    assert {"aten::addmm", "aten::native_layer_norm", "Optimizer.step#AdamW.step"} <= set(
        found.names
    )
    assert found.is_recorded_with_shapes
    assert not found.is_of_device
    assert not found.remarks
