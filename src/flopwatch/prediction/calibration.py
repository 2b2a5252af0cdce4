"""The cost model's parameters fitted to your own records, and where they are kept.

The file has one JSON object a line, a line a calibration, and is only ever appended to. A
calibration counts where machine, device, threads and software are those that it was made with.

Predictions for this machine: from its peaks, and from what was measured on it before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flopwatch import env
from flopwatch.analysis.record_device import find_record_device
from flopwatch.analysis.record_job import read_training_job
from flopwatch.analysis.statistics import estimate_total_ns, median
from flopwatch.devices import measured_peaks, system_files
from flopwatch.devices.device_names import find_device
from flopwatch.devices.kinds import USUAL_ACCELERATOR, is_host
from flopwatch.devices.measured_peaks import Setup, from_environment, read_setup
from flopwatch.errors import Unsupported, UsageError
from flopwatch.jobs.flops import FORWARD_BACKWARD, GRAD_ACCUM
from flopwatch.jobs.model_shapes import ARCHITECTURES
from flopwatch.jobs.precision import PRECISIONS
from flopwatch.jobs.training_job import TrainingJob, read_job
from flopwatch.prediction.cost import Cost
from flopwatch.prediction.fit import SCATTER, Fit, fit, predict_s
from flopwatch.prediction.hardware import (
    Machine,
    describe_device,
    describe_measured,
    share_among,
)
from flopwatch.prediction.predictions import predict
from flopwatch.prediction.published_steps import WHOLE, Observation
from flopwatch.prediction.software_stacks import PRIORS, QUANTILE, Parameters, Prior, Stack
from flopwatch.records.record import Record
from flopwatch.records.store import Say
from flopwatch.runner.schedule import Group
from flopwatch.settings import Settings

OURS = "flopwatch"
"""The software stack that our own suites are measured with."""
SCHEMA = 2
"""1: of a cost model whose overhead of a block was never hidden."""
PEAKS_SPREAD = 0.15
"""One standard deviation of the logarithm of a prediction from measured peaks alone."""

CPU_PRIORS: Mapping[str, Prior] = {
    **PRIORS,
    "matmul_efficiency": replace(PRIORS["matmul_efficiency"], expected=0.77, spread=0.1),
    "matmul_traffic": replace(PRIORS["matmul_traffic"], expected=0.5, spread=0.5),
    "odd_matmul": replace(PRIORS["odd_matmul"], expected=1.0, spread=0.02),
    "bandwidth_efficiency": replace(PRIORS["bandwidth_efficiency"], expected=1.0, spread=0.2),
    "loss_bytes": replace(PRIORS["loss_bytes"], expected=40.0),
    "block_s": replace(PRIORS["block_s"], expected=1.5e-3),
    "divided_block_s": replace(PRIORS["divided_block_s"], expected=3.5e-3, spread=0.4),
    "step_s": replace(PRIORS["step_s"], expected=1e-3),
    "micro_batch_s": replace(PRIORS["micro_batch_s"], expected=1e-9, spread=0.1),
    "traffic": replace(PRIORS["traffic"], expected=2.5),
    "attention_efficiency": replace(PRIORS["attention_efficiency"], expected=0.3),
    "pressure_s_per_gb": replace(PRIORS["pressure_s_per_gb"], spread=0.1),
    "link_efficiency": replace(PRIORS["link_efficiency"], expected=0.9, spread=0.2),
    **{
        name: replace(PRIORS[name], expected=0.95)  # ranks share cores with what they send
        for name in ("exposed_share", "tensor_exposed", "p2p_exposed")
    },
}
"""For our own transformer, eager, on a CPU: what a new machine is expected to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """What records of one setup have said."""

    setup: Setup
    measured_at: str
    rows: int
    parameters: Parameters
    scatter: float
    """One standard deviation of the logarithm of measured over predicted times, of models that are
    not among the records."""
    precisions: tuple[str, ...] = ()
    """That the records are in; none: not known."""
    schema: int = SCHEMA


FILE_KIND = measured_peaks.make_kind(Calibration, "a file of calibrations", env.CALIBRATION)


