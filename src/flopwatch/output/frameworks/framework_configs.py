"""Which frameworks there are, and the best configuration of a plan that one of them can run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from flopwatch.errors import UsageError
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.output.frameworks import megatron_lm, nanotron, torchtitan
from flopwatch.prediction.job_arrays import find_shard_group
from flopwatch.prediction.plans import Plan
from flopwatch.prediction.predictions import Prediction


class Framework(NamedTuple):
    name: str
    find_obstacle: Callable[[TrainingJob], str | None]
    """Why it cannot run the job so, as the end of a sentence; None: it can."""
    write: Callable[[TrainingJob, int], Sequence[str]]
    """Lines of its configuration, for so many steps."""
    list_differences: Callable[[TrainingJob], Sequence[str]]
    """What it does otherwise than predicted, or is left to you: sentences."""
    usage: str


FRAMEWORKS: Mapping[str, Framework] = {
    "megatron": Framework(
        "Megatron-LM",
        megatron_lm.find_obstacle,
        megatron_lm.write,
        megatron_lm.list_differences,
        "torchrun --nproc-per-node {per_node} ... pretrain_gpt.py $(grep -v '^#' FILE) ...",
    ),
    "torchtitan": Framework(
        "torchtitan",
        torchtitan.find_obstacle,
        torchtitan.write,
        torchtitan.list_differences,
        "torchrun --nproc-per-node {per_node} ... -m torchtitan.train $(grep -v '^#' FILE)",
    ),
    "nanotron": Framework(
        "nanotron",
        nanotron.find_obstacle,
        nanotron.write,
        nanotron.list_differences,
        "these sections in the YAML of run_train.py",
    ),
}
"""By the word of `--emit`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    framework: str
    prediction: Prediction
    text: str
    """To be written into a file, with comments."""
    remarks: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "framework": self.framework,
            "text": self.text,
            "remarks": list(self.remarks),
            "tokens_per_s": self.prediction.tokens_per_s,
        }


def emit(prediction: Prediction, framework: str, steps: int) -> Configuration:
    """Refused where the framework cannot run the job so."""
    chosen = find_framework(framework)
    job = settle(prediction)
    obstacle = chosen.find_obstacle(job)
    if obstacle:
        raise UsageError(f"{chosen.name} cannot run this: {obstacle}")
    machine, differences = prediction.machine, chosen.list_differences(job)
    about = [
        f"{job.name} on {job.ranks} x {machine.name} with {chosen.name}, from flopwatch plan: "
        f"{prediction.tokens_per_s:,.0f} tokens/s (90 % interval {prediction.low:,.0f} to "
        f"{prediction.high:,.0f})",
        f"to use: {chosen.usage.format(per_node=min(machine.per_node, job.ranks))}",
        *differences,
    ]
    lines = [*(f"# {line}" for line in about), *chosen.write(job, steps)]
    return Configuration(
        framework=framework,
        prediction=prediction,
        text="".join(f"{line}\n" for line in lines),
        remarks=tuple(differences),
    )


def find_emitted(plan: Plan, framework: str) -> Configuration:
    """The fastest that the framework can run, with what that loses against the best of all."""
    chosen, best = find_framework(framework), plan.best[0]
    found = plan.find_best_where(lambda job: chosen.find_obstacle(settle(best, job)) is None)
    obstacle = chosen.find_obstacle(settle(best))
    if found is None:
        raise UsageError(
            f"{chosen.name} can run none of the {plan.fitting:,} configurations that fit; of the "
            f"best one, {obstacle}"
        )
    emitted = emit(found, framework, -(-int(plan.train_tokens) // found.job.tokens_per_step))
    if obstacle is None:
        return emitted
    loss = 1 - found.tokens_per_s / best.tokens_per_s
    remark = (
        f"{100 * loss:.1f} % slower than the fastest of all, which {chosen.name} cannot run: "
        f"{obstacle}"
    )
    return replace(emitted, text=f"# {remark}\n{emitted.text}", remarks=(remark, *emitted.remarks))


def find_framework(name: str) -> Framework:
    if name not in FRAMEWORKS:
        raise UsageError(
            f"configurations of {name!r} are not known; choose one of {', '.join(FRAMEWORKS)}"
        )
    return FRAMEWORKS[name]


def settle(prediction: Prediction, job: TrainingJob | None = None) -> TrainingJob:
    """With the ranks that share what is sharded, where they are a group."""
    job = job or prediction.job
    if job.sharding != "hybrid":
        return job
    group = find_shard_group(job, prediction.machine)
    return replace(job, parallelism=replace(job.parallelism, shard_group=group))
