"""`flopwatch.Monitor`: what a training loop does with its time, and what MFU it gets.

    monitor = flopwatch.Monitor(model, tokens_per_step=65_536)
    for batch in monitor.data(loader):          # how long the loop waits for data
        with monitor.step():                    # or monitor.tick() once a step
            ...
        with monitor.pause("checkpoint"):       # known, and not part of a step
            ...
    monitor.close()

No exception of the monitor's own ends a training: it disables itself with one warning.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from flopwatch.devices.meters import open_meters
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.monitor.base import StepFacts, Tracker
from flopwatch.monitor.flops_sources import FlopsRequest
from flopwatch.monitor.module_hooks import ModuleHooks
from flopwatch.monitor.run_arguments import list_models, make_request
from flopwatch.monitor.run_recorder import RunRecorder
from flopwatch.monitor.step_marks import Code, Mark, StepMarks, Tokens, list_pauses
from flopwatch.monitor.trackers import open_trackers
from flopwatch.records.monitored import End, MonitoredEvent

if TYPE_CHECKING:
    from torch import nn

Item = TypeVar("Item")

MOST_MARKS = 50_000
"""Of one step: a loop with more has no steps, and must not fill the memory."""
SHORTEST_GC_NS = 100_000
"""Of a garbage collection that is noted: young generations are collected all the time."""
ENDS_OF_PHASES = {
    Code.FORWARD_END: "forward",
    Code.BACKWARD_END: "backward",
    Code.OPTIMIZER_END: "optimizer",
}

_live: weakref.WeakSet[Monitor] = weakref.WeakSet()


def _forget_in_child() -> None:
    """A process that was forked off, such as a worker of a loader, has no part in the run."""
    for monitor in list(_live):
        monitor._leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


class MonitoredData(Generic[Item]):
    """A loader whose waiting times a monitor notes; it can be iterated over again and again."""

    def __init__(self, loader: Iterable[Item], monitor: Monitor) -> None:
        self._loader = loader
        self._monitor = monitor

    def __iter__(self) -> Iterator[Item]:
        self._monitor.begin_wait()  # making an iterator may start processes
        batches = iter(self._loader)
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                self._monitor.end_wait()
                return
            self._monitor.end_wait()
            yield batch
            self._monitor.begin_wait()

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)


class _Step:
    """The ``with`` of a step."""

    def __init__(self, monitor: Monitor, tokens: Tokens, padded_tokens: Tokens) -> None:
        self._monitor = monitor
        self._tokens = tokens, padded_tokens
        self._is_outer = False

    def __enter__(self) -> None:
        self._is_outer = self._monitor._enter_step()

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._is_outer:
            self._monitor._leave_step(*self._tokens, is_whole=kind is None)


class _Pause:
    def __init__(self, monitor: Monitor, name: str) -> None:
        self._monitor = monitor
        self._name = name

    def __enter__(self) -> None:
        self._monitor._begin_pause(self._name)

    def __exit__(self, *error: object) -> None:
        self._monitor._end_pause()


class Monitor:
    def __init__(  # noqa: PLR0913  all but the model are given by name
        self,
        model: nn.Module | Sequence[nn.Module] | None = None,
        *,
        tokens_per_step: float | None = None,
        seq_len: int | None = None,
        data_parallel: int | None = None,
        job: TrainingJob | None = None,
        config: object | None = None,
        flops_per_token: float | None = None,
        convention: str = "exact",
        dtype: str | None = None,
        device: str | None = None,
        out: str | Path | None = "results/run.jsonl",
        name: str | None = None,
        params: Mapping[str, Any] | None = None,
        first_step: int = 0,
        first_steps: int = 5,
        trackers: Sequence[Tracker | str] = (),
        live: bool = True,
    ) -> None:
        """
        Args:
            model: What is trained, as the loop calls it: compiled, or wrapped by DDP or
                `fully_shard`. Several where they alternate. With it, forward, backward,
                communication and optimizer are timed; without it, whole steps.
            tokens_per_step: Tokens of an optimizer step, of all ranks together; `step` and `tick`
                may say otherwise.
            seq_len: Tokens of a sequence; None: as the model's first input has it.
            data_parallel: Ranks with batches of their own; None: as the job says, or all.
            job: The training job: FLOPs are counted from it. Else from, in this order:
            config: A configuration of transformers, of torchtitan or like nanoGPT's, as an object
                or as a dict.
            flops_per_token: Model FLOPs of a token, forward and backward.
                Else from the model: its own `config`, or the operators of a step.
            convention: A key of `jobs.conventions.CONVENTIONS`, for a job or a config.
            dtype: Of the matmuls, for the peak; None: as autocast, or the parameters, have it.
            device: By torch's name; None: where the model's parameters are.
            out: Results file, which all ranks may share; None: nothing is stored.
            name: Of the run; runs of one name and one model are restarts of the same training.
            params: What else identifies the run, such as a learning rate: plain values.
            first_step: Number of the first step, where a checkpoint was loaded.
            first_steps: How many are set apart, since compilation and allocation are in them.
            trackers: Are told of the run and its steps (`monitor.base.Tracker`), on rank 0; by name
                those of `monitor.trackers`, such as ``"tensorboard:runs/a"``.
            live: Whether rank 0 shows a line of the latest steps, in a terminal.

        Raises:
            UsageError: for an argument that makes no sense. Nothing else here ever raises.
        """
        models = list_models(model)
        flops = FlopsRequest(
            models=models,
            job=job,
            config=config,
            flops_per_token=flops_per_token,
            convention=convention,
            dtype=dtype,
            seq_len=seq_len,
        )
        self._clock, self._request = make_request(
            flops,
            tokens_per_step=tokens_per_step,
            data_parallel=data_parallel,
            device=device,
            out=out,
            name=name,
            params=params,
            first_step=first_step,
            first_steps=first_steps,
            is_live=live,
        )
        self._pid = os.getpid()
        self._is_active = True
        self._is_closed = False
        self._is_in_step = False
        self._pauses = 0
        self._warned: set[str] = set()
        self._gc_began_ns = 0
        self._meters = open_meters(self._request.device)
        opened = open_trackers(trackers, self._warn, is_wanted=self._request.place.rank == 0)
        self._recorder = RunRecorder(
            self._request, self._clock, self._meters, opened, self._warn, self._disable
        )
        self._step = StepMarks(first_step, self._mark(Code.STEP_END))
        self._hooks = ModuleHooks(models, self._note, self._note_call, self._disable)
        try:
            if "torch" in sys.modules:
                self._hooks.install()
                self._recorder.sums_gradients = not self._hooks.are_wrapped
            gc.callbacks.append(self._note_collection)
            atexit.register(self._close_at_exit)
            _live.add(self)
            self._recorder.start()
        except Exception as error:
            self._disable(error)

    def data(self, loader: Iterable[Item]) -> MonitoredData[Item]:
        """The same batches; the time that the loop waits for each counts as "data"."""
        return MonitoredData(loader, self)

    def begin_wait(self) -> None:
        """From here until `end_wait` the loop waits for data: what `data` does, for loops that have
        no loader to wrap."""
        self._note_safely(Code.DATA_BEGIN)

    def end_wait(self) -> None:
        self._note_safely(Code.DATA_END)

    def step(self, *, tokens: Tokens = None, padded_tokens: Tokens = None) -> _Step:
        """Around an optimizer step. It begins where the one before it ended, so that nothing
        between them is lost, and ends with the ``with``.

        Args:
            tokens: Useful tokens of this rank's own batch, all micro-batches of the step together;
                a tensor is read later, without waiting for it here.
            padded_tokens: The same with padding.
        """
        return _Step(self, tokens, padded_tokens)

    def tick(self, *, tokens: Tokens = None, padded_tokens: Tokens = None) -> None:
        """A step has ended: in place of `step`, once for every step."""
        if self._is_in_step:
            self._warn_once("tick() inside of step() is ignored; use one of them")
        else:
            self._leave_step(tokens, padded_tokens, is_whole=True)

    def pause(self, name: str) -> _Pause:
        """Around what is no training: "checkpoint", "evaluation". Its time is part of no step."""
        return _Pause(self, name)

    def add_tracker(self, tracker: Tracker) -> None:
        """Have another tracker told of the run and its steps, from now on."""
        self._recorder.add_tracker(tracker)

    @property
    def latest(self) -> StepFacts | None:
        """The last step that was looked at, about a second late; on rank 0."""
        return self._recorder.latest

    @property
    def is_active(self) -> bool:
        """Whether it still records: not once it was closed, or has disabled itself."""
        return self._is_active

    def close(self) -> None:
        """Store what is left, and remove all hooks; a second call does nothing."""
        self._close("closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close("closed" if kind is None else "exception")

    # What the loop leaves behind.

    def _mark(self, code: Code, name: str = "") -> Mark:
        clock = self._clock
        event = clock.mark() if clock is not None and clock.can_mark() else None
        return Mark(code, time.perf_counter_ns(), event, name)

    def _note(self, code: Code, name: str = "") -> None:
        if not self._is_active:
            return
        step, mark = self._step, self._mark(code, name)
        if not step.marks and step.number == self._request.first_step:
            step.begin = mark  # the first sign of the loop; what was before it is no step
        step.marks.append(mark)
        if self._recorder.wants_memory and code in ENDS_OF_PHASES and self._clock is not None:
            held_bytes = self._meters.read_memory_bytes()
            if held_bytes is not None:
                self._recorder.phase_memory_bytes[ENDS_OF_PHASES[code]] = held_bytes
        if len(step.marks) > MOST_MARKS:
            step.marks.clear()
            self._warn_once(
                "no step has ended so far, so that nothing is recorded; call monitor.tick() once a "
                "step, or put the step into `with monitor.step():`"
            )

    def _note_safely(self, code: Code, name: str = "") -> None:
        try:
            self._note(code, name)
        except Exception as error:
            self._disable(error)

    def _note_call(self, arguments: Any, options: Any) -> None:
        """A forward pass that a backward pass may follow."""
        self._step.micro_batches += 1
        if self._recorder.call is None and self._is_active:
            from flopwatch.models.module_flops import describe_call

            self._recorder.call = describe_call(arguments, options, self._request.device)

    def _note_collection(self, phase: str, info: Mapping[str, int]) -> None:
        """Called by the garbage collector, which ignores what is raised."""
        now_ns = time.perf_counter_ns()
        if phase == "start":
            self._gc_began_ns = now_ns
        elif self._is_active and now_ns - self._gc_began_ns > SHORTEST_GC_NS:
            self._recorder.events.append(
                MonitoredEvent(
                    kind="gc",
                    name=f"generation {info.get('generation')}",
                    begin_ns=self._gc_began_ns,
                    duration_ns=now_ns - self._gc_began_ns,
                )
            )

    def _enter_step(self) -> bool:
        """Whether it is no step within another one."""
        if self._is_in_step:
            self._warn_once(
                "a step began before the one before it had ended; the inner one is ignored"
            )
            return False
        self._is_in_step = True
        if not self._step.marks and self._step.number == self._request.first_step:
            with suppress(Exception):
                self._step.begin = self._mark(Code.STEP_END)
        return True

    def _leave_step(self, tokens: Tokens, padded_tokens: Tokens, *, is_whole: bool) -> None:
        """One that an exception has left goes on: the next attempt is a part of it."""
        self._is_in_step = False
        if not self._is_active:
            self._remove()
            return
        if not is_whole:
            return
        try:
            step = self._step
            step.tokens, step.padded_tokens = tokens, padded_tokens
            end = self._mark(Code.STEP_END)
            step.marks.append(end)
            self._step = StepMarks(step.number + 1, end)
            self._hooks.begin_step()
            if self._recorder.phase_memory_bytes:
                self._recorder.wants_memory = False
            self._recorder.steps.append(step)
        except Exception as error:
            self._disable(error)

    def _begin_pause(self, name: str) -> None:
        self._pauses += 1
        if self._pauses == 1:
            self._note_safely(Code.PAUSE_BEGIN, str(name))

    def _end_pause(self) -> None:
        self._pauses -= 1
        if self._pauses == 0:
            self._note_safely(Code.PAUSE_END)

    # How it ends.

    def _close(self, end: End) -> None:
        if self._is_closed or os.getpid() != self._pid:
            return
        self._is_closed = True
        was_active, self._is_active = self._is_active, False
        try:
            self._remove()
            self._recorder.events.extend(list_pauses(self._step.marks))
            self._recorder.close(end)
            if was_active and self._recorder.num_steps == 0:
                self._warn_once(
                    "no step was recorded; call monitor.tick() once a step, or put the step into "
                    "`with monitor.step():`"
                )
        except Exception as error:
            self._warn_once(f"it could not be closed ({type(error).__name__}: {error})")

    def _close_at_exit(self) -> None:
        self._close("exit")

    def _remove(self) -> None:
        """All that this has put elsewhere; from the loop's own thread, and outside of hooks."""
        self._hooks.remove()
        with suppress(ValueError):
            gc.callbacks.remove(self._note_collection)
        atexit.unregister(self._close_at_exit)
        _live.discard(self)

    def _leave(self) -> None:
        """In a process that was forked off: the thread is not there."""
        self._is_active = False
        self._is_closed = True

    def _disable(self, error: Exception) -> None:
        """From any thread. Hooks are removed when the step ends: they may be running now."""
        if not self._is_active:
            return
        self._is_active = False
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        self._warn(f"it has disabled itself, and the training goes on ({text})")
        self._recorder.stop("disabled")

    def _warn(self, sentence: str) -> None:
        """Where warnings are errors, as in tests, they must not end a training either."""
        with suppress(Exception):
            warnings.warn(f"flopwatch.Monitor: {sentence}", RuntimeWarning, stacklevel=2)

    def _warn_once(self, sentence: str) -> None:
        if sentence not in self._warned:
            self._warned.add(sentence)
            self._warn(sentence)
