"""Times from marks."""

from __future__ import annotations

import pytest

from flopwatch.monitor.step_marks import Code, Mark, StepMarks, StepTimes, host_elapsed_ns, measure


def make(*marks: tuple[Code, int], begin_ns: int = 0, **more: object) -> StepMarks:
    return StepMarks(
        7,
        Mark(Code.STEP_END, begin_ns, None),
        [Mark(code, at_ns, None, "checkpoint") for code, at_ns in marks],
        **more,  # type: ignore[arg-type]
    )


def look(step: StepMarks, *, waits_for_ranks: bool = False) -> StepTimes:
    return measure(step, host_elapsed_ns, waits_for_ranks=waits_for_ranks)


WHOLE = (
    (Code.DATA_BEGIN, 0),
    (Code.DATA_END, 5),
    (Code.FORWARD_BEGIN, 6),
    (Code.FORWARD_END, 16),
    (Code.GRADIENT, 18),
    (Code.BACKWARD_END, 38),
    (Code.WAIT_END, 45),
    (Code.OPTIMIZER_BEGIN, 50),
    (Code.OPTIMIZER_END, 53),
    (Code.STEP_END, 60),
)


def test_parts_lie_between_their_marks() -> None:
    times = look(make(*WHOLE))

    assert times.number == 7
    assert (times.begin_ns, times.end_ns, times.time_ns) == (0, 60, 60)
    assert times.parts_ns == {
        "data": 5,
        "forward": 10,
        "loss": 2,
        "backward": 20,
        "communication": 7,
        "optimizer": 3,
    }
    assert times.arrived_ns == 38


def test_micro_batches_add_up() -> None:
    passes = [(code, at_ns + 100) for code, at_ns in WHOLE[2:7]]
    times = look(make(*WHOLE[:7], *passes, (Code.STEP_END, 200)))

    assert times.parts_ns["forward"] == 20
    assert times.parts_ns["backward"] == 40
    assert times.arrived_ns == 138


def test_a_pause_is_no_part_of_a_step() -> None:
    times = look(
        make(*WHOLE[:-1], (Code.PAUSE_BEGIN, 55), (Code.PAUSE_END, 75), (Code.STEP_END, 80))
    )

    assert times.time_ns == 60
    assert times.paused_ns == 20
    (pause,) = times.pauses
    assert (pause.kind, pause.name, pause.begin_ns, pause.duration_ns) == (
        "pause",
        "checkpoint",
        55,
        20,
    )


def test_where_the_loop_sums_gradients_up_itself_it_waits_until_the_optimizer() -> None:
    times = look(make(*WHOLE), waits_for_ranks=True)
    assert times.parts_ns["communication"] == 50 - 38


def test_what_did_not_end_is_left_out() -> None:
    """As where the forward pass, or the backward pass, has raised."""
    broken = ((Code.FORWARD_BEGIN, 6), (Code.FORWARD_BEGIN, 10), (Code.FORWARD_END, 16))
    times = look(make(*broken, (Code.GRADIENT, 17), (Code.STEP_END, 60)))
    assert times.parts_ns == {"forward": 6, "loss": 1}


def test_a_device_measures_durations_by_its_own_events() -> None:
    begin = Mark(Code.STEP_END, 0, 1000)
    end = Mark(Code.STEP_END, 60, 1250)
    times = measure(
        StepMarks(0, begin, [end]), lambda a, b: b.event - a.event, waits_for_ranks=False
    )
    assert times.time_ns == 250
    assert (times.begin_ns, times.end_ns) == (0, 60)


@pytest.mark.parametrize(
    ("given", "found"), [(None, None), (0, 0), (12, 12), (-1, None), ("many", None), (3.0, 3)]
)
def test_tokens_that_are_no_number_are_unknown(given: object, found: int | None) -> None:
    assert look(make((Code.STEP_END, 60), tokens=given)).tokens == found
