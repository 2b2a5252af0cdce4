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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from flopwatch.monitor.base import StepFacts, Tracker

if TYPE_CHECKING:
    from torch import nn

    from flopwatch.jobs.training_job import TrainingJob

Item = TypeVar("Item")


class MonitoredData(Generic[Item]):
    """A loader whose waiting times a monitor notes; it can be iterated over again and again."""

    def __iter__(self) -> Iterator[Item]:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError


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
        trackers: Sequence[Tracker] = (),
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
            trackers: Are told of the run and its steps (`monitor.base.Tracker`), on rank 0.
            live: Whether rank 0 shows a line of the latest steps, in a terminal.

        Raises:
            UsageError: for an argument that makes no sense. Nothing else here ever raises.
        """

    def data(self, loader: Iterable[Item]) -> MonitoredData[Item]:
        """The same batches; the time that the loop waits for each counts as "data"."""
        raise NotImplementedError

    def step(
        self, *, tokens: int | None = None, padded_tokens: int | None = None
    ) -> AbstractContextManager[None]:
        """Around an optimizer step. It begins where the one before it ended, so that nothing
        between them is lost, and ends with the ``with``.

        Args:
            tokens: Useful tokens of this rank's own batch, all micro-batches of the step together.
            padded_tokens: The same with padding.
        """
        raise NotImplementedError

    def tick(self, *, tokens: int | None = None, padded_tokens: int | None = None) -> None:
        """A step has ended: in place of `step`, once for every step."""
        raise NotImplementedError

    def pause(self, name: str) -> AbstractContextManager[None]:
        """Around what is no training: "checkpoint", "evaluation". Its time is part of no step."""
        raise NotImplementedError

    def add_tracker(self, tracker: Tracker) -> None:
        """Have another tracker told of the run and its steps, from now on."""
        raise NotImplementedError

    @property
    def latest(self) -> StepFacts | None:
        """The last step that was looked at, about a second late; on rank 0."""
        raise NotImplementedError

    @property
    def is_active(self) -> bool:
        """Whether it still records: not once it was closed, or has disabled itself."""
        raise NotImplementedError

    def close(self) -> None:
        """Store what is left, and remove all hooks; a second call does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
