"""How well the memory of a training step is predicted.

    python benchmarks/steps_memory.py                     small, medium and large: ten minutes
    python benchmarks/steps_memory.py --model small --seq-len 512 --attention plain

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
from pathlib import Path
from typing import Any

from flopwatch.devices import environment
from flopwatch.jobs.precision import BUILT
from flopwatch.jobs.training_job import OPTIMIZERS, RECOMPUTES, TrainingJob, read_job
from flopwatch.models.job_estimates import estimate_step
from flopwatch.output.units import format_bytes
from flopwatch.runner.memory_fit import PROCESS_BYTES

REACH = 0.1
WHATS = {"forward and backward": ("forward", "backward"), "step": None}
"""What is run, and its phases; None: all of them."""


def main() -> int:
    given = parse_arguments()
    models = given.pop("model") or ["small", "medium", "large"]
    print(f"{'what':20} {'measured':>10} {'predicted':>10} {'error':>9}  model")
    errors = [error for model in models for error in compare(TrainingJob(model, **given))]
    if not errors:
        print("nothing was measured")
        return 1
    worst = max(map(abs, errors))
    print(f"largest error {100 * worst:.2f} % (reach: at most {100 * REACH:g} %)")
    return 0 if worst <= REACH else 1


def parse_arguments() -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", action="append")
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--precision", choices=BUILT, default="fp32")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    parser.add_argument("--attention", choices=["sdpa", "plain"], default="sdpa")
    parser.add_argument("--recompute", choices=RECOMPUTES, default="none")
    return vars(parser.parse_args())


def compare(job: TrainingJob) -> list[float]:
    """Errors of the estimates, relative to what was measured."""
    found = estimate_step(job, on_host=True)
    free_bytes = environment.machine(Path.cwd())["machine"]["memory_available_bytes"]
    if found.peak_bytes + PROCESS_BYTES > free_bytes:
        print(f"{job.name} is left out: it needs {format_bytes(found.peak_bytes)}, "
              f"and {format_bytes(free_bytes)} are free")  # fmt: skip
        return []
    errors = []
    predicted = (found.backward_peak_bytes, found.peak_bytes)
    for what, predicted_bytes in zip(WHATS, predicted, strict=True):
        measured_bytes = measure_apart(job, what)
        errors.append(predicted_bytes / measured_bytes - 1)
        sizes = f"{format_bytes(measured_bytes):>10} {format_bytes(predicted_bytes):>10}"
        print(f"{what:20} {sizes} {100 * errors[-1]:+7.2f} %  {job.name}", flush=True)
    return errors


def measure_apart(job: TrainingJob, what: str) -> int:
    question = json.dumps({"job": job.to_dict(), "what": what})
    done = subprocess.run(
        [sys.executable, __file__, "--measure", question],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return int(done.stdout)


def measure(job: TrainingJob, what: str) -> int:
    """Bytes of all tensors of this process, at the peak."""
    import torch

    from flopwatch.devices.cpu import measure_memory
    from flopwatch.models.builder import build
    from flopwatch.models.step_workload import SharedModel, TrainingStep

    built = build(job.shape, dtype=job.arithmetic.dtype)
    ids = torch.randint(job.shape.vocabulary, (job.micro_batch, job.seq_len))
    step = TrainingStep(SharedModel(built, ids, job.optimizer), job)
    phases = {name: step.phases[name] for name in WHATS[what] or step.phases}
    memory = measure_memory(step.prepare, phases)
    assert memory is not None
    return memory.resident_bytes + memory.peak_bytes


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        asked = json.loads(sys.argv[2])
        print(measure(read_job(asked["job"]), asked["what"]))
    else:
        sys.exit(main())
