"""What cannot be planned says what could be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flopwatch import api
from flopwatch.errors import UsageError
from flopwatch.jobs.parallelism import Parallelism
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.prediction.hardware import find_machine
from flopwatch.prediction.plan_limits import (
    divide_job,
    find_first,
    find_least_devices,
    list_device_counts,
    spread,
)
from flopwatch.prediction.plan_search import SPARE, search
from flopwatch.prediction.software_stacks import find_stack

H100, TYPICAL = find_machine("H100-SXM")[1], find_stack("typical")
DENSE = TrainingJob("llama-3-70b", 8192)
MIXTURE = TrainingJob("mixtral-8x7b", 8192)


@pytest.mark.parametrize(
    ("job", "devices", "asked", "complaint"),
    [
        (DENSE, 63, {"tensor": 7}, "64 heads of llama-3-70b; --tp can be 1, 2, 4, 8, 16, 32 or 64"),
        (DENSE, 99, {"pipeline": 99}, "--pp can be 1, 2, 4, 5, 8, 10, 16, 20, 40 or 80"),
        (DENSE, 6, {"context": 3}, "sequences of 8,192 tokens; --cp can be 1, 2, 4, 8"),
        (DENSE, 8, {"expert": 2}, "llama-3-70b has no experts to divide; leave --ep out"),
        (MIXTURE, 8, {"expert": 3}, "8 experts of mixtral-8x7b; --ep can be 1, 2, 4 or 8"),
        (MIXTURE, 12, {"tensor": 2, "expert": 4}, "the 6 ranks that .*; --ep can be 1 or 2"),
        (DENSE, 64, {"tensor": 16, "pipeline": 5}, "80 ranks, and 64 devices .* take 80 devices"),
        (DENSE, 48, {"tensor": 8, "pipeline": 4}, "take 32 or 64 devices"),
    ],
)
def test_impossible_divisions_are_refused_with_what_is_possible(
    job: TrainingJob, devices: int, asked: dict[str, int], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        divide_job(job, devices, **asked)


def test_what_is_possible_is_divided() -> None:
    split = divide_job(MIXTURE, 64, tensor=4, pipeline=2, expert=8).parallelism
    assert (split.data, split.tensor, split.pipeline, split.expert, split.ranks) == (8, 4, 2, 8, 64)


def test_numbers_of_devices_are_whole_nodes_and_never_far_apart() -> None:
    counts = list_device_counts(H100)
    assert counts[:4] == [1, 2, 4, 8]
    assert all(count % 8 == 0 for count in counts[3:])
    assert {1 << power for power in range(16)} <= set(counts)
    assert all(
        larger <= 1.125 * smaller for smaller, larger in zip(counts[10:], counts[11:], strict=False)
    )
    assert all(count % 48 == 0 for count in list_device_counts(H100, multiple=48))


@pytest.mark.parametrize("length", [1, 2, 3, 7, 40])
def test_the_first_that_is_enough_is_found_from_anywhere(length: int) -> None:
    for least in range(length + 1):
        expected = least if least < length else None
        for start in range(length + 3):
            tried: list[int] = []

            def is_enough(count: int, least: int = least, tried: list[int] = tried) -> bool:
                tried.append(count)
                return count >= least

            assert find_first(range(length), is_enough, start) == expected
            assert len(set(tried)) == len(tried) < 14


def test_a_model_that_is_too_large_says_how_many_devices_are_enough() -> None:
    with pytest.raises(UsageError, match="24 x H100-SXM are enough") as caught:
        api.plan("llama-3-70b", "8xH100-SXM", seq_len=8192)
    assert "needs" in str(caught.value)
    assert api.plan("llama-3-70b", "24xH100-SXM", seq_len=8192, shown=1).best[0].memory.fits
    with pytest.raises(UsageError, match="nothing fits"):
        api.plan("llama-3-70b", "16xH100-SXM", seq_len=8192)


def test_the_least_devices_keep_what_they_are_told() -> None:
    job = divide_job(DENSE, 8, tensor=8)
    tried = search(job, H100, TYPICAL, 4e6)
    found = find_least_devices(tried, 4e6)
    assert found is not None
    assert spread(job, found).parallelism.tensor == 8
    fitting = search(spread(job, found), H100, TYPICAL, 4e6).memory_bytes.min()
    assert fitting <= SPARE * (H100.memory_bytes or 0)
    small = replace(H100, memory_bytes=1e9)
    assert find_least_devices(search(job, small, TYPICAL, 4e6), 4e6) is None


def test_no_batch_is_far_from_the_one_asked_for() -> None:
    """64 data-parallel ranks have at least 64 sequences, and 32 were asked for."""
    tokens = 32 * 2048
    found = api.plan("1b", "64xA100-80GB", global_batch_tokens=tokens, shown=100)
    assert {each.job.global_batch for each in found.best} == {32}
    told = TrainingJob("1b", 2048, parallelism=Parallelism(context=2))
    assert api.plan(told, "64xA100-80GB", global_batch_tokens=tokens).best[0].job.global_batch == 32
    least = api.plan("1b", "64xA100-80GB", global_batch_tokens=1000).best[0].job
    assert least.global_batch == 1
