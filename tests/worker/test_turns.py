"""Two workers that take turns, as threads of this process."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from flopwatch.worker import turns as turns_module
from flopwatch.worker.turns import Alone, Turns

ROUNDS = 40


@pytest.fixture(autouse=True)
def _settle_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "SETTLING_S", 0.0)


@contextmanager
def open_pair(patience_s: float = 60.0) -> Iterator[tuple[Turns, Turns]]:
    links = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    base = Turns(links[0], side=0, seed=7, silence_limit_s=patience_s)
    yield base, Turns(links[1], side=1, seed=7, silence_limit_s=patience_s)
    for link in links:
        link.close()


def run_both(work: Callable[[Turns, int], None], pair: tuple[Turns, Turns]) -> None:
    threads = [threading.Thread(target=work, args=(one, side)) for side, one in enumerate(pair)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_only_one_runs_at_a_time_and_both_run_every_round_in_random_order() -> None:
    log: list[tuple[int, int]] = []
    running = threading.Lock()

    def work(turns: Turns, side: int) -> None:
        for round_ in range(ROUNDS):
            turns.begin()
            assert running.acquire(blocking=False), "both at a time"
            log.append((round_, side))
            running.release()
            turns.end(is_enough=False)

    with open_pair() as pair:
        run_both(work, pair)
    rounds = [log[2 * r : 2 * r + 2] for r in range(ROUNDS)]
    assert all({side for _, side in pair} == {0, 1} for pair in rounds)
    assert all(round_ == number for number, pair in enumerate(rounds) for round_, _ in pair)
    firsts = [pair[0][1] for pair in rounds]
    assert 0 < sum(firsts) < ROUNDS
    draw = random.Random(7)
    assert firsts == [draw.randrange(2) for _ in range(ROUNDS)]


def test_both_end_in_the_same_round_when_both_have_enough() -> None:
    ended: dict[int, int] = {}

    def work(turns: Turns, side: int) -> None:
        round_ = 0
        while True:
            turns.begin()
            round_ += 1
            if turns.end(is_enough=round_ >= (5 if side == 0 else 12)):
                break
        ended[side] = round_

    with open_pair() as pair:
        run_both(work, pair)
    assert ended == {0: 12, 1: 12}


def test_a_worker_whose_peer_is_gone_goes_on_alone() -> None:
    with open_pair() as (base, head):
        head.leave()
        for round_ in range(5):
            base.begin()
            assert base.end(is_enough=round_ == 4) is (round_ == 4)


def test_a_peer_that_does_not_answer_is_not_waited_for_until_the_worker_is_taken_for_hung() -> None:
    with open_pair(patience_s=0.05) as (base, _):
        for _ in range(3):
            base.begin()
            base.end(is_enough=False)
        assert base.end(is_enough=True)


def test_without_a_peer_there_is_nothing_to_wait_for() -> None:
    alone = Alone()
    alone.begin()
    assert alone.end(is_enough=True)
    assert not alone.end(is_enough=False)
