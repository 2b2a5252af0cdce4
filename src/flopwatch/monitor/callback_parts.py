"""What the callbacks of libraries share: pauses and waiting times that begin in one call and end in
another, tokens that are summed up until a step ends, and errors that end no training."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

from flopwatch.errors import UsageError
from flopwatch.monitor.batch_tokens import CountTokens, StepTokens
from flopwatch.monitor.training_monitor import Monitor

Method = TypeVar("Method", bound=Callable[..., None])


def harmless(method: Method) -> Method:
    """A method that a library calls: an exception in it stops the monitor, not the training."""

    @functools.wraps(method)
    def call(self: FollowedLoop, *arguments: Any, **options: Any) -> None:
        if self.has_failed:
            return
        try:
            method(self, *arguments, **options)
        except UsageError:  # of the user's, before the first step
            raise
        except Exception as error:
            self.has_failed = True
            self.end_run()
            warnings.warn(
                f"the monitor of this training stopped: {type(error).__name__}: {error}",
                stacklevel=2,
            )

    return cast(Method, call)


class FollowedLoop:
    """A loop that belongs to a library, and says what it does call by call."""

    def __init__(self, count_tokens: CountTokens | None, settings: dict[str, Any]) -> None:
        self.monitor: Monitor | None = None
        """Of the training that runs, or ran last."""
        self.has_failed = False
        self._settings = settings
        self._tokens = StepTokens(count_tokens)
        self._pause: AbstractContextManager[None] | None = None

    def begin_run(self, model: Any, **defaults: Any) -> None:
        """Settings of the user's win over what the library says."""
        self.end_run()
        self.monitor = Monitor(model, **(defaults | self._settings))
        # The model itself does not show what the library has wrapped it with.
        self.monitor._recorder.sums_gradients = False

    @property
    def is_running(self) -> bool:
        return self.monitor is not None and self.monitor.is_active

    def begin_wait(self) -> None:
        """For data; one that began before, and did not end, is forgotten."""
        if self.monitor is not None:
            self.monitor.begin_wait()

    def end_wait(self) -> None:
        if self.monitor is not None:
            self.monitor.end_wait()

    def begin_pause(self, name: str) -> None:
        """Inside of another, it is part of that."""
        if self.monitor is not None and self._pause is None:
            self._pause = self.monitor.pause(name)
            self._pause.__enter__()

    def end_pause(self) -> None:
        if self._pause is not None:
            self._pause.__exit__(None, None, None)
            self._pause = None

    def end_step(self) -> None:
        counted = self._tokens.take()
        if self.monitor is not None:
            # A number of the user's wins.
            self.monitor.tick(**({} if "tokens_per_step" in self._settings else counted))

    def end_run(self, error: BaseException | None = None) -> None:
        self.end_pause()
        if self.monitor is not None:
            kind = None if error is None else type(error)
            self.monitor.__exit__(kind, error, None if error is None else error.__traceback__)