def calibrate(records: Sequence[Record]) -> tuple[Calibration, Fit]:
    """Of the records of one setup, which are to be steps of whole models."""
    known = [(record, observe(record)) for record in records]
    used = [(record, found) for record, found in known if found]
    if not used:
        raise UsageError(
            "there is nothing to calibrate by: no record is a step of a whole model on a machine "
            "whose peaks are known; run `flopwatch peaks`, then `flopwatch run steps`, and give "
            "its results"
        )
    setups = list(dict.fromkeys(read_setup(r.environment, r.settings) for r, _ in used))
    if len(setups) > 1:
        raise UsageError(
            f"the records are from {len(setups)} setups (machine, device, threads or versions of "
            "software differ); give those of one"
        )
    observations = [each for _, found in used for each in found]
    priors = CPU_PRIORS if is_host(setups[0].device) else PRIORS
    solved = fit(observations, priors=priors)
    parameters = solved.parameters[OURS]
    return (
        Calibration(
            setup=setups[0],
            measured_at=max(record.measured_at for record, _ in used),
            rows=len(used),
            parameters=parameters,
            scatter=max(SCATTER, _find_scatter([found for _, found in used], priors)),
            precisions=tuple(sorted({each.job.precision for each in observations})),
        ),
        solved,
    )


def _find_scatter(steps: Sequence[Sequence[Observation]], priors: Mapping[str, Prior]) -> float:
    """Of whole steps of models that are left out of the fit one after the other. What is expected
    before anything was measured counts as one more model: few of them say little of others."""
    shapes = list(dict.fromkeys(step[0].job.shape for step in steps))
    squares = [PEAKS_SPREAD**2]
    for left_out in shapes if len(shapes) > 1 else ():
        others = [each for step in steps for each in step if each.job.shape != left_out]
        parameters = fit(others, priors=priors).parameters[OURS]
        own = [step for step in steps if step[0].job.shape == left_out]
        errors = [
            math.log(
                sum(predict_s(each, parameters) for each in step)
                / sum(each.time_s for each in step)
            )
            for step in own
        ]
        squares.append(sum(error**2 for error in errors) / len(errors))
    return math.sqrt(sum(squares) / len(squares))


def make_stack(calibration: Calibration | None, device: str) -> Stack:
    """The calibration as a stack, or what is expected of a machine that has none."""
    priors = CPU_PRIORS if is_host(device) else PRIORS
    expected = Stack(
        name=OURS,
        family=OURS,
        parameters=Parameters(**{name: prior.expected for name, prior in priors.items()}),
        low=math.exp(-QUANTILE * PEAKS_SPREAD),
        high=math.exp(QUANTILE * PEAKS_SPREAD),
        rows=0,
        devices=(),
        source="expected of our own transformer",
        precisions=tuple(PRECISIONS),
        is_here=True,
    )
    if calibration is None:
        return expected
    return replace(
        expected,
        name=f"{OURS}, calibrated",
        parameters=calibration.parameters,
        low=math.exp(-QUANTILE * calibration.scatter),
        high=math.exp(QUANTILE * calibration.scatter),
        rows=calibration.rows,
        source=f"records of this machine, {calibration.measured_at.partition('T')[0]}",
        precisions=calibration.precisions or expected.precisions,
    )


def find_file(environ: env.Environ = None) -> Path:
    asked = env.read(env.CALIBRATION, environ)
    return (
        Path(asked) if asked else measured_peaks.find_file(environ).with_name("calibrations.jsonl")
    )


def append(path: Path, calibration: Calibration, say: Say = lambda sentence: None) -> None:
    measured_peaks.append(path, [calibration], FILE_KIND, say=say)


def find_calibration(setup: Setup, path: Path | None = None) -> Calibration | None:
    """The last one of this setup."""
    alike = [each for each in read(path or find_file()) if each.setup == setup]
    return alike[-1] if alike else None


def read(path: Path) -> list[Calibration]:
    """Oldest first; lines that cannot be read are passed over."""
    known = measured_peaks.read_entries(path, Calibration, env.CALIBRATION)
    return [calibration for calibration in known if calibration.schema == SCHEMA]


HERE = "here"
"""What the command line calls this machine."""


def describe_here() -> tuple[Machine, Stack]:
    """This machine as the last peaks that were measured on it describe it, and the stack that it is
    calibrated for."""
    facts = system_files.read_machine()
    known = [
        peaks
        for peaks in measured_peaks.read(measured_peaks.find_file())
        if peaks.setup.machine_id == facts.get("machine_id")
    ]
    if not known:
        raise UsageError(
            "the peaks of this machine are not known; measure them with `flopwatch peaks`, or give "
            "another --hardware"
        )
    setup = known[-1].setup
    peaks = measured_peaks.unite([each for each in known if each.setup == setup])
    machine = describe_measured(peaks, facts.get("memory_available_bytes"))
    if machine is None:
        raise UsageError(
            "the peaks of this machine lack matmuls or the memory's bandwidth; measure them again "
            "with `flopwatch peaks`"
        )
    return machine, make_stack(find_calibration(setup), setup.device)


