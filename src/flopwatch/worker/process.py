"""A worker process: it serves a request and reports what becomes of it (`worker.messages`).

It is forked from the warm server, or spawned where forking is unsafe, as it is once a process has
used an accelerator (`worker.spawned_worker`); either way a request comes with four descriptors: a
file with the request, reports out, a log for whatever the measured code prints, and the board; one
that takes turns with another worker has a fifth, their link. Everything that it cannot report (a
signal, a hang) the runner sees from outside.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from flopwatch.devices.base import Backend, open_backend
from flopwatch.devices.kinds import Devices, find_kind, is_host
from flopwatch.errors import FlopwatchError, UsageError
from flopwatch.settings import PROBE_SHARE, Settings
from flopwatch.suites.case import Case
from flopwatch.suites.grids import VARIANT, Grid, choose, unite
from flopwatch.suites.suite import Suite
from flopwatch.worker import allocator, limits
from flopwatch.worker.called_functions import find_function
from flopwatch.worker.channel import NO_VARIANT, Board, Channel
from flopwatch.worker.communicator import Communicator, PortTaken
from flopwatch.worker.failure import describe_error, digest_sources, is_loss_of_peer
from flopwatch.worker.group import Group, NeedsNewProcess, load_once
from flopwatch.worker.messages import (
    RANKS,
    Broken,
    Call,
    Describe,
    DescribedCase,
    Description,
    MeasureGroup,
    RankPlace,
    Refused,
    Request,
    Restart,
    Returned,
    Sources,
    decode_request,
)
from flopwatch.worker.rank_devices import DeviceWatch
from flopwatch.worker.rank_roles import OtherRank, RankZero, SingleProcess
from flopwatch.worker.turns import Turns

NUM_DESCRIPTORS = 5
"""At the most."""
LONGEST_PARAMS_BYTES = 2**20
DESCRIBING_BYTES = 2 * 2**30
"""What loading a suite may take in any case: a limit that is too low for torch is a row of each
case, and must not end the run before the first one."""


def run_worker(descriptors: Sequence[int]) -> Channel:
    """Serve one request in this process."""
    request_file, reports, log, board, *links = descriptors
    settle_in(log)
    channel = Channel(reports, Board(board))
    channel.board.write(NO_VARIANT, "loading")
    try:
        request = read_request(request_file)
        sys.path[:0] = request.paths
        if isinstance(request, MeasureGroup):
            measure_group(request, channel, open_turns(request, links))
        else:
            HANDLERS[type(request)](request, channel)
    except Exception as error:
        channel.send(
            Broken(
                # Describing the error takes some memory, too.
                failure=describe_error(error, limits.lift_memory()),
                is_peer_lost=is_loss_of_peer(error),
                is_port_taken=isinstance(error, PortTaken),
            )
        )
    return channel


def read_request(descriptor: int) -> Describe | Call | MeasureGroup:
    with open(descriptor, "rb", closefd=False) as file:
        file.seek(0)
        return decode_request(file.read())


def describe(request: Describe, channel: Channel) -> None:
    limit_bytes = request.settings.memory_limit_bytes
    limits.limit_memory(None if limit_bytes is None else max(limit_bytes, DESCRIBING_BYTES))
    devices = Devices(
        kind=find_kind(request.settings.device), count=request.devices, name=request.device_name
    )
    suite = load_once(Path(request.suite_path)).on(devices)
    chosen_values = _add_ranks(suite, request)
    wanted: Any = {"quick": request.quick, "preset": request.preset}
    on_request = suite.on_request.items()
    unasked = {axis: values for axis, values in on_request if axis not in chosen_values}
    try:
        grids = suite.list_grids(**wanted)
        within = None if request.preset is None else grids
        chosen = choose(suite, chosen_values, within, request.baseline)
        cases = _leave_out(suite, suite.expand(**wanted, chosen=chosen), unasked)
        for case in cases:
            _refuse_long(case)
    except UsageError as error:
        channel.send(Refused(message=str(error)))
        return
    variants = chosen.pop(VARIANT, None)
    baseline = request.baseline or suite.baseline
    assert baseline is not None  # load_once has validated it
    description = Description(
        name=suite.name,
        baseline=baseline,
        apart=suite.apart,
        parts=suite.parts,
        layout=suite.layout,
        columns=list(suite.columns),
        fresh=suite.fresh,
        axes={**unite([*suite.grids, *grids]), **chosen},
        variants=variants or suite.variants,
        on_request=_keep_present(unasked, cases),
        presets=list(suite.presets),
        cases=[
            DescribedCase(
                variant=case.variant,
                params=dict(case.params),
                flops=_sum_flops(suite, case),
                memory=_estimate_memory(suite, case),
                candidates=suite.list_candidates(case),
                job=_describe_job(suite, case),
            )
            for case in cases
        ],
    )
    channel.send(Returned(value=description))


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


def _refuse_long(case: Case) -> None:
    """Every record of a case carries its parameters, and every group that is measured asks for
    them."""
    size_bytes = len(msgspec.json.encode(case.params))
    if size_bytes > LONGEST_PARAMS_BYTES:
        raise UsageError(
            f"a case of suite {case.suite!r} has parameters of {size_bytes} bytes; "
            f"{LONGEST_PARAMS_BYTES} are the most that a record should carry; let the axis name "
            "what the build function makes"
        )


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


def _add_ranks(suite: Suite, request: Describe) -> dict[str, list[str]]:
    """The chosen values; and where torchrun has started ranks and the user has not chosen how many
    to use, all of them, if the suite accepts so many."""
    chosen, ranks = request.chosen, request.ranks
    is_open = ranks is not None and RANKS in suite.axes and RANKS not in chosen
    if not is_open or request.preset is not None or suite.accepts is None:
        return chosen
    with suppress(UsageError, ValueError):
        if suite.accepts(RANKS, ranks) is not False:
            return {**chosen, RANKS: [str(ranks)]}
    return chosen


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


def call(request: Call, channel: Channel) -> None:
    """Call a function that needs torch, for a command that must not have it. Where there are ranks,
    all of them call it, and rank 0 returns its value."""
    settings, place = request.settings, request.place
    _apply(settings, place)
    comm = None
    if place is not None:
        channel.board.write(NO_VARIANT, "joining")
        comm = Communicator(place, settings.device, settings.silence_limit_s)
    channel.board.write(NO_VARIANT, "call")
    try:
        value = find_function(request.function)(**request.arguments)
    except FlopwatchError as error:
        channel.send(Refused(message=str(error)))
    else:
        channel.send(Returned(value=msgspec.to_builtins(value)))
    if comm is not None:
        channel.board.write(NO_VARIANT, "finish")
        comm.meet()  # no rank ends before rank 0 has answered: it would be taken for lost
        comm.close()


def open_turns(request: MeasureGroup, links: Sequence[int]) -> Turns | None:
    if request.side is None:
        return None
    settings = request.settings
    return Turns(
        socket.socket(fileno=links[0]),
        side=request.side,
        seed=settings.seed,
        silence_limit_s=settings.silence_limit_s,
    )


def measure_group(request: MeasureGroup, channel: Channel, turns: Turns | None) -> None:
    settings, place = request.settings, request.place
    _apply(settings, place)
    target = open_backend(settings.device, request.cache_bytes)
    if request.is_probe:
        target.limit_memory(PROBE_SHARE)
    suite_path = Path(request.suite_path)
    suite = load_once(suite_path)
    # Sent early, so that a crash while building is known by its sources too; and again at the
    # end, when build functions have imported what they need.
    channel.send(Sources(sources=digest_sources(suite_path)))
    cases = [
        Case(suite=suite.name, variant=variant, params=request.params, device=settings.device)
        for variant in request.variants
    ]
    drain = None if is_host(settings.device) else target.synchronize
    rank0: SingleProcess | RankZero = SingleProcess(target.clock, target.evict, drain)
    if place is not None:
        channel.board.write(NO_VARIANT, "joining")
        comm = Communicator(place, settings.device, settings.silence_limit_s)
        if not comm.is_rank0:
            _serve_rank0(comm, suite, cases, settings, target, channel)
            comm.close()
            return
        rank0 = RankZero(comm, target.clock, target.evict, drain)
    group = Group(suite, cases, request.baseline, settings, target, channel, rank0)
    try:
        group.measure(is_probe=request.is_probe, turns=turns)
    except NeedsNewProcess:
        channel.send(Restart())
        return
    rank0.leave()
    channel.board.write(NO_VARIANT, "finish")
    channel.send(Sources(sources=digest_sources(suite_path)))
    if isinstance(rank0, RankZero):
        rank0.comm.close()


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
    stages = {"build": "build", "gather": "check", "curves": "curves", "memory": "memory"}
    other_rank = OtherRank(
        comm,
        target.clock,
        lambda variant: suite.build_case(by_variant[variant]),
        DeviceWatch(target, settings.device),
        target,
        settings.seed,
    )
    for word in other_rank.follow_orders():
        channel.board.write(NO_VARIANT, stages.get(word, "sampling"))


def settle_in(log: int) -> None:
    """Let all that is printed from now on go to the log."""
    if os.getpgrp() != os.getpid():  # a spawned worker leads its own group already
        os.setsid()
    limits.die_with_parent()
    os.dup2(log, 1)
    os.dup2(log, 2)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    faulthandler.enable(file=2)
    # The runner sends it before it kills a hung worker: where did it hang?
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)


def _apply(settings: Settings, place: RankPlace | None) -> None:
    """Ranks of one node share its memory and cores."""
    if place is not None or settings.device_index is not None:
        own = 0 if place is None else place.local_rank
        open_backend(settings.device).select(own + (settings.device_index or 0))
    sharers = 1 if place is None else place.local_ranks
    limit_bytes = settings.memory_limit_bytes
    limits.limit_memory(None if limit_bytes is None else limit_bytes // sharers)
    limits.limit_threads(max(1, settings.threads // sharers))
    allocator.apply(settings.allocator)


HANDLERS: dict[type[Request], Callable[[Any, Channel], None]] = {Describe: describe, Call: call}
