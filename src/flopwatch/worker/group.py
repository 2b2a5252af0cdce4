"""A group in a worker: built, checked, sampled, and its curves and memory taken."""

from __future__ import annotations

import time
from functools import cache, partial
from pathlib import Path
from typing import Any

from flopwatch.analysis.summary import summarize
from flopwatch.devices.base import Backend
from flopwatch.devices.kinds import is_host
from flopwatch.errors import Unsupported
from flopwatch.records.record import Check, RankTimeline, SuiteColumn
from flopwatch.records.store import read
from flopwatch.settings import Settings
from flopwatch.suites.case import Case
from flopwatch.suites.catalog import load_suite
from flopwatch.suites.suite import Suite
from flopwatch.suites.workload import Workload
from flopwatch.worker import agreement, limits
from flopwatch.worker.channel import NO_VARIANT, Channel, PointStream, SampleStream
from flopwatch.worker.compilation import is_compiler_used
from flopwatch.worker.failure import (
    classify,
    describe_error,
    explain,
    is_device_error,
    is_loss_of_peer,
    shorten,
)
from flopwatch.worker.instruments import CutShort, Diverged, take_points
from flopwatch.worker.limits import from_seed
from flopwatch.worker.messages import Built, CurvesTaken, Failed, Finished, Memory
from flopwatch.worker.rank_devices import DeviceWatch, describe_states, unite_reasons
from flopwatch.worker.rank_roles import RankZero, SingleProcess
from flopwatch.worker.renewal import Renewal
from flopwatch.worker.sampling import First, Sampler, Series, run_once
from flopwatch.worker.step_timeline import choose_typical, make_timeline
from flopwatch.worker.turns import Turns

ON_ALL_RANKS = (agreement.WrongResult, Diverged, Unsupported)
"""Errors that all ranks have, or that come after all are done."""

PROBES = 3
MOST_NOTES = 100


load_once = cache(load_suite)
"""A process may serve several requests about a suite, which may register things with torch that can
be registered once."""


class NeedsNewProcess(Exception):
    """Memory ran out, the device has failed, or ranks have lost each other: the rest needs new
    processes."""


