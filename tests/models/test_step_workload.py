"""Workloads of layers and models, and learning: small ones, in this process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from flopwatch import layers
from flopwatch.devices.cpu import CpuClock
from flopwatch.jobs.flops import count_flops_by_part
from flopwatch.jobs.model_shapes import ARCHITECTURES, SHAPES, Shape, make_opt
from flopwatch.jobs.parameters import count_parameters
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.layers import layer_workload, registry
from flopwatch.layers.layer_workload import Setting
from flopwatch.models import step_workload as model_workload
from flopwatch.models.builder import build_from_transformers
from flopwatch.models.byte_model import Schedule, Text, draw_batches, read_standard_library, train
from flopwatch.models.job_estimates import count_swapped_flops
from flopwatch.suites.workload import Workload
from flopwatch.worker import agreement

SMALL = replace(make_opt(64, layers=2), vocabulary=97, positions=32)
SMALL_LLAMA = replace(SHAPES["llama-160m"], hidden_size=64, feed_forward_size=128, layers=2,
                      heads=2, vocabulary=97)  # fmt: skip
SMALL_PYTHIA = replace(SHAPES["pythia-160m"], hidden_size=64, feed_forward_size=128, layers=2,
                       heads=2, vocabulary=97)  # fmt: skip
FLOAT32 = Setting(device="cpu", dtype="float32")


def make_job(shape: Shape, linear: str, **given: Any) -> TrainingJob:
    return TrainingJob(
        shape, 16, **{"micro_batch": 2, "precision": "fp32", "linear": linear, **given}
    )


def count_forward(shape: Shape, *parts: str) -> int:
    counted = count_flops_by_part(make_job(shape, "dense"))
    return sum(passes.forward for part, passes in counted.items() if part in (parts or counted))


def assert_agree(made: Workload, reference: Workload, tolerance: float) -> set[str]:
    """Run both once and compare as the engine does; the names of what was compared."""
    found, expected = (agreement.gather(one, CpuClock()).values for one in (made, reference))
    check = agreement.compare(found, expected, against="it", tolerance=tolerance)
    assert check is not None
    return set(check.errors)


@pytest.mark.parametrize("spec", ["dense", "dyad:it:4", "dyad:ot:4:cat", "dyad:dt:2:published"])
@pytest.mark.parametrize(
    ("dtype", "autocast", "tolerance"),
    [("float32", None, 1e-5), ("bfloat16", None, 3e-2), ("float32", "bfloat16", 3e-2)],
)
def test_a_layer_agrees_with_its_reference(
    spec: str, dtype: str, autocast: str | None, tolerance: float
) -> None:
    setting = Setting(device="cpu", dtype=dtype, autocast=autocast)
    torch.manual_seed(0)
    made = layer_workload.make_workload(spec, 24, (64, 128), setting)
    torch.manual_seed(0)
    reference = layer_workload.make_reference(spec, 24, (64, 128), setting)
    assert assert_agree(made, reference, tolerance) == {
        "output", "grad x", "grad weight", "grad bias"
    }  # fmt: skip
    assert made.conditions == {"dtype": dtype, "autocast": autocast or "off"}


@pytest.mark.parametrize("shape", [SMALL, SMALL_LLAMA, SMALL_PYTHIA], ids=lambda s: s.architecture)
@pytest.mark.parametrize("spec", ["dense", "dyad:auto:4", "dyad:it:8:cat"])
def test_a_model_step_agrees_with_its_reference(shape: Shape, spec: str) -> None:
    torch.manual_seed(0)
    made = model_workload.make_workload(make_job(shape, spec), "cpu")
    torch.manual_seed(0)
    reference = model_workload.make_reference(make_job(shape, spec), "cpu")
    compared = assert_agree(made, reference, 1e-4)
    assert "output" in compared
    assert len(compared) == 1 + len(made.gradients) > 4
    expected = {
        phase: by_dtype["float32"]
        for phase, by_dtype in count_swapped_flops(make_job(shape, spec)).items()
    }
    share = 1.0 if spec == "dense" else 2 / int(spec.split(":")[2])
    assert expected["forward/feed-forward"] == count_forward(shape, "feed-forward") * share
    assert expected["backward"] == 2 * expected["forward"]
    assert expected["optimizer"] == pytest.approx(12 * made.facts["parameters"])


@pytest.mark.parametrize("shape", [SMALL, SMALL_LLAMA, SMALL_PYTHIA], ids=lambda s: s.architecture)
def test_all_linear_layers_of_the_blocks_can_be_swapped(shape: Shape) -> None:
    torch.manual_seed(0)
    job = make_job(shape, "dyad:auto:4", swapped="linear")
    made = model_workload.make_workload(job, "cpu")
    torch.manual_seed(0)
    reference = model_workload.make_reference(job, "cpu")
    assert_agree(made, reference, 1e-4)
    assert made.instrument is not None
    stopwatch = FakeStopwatch()
    with made.instrument(stopwatch):
        run(made)
    in_a_block = {"opt": 6, "llama": 7, "gpt_neox": 4}[shape.architecture]
    assert stopwatch.calls == {"forward/linear": 2 * in_a_block, "backward/linear": 2 * in_a_block}
    linear = count_forward(shape, "qkv", "output", "feed-forward")
    counts = count_swapped_flops(job)
    assert counts["forward/linear"]["float32"] == linear / 2
    assert counts["forward"]["float32"] == count_forward(shape) - linear / 2
    assert counts["optimizer"]["float32"] == pytest.approx(12 * made.facts["parameters"])


def test_int8_flops_of_a_step_are_counted_as_int8() -> None:
    counts = count_swapped_flops(make_job(SMALL, "switchback:global", precision="bf16"))
    inside = count_forward(SMALL, "feed-forward")
    outside = count_forward(SMALL) - inside
    assert counts["forward"] == {"int8": inside, "bfloat16": outside}
    assert counts["backward"] == {"int8": inside, "bfloat16": inside + 2 * outside}
    assert counts["backward/feed-forward"] == {"int8": inside, "bfloat16": inside}
    cast = count_swapped_flops(make_job(SMALL, "dense", precision="bf16-mixed"))
    assert set(cast["forward"]) == {"bfloat16"}
    assert set(cast["optimizer"]) == {"float32"}


def test_a_spec_that_does_not_count_has_no_flops() -> None:
    layers.register("mystery", torch.nn.Linear)
    try:
        assert count_swapped_flops(make_job(SMALL, "mystery")) == {}
    finally:
        del registry.KINDS["mystery"]


def test_variants_of_a_layer_share_input_and_gradient() -> None:
    torch.manual_seed(5)
    dense = layer_workload.make_workload("dense", 24, (64, 128), FLOAT32)
    torch.manual_seed(5)
    other = layer_workload.make_workload("dyad:it:4", 24, (64, 128), FLOAT32)
    again = layer_workload.make_workload("dense", 24, (64, 128), FLOAT32)
    assert dense.gradients["x"] is other.gradients["x"]
    # Weights do not depend on whether the input had to be made first.
    assert torch.equal(dense.gradients["weight"], again.gradients["weight"])
    torch.manual_seed(6)
    new = layer_workload.make_workload("dense", 24, (64, 128), FLOAT32)
    assert not torch.equal(dense.gradients["x"], new.gradients["x"])


def test_a_wrong_layer_in_the_model_is_noticed() -> None:
    """The comparison can fail: another weight gives other numbers."""
    torch.manual_seed(0)
    made = model_workload.make_workload(make_job(SMALL, "dyad:it:4"), "cpu")
    torch.manual_seed(1)
    reference = model_workload.make_reference(make_job(SMALL, "dyad:it:4"), "cpu")
    with pytest.raises(agreement.WrongResult, match="output is off"):
        assert_agree(made, reference, 1e-4)


def run(made: Workload) -> list[object]:
    """All phases, and what each returned."""
    assert made.reset is not None
    made.reset()
    returned: list[object] = []
    for phase in made.phases.values():
        returned.append(phase(*returned[-1:]))
    return returned


def test_variants_share_a_model_and_do_not_disturb_each_other() -> None:
    dense = model_workload.make_workload(make_job(SMALL, "dense"), "cpu")
    other = model_workload.make_workload(make_job(SMALL, "dyad:auto:4"), "cpu")
    first, second = run(dense)[0], run(other)[0]
    assert not torch.equal(first, second)  # type: ignore[arg-type]
    for _ in range(3):  # the optimizer's steps leave the weights where they are
        assert torch.equal(run(dense)[0], first)  # type: ignore[arg-type]
        assert torch.equal(run(other)[0], second)  # type: ignore[arg-type]
    kept = [name for name in dense.gradients if "fc" not in name]
    assert all(dense.gradients[name] is other.gradients[name] for name in kept)
    assert dense.facts["parameters"] == count_parameters(SMALL)
    assert dense.facts["parameters"] - other.facts["parameters"] == 2 * 64 * 256


class FakeStopwatch:
    def __init__(self) -> None:
        self.running: list[str] = []
        self.calls: dict[str, int] = {}

    def start(self, region: str) -> None:
        self.running.append(region)

    def stop(self, region: str) -> None:
        self.running.remove(region)
        self.calls[region] = self.calls.get(region, 0) + 1


@pytest.mark.parametrize("spec", ["dense", "dyad:auto:4", "dyad:it:4:published"])
def test_hooks_time_each_exchanged_layer_once_in_each_direction(spec: str) -> None:
    made = model_workload.make_workload(make_job(SMALL, spec), "cpu")
    assert made.instrument is not None
    stopwatch = FakeStopwatch()
    plain = run(made)[0]
    with made.instrument(stopwatch):
        instrumented = run(made)[0]
    assert torch.equal(plain, instrumented)  # type: ignore[arg-type]
    assert stopwatch.calls == {"forward/feed-forward": 4, "backward/feed-forward": 4}
    assert not stopwatch.running
    run(made)  # the hooks are gone
    assert stopwatch.calls == {"forward/feed-forward": 4, "backward/feed-forward": 4}


@pytest.mark.parametrize("name", ["opt-125m", "pythia-160m", "llama-160m"])
def test_swap_works_on_hugging_face_models(name: str) -> None:
    pattern = ARCHITECTURES[SHAPES[name].architecture].feed_forward
    model = build_from_transformers(name, device="meta")
    done = layers.swap(model, "dyad:auto:4", match=pattern)
    assert len(done.layers) == 12 * (3 if name.startswith("llama") else 2)
    assert done.parameters_before == count_parameters(SHAPES[name])
    flops = count_swapped_flops(make_job(SHAPES[name], "dyad:auto:4"))
    assert done.parameters_after == flops["optimizer"]["float32"] / 12


def test_text_is_python_and_parts_do_not_overlap() -> None:
    text = read_standard_library()
    assert b"def " in text.train
    assert b"import " in text.validation
    assert 0.02 < len(text.validation) / len(text.train) < 0.2
    assert text.digest == Text(train=text.train, validation=text.validation).digest
    assert text.digest != Text(train=text.train, validation=b"x").digest


def test_batches_are_the_same_for_the_same_seed() -> None:
    schedule, text = Schedule(sequences=3, tokens=5), bytes(range(256))
    first, again, other = (next(draw_batches(text, schedule, seed)) for seed in (0, 0, 1))
    assert first.shape == (3, 5)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(first[:, 1:], first[:, :-1] + 1)  # runs of the text


def test_the_rate_warms_up() -> None:
    schedule = Schedule(train_tokens=100 * 2048, learning_rate=1.0)
    rates = [schedule.rate(step) for step in range(schedule.steps)]
    assert len(rates) == 100
    assert rates[0] == 0.2
    assert set(rates[4:]) == {1.0}
    assert rates[:5] == sorted(rates[:5])


def learn(spec: str, seed: int = 0) -> list[dict[str, float]]:
    torch.manual_seed(0)
    model = build_from_transformers(replace(SMALL, vocabulary=256))
    if spec != "dense":
        layers.swap(model, spec, match="*.fc[12]")
    schedule = Schedule(sequences=4, tokens=16, train_tokens=60 * 64, points=6, learning_rate=3e-3,
                        validation_batches=2)  # fmt: skip
    text = Text(train=b"to be or not to be, " * 99, validation=b"not to be or to be, " * 99)
    return list(train(model, text, schedule, seed))


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("spec", ["dense", pytest.param("dyad:auto:4", marks=pytest.mark.slow)])
def test_training_learns_and_is_repeatable(spec: str) -> None:
    points = learn(spec)
    assert [point["step"] for point in points] == [10, 20, 30, 40, 50, 60]
    assert points[-1]["tokens"] == 60 * 64
    assert points[-1]["validation_loss"] < 0.5 * points[0]["validation_loss"]
    assert points[-1]["train_loss"] < 0.5 * points[0]["train_loss"]
    assert learn(spec) == points
    assert learn(spec, seed=1) != points


def test_float32_is_rounded_to_tf32_only_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen: list[str] = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", chosen.append)
    for precision in ("tf32", "fp32", "bf16-mixed", "tf32"):
        job = TrainingJob("small", 8, precision=precision)
        model_workload.choose_float32(job, "cuda")
        model_workload.choose_float32(job, "cpu")  # which has no such choice
    assert chosen == ["high", "highest", "highest", "high"]
