"""What the commands do with a training job, Python does: results print, show and turn into JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

import flopwatch
from flopwatch import Parallelism, TrainingJob, UsageError

JOB = TrainingJob(
    "1b", 2048, micro_batch=4, parallelism=Parallelism(data=8, sharding="full"), recompute="full"
)
HARDWARE = "8xA100-80GB"
RESULTS: dict[str, Any] = {
    "predict": lambda: flopwatch.predict(JOB, HARDWARE),
    "plan": lambda: flopwatch.plan("1b", HARDWARE, global_batch_tokens=5e5),
    "flops": lambda: flopwatch.flops(JOB),
    "memory": lambda: flopwatch.memory(JOB, HARDWARE),
    "mfu": lambda: flopwatch.mfu(JOB, tokens_per_s=1e5, hardware=HARDWARE),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_print_show_and_turn_into_json(name: str) -> None:
    found = RESULTS[name]()
    assert repr(found) == str(found)
    assert "1b" in str(found)
    page = found._repr_html_()
    assert page.count("<tr>") > 3 if name in ("predict", "plan") else page.startswith("<pre>")
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))
    with pytest.raises(AttributeError):
        found.job = None


def test_a_job_of_one_rank_is_spread_over_all_devices() -> None:
    alone = TrainingJob("1b", 2048, micro_batch=4, hardware=HARDWARE)
    assert flopwatch.predict(alone).job.ranks == 8
    with pytest.raises(UsageError, match="the job has 8 ranks and the hardware 16 devices"):
        flopwatch.predict(JOB, "16xA100-80GB")
    with pytest.raises(UsageError, match="what hardware the job runs on is not known"):
        flopwatch.predict(JOB)
    with pytest.raises(UsageError, match="a plan is for some hardware"):
        flopwatch.plan("1b")


def test_flops_of_a_step_are_those_of_all_ranks_and_micro_batches() -> None:
    one = flopwatch.flops(TrainingJob("1b", 2048))
    many = flopwatch.flops(TrainingJob("1b", 2048, micro_batch=2, parallelism=Parallelism(data=4)))
    assert sum(many.phases["forward"].values()) == 8 * sum(one.phases["forward"].values())
    assert one.parts["qkv"].backward == 2 * one.parts["qkv"].forward
    with pytest.raises(UsageError, match="the FLOPs of .* are not known"):
        flopwatch.flops(TrainingJob("1b", 2048, linear="dyad:auto:4", swapped="*.up"))


def test_memory_of_shards_fits_where_that_of_a_whole_model_does_not() -> None:
    job = TrainingJob("13b", 2048, recompute="full")
    whole, shards = (
        flopwatch.memory(
            TrainingJob(
                "13b", 2048, recompute="full", parallelism=Parallelism(data=8, sharding=sharding)
            ),
            HARDWARE,
        )
        for sharding in ("ddp", "full")
    )
    assert (whole.fits, shards.fits) == (False, True)
    assert whole.largest_micro_batch == 0 < (shards.largest_micro_batch or 0)
    assert job.parameters == shards.job.parameters


def test_ranks_may_divide_the_model_in_any_way() -> None:
    split = TrainingJob("1b", 2048, parallelism=Parallelism(data=4, tensor=2))
    assert flopwatch.predict(split, HARDWARE).cost.by_name["tensor-parallel communication"].time_s
    assert flopwatch.memory(split, HARDWARE).fits
    assert flopwatch.plan(split, HARDWARE).best[0].job.parallelism.tensor == 2