class Group:
    """The cases of one group on their way through the worker."""

    def __init__(
        self,
        suite: Suite,
        cases: list[Case],
        baseline: str,
        settings: Settings,
        target: Backend,
        channel: Channel,
        rank0: SingleProcess | RankZero,
    ) -> None:
        # The baseline first: it is the reference of the rest where the suite declares none.
        self.cases = sorted(cases, key=lambda case: case.variant != baseline)
        self.index = {case.variant: position for position, case in enumerate(cases)}
        self.suite = suite
        self.baseline = baseline
        self.settings = settings
        self.target = target
        self.channel = channel
        self.rank0 = rank0
        self.workloads: dict[str, Workload] = {}
        self.first_calls: dict[str, First] = {}
        self._first_s = 0.0
        """What building and running all variants for the first time has taken."""
        self._baseline_values: dict[str, Any] | None = None
        self._is_lent = False
        """Whether these are only kept for variants without a reference."""

    def measure(self, *, is_probe: bool = False, turns: Turns | None = None) -> None:
        """All that there is to do; a probe only tries whether the group can run."""
        self.build()
        if self._is_lent:  # all are checked, and what is held is measured
            self._baseline_values = None
        if is_probe:
            self.try_out()
            return
        self.sample(turns)
        self.take_curves()
        self.measure_memory()  # last: whatever goes wrong in it does not lose times

    def try_out(self) -> None:
        """Run all a few times more: only the first run has made the optimizer's state, and memory
        gets fragmented."""
        for _ in range(PROBES):
            for variant, workload in list(self.workloads.items()):
                self.channel.board.write(self.index[variant], "sampling")
                try:
                    run_once(workload)
                except Exception as error:
                    self.fail(variant, error)
        self.channel.send(Finished(stop_reason=None))

    def build(self) -> None:
        """Build and check all. NeedsNewProcess where memory ran out.

        The heap is fragmented after a failure: what one variant has freed is not always usable for
        the next, which must not fail for that.
        """
        for case in self.cases:
            position = self.index[case.variant]
            try:
                self.channel.board.write(position, "build")
                started_s = time.perf_counter()
                make = partial(from_seed, self.settings.seed, self.suite.build_case, case)
                workload = self.rank0.build(case.variant, make)
                self.channel.board.write(position, "check")
                first = self.rank0.gather(case.variant, workload)
                self._first_s += time.perf_counter() - started_s
                shares = self.rank0.take_shares(1)
                check, unchecked = self._check(case, first.values)
                flops, bytes_ = self.suite.count_flops(case), self.suite.count_bytes(case)
                workload.require_phases(flops, "flops")
                workload.require_phases(bytes_, "bytes")
                self.suite.estimate_memory(case)  # its mistakes are errors too
                built = Built(
                    variant=case.variant,
                    check=check,
                    unchecked=unchecked,
                    flops=flops,
                    bytes=bytes_,
                    job=self.suite.describe_job(case),
                    conditions=dict(workload.conditions),
                    facts={**workload.list_facts(), **self.rank0.list_facts()},
                    first_call_page_faults=first.page_faults,
                    notes=list_notes(workload),
                )
                self.workloads[case.variant] = self.rank0.synchronize(case.variant, workload)
                self.first_calls[case.variant] = First(phase_ns=first.phase_ns, shares=shares)
                self.channel.send(built)
            except Exception as error:
                self.fail(case.variant, error)
                if classify(error) == "oom":
                    raise NeedsNewProcess from None

    def sample(self, turns: Turns | None = None) -> None:
        if not self.workloads:
            if turns is not None:
                turns.leave()
            return
        self.channel.board.write(NO_VARIANT, "sampling")
        stream = SampleStream(self.channel, self.target, self.index, self.fail)
        renewal = Renewal(self._build_anew, self._first_s, time.perf_counter)
        sampler = Sampler(
            self.workloads,
            baseline=self.baseline,
            settings=self.settings,
            target=self.rank0,
            observer=stream,
            first_calls=self.first_calls,
        )
        outcome = sampler.run(renewal if self._can_renew() else None, turns)
        stream.send()
        devices = self.rank0.read_devices(DeviceWatch(self.target, self.settings.device))
        self.channel.send(
            Finished(
                stop_reason=outcome.stop_reason,
                throttled=unite_reasons(devices),
                gpus=describe_states(devices),
                rebuilt_rounds=renewal.rounds,
                curves=[name for name, load in self.workloads.items() if load.curves is not None],
                timelines={
                    series.variant: make_typical_timeline(series, outcome.warmup_rounds)
                    for series in sampler.series
                    if series.latest
                },
            )
        )

    def _can_renew(self) -> bool:
        """Whether workloads may be built more than once, and gain by it."""
        return (
            is_host(self.settings.device)
            and isinstance(self.rank0, SingleProcess)
            and all(load.renewable and load.curves is None for load in self.workloads.values())
            and not is_compiler_used()
        )

    def _build_anew(self, variant: str) -> Workload:
        self.channel.board.point_at(self.index[variant])  # the variant to blame for a crash
        case = next(case for case in self.cases if case.variant == variant)
        self.workloads[variant] = from_seed(self.settings.seed, self.suite.build_case, case)
        return self.workloads[variant]

    def measure_memory(self) -> None:
        for variant, workload in self.workloads.items():
            self.channel.board.write(self.index[variant], "memory")
            try:
                memory, ranks = self.rank0.measure_memory(variant, workload, self.target)
            except Exception:
                if isinstance(self.rank0, RankZero):
                    raise NeedsNewProcess from None
                self.channel.has_failed = True
                memory, ranks = None, []  # its times are good; only its memory is not known
            if memory is not None:
                self.channel.send(
                    Memory(
                        variant=variant,
                        resident_bytes=memory.resident_bytes,
                        peak_memory_bytes=memory.peak_bytes,
                        memory=dict(memory.phases),
                        rank_memory=ranks,
                    )
                )

    def take_curves(self) -> None:
        for variant, workload in list(self.workloads.items()):
            if workload.curves is None:
                continue
            self.channel.board.write(self.index[variant], "curves")
            stream = PointStream(self.channel, variant)
            try:
                for point in from_seed(self.settings.seed, take_points, workload.curves):
                    stream.add(point)
            except CutShort as cut:
                stream.send()
                self.channel.send(CurvesTaken(variant=variant, note=str(cut)))
            except Exception as error:
                stream.send()
                self.fail(variant, error)
                if isinstance(self.rank0, RankZero):  # other ranks may be at another point
                    raise NeedsNewProcess from None
            else:
                stream.send()
                self.channel.send(CurvesTaken(variant=variant))

    def fail(self, variant: str, error: Exception) -> None:
        self.workloads.pop(variant, None)
        failure = describe_error(error, limits.read_limit())
        is_of_rank0 = isinstance(self.rank0, RankZero) and not isinstance(error, ON_ALL_RANKS)
        self.channel.send(
            Failed(
                variant=variant,
                failure=failure.of_rank(0) if is_of_rank0 else failure,
                check=error.check if isinstance(error, agreement.WrongResult) else None,
                is_peer_lost=is_loss_of_peer(error),
            )
        )
        if is_of_rank0:
            # Other ranks may be waiting in a collective that this rank will never reach.
            raise NeedsNewProcess
        self.rank0.drop(variant)
        if is_device_error(error) or not self._is_device_usable():
            raise NeedsNewProcess

    def _is_device_usable(self) -> bool:
        """Whether all that was queued could be done. A variant may fail while the device has not
        come to its error yet, which would be the next one's."""
        try:
            self.target.synchronize()
        except Exception:
            return False
        return True

    def _check(self, case: Case, values: dict[str, Any]) -> tuple[Check | None, str | None]:
        """Compare with the suite's reference, or else with the baseline; and why not."""
        is_baseline = case.variant == self.baseline
        against, expected, why_not = "the reference", None, None
        try:
            expected = self._run_reference(case)
        except Exception as error:
            # Not the variant's fault: it is measured, but not checked.
            why_not = f"its reference failed: {explain(error)}"
            if is_device_error(error):  # nothing can be measured any more, and so in any process
                raise RuntimeError(why_not) from error
        if expected is None and why_not is None:
            if is_baseline:
                self._baseline_values = values
                return None, None
            against, expected = self.baseline, self._baseline_values
            if expected is None:
                why_not = f"its reference, {self.baseline}, is not measured here"
        check = None
        if expected is not None:
            tolerance = self.suite.tolerance(case)
            check = agreement.compare(values, expected, against=against, tolerance=tolerance)
        if is_baseline:  # kept all the same, unless it is wrong: not all need have a reference
            self._baseline_values, self._is_lent = values, True
        if expected is None:
            return None, why_not
        return check, None if check else "its phases return nothing that can be compared"

    def _run_reference(self, case: Case) -> dict[str, Any] | None:
        """What the suite's own reference gives; None where it declares none."""
        self.channel.board.write(self.index[case.variant], "reference")
        reference = from_seed(self.settings.seed, self.suite.build_reference, case)
        return None if reference is None else agreement.gather(reference, self.target.clock).values


