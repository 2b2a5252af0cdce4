"""Utilisation: shares of a peak."""

from __future__ import annotations

import pytest

from flopwatch.jobs.conventions import CONVENTIONS
from flopwatch.jobs.precision import Peak
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.jobs.utilisation import compute_utilisations, find_tokens_per_s

A100 = Peak(flops_per_s=312e12, source="a data sheet")
SEVEN = TrainingJob("7b", 2048)


def test_more_than_the_peak_is_called_impossible() -> None:
    found = compute_utilisations(SEVEN, 1e6, devices=8, peak=A100)
    assert len(found) == len(CONVENTIONS)
    assert all(one.mfu is not None and one.mfu > 1 for one in found)
    assert all(one.impossible and "is impossible" in one.impossible for one in found)
    assert all(
        one.impossible is None for one in compute_utilisations(SEVEN, 1e4, devices=8, peak=A100)
    )


def test_what_is_far_beyond_the_peak_needs_no_digits() -> None:
    (found,) = compute_utilisations(
        SEVEN, 1e12, devices=1, peak=A100, conventions=[CONVENTIONS["exact"]]
    )
    assert found.impossible is not None
    assert found.impossible.startswith("more than 1000 % of the peak by exact is impossible: ")


def test_without_a_peak_it_says_how_to_give_it() -> None:
    found = compute_utilisations(SEVEN, 25651.12, devices=8, peak=None)
    assert len(found) == len(CONVENTIONS)
    for one in found:
        assert (one.mfu, one.hfu, one.mfu_star, one.impossible) == (None, None, None, None)
        assert one.model_flops_per_token > 0
        assert one.missing is not None
        assert "--peak" in one.missing


def test_tokens_per_second_follow_from_an_mfu() -> None:
    for convention in CONVENTIONS.values():
        speed = find_tokens_per_s(SEVEN, 0.4, devices=8, peak=A100, convention=convention)
        (found,) = compute_utilisations(
            SEVEN, speed, devices=8, peak=A100, conventions=[convention]
        )
        assert found.mfu == pytest.approx(0.4)
