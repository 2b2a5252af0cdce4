"""The fixture `flopwatch` of the pytest plug-in: measures in a test, and keeps records of it.

A test is a group of cases: its file is the suite, its name is the axis `test`, and the plain values
that it is parametrised with are axes, too. So two runs of the same tests can be compared, and a
parametrised test has a table like any suite.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

import pytest

from flopwatch.devices.environment import load
from flopwatch.errors import UsageError
from flopwatch.records.record import Record
from flopwatch.records.store import Store
from flopwatch.runner.group_runner import new_run_id
from flopwatch.settings import Cache, Device
from flopwatch.worker.agreement import WrongResult
from flopwatch.worker.comparison import Comparison, Measurement
from flopwatch.worker.inline import compare, measure
from flopwatch.worker.inline_arguments import Timed, name_function
from flopwatch.worker.inline_records import Origin, make_failures, make_records, read_environment

TEST, MEASUREMENT = "test", "measurement"
"""Axes of records."""
TAKEN = (TEST, MEASUREMENT, "variant")
LONGEST_VALUE = 100
"""Characters of a parameter that is an axis."""


class MeasureOptions(TypedDict, total=False):
    backward: bool
    budget_s: float | None
    cache: Cache
    device: Device | None
    target_interval: float


class CompareOptions(TypedDict, total=False):
    backward: bool
    budget_s: float | None
    cache: Cache
    device: Device | None
    gradients_of: Any
    seed: int
    target_interval: float | None
    threshold: float
    tolerance: float | None


Result = TypeVar("Result", Comparison, Measurement)


@dataclass(frozen=True, kw_only=True, repr=False)
class Flopwatch:
    """The fixture. Options that are not given are those of the test's marks. A `name` tells several
    measurements of one test apart in records; without one they are numbered."""

    item: pytest.Item
    defaults: Mapping[str, Any]
    results: list[str]
    """Grows: each result as text."""
    _names: list[str | None] = field(default_factory=list)

    def compare(
        self,
        functions: Mapping[str, Timed],
        *,
        name: str | None = None,
        **options: Unpack[CompareOptions],
    ) -> Comparison:
        """Time functions side by side against the first one: `flopwatch.compare`."""
        __tracebackhide__ = True
        chosen = {**self.defaults, **options}
        return self._run(lambda: compare(functions, progress=False, **chosen), functions, name)

    def measure(
        self, function: Timed, *, name: str | None = None, **options: Unpack[MeasureOptions]
    ) -> Measurement:
        """Time one function: `flopwatch.measure`."""
        __tracebackhide__ = True
        known = MeasureOptions.__annotations__
        defaults = {key: value for key, value in self.defaults.items() if key in known}
        chosen = {**defaults, **options}
        alone = {name_function(function): function}
        return self._run(lambda: measure(function, progress=False, **chosen), alone, name)

    def _run(
        self, take: Callable[[], Result], functions: Mapping[str, Timed], name: str | None
    ) -> Result:
        __tracebackhide__ = True  # pytest shows the line of the test
        axes = self._name_measurement(name)
        recorder = find_recorder(self.item.config)
        load()  # what is read later is the load from now on
        try:
            with untraced():
                result = take()
        except UsageError as error:
            raise error.with_traceback(None) from None
        except Exception as error:
            if recorder is not None:
                recorder.append(make_failures(list(functions), error, recorder.locate(*axes)))
            if isinstance(error, WrongResult):
                raise error.with_traceback(None) from None
            raise
        self.results.append(repr(result))
        if recorder is not None:
            recorder.append(make_records(result, recorder.locate(*axes)))
        return result

    def _name_measurement(self, name: str | None) -> tuple[str, dict[str, Any]]:
        """The suite and the axes of its records."""
        if name is not None and name in self._names:
            raise UsageError(f"this test has a measurement {name!r} already; choose another name")
        self._names.append(name)
        suite, params = name_test(self.item)
        number = len(self._names)
        if name is not None or number > 1:
            params[MEASUREMENT] = str(number) if name is None else name
        return suite, params


@dataclass
class Recorder:
    """Appends records to the file of ``--flopwatch-save``, which several processes may do."""

    config: pytest.Config
    path: Path

    @property
    def _worker(self) -> Mapping[str, Any]:
        """What pytest-xdist tells its workers; empty elsewhere."""
        told: Mapping[str, Any] = getattr(self.config, "workerinput", {})
        return told

    @cached_property
    def run_id(self) -> str:
        """The same in all workers."""
        return str(self._worker.get("testrunuid") or new_run_id())

    @cached_property
    def environment(self) -> dict[str, Any]:
        words = self._worker.get("mainargv", [None, *self.config.invocation_params.args])[1:]
        return read_environment(self.config.rootpath, ["pytest", *map(str, words)])

    def locate(self, suite: str, params: Mapping[str, Any]) -> Origin:
        others = self._worker.get("workercount", 1) - 1
        note = f"pytest ran {others + 1} processes at once, which disturb each other"
        return Origin(
            suite=suite,
            params=params,
            run_id=self.run_id,
            environment={**self.environment, "load": load()},
            notes=[note] if others else [],
        )

    def append(self, records: list[Record]) -> None:
        with Store.open(self.path) as store:
            for record in records:
                store.append(record)


RECORDER = pytest.StashKey[Recorder]()


def find_recorder(config: pytest.Config) -> Recorder | None:
    """That of this run; None where nothing is saved."""
    path: str | None = config.option.flopwatch_save
    if path is None:
        return None
    return config.stash.setdefault(RECORDER, Recorder(config, Path(path)))


def read_marks(item: pytest.Item) -> dict[str, Any]:
    """Options of all marks; those of the test win over those of its class and module."""
    found: dict[str, Any] = {}
    known = CompareOptions.__annotations__
    for mark in item.iter_markers("flopwatch"):
        wrong = [*map(repr, mark.args), *(name for name in mark.kwargs if name not in known)]
        if wrong:
            raise UsageError(
                f"the mark flopwatch has no option {wrong[0]}; it takes {', '.join(known)}, by name"
            )
        found = {**mark.kwargs, **found}
    return found


def name_test(item: pytest.Item) -> tuple[str, dict[str, Any]]:
    """The suite and the axes of a test. Parameters that are no plain values stay in its name."""
    suite, _, test = item.nodeid.partition("::")
    call = getattr(item, "callspec", None)
    params: dict[str, Any] = {} if call is None else dict(call.params)
    if call is None or not all(map(is_axis, params, params.values())):
        return suite, {TEST: test}
    return suite, {TEST: test.removesuffix(f"[{call.id}]"), **params}


def is_axis(name: str, value: object) -> bool:
    """
    >>> is_axis("size", 4), is_axis("size", float("inf")), is_axis("test", 4), is_axis("x", [])
    (True, False, False, False)
    """
    if name in TAKEN or type(value) not in (bool, int, float, str):
        return False
    is_finite = not isinstance(value, float) or math.isfinite(value)
    return is_finite and len(str(value)) <= LONGEST_VALUE


@contextmanager
def untraced() -> Iterator[None]:
    """Without the trace function of a debugger or of coverage, which slows Python code down."""
    trace = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(trace)
