"""Right before fast: a variant must agree with its reference before it is timed.

Compared are what the first phase returns, or what each of them does (`Workload.compare`), and the
gradients that the workload names, each as

    error = max |value - reference| / max |reference|

in float64: one number that means the same for every dtype and scale, and that a single wrong
element cannot hide from. Values that are not finite must be the same on both sides. Whole numbers
(integers and booleans on both sides) must be equal, whatever the tolerance: next to 127, a step of
1 is less than bfloat16 is allowed to be off, and a quantised value that is off by one is wrong.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from flopwatch.devices.base import Clock
from flopwatch.errors import SuiteError
from flopwatch.records.record import Check
from flopwatch.suites.workload import Workload


class WrongResult(Exception):
    """A variant that does not agree with its reference; `check` says by how much, and `variant`
    which one it is, where the reason does."""

    def __init__(self, reason: str, check: Check, variant: str | None = None) -> None:
        super().__init__(reason)
        self.check = check
        self.variant = variant


@dataclass(frozen=True, kw_only=True, slots=True)
class Gathered:
    values: dict[str, Any]
    """What can be compared, by name."""
    phase_ns: list[float]
    """How long each phase took: for a fresh workload, its very first call."""
    page_faults: int
    """Pages of memory that the system had to provide meanwhile."""
    has_graph: bool
    """Whether a backward pass could follow."""


def gather(workload: Workload, clock: Clock) -> Gathered:
    """Run all phases once."""
    if workload.reset is not None:
        workload.reset()
    for tensor in workload.gradients.values():
        tensor.grad = None
    values: dict[str, Any] = {}
    marks: list[tuple[Any, Any]] = []
    passed: tuple[Any, ...] = ()
    faults_before = _count_page_faults()
    has_graph = False
    names = {next(iter(workload.phases)): "output"}
    if workload.compare == "all":
        names = {phase: phase for phase in workload.phases}
    for phase, function in workload.phases.items():
        start = clock.mark()
        passed = (function(*passed),)
        marks.append((start, clock.mark()))
        if phase in names:  # a later phase may write over it
            found = dict(name_tensors(names[phase], passed[0]))
            values |= {name: copy_tensor(tensor) for name, tensor in found.items()}
            has_graph |= any(tensor.requires_grad for tensor in found.values())
    page_faults = _count_page_faults() - faults_before
    for name, tensor in workload.gradients.items():
        if tensor.grad is None:
            raise SuiteError(
                f"the workload names the gradient of {name!r}, but after its phases "
                f"({', '.join(workload.phases)}) that tensor has none"
            )
        values[f"grad {name}"] = copy_tensor(tensor.grad)
    if workload.values is not None:
        values |= {name: copy_tensor(tensor) for name, tensor in workload.values().items()}
    phase_ns = [elapsed_ns for pair in marks for elapsed_ns in clock.elapsed_ns(pair)]
    return Gathered(values=values, phase_ns=phase_ns, page_faults=page_faults, has_graph=has_graph)


def _count_page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def compare(
    values: Mapping[str, Any],
    reference: Mapping[str, Any],
    *,
    against: str,
    tolerance: float,
    sides: tuple[str, str] = ("the variant", "the reference"),
) -> Check | None:
    """The check of these values, or None where neither side has any. Raises WrongResult."""
    if not values and not reference:
        return None
    errors: dict[str, float | None] = {}
    complaints = []
    for name in sorted(values.keys() | reference.keys()):
        if name not in values or name not in reference:
            side = sides[name not in values]
            errors[name] = None
            complaints.append(f"only {side} has {name}")
            continue
        errors[name], complaint = _deviation(values[name], reference[name])
        allowed = 0.0 if _are_whole(values[name], reference[name]) else tolerance
        if complaint is None and errors[name] > allowed:  # type: ignore[operator]
            complaint = f"is off by {errors[name]:.2g} (allowed {allowed:.2g})"
        if complaint is not None:
            complaints.append(f"{name} {complaint}")
    check = Check(reference=against, errors=errors, tolerance=tolerance)
    if complaints:
        raise WrongResult(f"disagrees with {against}: {'; '.join(complaints)}", check)
    return check


def _are_whole(*tensors: Any) -> bool:
    return not any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors)


def _deviation(value: Any, reference: Any) -> tuple[float | None, str | None]:
    """The relative error, or what makes it meaningless."""
    if value.shape != reference.shape:
        return None, f"has shape {tuple(value.shape)} instead of {tuple(reference.shape)}"
    parts = zip(value.flatten().split(CHUNK), reference.flatten().split(CHUNK), strict=True)
    found = [_compare_part(mine, theirs) for mine, theirs in parts]
    if not all(part.is_alike for part in found):
        odd = sum(part.odd for part in found)
        return None, f"is not finite in other places ({odd} elements)"
    scale = max((part.scale for part in found), default=0.0)
    deviation = max((part.deviation for part in found), default=0.0)
    return (deviation / scale if scale > 0 else deviation), None


CHUNK = 1 << 22
"""So many elements are compared at a time: all at once and in float64, the largest tensors that can
be timed would not fit."""


class Part(NamedTuple):
    deviation: float
    """The largest, of what is finite."""
    scale: float
    """The reference's largest magnitude, of what is finite."""
    odd: int
    """How many elements are not finite, on either side."""
    is_alike: bool
    """Whether those are the same on both."""


def _compare_part(value: Any, reference: Any) -> Part:
    import torch

    wide = torch.complex128 if value.is_complex() or reference.is_complex() else torch.float64
    value, reference = value.to(wide), reference.to(device=value.device, dtype=wide)
    odd = ~(value.isfinite() & reference.isfinite())
    num_odd, is_alike = int(odd.sum()), True
    if num_odd:
        same = torch.equal(value[odd].nan_to_num(nan=0.5), reference[odd].nan_to_num(nan=0.5))
        is_alike = same and torch.equal(value.isnan(), reference.isnan())
        value, reference = value[~odd], reference[~odd]
    if value.numel() == 0:
        return Part(0.0, 0.0, num_odd, is_alike)
    deviation, scale = (value - reference).abs().max(), reference.abs().max()
    return Part(float(deviation), float(scale), num_odd, is_alike)


def name_tensors(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The tensors and numbers inside nested lists, tuples, dicts and model outputs."""
    import torch

    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, bool | int | float | complex):
        yield name, torch.tensor(value)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from name_tensors(f"{name}.{key}", part)
    elif hasattr(value, "__array__"):  # numpy's and its relatives'
        yield name, torch.as_tensor(value)
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from name_tensors(f"{name}[{index}]", part)


def copy_tensor(tensor: Any) -> Any:
    # A later phase or the next call may write into the same memory.
    tensor = tensor.detach()
    return tensor.to_dense() if tensor.is_sparse else tensor.clone()