def make_typical_timeline(series: Series, warmup_rounds: int) -> list[RankTimeline]:
    """Of the runs that are remembered, the one that took about as long as most."""
    runs = dict(series.latest)
    measured = [place for place in runs if place >= warmup_rounds] or list(runs)
    chosen = choose_typical(series.totals_ns, measured)
    return make_timeline(runs[chosen], list(series.workload.phases))


def list_notes(workload: Workload) -> list[str]:
    notes = [shorten(note) for note in workload.notes[:MOST_NOTES]]
    left = len(workload.notes) - len(notes)
    return [*notes, f"and {left} more notes, which are not stored"] if left else notes


def compute_columns(suite_path: str, records_path: str) -> list[dict[str, Any]]:
    """For each record of a group: the suite's own columns, and notes on those that failed. What was
    not measured has none."""
    suite, records = load_once(Path(suite_path)), read(records_path).records
    rows = {row.record.variant: row for row in summarize(records)}
    found = []
    for record in records:
        columns: dict[str, SuiteColumn] = {}
        notes = []
        for name, column in suite.columns.items() if record.status == "ok" else ():
            try:
                columns[name] = column.compute(rows[record.variant])
            except Exception as error:
                notes.append(f"the column {name!r} failed: {explain(error)}")
        found.append({"columns": columns, "notes": notes})
    return found
