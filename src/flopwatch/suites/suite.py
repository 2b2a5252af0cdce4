"""Suites: what to measure, declared in plain Python.

    suite = Suite(
        "gelu",
        axes={"size": [1024, 4096], "dtype": ["float32", "bfloat16"]},
        variants=["exact", "tanh"],
    )

    @suite.build
    def build(case):
        ...
        return Workload(phases={"forward": forward, "backward": backward}, gradients={"x": x})

A suite file is imported by worker processes only, so that it may import torch at its top and may
even crash: the runner never imports it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeVar

from flopwatch.devices.kinds import KINDS, Devices
from flopwatch.errors import SuiteError, UsageError
from flopwatch.records.quantities import LARGEST
from flopwatch.records.record import SuiteColumn
from flopwatch.suites.case import Case, format_value
from flopwatch.suites.grids import (
    AUTO,
    VARIANT,
    Accepts,
    Axes,
    Grid,
    cross,
    make_grids,
    make_other_grids,
    make_quick_grids,
    put_in,
    shorten,
    unite,
)
from flopwatch.suites.workload import Workload

if TYPE_CHECKING:
    from flopwatch.analysis.summary import Row

Candidates = Callable[[Case], Sequence[int]]
Function = TypeVar("Function", bound=Callable[..., Any])
Grids = Axes | Sequence[Axes]
GridsByDevice = Grids | Callable[[Devices], Grids]

TOLERANCES = {"float64": 1e-10, "float32": 1e-4, "float16": 5e-3, "bfloat16": 3e-2}
"""Agreement demanded by default, by the value of the axis `dtype` (float32's where there is none):
largest deviation over the reference's largest magnitude."""


@dataclass(frozen=True, kw_only=True)
class OwnColumn:
    """A column that a suite declares: see `Suite.column`."""

    name: str
    unit: str
    meaning: str
    function: Callable[[Row], Any]

    def compute(self, row: Row) -> SuiteColumn:
        """As the case's record has it."""
        value = self.function(row)
        if isinstance(value, Real) and not isinstance(value, bool):
            value = float(value)
        is_number = not isinstance(value, float) or math.isfinite(value)
        if not is_number or not isinstance(value, bool | float | str | None):
            raise SuiteError(
                f"it is {value!r}; a column has finite numbers, text, true or false, or None"
            )
        return SuiteColumn(value=value, unit=self.unit, meaning=self.meaning)


def _choose(declared: GridsByDevice, devices: Devices) -> Grids:
    return declared(devices) if callable(declared) else declared


class Suite:
    """Axes, variants, and the functions that build, check and count a case.

    `axes` is a grid, every combination of which is a case, or a list of grids, each crossed on its
    own: a case has the axes of its grid. It may be a function of the devices that there are to
    measure on (``devices.kind`` and ``devices.count``), as may be `quick` and `on_request`: a size
    that keeps a CPU busy for a second is nothing to a GPU. A grid with an entry ``variant`` has
    only those of the `variants`. The first variant is the baseline unless `baseline` names another.
    `tolerance` is one number, one for each value of the axis ``dtype``, or a function of the case.
    `quick` gives fewer values for some axes, for ``--quick`` (where there are several grids: a list
    of other ones); without it the first value of every axis is taken. `where` drops combinations.
    An axis in `optional` is part of any grid where ``--set`` names it, and of none else.
    Values in `on_request` (of axes, or of ``variant``) are only measured where a ``--filter`` on
    their axis names them. `presets` are other grids (each a grid or a list of them, with all axes
    of one of the suite's own), which ``--grid NAME`` measures instead; what is on request is so
    there too. `accepts` is called with an axis and a value that ``--set`` asks for; it raises
    UsageError or ValueError, with a sentence, for what the build function cannot make. Without it,
    the suite has only its own values. `refuse` does so for a whole case, whose values do not go
    together: then nothing is measured. An axis in `searches` may be ``auto``: the largest value
    that fits into memory, of those that the function gives for a case, in ascending order. With
    `apart`, variants of a group hold nothing together, so that what they need in memory adds up. A
    variant in `parts` is not compared with the baseline: its phases are the parts of another
    variant, which is its value there (None: of none), timed one by one. `layout` names the
    published layout (see ``flopwatch show --layout``) that results can be shown in. With `fresh`,
    every group is measured in a new process; on accelerators a process measures several groups
    otherwise, one after the other.
    """

    def __init__(  # noqa: PLR0913  a declaration: all but the name are given by name
        self,
        name: str,
        *,
        axes: GridsByDevice,
        variants: Sequence[str],
        baseline: str | None = None,
        tolerance: float | Mapping[str, float] | Callable[[Case], float] | None = None,
        quick: GridsByDevice | None = None,
        where: Callable[[Case], bool] | None = None,
        on_request: Axes | Callable[[Devices], Axes] | None = None,
        optional: Axes | None = None,
        presets: Mapping[str, Axes | Sequence[Axes]] | None = None,
        accepts: Accepts | None = None,
        refuse: Callable[[Case], object] | None = None,
        searches: Mapping[str, Candidates] | None = None,
        apart: bool = False,
        parts: Mapping[str, str | None] | None = None,
        layout: str | None = None,
        fresh: bool = False,
    ) -> None:
        self.name = name
        self.variants = list(variants)
        self.baseline = self.variants[0] if baseline is None and variants else baseline
        self.where = where
        self.accepts = accepts
        self.refuse = refuse or (lambda case: None)
        self.searches = dict(searches or {})
        self.apart = apart
        self.parts = dict(parts or {})
        self.layout = layout
        self.fresh = fresh
        self._tolerance = tolerance
        self._functions: dict[str, Callable[[Case], Any]] = {}
        self.columns: dict[str, OwnColumn] = {}
        self.optional = make_grids(name, optional or {})[0]
        self._declared = (axes, quick, on_request or {})
        self._declared_presets = presets or {}
        self._validate()
        for kind in KINDS.values():  # so that a mistake is found on any machine
            self.on(Devices(kind=kind))
        self._put_on(Devices())

    def on(self, devices: Devices) -> Suite:
        """The suite as it is on these devices, with its grids for them."""
        placed = copy(self)
        placed._put_on(devices)
        return placed

    def _put_on(self, devices: Devices) -> None:
        axes, quick, on_request = self._declared
        self.device = devices.kind.name
        self.grids = make_grids(self.name, _choose(axes, devices))
        self.axes = unite(self.grids)
        self.on_request = make_grids(self.name, _choose(on_request, devices))[0]
        shorter = None if quick is None else _choose(quick, devices)
        self.quick_grids = make_quick_grids(self.name, self.grids, shorter, self.on_request)
        self.presets = {
            preset: make_other_grids(self.name, repr(preset), grids, self.grids)
            for preset, grids in self._declared_presets.items()
        }
        self._validate_grids()

    def build(self, function: Function) -> Function:
        """Decorator: the function that makes a case's Workload."""
        return self._register("build", function)

    def reference(self, function: Function) -> Function:
        """Decorator: makes the Workload that a case must agree with, plain and obviously right.

        It is built from the same random seed as the case. Without it, or where it gives None, the
        baseline is the reference of the other variants.
        """
        return self._register("reference", function)

    def flops(self, function: Function) -> Function:
        """Decorator: floating-point operations by phase; a number, or numbers by dtype."""
        return self._register("flops", function)

    def bytes(self, function: Function) -> Function:
        """Decorator: bytes that a phase must move, by phase."""
        return self._register("bytes", function)

    def memory(self, function: Function) -> Function:
        """Decorator: bytes that a process with the case needs at its peak, by part.

        A case that cannot fit is skipped, with these numbers, unless ``--force`` is given.
        """
        return self._register("memory", function)

    def job(self, function: Function) -> Function:
        """Decorator: the TrainingJob that a case is, or the LinearLayer; None where it is neither.

        Records carry it, so that their time can be explained, predicted and compared with others'.
        """
        return self._register("job", function)

    def column(self, *, unit: str = "") -> Callable[[Function], Function]:
        """Decorator: a column of the suite's own, in every table, query and page.

            @suite.column(unit="tokens/J")
            def tokens_per_joule(row):
                "Tokens trained on per joule"
                return row.record.facts["tokens"] / row.record.facts["joule"]

        The function's name is the column's, and the first line of its docstring says what it means.
        It is called once for every case that was measured, with the case's row: its ``record``,
        ``total_ns.value``, ``phases_ns``, ``tokens_per_s`` and the rest of `analysis.summary.Row`.
        The record keeps what it returns: a number, text, true or false, or None where it is not
        known. Values in ns, bytes, FLOP/s, tokens/s, B/s, share, ratio or count are formatted like
        those of the columns that all suites have.
        """

        def register(function: Function) -> Function:
            name, meaning = function.__name__, inspect.getdoc(function) or ""
            self._validate_column(name, meaning)
            self.columns[name] = OwnColumn(
                name=name, unit=unit, meaning=meaning.partition("\n")[0], function=function
            )
            return function

        return register

    def describe_job(self, case: Case) -> dict[str, Any] | None:
        """As a record has it."""
        found = self._functions["job"](case) if "job" in self._functions else None
        return None if found is None else dict(found.to_dict())

    @property
    def can_build(self) -> bool:
        return "build" in self._functions

    def build_case(self, case: Case) -> Workload:
        return Workload.of(self._functions["build"](case))

    def build_reference(self, case: Case) -> Workload | None:
        """The suite's own reference for the case, or None where it has none for it."""
        function = self._functions.get("reference")
        built = None if function is None else function(case)
        return None if built is None else Workload.of(built)

    def count_flops(self, case: Case) -> dict[str, dict[str, float]]:
        counts = self._count("flops", case)
        dtype = str(case.params.get("dtype", "unknown"))
        by_dtype = {
            phase: count if isinstance(count, Mapping) else {dtype: count}
            for phase, count in counts.items()
        }
        return {phase: self._check("flops", amounts) for phase, amounts in by_dtype.items()}

    def count_bytes(self, case: Case) -> dict[str, float]:
        return self._check("bytes", self._count("bytes", case))

    def estimate_memory(self, case: Case) -> dict[str, float]:
        return self._check("memory", self._count("memory", case))

    def _count(self, role: str, case: Case) -> Mapping[str, Any]:
        """What a function of the suite says of the case; nothing where there is none."""
        counts = self._functions[role](case) if role in self._functions else {}
        if not isinstance(counts, Mapping):
            raise SuiteError(
                f"the {role} function of suite {self.name!r} returns {counts!r}; return numbers by "
                'name, such as {"forward": 1e9}'
            )
        return counts

    def _check(self, role: str, amounts: Mapping[str, float]) -> dict[str, float]:
        """Amounts that a function of the suite has given, as numbers."""
        for name, amount in amounts.items():
            if not 0 <= float(amount) <= LARGEST:
                raise SuiteError(
                    f"the {role} function of suite {self.name!r} gives {amount!r} for {name!r}; "
                    "return numbers that are finite and not negative"
                )
        return {name: float(amount) for name, amount in amounts.items()}

    def list_candidates(self, case: Case) -> dict[str, list[int]]:
        """By axis that is ``auto`` in the case: the values to choose the largest from."""
        asked = [axis for axis in self.searches if case.params.get(axis) == AUTO]
        return {axis: list(self.searches[axis](case)) for axis in asked}

    def tolerance(self, case: Case) -> float:
        dtype = str(case.params.get("dtype", "float32"))
        if isinstance(self._tolerance, int | float):
            return float(self._tolerance)
        if callable(self._tolerance):
            return float(self._tolerance(case))
        table = TOLERANCES if self._tolerance is None else self._tolerance
        if dtype not in table:
            raise SuiteError(
                f"suite {self.name!r} has no tolerance for dtype {dtype!r}; "
                f"it has them for {', '.join(table)}"
            )
        return float(table[dtype])

    def list_grids(self, *, quick: bool = False, preset: str | None = None) -> list[Grid]:
        """The grids that such a run measures."""
        if preset is None:
            return self.quick_grids if quick else self.grids
        if preset not in self.presets:
            known = f"it has {', '.join(self.presets)}" if self.presets else "it has only its own"
            raise UsageError(f"suite {self.name!r} has no grid {preset!r}; {known}")
        return self.presets[preset]

    def expand(
        self,
        *,
        quick: bool = False,
        preset: str | None = None,
        chosen: Grid | None = None,
    ) -> list[Case]:
        """All cases, those of one group next to each other.

        `chosen` values are taken in place of the suite's own.
        """
        grids = put_in(chosen or {}, self.list_grids(quick=quick, preset=preset), self.optional)
        if not grids:  # only quick grids may lack the chosen axes
            short = [shorten(grid, self.on_request) for grid in self.grids]
            grids = put_in(chosen or {}, short, self.optional)
        cases = [
            Case(suite=self.name, variant=variant, params=point, device=self.device)
            for point, variants in cross(grids, self.variants)
            for variant in variants
        ]
        return cases if self.where is None else [case for case in cases if self.where(case)]

    def _register(self, role: str, function: Function) -> Function:
        if role in self._functions:
            raise SuiteError(f"suite {self.name!r} has two {role} functions; keep one")
        self._functions[role] = function
        return function

    def _validate(self) -> None:
        if not self.variants:
            raise SuiteError(f"suite {self.name!r} has no variants; name at least one")
        if len(set(self.variants)) < len(self.variants):
            raise SuiteError(f"suite {self.name!r} names a variant twice: {self.variants}")
        if self.baseline not in self.variants:
            raise SuiteError(
                f"suite {self.name!r} has the baseline {self.baseline!r}, which is not one of its "
                f"variants {', '.join(self.variants)}"
            )

    def _validate_grids(self) -> None:
        for grids in (self.grids, self.quick_grids, *self.presets.values()):
            for grid in grids:
                self._validate_variants(grid.get(VARIANT, self.variants))
        self._validate_on_request(self.on_request)
        reserved = {"suite", "device", "params", "id", "group"} & set(self.axes)
        if reserved:
            raise SuiteError(
                f"suite {self.name!r} has an axis {min(reserved)!r}, a name that cases use "
                "themselves; choose another"
            )

    def _validate_variants(self, variants: Sequence[Any]) -> None:
        """Of one grid."""
        unknown = [variant for variant in variants if variant not in self.variants]
        if unknown:
            raise SuiteError(
                f"suite {self.name!r} has a grid with the variant {unknown[0]!r}, which is not one "
                f"of its variants {', '.join(self.variants)}"
            )
        if self.baseline not in variants:
            raise SuiteError(
                f"suite {self.name!r} has a grid without its baseline, {self.baseline!r}; add it"
            )

    def _validate_column(self, name: str, meaning: str) -> None:
        from flopwatch.output.columns import list_columns  # which needs this package

        if not name.isidentifier() or name.startswith("_"):
            raise SuiteError(
                f"suite {self.name!r} has a column {name!r}, which is no name for one; it is that "
                "of the function: use letters, digits and _, and begin with a letter"
            )
        if not meaning:
            raise SuiteError(
                f"suite {self.name!r} has a column {name!r} without a meaning; say it in the "
                "docstring of the function"
            )
        taken = {*self.axes, *self.columns, *list_columns([])}
        if name.casefold() in map(str.casefold, taken):  # SQL reads names in any case
            raise SuiteError(
                f"suite {self.name!r} has a column {name!r}, a name that an axis or another column "
                "has already; choose another"
            )

    def _validate_on_request(self, on_request: Grid) -> None:
        known = {**self.axes, VARIANT: self.variants}
        for axis, values in on_request.items():
            if axis not in known:
                raise SuiteError(
                    f"suite {self.name!r} has {axis!r} on request, which is not one of its axes "
                    f"{', '.join(known)}"
                )
            unknown = [value for value in values if value not in known[axis]]
            if unknown:
                raise SuiteError(
                    f"suite {self.name!r} has {axis}={format_value(unknown[0])} on request, which "
                    f"is not one of its values {', '.join(map(format_value, known[axis]))}"
                )
        if self.baseline in on_request.get(VARIANT, []):
            raise SuiteError(
                f"suite {self.name!r} has its baseline, {self.baseline!r}, on request; every "
                "other variant is compared with it, so it is always measured"
            )
