"""What may stand on the pipe between a worker and the runner."""

from __future__ import annotations

import json

import pytest

from flopwatch.records.record import Check
from flopwatch.settings import Settings
from flopwatch.worker.failure import Failure
from flopwatch.worker.messages import (
    BrokenMessage,
    Call,
    Failed,
    Finished,
    LineReader,
    MeasureGroup,
    RankPlace,
    Report,
    Restart,
    decode_request,
    encode,
)

PLACE = RankPlace(
    rank=1, ranks=2, local_rank=1, local_ranks=2, node_ranks=2, address="node0", port=7
)
FAILED = Failed(
    variant="fast",
    failure=Failure("wrong", "disagrees with plain"),
    check=Check(reference="plain", errors={"output": None}, tolerance=0.1),
    is_peer_lost=False,
)


def test_reports_arrive_whole_however_they_are_cut() -> None:
    sent = [FAILED, Restart(), Finished(stop_reason="precise", rebuilt_rounds=[4])]
    data = b"".join(encode(report) for report in sent)
    reader: LineReader[Report] = LineReader(Report)
    pieces = [data[start : start + 7] for start in range(0, len(data), 7)]
    assert [report for piece in pieces for report in reader.feed(piece)] == sent


def test_requests_arrive_as_they_were_sent() -> None:
    call = Call(settings=Settings(threads=3), function="measure_speed", arguments={"a": [1]})
    group = MeasureGroup(
        settings=Settings(device="cuda"),
        place=PLACE,
        suite_path="mine.py",
        params={"size": 64, "shape": [1, 2]},
        variants=["plain"],
        baseline="plain",
        cache_bytes=None,
        is_probe=False,
    )
    assert [decode_request(encode(request)) for request in (call, group)] == [call, group]


WHOLE = json.loads(encode(FAILED))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"garbage", "b'garbage' is not a message"),
        (b"\xff\xfe", "is not a message"),
        (b"[]", "Expected `object`, got `array`"),
        (b"{}", "missing required field `kind`"),
        (json.dumps({**WHOLE, "kind": "Unheard"}).encode(), "Invalid value 'Unheard'"),
        (json.dumps({**WHOLE, "more": 1}).encode(), "unknown field `more`"),
        (json.dumps({**WHOLE, "variant": 3}).encode(), "Expected `str`, got `int`"),
        (json.dumps({**WHOLE, "failure": {"status": "tired", "message": ""}}).encode(), "'tired'"),
        (b'{"kind": "Failed", "variant": "fast"}', "missing required field `failure`"),
        (b"[" * 100_000, "is not a message"),
    ],
)  # fmt: skip
def test_what_is_no_message_is_one_clear_error(line: bytes, complaint: str) -> None:
    reader: LineReader[Report] = LineReader(Report)
    with pytest.raises(BrokenMessage, match=complaint):
        reader.feed(line + b"\n")


def test_a_line_without_end_is_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flopwatch.worker.messages.LONGEST_BYTES", 1000)
    reader: LineReader[Report] = LineReader(Report)
    assert reader.feed(b"x" * 600) == []
    with pytest.raises(BrokenMessage, match="more than 1000 bytes"):
        reader.feed(b"x" * 600)
