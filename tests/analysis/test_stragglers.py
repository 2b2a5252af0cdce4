"""Ranks that come last, from how long the others wait."""

from __future__ import annotations

import numpy as np
import pytest

from flopwatch.analysis.monitored_run import summarize_run
from flopwatch.analysis.stragglers import Stragglers, find_stragglers
from tests.monitor_tools import MS, Loop


def look_at(loop: Loop) -> Stragglers:
    run = summarize_run([loop.record()])
    assert run is not None
    assert run.stragglers is not None
    return run.stragglers


def test_one_slow_rank_is_named_with_what_it_costs() -> None:
    loop = Loop(200, ranks=4, seed=1, sigma=0.01)
    loop.parts_ns[2]["forward"] += 5 * MS
    found = look_at(loop)
    assert (found.pattern, found.rank) == ("always", 2)
    slow = found.ranks[2]
    assert slow.last_share == 1.0
    assert slow.lost_share == pytest.approx(5 / 30, abs=0.01)
    assert slow.waiting_share == pytest.approx(0, abs=0.01)
    assert found.ranks[0].waiting_share == pytest.approx(5 / 30, abs=0.01)


def test_a_rank_that_is_late_at_times_is_told_from_one_that_always_is() -> None:
    loop = Loop(200, ranks=4, seed=2, sigma=0.002)
    loop.parts_ns[3]["data"][::10] += 50 * MS
    assert (look_at(loop).pattern, look_at(loop).rank) == ("at-times", 3)


def test_now_one_rank_now_another_is_varying() -> None:
    loop = Loop(200, ranks=4, seed=3, sigma=0.002)
    for rank in range(4):
        loop.parts_ns[rank]["data"][rank::8] += 30 * MS
    found = look_at(loop)
    assert (found.pattern, found.rank) == ("varying", None)
    assert found.lost_share > 0.2


def test_ranks_that_come_together_have_no_straggler() -> None:
    found = look_at(Loop(200, ranks=4, seed=4, sigma=0.002))
    assert (found.pattern, found.rank) == ("none", None)


def test_a_rank_without_monitor_or_with_missing_steps_is_left_out() -> None:
    waiting = np.array([[0.0, 1.0, np.nan], [1.0, 0.0, 5.0]]) * MS
    found = find_stragglers(waiting, np.full(3, 10 * MS), [0, 5])
    assert found is not None
    assert [one.rank for one in found.ranks] == [0, 5]
    assert [one.last_share for one in found.ranks] == [0.5, 0.5]
    assert find_stragglers(waiting[:1], np.full(3, 10 * MS), [0]) is None
    assert find_stragglers(waiting[:, 2:], np.full(1, 10 * MS), [0, 5]) is None
