"""A training step under torch's profiler, in a worker.

Steps with and without the profiler take turns, so that what profiling adds is told from what else
changes meanwhile. Every part of the model is marked as it runs (`flopwatch.regions`).
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler import profile as run_profiler
from torch.autograd.profiler import record_function

from flopwatch.engine.collection import Collector
from flopwatch.engine.devices import open_target
from flopwatch.errors import UsageError
from flopwatch.explain.ledger import Event, Kernel, Ledger, Role, make_ledger
from flopwatch.explain.modules import marking
from flopwatch.explain.request import PHASES, Phase, Profile, Request
from flopwatch.explain.trace import NODE, add_regions
from flopwatch.models import builder
from flopwatch.models.footprint import Plan
from flopwatch.models.modes import Mode, Recompute
from flopwatch.models.shapes import find_shape
from flopwatch.models.stages import footprint_of
from flopwatch.models.steps import Job, ModeStep, share_model
from flopwatch.models.transformer import Transformer
from flopwatch.regions import listening
from flopwatch.report.units import format_bytes
from flopwatch.room import PROCESS_BYTES
from flopwatch.settings import Device

WARMUP_ROUNDS = 2

NSYS_VARIABLE = "NSYS_PROFILING_SESSION_ID"
"""Set by Nsight Systems for what it runs."""

Marker = Callable[[str], AbstractContextManager[object]]


def profile(request: Mapping[str, Any], device: Device) -> Profile:
    """What `Request` says, as plain data."""
    wanted = Request(**request)
    try:
        require_room(wanted, device, find_room_bytes(device))
        return Profiler(wanted, device).run()
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "allocate" not in str(error):
            raise
        raise _refuse(wanted, "more memory than there is") from None


def find_room_bytes(device: Device) -> int | None:
    """What this process may take for its tensors; None where nothing limits it."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return None if limit_bytes == resource.RLIM_INFINITY else limit_bytes - PROCESS_BYTES


def require_room(request: Request, device: Device, room_bytes: int | None) -> None:
    """What is certain to fail would take minutes to do so, and everybody's memory meanwhile."""
    shape = find_shape(request.model).stretch(request.context)
    if room_bytes is None or not shape.is_ours:  # others take seconds to survey
        return
    plan = Plan(
        batch=request.batch,
        context=request.context,
        precision=request.precision,
        optimizer=request.optimizer,
        attention=request.attention,
        checkpointed=request.checkpointed,
        device=device,
    )
    needed_bytes = footprint_of(shape, plan).peak_bytes
    if needed_bytes > room_bytes:
        raise _refuse(
            request,
            f"{format_bytes(needed_bytes)} of memory, and there are {format_bytes(room_bytes)}",
        )


def _refuse(request: Request, needs: str) -> UsageError:
    return UsageError(
        f"a training step of {request.model} with {request.batch} x {request.context} tokens needs "
        f"{needs}; choose a smaller batch, context or model, or try --checkpointing or "
        "--optimizer sgd"
    )


def is_marking_ranges(
    request: Request, device: Device, environ: Mapping[str, str] = os.environ
) -> bool:
    """Whether another profiler watches, to which NVTX ranges are all that it needs."""
    if request.nvtx and device == "cpu":
        raise UsageError("--nvtx marks ranges of a GPU, and there is none; leave it out")
    under_nsys = device == "cuda" and NSYS_VARIABLE in environ
    if under_nsys and request.trace:
        raise UsageError("under nsys its own report has the timeline; leave --trace out")
    return request.nvtx or under_nsys


def make_step(request: Request, device: Device) -> ModeStep:
    job = Job(
        shape=find_shape(request.model).stretch(request.context),
        batch=request.batch,
        context=request.context,
        precision=request.precision,
        optimizer=request.optimizer,
        device=device,
    )
    torch.manual_seed(0)
    recompute: Recompute = "full" if request.checkpointed else "none"
    mode = Mode(attention=request.attention, recompute=recompute)
    return ModeStep(share_model(job), mode, {}, job.setting.cast)


