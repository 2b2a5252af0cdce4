"""What the command line can do with a training job, for Python: each function returns a frozen
dataclass that prints well, shows well in a notebook, and has `to_dict()`.

    job = flopwatch.TrainingJob("7b", 2048, micro_batch=4, recompute="full",
                                parallelism=flopwatch.Parallelism(data=8, sharding="full"))
    print(flopwatch.predict(job, "8xA100-80GB"))

Nothing here needs torch, unless a model is one of the library transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from flopwatch.devices.kinds import HOST, KINDS
from flopwatch.errors import UsageError
from flopwatch.jobs.precision import PRECISIONS, Peak
from flopwatch.jobs.training_job import TrainingJob

if TYPE_CHECKING:
    from flopwatch.devices.device_table import Device as Specification
    from flopwatch.jobs.flops import StepFlops
    from flopwatch.jobs.rank_memory import Memory
    from flopwatch.jobs.utilisation import JobUtilisation
    from flopwatch.prediction.plan_comparison import PlanComparison
    from flopwatch.prediction.plan_deadline import Deadlines
    from flopwatch.prediction.plan_hardware import Price
    from flopwatch.prediction.plans import Plan
    from flopwatch.prediction.predictions import Prediction
    from flopwatch.settings import Device


def predict(
    job: TrainingJob,
    hardware: str | None = None,
    *,
    stack: str | None = None,
    network_gbit: float | None = None,
) -> Prediction:
    """How fast a job will be, in what memory, and why. `hardware` is as in 8xA100-80GB, or ``here``
    for this machine; None: the job's own. A job of one rank is spread over all devices. The
    vocabulary of a named model is padded as in the published jobs that the stack was fitted to.

    >>> found = predict(TrainingJob("7b", 2048, micro_batch=4), "8xA100-80GB")
    >>> found.job.ranks, found.memory.fits
    (8, False)
    """
    from flopwatch.prediction.job_lists import predict_job

    placed = job if hardware is None else replace(job, hardware=hardware)
    return predict_job(placed, stack, network_gbit)


def plan(  # noqa: PLR0913  all but two are given by name
    job: TrainingJob | str,
    hardware: str | None = None,
    *,
    seq_len: int = 2048,
    global_batch_tokens: float = 4e6,
    train_tokens: float | None = None,
    tokens_per_parameter: float = 20,
    price: Price = None,
    shown: int = 5,
    stack: str | None = None,
    network_gbit: float | None = None,
) -> Plan:
    """The fastest ways to train a model on the hardware that fit into its memory: all kinds of
    parallelism, sharding, recomputation and micro-batches are searched, but for what the job has of
    them. `job` may be a model's name, which `seq_len` goes with. It trains on `train_tokens`, or
    on so many for each parameter. `price` is that of a device for an hour, or those of several
    kinds of devices by their names.

    >>> found = plan("1b", "8xA100-80GB", global_batch_tokens=5e5)
    >>> found.best[0].job.recompute, len(found.best)
    ('none', 5)
    """
    from flopwatch.prediction.plan_comparison import plan_one

    return plan_one(
        TrainingJob(job, seq_len) if isinstance(job, str) else job,
        hardware,
        global_batch_tokens=global_batch_tokens,
        train_tokens=train_tokens,
        tokens_per_parameter=tokens_per_parameter,
        price=price,
        shown=shown,
        stack=stack,
        network_gbit=network_gbit,
    )


def compare_plans(  # noqa: PLR0913  all but two are given by name
    jobs: Sequence[TrainingJob | str],
    hardware: Sequence[str],
    *,
    seq_len: int = 2048,
    global_batch_tokens: float = 4e6,
    train_tokens: float | None = None,
    tokens_per_parameter: float = 20,
    price: Price = None,
    stack: str | None = None,
    network_gbit: float | None = None,
) -> PlanComparison:
    """The best plan of every model on all hardware: which is fastest, which is cheapest, and which
    are neither faster nor cheaper than another.

    >>> kinds = ["8xA100-80GB", "8xH100-SXM"]
    >>> found = compare_plans(["1b"], kinds, price={"a100": 1.8, "h100": 2.1})
    >>> [plan.machine.name for plan in found.plans]
    ['H100-SXM', 'A100-SXM-80GB']
    """
    from flopwatch.prediction.plan_comparison import plan_several

    return plan_several(
        [TrainingJob(job, seq_len) if isinstance(job, str) else job for job in jobs],
        hardware,
        global_batch_tokens=global_batch_tokens,
        train_tokens=train_tokens,
        tokens_per_parameter=tokens_per_parameter,
        price=price,
        stack=stack,
        network_gbit=network_gbit,
    )


def plan_deadlines(  # noqa: PLR0913  all but two are given by name
    jobs: Sequence[TrainingJob | str],
    hardware: Sequence[str],
    *,
    days: float,
    seq_len: int = 2048,
    global_batch_tokens: float = 4e6,
    train_tokens: float | None = None,
    tokens_per_parameter: float = 20,
    price: Price = None,
    stack: str | None = None,
    network_gbit: float | None = None,
) -> Deadlines:
    """The fewest devices of each kind that train each model within so many days. A number before a
    device is the most that there are.

    >>> found = plan_deadlines(["1b"], ["H100-SXM"], days=2).found[0]
    >>> found.is_met, found.enough.job.ranks > found.smaller.job.ranks
    (True, True)
    """
    from flopwatch.prediction.plan_deadline import plan_deadlines as plan_all

    return plan_all(
        [TrainingJob(job, seq_len) if isinstance(job, str) else job for job in jobs],
        hardware,
        days=days,
        global_batch_tokens=global_batch_tokens,
        train_tokens=train_tokens,
        tokens_per_parameter=tokens_per_parameter,
        price=price,
        stack=stack,
        network_gbit=network_gbit,
    )


def flops(job: TrainingJob) -> StepFlops:
    """Of a training step over all ranks, by phase, dtype and part of the model.

    >>> round(flops(TrainingJob("7b", 2048)).per_token / 1e9)
    43
    """
    from flopwatch.jobs.flops import StepFlops, count_flops_by_part
    from flopwatch.jobs.model_shapes import ARCHITECTURES
    from flopwatch.models.job_estimates import count_flops

    known = job.shape.architecture in ARCHITECTURES
    phases = count_flops(job)
    if not phases:
        raise UsageError(
            f"the FLOPs of {job.linear} layers in {job.name} with recompute {job.recompute} are "
            "not known; write the model as decoder, gpt, opt, gpt_neox or llama"
        )
    return StepFlops(
        job=job,
        phases=phases,
        parts=count_flops_by_part(job) if known and job.is_dense else {},
        parameters=job.parameters if known else None,
    )


def memory(
    job: TrainingJob,
    hardware: str | None = None,
    *,
    device: Device | None = None,
    fit_bytes: float | None = None,
) -> Memory:
    """What one rank holds where that is most, and what would fit. The memory to fit into is that of
    the hardware, `fit_bytes`, or of this machine; `device` is the kind of device that computes, for
    hardware a GPU.

    >>> memory(TrainingJob("small", 128, precision="fp32"), fit_bytes=2**33).fits
    True
    """
    from flopwatch.prediction.memory_capacity import find_available_bytes, find_capacity

    hardware = hardware or job.hardware
    if hardware is not None:
        from flopwatch.prediction.job_lists import find_hardware, place_on

        devices, machine, _ = find_hardware(hardware, None, None)
        job, device = place_on(replace(job, hardware=hardware), devices), machine.device
        fit_bytes = fit_bytes or machine.memory_bytes
    device = device or HOST
    if device not in KINDS:
        raise UsageError(f"there is no device {device!r}; choose one of {', '.join(KINDS)}")
    return find_capacity(job, device, find_available_bytes(fit_bytes, device))


def mfu(
    job: TrainingJob,
    *,
    tokens_per_s: float | None = None,
    mfu: float | None = None,
    hardware: str | None = None,
    peak_tflops: float | None = None,
    conventions: Sequence[str] = (),
) -> JobUtilisation:
    """What share of the hardware's peak a job reaches at such a speed, in every convention; or with
    `mfu`, how fast it is. `peak_tflops` is that of one device, in place of the data sheet's.

    >>> job = TrainingJob("7b", 2048, recompute="full")
    >>> found = mfu(job, tokens_per_s=25_000, hardware="8xA100-80GB", conventions=["palm"])
    >>> round(found.utilisations[0].mfu, 3)
    0.432
    """
    from flopwatch.devices.device_names import parse_hardware, split_hardware
    from flopwatch.jobs.utilisation import UNKNOWN_PEAK, find_utilisation

    hardware, dtype = hardware or job.hardware, job.arithmetic.matmul_dtype
    devices, device, peak, missing = 1, None, None, UNKNOWN_PEAK
    if peak_tflops is not None:  # devices that nobody knows are welcome
        devices, device = (1, None) if hardware is None else split_hardware(hardware)
        peak = Peak(flops_per_s=1e12 * peak_tflops, source="given by --peak")
    elif hardware is not None:
        devices, found = parse_hardware(hardware)
        device, peak = found.name, found.find_peak(dtype)
        missing = _describe_missing_peak(found, dtype)
    return find_utilisation(
        job,
        tokens_per_s=tokens_per_s,
        mfu=mfu,
        devices=devices,
        device=device,
        peak=peak,
        missing=missing,
        conventions=conventions,
    )


def _describe_missing_peak(device: Specification, dtype: str) -> str:
    known = [n for n, precision in PRECISIONS.items() if device.find_peak(precision.matmul_dtype)]
    return (
        f"{device.name} has no nominal peak in {dtype}; choose --precision {', '.join(known)}, or "
        "give --peak"
    )
