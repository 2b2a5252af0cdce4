"""A monitor in the `Trainer` of `lightning`, or of `pytorch_lightning`:
``Trainer(callbacks=[LightningCallback()])``."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torch import nn

from flopwatch.errors import MissingPackage
from flopwatch.lazy import explain_missing
from flopwatch.monitor.batch_tokens import CountTokens
from flopwatch.monitor.callback_parts import FollowedLoop, harmless


def import_lightning() -> ModuleType:
    """One of two packages with the same content: the one that is in use, or else is installed."""
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in sorted(names, key=lambda name: name not in sys.modules):
        with suppress(ModuleNotFoundError):
            return import_module(name)
    raise MissingPackage(explain_missing("lightning"))


if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    Callback = import_lightning().Callback

FETCH = "train_dataloader_next"
SAVE = "save_checkpoint"


class LightningCallback(FollowedLoop, Callback):
    """Steps are the optimizer's, with all of their micro-batches. Validation and saving are pauses.
    Tokens per second and MFU of the latest step are logged, so that the progress bar and the
    loggers of the Trainer have them.

    Where the LightningModule has one module with all of its parameters (``self.model``), that is
    what is watched; else itself, which Lightning does not call.
    """

    def __init__(self, *, count_tokens: CountTokens | None = None, **settings: Any) -> None:
        """
        Args:
            count_tokens: Tokens of a batch; None: by ``input_ids`` and ``attention_mask``, or by
                the first tensor of whole numbers.
            settings: What `Monitor` takes.
        """
        super().__init__(count_tokens, settings)
        self._steps = 0
        self._listener: ProfilerListener | None = None

    @harmless
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.begin_run(
            find_model(pl_module),
            first_step=trainer.global_step,
            live=trainer.progress_bar_callback is None,  # else that line is the bar's
        )
        self._steps = trainer.global_step
        self._listener = ProfilerListener(trainer, self)

    @harmless
    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._tokens.add(batch)

    @harmless
    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        if trainer.global_step > self._steps:  # else gradients are accumulated
            self._steps = trainer.global_step
            self.end_step()
        latest = None if self.monitor is None else self.monitor.latest
        if latest is not None:
            shown = {"tokens_per_s": latest.tokens_per_s, "mfu": latest.mfu}
            known = {name: value for name, value in shown.items() if value is not None}
            pl_module.log_dict(known, prog_bar=True, rank_zero_only=True)

    @harmless
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.is_running:
            self.begin_pause("evaluation")

    @harmless
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.end_pause()

    @harmless
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.end_run()

    @harmless
    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self.end_run(exception)

    def end_run(self, error: BaseException | None = None) -> None:
        if self._listener is not None:
            self._listener.remove()
            self._listener = None
        super().end_run(error)


class ProfilerListener:
    """Lightning tells its profiler what it does, and no callback when it fetches a batch or has
    saved a checkpoint. So the profiler's `start` and `stop` are wrapped, of this object alone."""

    def __init__(self, trainer: Trainer, loop: FollowedLoop) -> None:
        self._profiler: Any = getattr(trainer, "profiler")  # noqa: B009  not in its types
        start, stop = self._profiler.start, self._profiler.stop

        def start_too(action: str) -> None:
            start(action)
            self._begin(action)

        def stop_too(action: str) -> None:
            self._end(action)
            stop(action)

        self._loop = loop
        self._profiler.start, self._profiler.stop = start_too, stop_too

    def remove(self) -> None:
        del self._profiler.start, self._profiler.stop

    def _begin(self, action: str) -> None:
        if action.endswith(FETCH):
            self._loop.begin_wait()
        elif action == SAVE and self._loop.is_running:
            self._loop.begin_pause("checkpoint")

    def _end(self, action: str) -> None:
        if action.endswith(FETCH):
            self._loop.end_wait()
        elif action == SAVE:
            self._loop.end_pause()


def find_model(module: LightningModule) -> nn.Module:
    """The part that has all parameters, where there is one."""
    parts = [part for part in module.children() if any(True for _ in part.parameters())]
    own = list(module.parameters(recurse=False))
    return parts[0] if len(parts) == 1 and not own else module
