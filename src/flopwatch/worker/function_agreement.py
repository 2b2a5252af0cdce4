"""Whether functions that are compared give the same results, before they are timed.

The baseline runs twice first. Where it disagrees with itself, it draws random numbers or changes
what it works on, and no other function is to blame: then all are compared with the same random
seed set before each, if that makes the baseline agree with itself.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from flopwatch.devices.base import find_device_in_use
from flopwatch.devices.kinds import is_host
from flopwatch.errors import UsageError
from flopwatch.records.record import Check
from flopwatch.worker.agreement import WrongResult, compare
from flopwatch.worker.backward_pass import Leaf, match
from flopwatch.worker.limits import seed_all

Gradients = Literal["compared", "not compared", "none"]
GRADIENT = "gradient of "


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """What one run of a function gave."""

    values: Mapping[str, Any]
    """Outputs by name, and gradients that were named by the user."""
    gradients: Sequence[tuple[Leaf, Any]] = ()
    """Those that `backward_pass` has found, to be matched with the baseline's."""
    has_graph: bool = False
    """Whether a backward pass could follow, or has been run by the function itself."""
    gradients_by: str = "backward=True"
    """The argument that has its gradients compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """That all functions agree with the baseline."""

    checks: dict[str, Check]
    """By function: the error of each output and gradient."""
    gradients: Gradients
    seed: int | None
    """Set before each run, since the functions are random; None: they are not."""
    gradients_by: str = "backward=True"
    """Where they are not compared: the argument that has them compared."""

    def describe(self) -> str:
        """
        >>> Agreement(checks={}, gradients="not compared", seed=0).describe()
        'outputs agree (they are random: the seed 0 was set before each); gradients not compared: \
pass backward=True'
        """
        seeded = "" if self.seed is None else (
            f" (they are random: the seed {self.seed} was set before each)"
        )  # fmt: skip
        return {
            "compared": f"outputs and gradients agree{seeded}",
            "not compared": f"outputs agree{seeded}; gradients not compared: pass "
            f"{self.gradients_by}",
            "none": f"outputs agree{seeded}",
        }[self.gradients]


def check_agreement(
    runs: Mapping[str, Callable[[], Results]],
    tolerance: float,
    seed: int,
    announce: Callable[[str], object] = lambda name: None,
) -> Agreement:
    """Run all, the first of them at least twice. Raises WrongResult, which names the function, the
    tensor and its error. `announce` is called with the name of the next function to run."""
    trial = Trial(runs=runs, tolerance=tolerance, seed=seed, announce=announce)
    baseline, *others = runs
    expected = trial.run(baseline)
    if not expected.values:
        raise UsageError(
            f"there is nothing to compare: {baseline!r} returns no tensors, arrays or numbers; "
            "leave tolerance out, or return the results"
        )
    if not any(value.isfinite().any() for value in expected.values.values()):
        raise UsageError(
            f"there is nothing to compare: no number that {baseline!r} returns is finite; give it "
            "inputs that it can work with, or leave tolerance out"
        )
    if trial.repeat(baseline, expected) is not None:
        trial.is_seeded = True
        expected = trial.run(baseline)
        error = trial.repeat(baseline, expected)
        if error is not None:
            raise UsageError(
                f"{baseline!r} {error}: it is not deterministic, or changes what it works on; make "
                "it repeatable, or leave tolerance out"
            )
    checks = {name: trial.check(name, baseline, expected) for name in others}
    named = {tensor for check in checks.values() for tensor in check.errors}
    gradients: Gradients = "not compared" if expected.has_graph else "none"
    if any(tensor.startswith((GRADIENT, "grad ")) for tensor in named):
        gradients = "compared"
    return Agreement(
        checks=checks,
        gradients=gradients,
        seed=seed if trial.is_seeded else None,
        gradients_by=expected.gradients_by,
    )


@dataclass(kw_only=True, slots=True)
class Trial:
    runs: Mapping[str, Callable[[], Results]]
    tolerance: float
    seed: int
    announce: Callable[[str], object]
    is_seeded: bool = False
    """Whether the seed is set before each run."""

    def run(self, name: str) -> Results:
        self.announce(name)
        with same_seed(self.seed) if self.is_seeded else nullcontext(), blamed_on(name):
            return self.runs[name]()

    def repeat(self, name: str, first: Results) -> WrongResult | None:
        """How a function disagrees with itself; None where it does not."""
        values, expected = (_name_all(one, {}) for one in (self.run(name), first))
        try:
            compare(values, expected, against="itself", tolerance=self.tolerance)
        except WrongResult as error:
            return error
        return None

    def check(self, name: str, baseline: str, expected: Results) -> Check:
        results = self.run(name)
        names = match(
            [leaf for leaf, _ in results.gradients], [leaf for leaf, _ in expected.gradients]
        )
        if names is None:
            raise UsageError(
                f"it is not clear which gradients of {name!r} correspond to which of {baseline!r}; "
                "pass the tensors of each, in the same order: "
                f"gradients_of={{{baseline!r}: [...], {name!r}: [...]}}"
            )
        sides = (repr(name), repr(baseline))
        values, theirs = _name_all(results, names), _name_all(expected, {})
        try:
            check = compare(values, theirs, against=sides[1], tolerance=self.tolerance, sides=sides)
        except WrongResult as error:
            reason = f"{name!r} {error}{self._explain(name, baseline, results, expected)}"
            raise WrongResult(reason, error.check, name) from None
        assert check is not None  # the baseline has values
        return check

    def _explain(self, name: str, baseline: str, results: Results, expected: Results) -> str:
        if self.repeat(baseline, expected) is not None:
            return (
                f"; {baseline!r} does not give its first result any more either: one of the "
                "functions changes what they share, in place?"
            )
        if self.is_seeded:
            return (
                f"; {baseline!r} is random (dropout?), and the random seed {self.seed} was set "
                "before each: turn the randomness off to compare"
            )
        is_random = self.repeat(name, results) is not None
        return "; it disagrees with itself, too: is there dropout in it?" if is_random else ""


def _name_all(results: Results, names: Mapping[int, str]) -> dict[str, Any]:
    """Outputs and gradients; `names` are those of tensors, by id, where they are not their own."""
    gradients = {
        f"{GRADIENT}{names.get(id(leaf.tensor), leaf.name)}": gradient
        for leaf, gradient in results.gradients
    }
    return {**results.values, **gradients}


@contextmanager
def blamed_on(name: str) -> Iterator[None]:
    """What is raised meanwhile is the function's own, and names it below its traceback."""
    try:
        yield
    except Exception as error:
        error.add_note(f"raised by {name!r}")
        raise


@contextmanager
def same_seed(seed: int) -> Iterator[None]:
    """All random generators start from the seed, and continue afterwards as if nothing had been."""
    import torch

    numpy = sys.modules.get("numpy")
    state, numpy_state = random.getstate(), numpy and numpy.random.get_state()
    device = find_device_in_use()
    module = None if is_host(device) else torch.get_device_module(device)
    kept: dict[str, Any] = {"devices": ()}
    if module is not None and hasattr(module, "get_rng_state"):  # not every package's device has it
        kept = {"devices": range(module.device_count()), "device_type": device}
    with torch.random.fork_rng(**kept):
        seed_all(seed)
        try:
            yield
        finally:
            random.setstate(state)
            if numpy is not None:
                numpy.random.set_state(numpy_state)
