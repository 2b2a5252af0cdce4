"""A worker process: it measures one group and reports it as JSON lines.

It is forked from the warm server, or spawned where forking is unsafe (CUDA); either way it gets
one request and three descriptors: events out, a log for whatever the measured code prints, and
the board. It sends

    described   what a suite file declares                       (request "describe")
    refused     something was asked for that cannot be had       (requests "describe" and "call")
    environment what only a process with torch can tell          (request "environment")
    rates       how fast products are here                       (request "rates")
    returned    what a function of ours returned                 (request "call")
    built       a variant was built and agreed with its reference
    failed      a variant that raised: status and reason
    exhausted   memory ran out while building; the others need a fresh process
    samples     samples since the last message, and progress
    finished    how sampling ended, and whose studies follow
    memory      what a run of a variant holds, by phase
    points      of a variant's study, since the last message
    studied     a variant's study is over
    sources     project files that the group was built from
    broken      the suite itself could not be loaded

and everything that it has no words for (a signal, a hang) the runner sees from outside.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from flopwatch.case import Case
from flopwatch.catalog import load_suite
from flopwatch.choice import choose
from flopwatch.engine import agreement, allocator, environment, limits
from flopwatch.engine.channel import NOBODY, Board, Channel
from flopwatch.engine.devices import Target, open_target
from flopwatch.engine.failure import classify, explain
from flopwatch.engine.rate import measure_rate
from flopwatch.engine.sampling import Sampler
from flopwatch.engine.sources import digest_sources
from flopwatch.engine.stream import PointStream, SampleStream
from flopwatch.engine.study import take_points
from flopwatch.errors import FlopwatchError, UsageError
from flopwatch.grids import VARIANT, unite
from flopwatch.records.record import Check
from flopwatch.settings import Settings
from flopwatch.suite import Suite, Workload

Request = dict[str, Any]
Given = TypeVar("Given")


def run_worker(request: Request, descriptors: Sequence[int]) -> None:
    """Serve one request in this process, which is then of no further use."""
    events, log, board = descriptors
    _settle_in(log)
    channel = Channel(events, Board(board))
    try:
        HANDLERS[request["kind"]](request, channel)
    except Exception as error:
        channel.send("broken", reason=explain(error))


def describe(request: Request, channel: Channel) -> None:
    suite = load_suite(Path(request["suite_path"]))
    asked, device = request["chosen"], request["device"]
    wanted = {"quick": request["quick"], "preset": request["preset"], "device": device}
    try:
        grids = suite.list_grids(**wanted)
        chosen = choose(suite, asked, None if request["preset"] is None else grids)
    except UsageError as error:
        channel.send("refused", reason=str(error))
        return
    cases = suite.expand(**wanted, chosen=chosen)
    variants = chosen.pop(VARIANT, None)
    on_request = suite.on_request[device]
    if request["preset"] is not None:  # only what that grid has can be asked for
        there = {VARIANT: suite.variants, **unite(grids)}
        on_request = {
            axis: [value for value in values if value in there.get(axis, [])]
            for axis, values in on_request.items()
        }
    channel.send(
        "described",
        name=suite.name,
        baseline=suite.baseline,
        axes={**unite([*suite.grids, *grids]), **chosen},
        variants=variants or suite.variants,
        on_request={axis: v for axis, v in on_request.items() if axis not in asked and v},
        presets=list(suite.presets),
        cases=[
            {
                "variant": case.variant,
                "params": case.params,
                "flops": _sum_flops(suite, case),
                "memory": _estimate_memory(suite, case),
            }
            for case in cases
        ],
    )


def _estimate_memory(suite: Suite, case: Case) -> dict[str, float]:
    """By part; empty where it is not known."""
    try:
        return suite.estimate_memory(case)
    except Exception:
        return {}  # likewise


def _sum_flops(suite: Suite, case: Case) -> dict[str, float]:
    """Of one run, by dtype, for estimates."""
    try:
        counts = suite.count_flops(case)
    except Exception:
        return {}  # the same mistake will fail the case, with its reason, once it is built
    sums: dict[str, float] = {}
    for phase, by_dtype in counts.items():
        if "/" not in phase:  # a region's are in its phase's already
            for dtype, count in by_dtype.items():
                sums[dtype] = sums.get(dtype, 0.0) + count
    return sums


def report_rates(request: Request, channel: Channel) -> None:
    """How fast products are, in each of the dtypes."""
    settings = msgspec.convert(request["settings"], Settings)
    _apply(settings)
    clock = open_target(settings.device).clock
    rates = {dtype: measure_rate(dtype, settings.device, clock) for dtype in request["dtypes"]}
    channel.send("rates", rates={dtype: rate for dtype, rate in rates.items() if rate is not None})


def report_environment(request: Request, channel: Channel) -> None:
    """What only a process with torch can tell, under the settings of the run."""
    settings = msgspec.convert(request["settings"], Settings)
    in_force = _apply(settings)
    channel.send("environment", torch=environment.torch_build(), allocator=in_force)


def call(request: Request, channel: Channel) -> None:
    """Call a function of ours that needs torch, for a command that must not have it."""
    _apply(msgspec.convert(request["settings"], Settings))
    module, _, name = request["function"].partition(":")
    try:
        value = getattr(import_module(module), name)(**request["arguments"])
    except FlopwatchError as error:
        channel.send("refused", reason=str(error))
    else:
        channel.send("returned", value=msgspec.to_builtins(value))


def measure_group(request: Request, channel: Channel) -> None:
    settings = msgspec.convert(request["settings"], Settings)
    _apply(settings)
    suite_path = Path(request["suite_path"])
    suite = load_suite(suite_path)
    # Told early, so that a crash while building is known by its sources too; and again at the
    # end, when build functions have imported what they need.
    channel.send("sources", sources=digest_sources(suite_path))
    target = open_target(settings.device, request["cache_bytes"])
    cases = [
        Case(suite=suite.name, variant=variant, params=request["params"], device=settings.device)
        for variant in request["variants"]
    ]
    group = Group(suite, cases, request["baseline"], settings, target, channel)
    if not group.build():
        channel.send("exhausted")
        return
    group.sample()
    group.study()
    group.measure_memory()  # last: whatever goes wrong in it costs nobody their times
    channel.board.write(NOBODY, "finish")
    channel.send("sources", sources=digest_sources(suite_path))


class Group:
    """The cases of one group on their way through the worker."""

    def __init__(
        self,
        suite: Suite,
        cases: list[Case],
        baseline: str,
        settings: Settings,
        target: Target,
        channel: Channel,
    ) -> None:
        # The baseline first: it is the reference of the others where the suite declares none.
        self.cases = sorted(cases, key=lambda case: case.variant != baseline)
        self.index = {case.variant: position for position, case in enumerate(cases)}
        self.suite = suite
        self.baseline = baseline
        self.settings = settings
        self.target = target
        self.channel = channel
        self.workloads: dict[str, Workload] = {}
        self.first_calls: dict[str, list[float]] = {}
        self._baseline_values: dict[str, Any] | None = None

    def build(self) -> bool:
        """Build and check all; False where memory ran out.

        Memory that was freed by the one that failed is not always found again by the next: a heap
        that is never given back comes to lie in pieces. Who fits must not fail for that.
        """
        for case in self.cases:
            position = self.index[case.variant]
            try:
                self.channel.board.write(position, "build")
                workload = self._from_seed(self.suite.build_case, case)
                self.channel.board.write(position, "check")
                first = agreement.gather(workload, self.target.clock)
                check, notes = self._check(case, first.values)
                flops, bytes_ = self.suite.count_flops(case), self.suite.count_bytes(case)
                facts = workload.list_facts()
            except Exception as error:
                self.fail(case.variant, error)
                if classify(error) == "oom":
                    return False
                continue
            self.workloads[case.variant] = workload
            self.first_calls[case.variant] = first.phase_ns
            self.channel.send(
                "built",
                variant=case.variant,
                check=check,
                flops=flops,
                bytes=bytes_,
                conditions=dict(workload.conditions),
                facts=facts,
                first_page_faults=first.page_faults,
                notes=[*workload.notes, *notes],
            )
        return True

    def sample(self) -> None:
        if not self.workloads:
            return
        self.channel.board.write(NOBODY, "sampling")
        stream = SampleStream(self.channel, self.target, self.index, self.fail)
        outcome = Sampler(
            self.workloads,
            baseline=self.baseline,
            settings=self.settings,
            target=self.target,
            observer=stream,
            first_calls=self.first_calls,
        ).run()
        stream.send()
        studies = [variant for variant, load in self.workloads.items() if load.study is not None]
        notes = self.target.notes()
        self.channel.send("finished", stop=outcome.stop, notes=notes, studies=studies)

    def measure_memory(self) -> None:
        for variant, workload in self.workloads.items():
            self.channel.board.write(self.index[variant], "memory")
            prepare = workload.reset or (lambda: None)
            try:
                memory = self.target.measure_memory(prepare, workload.phases)
            except Exception:
                memory = None  # it was timed without fault; not to be watched is not its own
            if memory is not None:
                self.channel.send(
                    "memory",
                    variant=variant,
                    held_bytes=memory.held_bytes,
                    peak_bytes=memory.peak_bytes,
                    phases=msgspec.to_builtins(memory.phases),
                )

    def study(self) -> None:
        for variant, workload in list(self.workloads.items()):
            if workload.study is None:
                continue
            self.channel.board.write(self.index[variant], "study")
            stream = PointStream(self.channel, variant)
            try:
                for point in self._from_seed(take_points, workload.study):
                    stream.add(point)
            except Exception as error:
                stream.send()
                self.fail(variant, error)
            else:
                stream.send()
                self.channel.send("studied", variant=variant)

    def fail(self, variant: str, error: Exception) -> None:
        self.workloads.pop(variant, None)
        check = error.check if isinstance(error, agreement.WrongResult) else None
        self.channel.send(
            "failed",
            variant=variant,
            status=classify(error),
            reason=explain(error),
            check=check,
        )

    def _check(self, case: Case, values: dict[str, Any]) -> tuple[Check | None, list[str]]:
        """Compare with the suite's reference, or else with the baseline."""
        against, expected, doubt = "the reference", None, None
        try:
            expected = self._run_reference(case)
        except Exception as error:
            # Not the variant's fault: it is measured, but nobody can say that it is right.
            doubt = f"its reference failed: {explain(error)}"
        if expected is None and doubt is None:
            if case.variant == self.baseline:
                self._baseline_values = values
                return None, []
            against, expected = self.baseline, self._baseline_values
            if expected is None:
                doubt = f"its reference, {self.baseline}, is not measured here"
        if expected is None:
            return None, [f"not checked: {doubt}"]
        tolerance = self.suite.tolerance(case)
        check = agreement.compare(values, expected, against=against, tolerance=tolerance)
        notes = [] if check else ["not checked: its phases return nothing that can be compared"]
        return check, notes

    def _run_reference(self, case: Case) -> dict[str, Any] | None:
        """What the suite's own reference gives; None where it declares none."""
        self.channel.board.write(self.index[case.variant], "reference")
        reference = self._from_seed(self.suite.build_reference, case)
        return None if reference is None else agreement.gather(reference, self.target.clock).values

    def _from_seed(self, make: Callable[[Given], Any], given: Given) -> Any:
        """Call it with all random generators in the same state for every variant."""
        import torch

        random.seed(self.settings.seed)
        torch.manual_seed(self.settings.seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(self.settings.seed % 2**32)
        return make(given)


def _settle_in(log: int) -> None:
    if os.getpgrp() != os.getpid():  # a spawned worker leads its own group already
        os.setsid()
    limits.die_with_parent()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    faulthandler.enable(file=2)
    # The runner sends it before it kills a hung worker: where did it hang?
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)


def _apply(settings: Settings) -> str:
    limits.limit_memory(settings.memory_limit_bytes)
    limits.limit_threads(settings.threads)
    return allocator.apply(settings.allocator)


HANDLERS: dict[str, Callable[[Request, Channel], None]] = {
    "describe": describe,
    "environment": report_environment,
    "rates": report_rates,
    "call": call,
    "group": measure_group,
}


def main() -> None:
    """Entry of a spawned worker: the request on stdin, descriptors as arguments."""
    run_worker(json.load(sys.stdin), [int(argument) for argument in sys.argv[1:]])


if __name__ == "__main__":
    main()