def find_device_stack(machine: Machine) -> Stack | None:
    """What records of the same device were calibrated to, wherever it stands; None where there are
    none."""
    alike = [
        calibration
        for calibration in read(find_file())
        if (device := find_device(calibration.setup.gpu_name or "")) and device.name == machine.name
    ]
    return make_stack(alike[-1], USUAL_ACCELERATOR) if alike else None


def predict_group(
    group: Group, environment: Mapping[str, Any], settings: Settings
) -> dict[str, dict[str, Any]]:
    """What is to be expected of a group's variants, from the peaks of this machine, and if it was
    calibrated, from what was measured on it; nothing where its peaks are not known, or where they
    are no steps of whole models."""
    peaks = measured_peaks.from_environment(environment)
    if peaks is None:
        return {}
    calibration = find_calibration(read_setup(environment, settings))
    machine = describe_measured(peaks, settings.memory_limit_bytes)
    if machine is None:
        return {}
    stack = make_stack(calibration, settings.device)
    found = {
        variant: predict_case(read_job(job), machine, stack)
        for variant, job in group.jobs.items()
        if variant in group.variants and job is not None and "seq_len" in job
    }
    return {variant: each for variant, each in found.items() if each is not None}


def is_predictable(job: TrainingJob) -> bool:
    """Whether its cost follows from its dimensions: not with other layers, compiled ones, or plain
    attention."""
    is_plain = job.is_dense and job.attention == "sdpa" and not job.compiled and not job.graphs
    return is_plain and job.shape.architecture in ARCHITECTURES


def find_rank_machine(machine: Machine, job: TrainingJob) -> Machine:
    """What a rank of the job has: of a CPU, its share."""
    return share_among(machine, job.ranks) if is_host(machine.device) else machine


def read_machine(record: Record) -> Machine | None:
    """Where it was measured: by its peaks, or else by its data sheet."""
    peaks = from_environment(record.environment)
    total = record.environment.get("machine", {}).get("memory_total_bytes")
    machine = describe_measured(peaks, total) if peaks is not None else None
    if machine is None:
        device = find_record_device(record)
        machine = None if device is None else describe_device(device)
    return machine


def observe(record: Record) -> list[Observation]:
    """What a record says of the phases of its step; nothing where it is no step, or where its
    machine is not known."""
    if record.status != "ok" or len(record.rounds) <= record.warmup_samples:
        return []
    job, machine = read_training_job(record), read_machine(record)
    if job is None or machine is None or not is_predictable(job):
        return []
    base = Observation(job=job, machine=find_rank_machine(machine, job), stack=OURS, time_s=1.0)
    if set(record.samples_ns) != set(WHOLE):
        return [replace(base, time_s=estimate_total_ns(record).value / 1e9)]
    return [
        replace(
            base,
            phases=(phase,),
            time_s=median(record.samples_ns[phase][record.warmup_samples :]) / 1e9,
        )
        for phase in WHOLE
    ]


def predict_case(job: TrainingJob, machine: Machine, stack: Stack) -> dict[str, Any] | None:
    """A prediction to be stored with what will be measured; None where there is none to make."""
    if not is_predictable(job):
        return None
    try:
        found = predict(job, find_rank_machine(machine, job), stack)
    except (UsageError, Unsupported):  # no peak in this dtype, no link, too few ranks
        return None
    return {
        "stack": stack.name,
        "source": stack.source,
        "step_s": found.cost.step_s,
        "low_s": job.tokens_per_step / found.high,
        "high_s": job.tokens_per_step / found.low,
        "phases_s": divide_phases(job, found.cost),
    }


def divide_phases(job: TrainingJob, cost: Cost) -> dict[str, float]:
    """As the steps of our own loop have them: the passes of all micro-batches but the last are a
    phase of their own, and those of a pipeline are one with all the others."""
    forward_s, backward_s, update_s = (cost.sum_phase(phase) for phase in WHOLE)
    if job.parallelism.pipeline > 1:
        return {FORWARD_BACKWARD: forward_s + backward_s, "optimizer": update_s}
    last = 1 / job.grad_accum
    first = {GRAD_ACCUM: (1 - last) * (forward_s + backward_s)} if job.grad_accum > 1 else {}
    passes = {"forward": last * forward_s, "backward": last * backward_s}
    return {**first, **passes, "optimizer": update_s}
