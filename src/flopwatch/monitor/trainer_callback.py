"""A monitor in transformers' `Trainer`: ``Trainer(..., callbacks=[TrainerCallback()])``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import TrainerControl, TrainerState, TrainingArguments

from flopwatch.monitor.batch_tokens import CountTokens
from flopwatch.monitor.callback_parts import FollowedLoop, harmless


class TrainerCallback(FollowedLoop, transformers.TrainerCallback):
    """Steps are the optimizer's, with all of their micro-batches. Evaluation and saving are pauses.
    What the Trainer prints has tokens per second and MFU next to the loss.

    Tokens are counted where the model is called. Torch hides that of a model which the Trainer
    compiles (``torch_compile=True``): give it ``tokens_per_step`` then, or the Trainer
    ``include_num_input_tokens_seen="non_padding"``.
    """

    def __init__(self, *, count_tokens: CountTokens | None = None, **settings: Any) -> None:
        """
        Args:
            count_tokens: Tokens of a batch, given the model's arguments by name; None: by
                ``input_ids`` and ``attention_mask``.
            settings: What `Monitor` takes.
        """
        super().__init__(count_tokens, settings)
        self._hook: Any = None
        self._tokens_seen = 0.0
        self._is_in_step = False

    @harmless
    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        model = given["model"]
        self.begin_run(
            model,
            name=args.run_name or Path(args.output_dir or "training").name,
            first_step=state.global_step,
            data_parallel=args.world_size // find_tensor_parallel(args, model),
            live=args.disable_tqdm,  # else that line is the Trainer's own
        )
        self._tokens_seen = state.num_input_tokens_seen
        self._hook = model.register_forward_pre_hook(self._count, with_kwargs=True)
        self.begin_wait()

    @harmless
    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        self._go_on(control)

    @harmless
    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        self.end_pause()
        self.end_wait()
        self._is_in_step = True

    @harmless
    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        self._is_in_step = False
        if self._tokens.is_empty and state.num_input_tokens_seen > self._tokens_seen:
            # Of all ranks together, also of those that share a batch.
            seen = state.num_input_tokens_seen - self._tokens_seen
            self._tokens.add_counted(round(seen / args.world_size))
        self._tokens_seen = state.num_input_tokens_seen
        self.end_step()
        self._go_on(control)

    @harmless
    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        self._go_on(control)

    @harmless
    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **given: Any,
    ) -> None:
        latest = None if self.monitor is None else self.monitor.latest
        if logs is not None and "loss" in logs and latest is not None:
            shown = {"tokens_per_s": latest.tokens_per_s, "mfu": latest.mfu}
            logs.update({name: value for name, value in shown.items() if value is not None})
        self._go_on(control)

    @harmless
    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Where another callback has asked for the evaluation, after ours was called."""
        if self.is_running and not self._is_in_step:
            self.begin_pause("evaluation")

    @harmless
    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        self.end_pause()
        self._go_on(control)

    @harmless
    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        self.end_pause()
        self._go_on(control)

    @harmless
    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        self.end_run()

    def end_run(self, error: BaseException | None = None) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        super().end_run(error)

    def _go_on(self, control: TrainerControl) -> None:
        """What follows: the Trainer logs first, then evaluates, then saves, then fetches the next
        batches, and takes each from the list when it is done."""
        if self._is_in_step or not self.is_running:
            return
        if control.should_evaluate:
            self.begin_pause("evaluation")
        elif control.should_save:
            self.begin_pause("checkpoint")
        else:
            self.begin_wait()

    @harmless
    def _count(self, model: Any, arguments: Any, options: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():
            return
        if self._is_in_step and torch.is_grad_enabled():
            self._tokens.add(options or arguments)


def find_tensor_parallel(args: TrainingArguments, model: Any) -> int:
    """Ranks that get the same batch. Those of context parallelism get a share of each sequence."""
    of_model = getattr(model, "_tp_size", None)
    if of_model is not None:
        return int(of_model)
    parallelism = getattr(args, "parallelism_config", None)
    return 1 if parallelism is None else int(parallelism.tp_size)
