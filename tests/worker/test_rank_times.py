"""What each rank did: exchanges matched within their groups, stages of a pipeline."""

from __future__ import annotations

import pytest

from flopwatch.worker.rank_times import Exchange, Run, Share, Stop, average, split

FIRST, SECOND = Exchange("all-reduce", (0, 1), "tp"), Exchange("all-reduce", (2, 3), "tp")
ACROSS = Exchange("all-gather", (0, 2), "dp")


def make_run(*stops: Stop, ended_ns: float = 100.0) -> Run:
    return Run(0.0, (ended_ns,), stops)


def list_waits(*runs: Run) -> list[tuple[float | None, float | None]]:
    return [(share.waiting_ns, share.transfer_ns) for share in split(runs)]


def test_groups_wait_for_their_own_ranks_only() -> None:
    runs = [
        make_run(Stop(10.0, 35.0, exchange=FIRST)),
        make_run(Stop(30.0, 35.0, exchange=FIRST)),
        make_run(Stop(80.0, 81.0, exchange=SECOND)),
        make_run(Stop(80.0, 81.0, exchange=SECOND)),
    ]
    assert list_waits(*runs) == [(20.0, 5.0), (0.0, 5.0), (0.0, 1.0), (0.0, 1.0)]


def test_the_order_between_kinds_and_groups_does_not_matter() -> None:
    tensor, data = Stop(10.0, 12.0, exchange=FIRST), Stop(20.0, 26.0, exchange=ACROSS)
    runs = [
        make_run(data, tensor),
        make_run(Stop(11.0, 12.0, exchange=FIRST)),
        make_run(Stop(24.0, 26.0, exchange=ACROSS)),
    ]
    assert list_waits(*runs) == [(5.0, 3.0), (0.0, 1.0), (0.0, 2.0)]


def test_what_ranks_did_not_note_alike_is_not_known() -> None:
    alone = make_run(Stop(10.0, 12.0, exchange=FIRST))
    assert list_waits(alone, make_run()) == [(None, None)] * 2
    assert list_waits(alone, Run(0.0, (100.0,), None)) == [(None, None)] * 2
    twice = make_run(*alone.stops or (), *alone.stops or ())
    assert list_waits(alone, twice) == [(None, None)] * 2


def send(arrived_ns: float, left_ns: float, ready_ns: float) -> Stop:
    return Stop(arrived_ns, left_ns, ready_ns=ready_ns, exchange=Exchange("send", (0, 1)))


def receive(arrived_ns: float, left_ns: float) -> Stop:
    return Stop(arrived_ns, left_ns, exchange=Exchange("receive", (0, 1)))


def test_a_stage_that_has_nothing_to_compute_is_in_its_bubble() -> None:
    """The second receives what the first computes until 40, and the first ends before it."""
    first = make_run(send(50.0, 51.0, ready_ns=40.0), ended_ns=70.0)
    second = make_run(receive(0.0, 43.0), ended_ns=90.0)
    early, late = split([first, second])
    # What was sent is ready before it is waited for, so that the second rank waits until then.
    assert (late.waiting_ns, late.transfer_ns, late.bubble_ns) == (0.0, 3.0, 40.0)
    # The last wait is for data that are on their way; then it waits for the end of the job.
    assert (early.waiting_ns, early.transfer_ns, early.bubble_ns) == (0.0, 1.0, 20.0)


def test_a_sender_waits_where_nobody_receives_yet() -> None:
    first, second = make_run(send(10.0, 33.0, 10.0)), make_run(receive(30.0, 33.0))
    assert [share.bubble_ns for share in split([first, second])] == [20.0, 0.0]


def test_without_a_pipeline_there_is_no_bubble() -> None:
    late = make_run(Stop(10.0, 12.0, exchange=FIRST), ended_ns=150.0)
    shares = split([make_run(Stop(10.0, 12.0, exchange=FIRST)), late])
    assert [share.bubble_ns for share in shares] == [None, None]


def test_what_began_before_it_was_needed_keeps_nobody_waiting() -> None:
    """Ranks came to need it at different times, but both had begun it long before."""
    early = Stop(20.0, 30.0, ready_ns=1.0, exchange=FIRST)
    late = Stop(28.0, 30.0, ready_ns=2.0, exchange=FIRST)
    assert list_waits(make_run(early), make_run(late)) == [(0.0, 10.0), (0.0, 2.0)]


@pytest.mark.parametrize("known", [None, 4.0])
def test_shares_of_runs_are_averaged(known: float | None) -> None:
    shares = [Share([4.0], 1.0, 2.0, 3.0, known), Share([6.0], 3.0, 2.0, 5.0, known)]
    assert average(shares) == Share([5.0], 2.0, 2.0, 4.0, known)
