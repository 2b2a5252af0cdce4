"""What `flopwatch mfu` is asked, and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flopwatch.devices.device_names import parse_hardware, split_hardware
from flopwatch.devices.specifications import Device, Peak
from flopwatch.errors import UsageError
from flopwatch.jobs.conventions import Convention, Training, find_conventions
from flopwatch.jobs.model_shapes import find_dimensions
from flopwatch.jobs.utilisation import UNKNOWN_PEAK, Utilisation, assess, find_tokens_per_s
from flopwatch.jobs.variants import Recompute

DTYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "tf32": "tf32",
    "fp8": "float8",
    "int8": "int8",
}
"""Of products, by what people call them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    model: str
    tokens: int
    """Of a text."""
    recompute: Recompute
    hardware: str | None
    """As in 8xA100-80GB; None: one device."""
    precision: str
    """A key of DTYPES."""
    peak_tflops: float | None
    """Of one device; None: as the data sheet has it."""
    tokens_per_s: float | None
    """None where it is asked for."""
    mfu: float | None
    conventions: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What the job runs on."""

    devices: int
    device: str | None
    """What one of them is called; None where nobody said."""
    peak: Peak | None
    """Of one of them."""
    missing: str = UNKNOWN_PEAK
    """Why there is no peak, where that is so, and what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    question: Question
    training: Training
    machine: Machine
    utilisations: list[Utilisation]


def answer(question: Question) -> Answer:
    if (question.tokens_per_s is None) == (question.mfu is None):
        raise UsageError("give one of --tokens-per-s and --mfu: the other follows from it")
    shape = find_dimensions(question.model)
    training = Training(shape=shape, tokens=question.tokens, recompute=question.recompute)
    machine = _find_machine(question)
    return Answer(
        question=question,
        training=training,
        machine=machine,
        utilisations=[
            _assess(question, training, machine, convention)
            for convention in find_conventions(question.conventions)
        ],
    )


def _assess(
    question: Question, training: Training, machine: Machine, convention: Convention
) -> Utilisation:
    devices, peak, tokens_per_s = machine.devices, machine.peak, question.tokens_per_s
    if tokens_per_s is None:
        if peak is None or question.mfu is None:
            raise UsageError(
                f"how fast that would be cannot be told without a peak: {machine.missing}"
            )
        tokens_per_s = find_tokens_per_s(
            training, question.mfu, devices=devices, peak=peak, convention=convention
        )
    (found,) = assess(
        training,
        tokens_per_s,
        devices=devices,
        peak=peak,
        missing=machine.missing,
        conventions=[convention],
    )
    return found


def _find_machine(question: Question) -> Machine:
    text, tflops = question.hardware, question.peak_tflops
    if tflops is not None:  # devices that nobody knows are welcome
        count, name = (1, None) if text is None else split_hardware(text)
        peak = Peak(flops_per_s=1e12 * tflops, source="given by --peak")
        return Machine(devices=count, device=name, peak=peak)
    if text is None:
        return Machine(devices=1, device=None, peak=None)
    hardware = parse_hardware(text)
    return Machine(
        devices=hardware.count,
        device=hardware.device.name,
        peak=hardware.device.find_peak(DTYPES[question.precision]),
        missing=_describe_missing(hardware.device, question.precision),
    )


def _describe_missing(device: Device, precision: str) -> str:
    *others, last = [name for name, dtype in DTYPES.items() if device.find_peak(dtype)]
    listed = f"{', '.join(others)} or {last}" if others else last
    return (
        f"{device.name} has no nominal peak in {DTYPES[precision]}; choose --precision {listed}, "
        "or give --peak"
    )
