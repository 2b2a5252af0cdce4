"""A worker process: it measures one group and reports it as JSON lines.

It is forked from the warm server, or spawned where forking is unsafe (CUDA); either way it gets
one request and three descriptors: events out, a log for whatever the measured code prints, and
the board. It sends

    described   what a suite file declares                       (request "describe")
    refused     something was asked for that cannot be had       (requests "describe" and "call")
    environment what only a process with torch knows             (request "environment")
    rates       how fast matmuls are here                        (request "rates")
    returned    what a function of ours returned                 (request "call")
    built       a variant was built and agreed with its reference
    failed      a variant that raised: status and reason
    restart     memory ran out while building, or ranks lost each other; what is left needs new
                processes
    samples     samples since the last message, and progress
    finished    how sampling ended, and of which variants curves follow
    memory      what a run of a variant holds, by phase
    points      of a variant's curves, since the last message
    curves_taken  a variant's curves are complete
    sources     project files that the group was built from
    broken      the suite itself could not be loaded

and everything that it cannot report (a signal, a hang) the runner sees from outside.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from flopwatch.devices import environment
from flopwatch.devices.base import Backend, open_backend
from flopwatch.devices.matmul_rates import measure_rate
from flopwatch.errors import FlopwatchError, UsageError
from flopwatch.runner.schedule import RANKS
from flopwatch.settings import PROBE_SHARE, Settings
from flopwatch.suites.axis_values import choose
from flopwatch.suites.case import Case
from flopwatch.suites.catalog import load_suite
from flopwatch.suites.grids import VARIANT, Grid, unite
from flopwatch.suites.suite import Suite
from flopwatch.worker import allocator, limits
from flopwatch.worker.channel import NO_VARIANT, Board, Channel
from flopwatch.worker.communicator import Communicator, PortTaken, RankPlace
from flopwatch.worker.failure import describe_error, digest_sources, is_loss_of_peer
from flopwatch.worker.group import Group, NeedsNewProcess, describe_failure
from flopwatch.worker.rank_roles import OtherRank, RankZero, SingleProcess

Request = dict[str, Any]


def run_worker(request: Request, descriptors: Sequence[int]) -> None:
    """Serve one request in this process, which is then of no further use."""
    events, log, board = descriptors
    _settle_in(log)
    channel = Channel(events, Board(board))
    try:
        HANDLERS[request["kind"]](request, channel)
    except Exception as error:
        # Describing the error takes some memory, too.
        status, reason = describe_error(error, limits.lift_memory())
        channel.send(
            "broken",
            status=status,
            reason=reason,
            is_loss=is_loss_of_peer(error),
            is_port_taken=isinstance(error, PortTaken),
        )


def describe(request: Request, channel: Channel) -> None:
    suite = load_suite(Path(request["suite_path"]))
    asked, device = _add_ranks(suite, request), request["device"]
    wanted = {"quick": request["quick"], "preset": request["preset"], "device": device}
    try:
        grids = suite.list_grids(**wanted)
        within = None if request["preset"] is None else grids
        chosen = choose(suite, asked, within, request["baseline"])
        unasked = {a: values for a, values in suite.on_request[device].items() if a not in asked}
        cases = _leave_out(suite, suite.expand(**wanted, chosen=chosen), unasked)
    except UsageError as error:
        channel.send("refused", reason=str(error))
        return
    variants = chosen.pop(VARIANT, None)
    channel.send(
        "described",
        name=suite.name,
        baseline=request["baseline"] or suite.baseline,
        apart=suite.apart,
        parts=suite.parts,
        layout=suite.layout,
        columns=list(suite.columns),
        axes={**unite([*suite.grids, *grids]), **chosen},
        variants=variants or suite.variants,
        on_request=_keep_present(unasked, cases),
        presets=list(suite.presets),
        cases=[
            {
                "variant": case.variant,
                "params": case.params,
                "flops": _sum_flops(suite, case),
                "memory": _estimate_memory(suite, case),
                "candidates": suite.list_candidates(case),
                "job": _describe_job(suite, case),
            }
            for case in cases
        ],
    )


def _leave_out(suite: Suite, cases: Sequence[Case], unasked: Grid) -> list[Case]:
    """The cases without those that the suite refuses and that are only measured on request. A case
    that the user asks for is an error."""
    left = []
    for case in cases:
        try:
            suite.refuse(case)
        except UsageError:
            if any(value in unasked.get(axis, []) for axis, value in _list_facets(case).items()):
                continue
            raise
        left.append(case)
    return left


def _keep_present(unasked: Grid, cases: Sequence[Case]) -> Grid:
    """Only what some case has can be asked for."""
    all_facets = [_list_facets(case) for case in cases]
    present = {
        axis: [value for value in values if any(f.get(axis) == value for f in all_facets)]
        for axis, values in unasked.items()
    }
    return {axis: values for axis, values in present.items() if values}


def _list_facets(case: Case) -> dict[str, Any]:
    return {**case.params, VARIANT: case.variant}


def _add_ranks(suite: Suite, request: Request) -> dict[str, list[str]]:
    """The chosen values; and where torchrun has started ranks and the user has not chosen how many
    to use, all of them, if the suite accepts so many."""
    asked, ranks = request["chosen"], request["ranks"]
    is_open = ranks is not None and RANKS in suite.axes and RANKS not in asked
    if not is_open or request["preset"] is not None or suite.accepts is None:
        return dict(asked)
    with suppress(UsageError, ValueError):
        if suite.accepts(RANKS, ranks) is not False:
            return {**asked, RANKS: [str(ranks)]}
    return dict(asked)


def _estimate_memory(suite: Suite, case: Case) -> dict[str, float]:
    """By part; empty where it is not known."""
    try:
        return suite.estimate_memory(case)
    except Exception:
        return {}  # likewise


def _describe_job(suite: Suite, case: Case) -> dict[str, Any] | None:
    """Where a number is still to be found, with the smallest of the candidates."""
    try:
        smallest = {axis: values[0] for axis, values in suite.list_candidates(case).items()}
        return suite.describe_job(replace(case, params={**case.params, **smallest}))
    except Exception:
        return None  # likewise


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
    """How fast matmuls are, in each of the dtypes."""
    settings = msgspec.convert(request["settings"], Settings)
    _apply(settings)
    clock = open_backend(settings.device).clock
    rates = {dtype: measure_rate(dtype, settings.device, clock) for dtype in request["dtypes"]}
    channel.send("rates", rates={dtype: rate for dtype, rate in rates.items() if rate is not None})


def report_environment(request: Request, channel: Channel) -> None:
    """What only a process with torch knows, under the settings of the run."""
    settings = msgspec.convert(request["settings"], Settings)
    in_force = _apply(settings)
    channel.send("environment", torch=environment.torch_build(), allocator=in_force)


def call(request: Request, channel: Channel) -> None:
    """Call a function of ours that needs torch, for a command that must not have it. Where there
    are ranks, all of them call it, and rank 0 returns its value."""
    settings, place = msgspec.convert(request["settings"], Settings), _find_place(request)
    _apply(settings, place)
    if place is not None:
        Communicator(place, settings.device, settings.silence_limit_s)
    module, _, name = request["function"].partition(":")
    try:
        value = getattr(import_module(module), name)(**request["arguments"])
    except FlopwatchError as error:
        channel.send("refused", reason=str(error))
    else:
        channel.send("returned", value=msgspec.to_builtins(value))


def measure_group(request: Request, channel: Channel) -> None:
    settings = msgspec.convert(request["settings"], Settings)
    place = _find_place(request)
    _apply(settings, place)
    target = open_backend(settings.device, request["cache_bytes"])
    if request["probe"]:
        target.limit_memory(PROBE_SHARE)
    suite_path = Path(request["suite_path"])
    suite = load_suite(suite_path)
    # Sent early, so that a crash while building is known by its sources too; and again at the
    # end, when build functions have imported what they need.
    channel.send("sources", sources=digest_sources(suite_path))
    cases = [
        Case(suite=suite.name, variant=variant, params=request["params"], device=settings.device)
        for variant in request["variants"]
    ]
    rank0: SingleProcess | RankZero = SingleProcess(target.clock, target.evict)
    if place is not None:
        channel.board.write(NO_VARIANT, "joining")
        comm = Communicator(place, settings.device, settings.silence_limit_s)
        if not comm.is_rank0:
            _serve_rank0(comm, suite, cases, settings, target, channel)
            comm.close()
            return
        rank0 = RankZero(comm, target.clock, target.evict)
    group = Group(suite, cases, request["baseline"], settings, target, channel, rank0)
    try:
        group.measure(is_probe=request["probe"])
    except NeedsNewProcess:
        channel.send("restart")
        return
    rank0.leave()
    channel.board.write(NO_VARIANT, "finish")
    if isinstance(rank0, RankZero):
        rank0.comm.close()
    channel.send("sources", sources=digest_sources(suite_path))


def _serve_rank0(
    comm: Communicator,
    suite: Suite,
    cases: Sequence[Case],
    settings: Settings,
    target: Backend,
    channel: Channel,
) -> None:
    """As any rank but 0. What goes wrong here ends the job."""
    by_variant = {case.variant: case for case in cases}
    stages = {"build": "build", "gather": "check", "curves": "curves"}
    other_rank = OtherRank(
        comm,
        target.clock,
        lambda variant: suite.build_case(by_variant[variant]),
        settings.seed,
    )
    try:
        for word in other_rank.follow_orders():
            channel.board.write(NO_VARIANT, stages.get(word, "sampling"))
    except Exception as error:
        channel.send("failed", **describe_failure(error))
        raise


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


def _find_place(request: Request) -> RankPlace | None:
    """This process among ranks; None where there are none."""
    place = request.get("place")
    return None if place is None else msgspec.convert(place, RankPlace)


def _apply(settings: Settings, place: RankPlace | None = None) -> str:
    """Ranks of one node share its memory and cores."""
    if place is not None:
        open_backend(settings.device).select(place.local_rank)
    sharers = 1 if place is None else place.local_ranks
    limit_bytes = settings.memory_limit_bytes
    limits.limit_memory(None if limit_bytes is None else limit_bytes // sharers)
    limits.limit_threads(max(1, settings.threads // sharers))
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