class Profiler:
    """Runs steps with and without torch's profiler, in turns."""

    def __init__(self, request: Request, device: Device) -> None:
        self.request = request
        self.device: Device = device
        self.nvtx = is_marking_ranges(request, device)
        self.clock = open_target(device).clock
        self.step = make_step(request, device)
        self.model = self.step.shared.model
        self.plain_ns: list[list[float]] = []
        self.profiled_ns: list[list[float]] = []
        self.events: list[list[Event]] = []

    def run(self) -> Profile:
        if self.nvtx:
            self._run_with_ranges(torch.cuda.nvtx.range)
        else:
            self._run_rounds()
        phases = [
            Phase(
                name=name,
                plain_samples_ns=[times[position] for times in self.plain_ns],
                profiled_samples_ns=[times[position] for times in self.profiled_ns],
            )
            for position, name in enumerate(PHASES)
        ]
        ledger = Ledger(entries=(), operators=())
        if self.events:
            plain_ns = {phase.name: phase.plain_ns for phase in phases}
            ledger = make_ledger(self.events, plain_ns, by_kernels=self.device == "cuda")
        return Profile(
            request=self.request,
            device=self.device,
            threads=torch.get_num_threads(),
            torch=str(torch.__version__),
            attention=builder.find_attention(self.model),
            parameters=sum(p.numel() for p in self.model.parameters()),
            phases=phases,
            entries=ledger.entries,
            operators=ledger.operators[: self.request.top],
        )

    def _run_rounds(self) -> None:
        with Collector(time.monotonic) as collector:
            for position in range(-WARMUP_ROUNDS, self.request.steps):
                collector.collect_if_due()
                plain_ns = self._time_step()
                profiled_ns, events, profiler = self._profile_step()
                if position >= 0:
                    self.plain_ns.append(plain_ns)
                    self.profiled_ns.append(profiled_ns)
                    self.events.append(events)
        if self.request.trace is not None:
            profiler.export_chrome_trace(self.request.trace)
            add_regions(Path(self.request.trace), self.events[-1])

    def _time_step(self, mark: Marker = lambda name: nullcontext()) -> list[float]:
        """The times of the phases, in nanoseconds."""
        self.step.prepare()
        marks = [self.clock.mark()]
        value: tuple[Any, ...] = ()
        for name, phase in self.step.phases.items():
            with mark(name):
                result = phase(*value)
            value = (result,)
            marks.append(self.clock.mark())
        return self.clock.elapsed_ns(marks)

    def _profile_step(self) -> tuple[list[float], list[Event], Any]:
        """Times of phases, events, and the profiler that has heard them."""
        names: set[str] = set()

        def record(name: str) -> AbstractContextManager[object]:
            names.add(name)
            return record_function(name)

        device = self.device if self.device == "cuda" else None
        with (
            self._listening(record),
            run_profiler(use_kineto=True, use_device=device) as profiler,
        ):
            times_ns = self._time_step(record)
        return times_ns, read_events(profiler.function_events, names), profiler

    def _run_with_ranges(self, mark: Marker) -> None:
        """For another profiler, which sees NVTX ranges; torch's own would be in its way."""
        for position in range(-WARMUP_ROUNDS, self.request.steps):
            plain_ns = self._time_step()
            with self._listening(mark):
                marked_ns = self._time_step(mark)
            if position >= 0:
                self.plain_ns.append(plain_ns)
                self.profiled_ns.append(marked_ns)

    @contextmanager
    def _listening(self, mark: Marker) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(listening(mark))
            if not isinstance(self.model, Transformer):
                stack.enter_context(marking(self.model))
            yield


USER_SCOPE, BACKWARD_SCOPE = 7, 1
"""at::RecordScope, as events have it."""


def read_events(found: Any, names: set[str]) -> list[Event]:
    """The profiler's events as ours; `names` are those of phases and regions."""
    return [
        Event(
            name=one.name,
            role=_find_role(one, names),
            start_ns=one.time_range.start * 1e3,
            end_ns=one.time_range.end * 1e3,
            thread=one.thread,
            sequence=one.sequence_nr if one.sequence_nr >= 0 else None,
            forward_thread=one.fwd_thread,
            kernels=[Kernel(name=k.name, time_ns=k.duration * 1e3) for k in one.kernels],
        )
        for one in found
        if one.device_type.name == "CPU" and not one.is_async
    ]


def _find_role(one: Any, names: set[str]) -> Role:
    if one.scope == USER_SCOPE:
        is_phase = one.name in PHASES
        return "phase" if is_phase else "region" if one.name in names else "scope"
    if one.name.startswith(NODE):
        return "node"
    return "scope" if one.scope == BACKWARD_SCOPE else "operator"
