"""The wall clock of a run, accounted for to the last second."""

from __future__ import annotations

import numpy as np
import pytest

from flopwatch.analysis.goodput import Attempt, Goodput, find_goodput


def attempt(began_s: float, first: int, steps: int, **changes: object) -> Attempt:
    """Steps of a second, 10 s after its start."""
    content = {
        "began_s": began_s,
        "begin_s": began_s + 10,
        "ended_s": began_s + 10 + steps,
        "numbers": np.arange(first, first + steps),
        "step_ns": np.full(steps, 1e9),
        "usual_ns": np.full(steps, 1e9),
        "first_steps": 0,
        "paused_s": 0.0,
    }
    return Attempt(**{**content, **changes})  # type: ignore[arg-type]


def account(*attempts: Attempt) -> Goodput:
    found = find_goodput(attempts)
    assert found is not None
    assert found.training_s + sum(found.lost_s.values()) == pytest.approx(found.wall_s)
    assert sum(start.wall_s for start in found.starts) == pytest.approx(found.wall_s)
    return found


def test_one_start_loses_what_is_before_its_first_step() -> None:
    found = account(attempt(0, 0, 90))
    assert (found.share, found.wall_s, found.lost_s) == (0.9, 100, {"start-up": 10})


def test_slow_and_first_steps_count_at_their_usual_speed() -> None:
    step_ns = np.full(90, 1e9)
    step_ns[0], step_ns[50] = 6e9, 3e9
    found = account(attempt(0, 0, 90, step_ns=step_ns, first_steps=1, ended_s=107.0, paused_s=0.0))
    assert found.lost_s == {"start-up": 10, "first steps": 5, "slow steps": 2}
    assert found.training_s == 90


def test_pauses_and_what_is_outside_of_steps_are_lost() -> None:
    found = account(attempt(0, 0, 50, paused_s=5.0, ended_s=67.0))
    assert found.lost_s == pytest.approx({"start-up": 10, "pauses": 5, "outside of steps": 2})


def test_steps_that_a_restart_repeats_do_not_count() -> None:
    found = account(attempt(0, 0, 50), attempt(100, 30, 40))
    assert (found.steps, found.repeated_steps) == (70, 20)
    assert found.training_s == 70
    assert found.lost_s == {"start-up": 20, "repeated steps": 20, "down": 40}
    assert [start.steps for start in found.starts] == [30, 40]


def test_a_start_that_goes_back_beyond_the_one_before_it_repeats_both() -> None:
    found = account(attempt(0, 0, 50), attempt(100, 50, 10), attempt(200, 20, 60))
    assert (found.steps, found.repeated_steps) == (80, 40)


def test_starts_are_ordered_by_their_clock_not_by_their_place() -> None:
    assert account(attempt(100, 30, 40), attempt(0, 0, 50)).steps == 70


def test_a_clock_that_jumps_back_breaks_no_sum() -> None:
    found = account(attempt(0, 0, 50, ended_s=20.0), attempt(15, 50, 50, begin_s=5.0))
    assert 0 < found.share <= 1


def test_without_any_time_there_is_no_share() -> None:
    none = np.zeros(0)
    empty = attempt(0, 0, 0, begin_s=0.0, ended_s=0.0, step_ns=none, usual_ns=none)
    assert find_goodput([empty]) is None
