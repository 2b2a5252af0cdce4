"""Records in, exact numbers out."""

from __future__ import annotations

import pytest

from flopwatch.analysis.summary import summarize

from .conftest import make_record


def steady(**times_ns: float) -> dict[str, object]:
    """20 equal samples of every phase."""
    return {"samples_ns": {phase: [time_ns] * 20 for phase, time_ns in times_ns.items()}}


def test_a_rate_counts_each_phase_once() -> None:
    """A part of a phase is already counted in it, and dtypes add up."""
    record = make_record(
        **steady(forward=1e6, backward=2e6),
        flops={
            "forward": {"float32": 4e9, "float16": 2e9},
            "backward": {"float32": 6e9},
            "forward/feed-forward": {"float32": 3e9},
        },
    )
    (row,) = summarize([record])
    assert row.flops_per_s == pytest.approx(12e9 / 3e-3)
