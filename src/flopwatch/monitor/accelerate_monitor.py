"""A monitor for loops that Hugging Face's Accelerate helps with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from flopwatch.monitor.batch_tokens import CountedBatches, CountTokens, StepTokens
from flopwatch.monitor.step_marks import Tokens
from flopwatch.monitor.training_monitor import Monitor, MonitoredData

if TYPE_CHECKING:
    from accelerate import Accelerator

Item = TypeVar("Item")


class AccelerateMonitor(Monitor):
    """A `Monitor` that counts the tokens of the batches, and knows which of them end a step:

    monitor = AccelerateMonitor(accelerator, model)
    for batch in monitor.data(loader):
        with monitor.accumulate(model):  # in place of accelerator.accumulate
            ...
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: Any = None,
        *,
        count_tokens: CountTokens | None = None,
        **settings: Any,
    ) -> None:
        """
        Args:
            accelerator: That has prepared the model and its loader.
            model: As `accelerator.prepare` has returned it.
            count_tokens: Tokens of a batch; None: by ``input_ids`` and ``attention_mask``, or by
                the first tensor of whole numbers.
            settings: What `Monitor` takes.
        """
        parallelism = getattr(accelerator, "parallelism_config", None)
        shared = 1 if parallelism is None else parallelism.non_data_parallel_size
        super().__init__(
            model, **{"data_parallel": accelerator.num_processes // shared, **settings}
        )
        self._accelerator = accelerator
        self._counted = StepTokens(count_tokens)

    def data(self, loader: Iterable[Item]) -> MonitoredData[Item]:
        return super().data(CountedBatches(loader, self._counted))

    @contextmanager
    def accumulate(self, *models: Any) -> Iterator[None]:
        """Around a micro-batch: `Accelerator.accumulate`, and a step ends where gradients were
        synchronised."""
        with self._accelerator.accumulate(*models):
            yield
        if self._accelerator.sync_gradients:
            self.tick()

    def step(self, *, tokens: Tokens = None, padded_tokens: Tokens = None) -> Any:
        return super().step(**self._choose(tokens, padded_tokens))

    def tick(self, *, tokens: Tokens = None, padded_tokens: Tokens = None) -> None:
        super().tick(**self._choose(tokens, padded_tokens))

    def _choose(self, tokens: Tokens, padded_tokens: Tokens) -> dict[str, Any]:
        """What the user says wins over what was counted."""
        counted = self._counted.take()
        if tokens is None and self._request.tokens_per_step is None:
            return counted
        return {"tokens": tokens, "padded_tokens": padded_tokens}
