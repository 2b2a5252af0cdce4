"""Weights that are given to a model part by part are those that it has as a whole."""

from __future__ import annotations

import gc

import pytest
import torch

from flopwatch.devices.cpu import measure_memory
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.models.builder import build, find_blocks
from flopwatch.models.initialisation import draw_each
from flopwatch.models.model_making import Filler, make_model
from flopwatch.models.training_loop import make_workload
from tests.models.test_parallelize import make_job
from tests.rank_tools import run_on_ranks

DECODER = "decoder:hidden_size=32:layers=3:heads=4:vocabulary=101"
DEEP = "decoder:hidden_size=64:layers=16:heads=4:vocabulary=16:positions=16"
LLAMA = "llama:hidden_size=32:layers=3:heads=4:vocabulary=101"
OPT = LLAMA.replace("llama", "opt")
DEEP_LLAMA = DEEP.replace("decoder", "llama")
JOBS = {
    "tied": make_job(1),
    "with rotary positions": make_job(1, model=DECODER),
    "in 16 bits": make_job(1, precision="bf16"),
    "swapped layers": make_job(1, variant="none+dyad:auto:4@linear"),
    "some swapped layers": make_job(1, variant="none+switchback:global@blocks.1.*", model=DECODER),
    "of transformers": make_job(1, model=LLAMA),
    "tied, of transformers, in 16 bits": make_job(1, model=OPT, precision="bf16"),
    "swapped layers of transformers": make_job(1, variant="none+dyad:auto:4@linear", model=OPT),
    "drawn by modules above": make_job(1, model=LLAMA.replace("llama", "gpt2")),
}
"""The last: GPT-2 draws some matrices of a block anew, once all of it is drawn."""


@pytest.mark.parametrize("name", JOBS)
def test_weights_do_not_depend_on_the_order_in_which_parts_are_filled(name: str) -> None:
    job = JOBS[name]
    torch.manual_seed(3)
    whole = make_model(job)
    empty = make_model(job, is_empty=True)
    fill = Filler(empty, job, "cpu")
    for block in reversed(find_blocks(empty)):
        fill(block)
    fill(empty)
    assert torch.initial_seed() == 3
    expected = {**dict(whole.named_parameters()), **dict(whole.named_buffers())}
    found = {**dict(empty.named_parameters()), **dict(empty.named_buffers())}
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        assert torch.equal(found[key], tensor), key


def test_parameters_of_one_shape_differ_and_follow_from_the_seed() -> None:
    def draw(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        tensors = [torch.empty(5), torch.empty(5)]
        draw_each(zip("ab", tensors, strict=True), lambda _, tensor: tensor.normal_())
        return tensors

    first, second = draw(0)
    assert not torch.equal(first, second)
    assert all(map(torch.equal, draw(0), (first, second)))
    assert not torch.equal(draw(1)[0], first)


def measure_building(jobs: list[TrainingJob]) -> list[int]:
    """The most bytes of tensors that a rank holds while it builds each."""
    found = []
    for job in jobs:
        phases = {"build": lambda job=job: make_workload(job, "cpu") and None}
        memory = measure_memory(gc.collect, phases)
        assert memory is not None
        found.append(memory.peak_bytes)
    return found


def test_a_rank_that_shards_never_holds_more_than_its_shard_and_a_block() -> None:
    """A block of the library transformers is on the host, too, until it is sharded."""
    jobs = [make_job(2, variant=way, model=DEEP) for way in ("none", "full", "zero2")]
    jobs += [make_job(2, variant=way, model=DEEP_LLAMA) for way in ("none", "full")]
    blocks = [find_blocks(make_model(job))[0] for job in (jobs[0], jobs[-1])]
    for of_rank in run_on_ranks(2, measure_building, jobs):
        for block, (whole, *sharded) in zip(blocks, (of_rank[:3], of_rank[3:]), strict=True):
            block_bytes = sum(parameter.nbytes for parameter in block.parameters())
            whole_bytes = 4 * jobs[0].parameters if block is blocks[0] else 4 * jobs[-1].parameters
            assert whole >= whole_bytes
            for peak_bytes in sharded:
                assert whole_bytes / 2 <= peak_bytes <= whole_bytes / 2 + 2 * block_bytes


def test_weights_are_those_that_the_library_would_draw() -> None:
    """As widely spread, and biases and norms as they are there."""
    job = make_job(1, model=OPT.replace("32", "64"))
    expected = dict(build(job.shape).named_parameters())
    for name, parameter in make_model(job).named_parameters():
        if parameter.dim() > 1:
            assert parameter.std().item() == pytest.approx(expected[name].std().item(), rel=0.2)
        else:
            assert torch.equal(parameter, expected[name]), name
