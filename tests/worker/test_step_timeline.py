"""One step of a job, rank by rank."""

from __future__ import annotations

from itertools import pairwise

import pytest

from flopwatch.worker.rank_times import Exchange, Run, StageTurn, Stop
from flopwatch.worker.step_timeline import MOST_SPANS, make_timeline

MS = 1e6
SENT, REDUCED = Exchange("send", (0, 1)), Exchange("all-reduce", (0, 1), "tp")


def list_spans(
    run: Run, *others: Run, phases: tuple[str, ...] = ("forward-backward",)
) -> list[str]:
    """Of the first rank."""
    lane = make_timeline([run, *others], phases)[0]
    spans = zip(lane.kind, lane.begin_ns, lane.end_ns, lane.exchange, strict=True)
    return [
        " ".join(filter(None, [kind, f"{begin / MS:g}-{end / MS:g}", exchange]))
        for kind, begin, end, exchange in spans
    ]


def turn(work: str, began: float, ended: float) -> StageTurn:
    return StageTurn(work, 0, 3, MS * began, MS * ended)  # type: ignore[arg-type]


def test_a_stage_computes_sends_and_waits() -> None:
    """The receiver is ready at 30, so that the sender waits from 20 on; it ends 10 before it."""
    stops = (Stop(20 * MS, 32 * MS, ready_ns=15 * MS, exchange=SENT),)
    turns = (turn("forward", 0, 15), turn("backward", 32, 50))
    sender = Run(0.0, (55 * MS, 60 * MS), stops, turns)
    receiving = Exchange("receive", (0, 1))
    receiver = Run(0.0, (60 * MS, 70 * MS), (Stop(30 * MS, 33 * MS, exchange=receiving),))
    phases = ("forward-backward", "optimizer")
    assert list_spans(sender, receiver, phases=phases) == [
        "forward 0-15",
        "bubble 20-30 send to rank 1",
        "transfer 30-32 send to rank 1",
        "backward 32-50",
        "optimizer 55-60",
        "bubble 60-70 end of the step",
    ]
    assert list_spans(receiver, sender, phases=phases)[0] == "forward-backward 0-60"
    (lane, _) = make_timeline([sender, receiver], phases)
    assert lane.stage[:2] == [0, None]
    assert lane.micro_batch[:2] == [3, None]


def test_without_a_pipeline_phases_stand_for_themselves() -> None:
    early = Run(0.0, (40 * MS, 50 * MS), (Stop(10 * MS, 32 * MS, exchange=REDUCED),))
    late = Run(0.0, (40 * MS, 50 * MS), (Stop(30 * MS, 32 * MS, exchange=REDUCED),))
    assert list_spans(early, late, phases=("forward", "backward")) == [
        "forward 0-40",
        "waiting 10-30 all-reduce tp",
        "transfer 30-32 all-reduce tp",
        "backward 40-50",
    ]


def test_of_a_window_the_last_step_is_shown() -> None:
    stops = tuple(Stop(ms * MS, (ms + 5) * MS, exchange=REDUCED) for ms in (5.0, 105.0))
    window = Run(
        0.0, (100 * MS, 200 * MS), stops, (turn("forward", 2, 3), turn("forward", 150, 160))
    )
    assert list_spans(window, window) == ["transfer 5-10 all-reduce tp", "forward 50-60"]


def test_what_is_not_known_is_not_shown() -> None:
    unknown = Run(0.0, (100 * MS,), None)
    assert list_spans(unknown, unknown) == ["forward-backward 0-100"]


@pytest.mark.parametrize(("number", "kept"), [(10, 10), (MOST_SPANS + 50, MOST_SPANS)])
def test_of_many_stops_the_longest_are_kept(number: int, kept: int) -> None:
    edges = [place * MS for place in range(2 * number + 1)]
    stops = tuple(Stop(*edge, exchange=REDUCED) for edge in pairwise(edges[: 2 * number : 2]))
    run = Run(0.0, (edges[-1],), (*stops, Stop(0.0, 1.0, exchange=REDUCED)))
    lane = make_timeline([run, run], ["step"])[0]
    assert lane.kind.count("transfer") <= kept  # the last one is too short to be seen
    assert lane.begin_ns == sorted(lane.begin_ns)
