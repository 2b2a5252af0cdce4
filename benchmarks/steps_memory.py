"""How well the memory of a training step is predicted.

    python benchmarks/steps_memory.py                     small, medium and large: ten minutes
    python benchmarks/steps_memory.py --model small --context 512 --attention plain

For each model, the peak of all tensors of a process that runs a forward and a backward pass, and of
one that runs whole steps, beside what `flopwatch memory` predicts. Every measurement has a process
of its own. A model for which there is not enough memory is left out, and said so. Fails where an
estimate is off by more than 10 %.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flopwatch.devices import environment
from flopwatch.jobs.activation_memory import footprint_of
from flopwatch.jobs.model_shapes import find_shape
from flopwatch.jobs.step_memory import Plan
from flopwatch.jobs.variants import OPTIMIZERS, PRECISIONS
from flopwatch.output.units import format_bytes
from flopwatch.runner.memory_fit import PROCESS_BYTES

REACH = 0.1
WHATS = {"forward and backward": ("forward", "backward"), "step": None}
"""What is run, and its phases; None: all of them."""


def main() -> int:
    given = parse_arguments()
    models = given.pop("model") or ["small", "medium", "large"]
    plan = Plan(**given)
    print(f"{'what':20} {'measured':>10} {'predicted':>10} {'error':>9}  model")
    errors = [error for model in models for error in compare(model, plan)]
    if not errors:
        print("nothing was measured")
        return 1
    worst = max(map(abs, errors))
    print(f"largest error {100 * worst:.2f} % (reach: at most {100 * REACH:g} %)")
    return 0 if worst <= REACH else 1


def parse_arguments() -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", action="append")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--precision", choices=list(PRECISIONS), default="fp32")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    parser.add_argument("--attention", choices=["sdpa", "plain"], default="sdpa")
    parser.add_argument("--checkpointed", action="store_true")
    return vars(parser.parse_args())


def compare(model: str, plan: Plan) -> list[float]:
    """Errors of the estimates, relative to what was measured."""
    found = footprint_of(find_shape(model).stretch(plan.context), plan)
    free_bytes = environment.machine(Path.cwd())["machine"]["memory_available_bytes"]
    if found.peak_bytes + PROCESS_BYTES > free_bytes:
        print(f"{model} is left out: it needs {format_bytes(found.peak_bytes)}, "
              f"and {format_bytes(free_bytes)} are free")  # fmt: skip
        return []
    errors = []
    predicted = (found.backward_peak_bytes, found.peak_bytes)
    for what, predicted_bytes in zip(WHATS, predicted, strict=True):
        measured_bytes = measure_apart(model, plan, what)
        errors.append(predicted_bytes / measured_bytes - 1)
        sizes = f"{format_bytes(measured_bytes):>10} {format_bytes(predicted_bytes):>10}"
        print(f"{what:20} {sizes} {100 * errors[-1]:+7.2f} %  {model}", flush=True)
    return errors


def measure_apart(model: str, plan: Plan, what: str) -> int:
    question = json.dumps({"model": model, "plan": asdict(plan), "what": what})
    done = subprocess.run(
        [sys.executable, __file__, "--measure", question],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return int(done.stdout)


def measure(model: str, plan: Plan, what: str) -> int:
    """Bytes of all tensors of this process, at the peak."""
    import torch

    from flopwatch.devices.tensor_memory import measure_memory
    from flopwatch.layers.layer_workload import Setting
    from flopwatch.models.builder import build, choose_attention, choose_recompute
    from flopwatch.models.training_step import SharedModel, TrainingStep

    shape = find_shape(model).stretch(plan.context)
    chosen = PRECISIONS[plan.precision]
    built = build(shape, dtype=chosen.dtype)
    choose_attention(built, plan.attention)
    choose_recompute(built, plan.recompute)
    ids = torch.randint(shape.vocabulary, (plan.batch, plan.context))
    setting = Setting(device="cpu", dtype=chosen.dtype, autocast=chosen.autocast)
    step = TrainingStep(SharedModel(built, ids, optimizer=plan.optimizer), {}, setting.cast)
    phases = {name: step.phases[name] for name in WHATS[what] or step.phases}
    memory = measure_memory(step.prepare, phases)
    assert memory is not None
    return memory.resident_bytes + memory.peak_bytes


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        asked = json.loads(sys.argv[2])
        print(measure(asked["model"], Plan(**asked["plan"]), asked["what"]))
    else:
        sys.exit(main())
