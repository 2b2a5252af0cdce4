"""Real trainings with the loops of other libraries; the record says what they did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import flopwatch
from flopwatch.errors import FlopwatchError, UsageError
from flopwatch.monitor import AccelerateMonitor, LightningCallback, TrainerCallback
from flopwatch.monitor.batch_tokens import StepTokens, count_tokens
from flopwatch.records.monitored import Monitored, RankSteps

from ..rank_tools import run_on_ranks

VOCABULARY, LENGTH = 32, 16
SEQUENCES = [
    {
        "input_ids": torch.arange(number, number + LENGTH) % VOCABULARY,
        "attention_mask": (torch.arange(LENGTH) < 4 + number % (LENGTH - 4)).long(),
        "labels": torch.arange(number, number + LENGTH) % VOCABULARY,
    }
    for number in range(64)
]
"""Of different lengths, padded."""


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, kept: Path) -> None:
    """Without a network, and without what other tests have left behind."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


class Collator:
    """Notes how many tokens each batch has, in order."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def __call__(self, sequences: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        batch = {name: torch.stack([one[name] for one in sequences]) for name in sequences[0]}
        if "attention_mask" in batch:  # which those of evaluation lack
            self.tokens.append(int(batch["attention_mask"].sum()))
        return batch

    def list_steps(self, grad_accum: int) -> list[int]:
        starts = range(0, len(self.tokens), grad_accum)
        return [sum(self.tokens[start : start + grad_accum]) for start in starts]


def make_model() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=LENGTH,
        )
    )


def read_run(out: Path) -> Monitored:
    *_, record = flopwatch.read(out).records
    assert record.status == "ok", record.message
    assert record.monitored is not None
    return record.monitored


def read_rank(out: Path) -> RankSteps:
    (rank,) = read_run(out).ranks
    return rank


def assert_parts_fit(rank: RankSteps) -> None:
    """No time is in two parts, and of every step it is known how long it waited for data."""
    assert {"data", "forward", "backward", "optimizer"} <= set(rank.parts_ns)
    assert all(time_ns is not None for time_ns in rank.parts_ns["data"])
    for step, time_ns in enumerate(rank.time_ns):
        assert sum(times[step] or 0 for times in rank.parts_ns.values()) <= time_ns


def list_pauses(rank: RankSteps) -> list[str]:
    return [event.name for event in rank.events if event.kind == "pause"]


def make_trainer(folder: Path, callback: Any, collator: Collator, **settings: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    evaluated = [{name: one[name] for name in ("input_ids", "labels")} for one in SEQUENCES[:4]]
    arguments = {
        "output_dir": str(folder / "checkpoints"),
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "max_steps": 6,
        "eval_strategy": "steps",
        "eval_steps": 3,
        "save_steps": 3,
        "logging_steps": 2,
        "disable_tqdm": True,
        "report_to": "none",
        "use_cpu": True,
        **settings,
    }
    return Trainer(
        model=make_model(),
        args=TrainingArguments(**arguments),
        train_dataset=SEQUENCES,
        eval_dataset=evaluated,
        data_collator=collator,
        callbacks=[callback],
    )


def test_the_trainer_of_transformers(tmp_path: Path) -> None:
    out, collator = tmp_path / "run.jsonl", Collator()
    callback = TrainerCallback(out=out, live=False)
    make_trainer(tmp_path, callback, collator).train()

    run, rank = read_run(out), read_rank(out)
    assert rank.steps == list(range(6))
    assert rank.micro_batches == [2] * 6
    assert rank.tokens == collator.list_steps(2)[:6]
    assert rank.padded_tokens == [2 * 2 * LENGTH] * 6
    assert list_pauses(rank) == ["evaluation", "checkpoint"] * 2
    assert_parts_fit(rank)
    assert run.end == "closed"
    assert run.flops is not None
    assert run.flops.source == "config"


def test_the_trainer_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """In the middle of an epoch, where its loader is another one; with evaluation every epoch."""
    out = tmp_path / "run.jsonl"
    make_trainer(tmp_path, TrainerCallback(out=out, live=False), Collator(), max_steps=3).train()
    collator = Collator()
    again = make_trainer(tmp_path, TrainerCallback(out=out, live=False), collator)
    again.train(resume_from_checkpoint=True)

    rank = read_rank(out)
    assert rank.steps == [3, 4, 5]
    assert all(rank.tokens)
    assert list_pauses(rank) == ["evaluation", "checkpoint"]


def test_a_model_that_the_trainer_compiles_has_whole_steps(tmp_path: Path) -> None:
    """And tokens, where the Trainer itself counts them."""
    out = tmp_path / "run.jsonl"
    compiled = {"torch_compile": True, "torch_compile_backend": "eager", "eval_strategy": "no"}
    trainer = make_trainer(
        tmp_path, TrainerCallback(out=out, live=False), collator := Collator(), max_steps=2,
        include_num_input_tokens_seen="non_padding", **compiled,
    )  # fmt: skip
    trainer.train()

    rank = read_rank(out)
    assert rank.steps == [0, 1]
    assert rank.tokens == collator.list_steps(2)[:2]


class Lit:
    """Makes LightningModules of either package."""

    def __init__(self, package: Any) -> None:
        self.package = package

    def make(self) -> Any:
        class Module(self.package.LightningModule):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.model = make_model()

            def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
                loss: torch.Tensor = self.model(**batch).loss
                return loss

            def validation_step(self, batch: dict[str, torch.Tensor], index: int) -> None:
                self.log("loss", self.model(**batch).loss)

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return torch.optim.SGD(self.parameters(), lr=0.1)

        return Module()

    def fit(self, folder: Path, callback: Any, collator: Collator, **settings: Any) -> None:
        checkpoint = self.package.callbacks.ModelCheckpoint(folder, every_n_train_steps=3)
        trainer = self.package.Trainer(
            accelerator="cpu",
            callbacks=[callback, checkpoint],
            max_steps=6,
            accumulate_grad_batches=2,
            val_check_interval=6,
            enable_progress_bar=False,
            enable_model_summary=False,
            logger=False,
            default_root_dir=folder,
            **settings,
        )
        loader = DataLoader(SEQUENCES, batch_size=2, collate_fn=collator)  # type: ignore[arg-type]
        trainer.fit(self.make(), loader, DataLoader(SEQUENCES[:4], batch_size=2))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning(name: str, tmp_path: Path) -> None:
    package = pytest.importorskip(name)
    out, collator = tmp_path / "run.jsonl", Collator()
    Lit(package).fit(tmp_path, LightningCallback(out=out, live=False), collator)

    run, rank = read_run(out), read_rank(out)
    assert rank.steps == list(range(6))
    assert rank.micro_batches == [2] * 6
    assert rank.tokens == collator.list_steps(2)[:6]
    assert list_pauses(rank).count("evaluation") == 2
    assert list_pauses(rank).count("checkpoint") == 2
    assert_parts_fit(rank)
    assert run.end == "closed"
    assert run.flops is not None


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
def test_an_exception_in_lightning_is_the_end_of_the_run(tmp_path: Path) -> None:
    package = pytest.importorskip("lightning.pytorch")

    class Stop(package.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 2:
                raise RuntimeError("enough")

    out, lit = tmp_path / "run.jsonl", Lit(package)
    trainer = package.Trainer(
        accelerator="cpu",
        callbacks=[LightningCallback(out=out, live=False), Stop()],
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        logger=False,
        max_steps=6,
    )
    with pytest.raises(RuntimeError, match="enough"):
        trainer.fit(lit.make(), DataLoader(SEQUENCES, batch_size=2, collate_fn=Collator()))  # type: ignore[arg-type]

    assert read_run(out).end == "exception"
    assert read_rank(out).steps == [0, 1]


def train_with_accelerate(out: Path, collator: Collator, **settings: Any) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(SEQUENCES[:16], batch_size=2, collate_fn=collator)  # type: ignore[arg-type]
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with AccelerateMonitor(accelerator, model, out=out, live=False, **settings) as monitor:
        for batch in monitor.data(loader):
            with monitor.accumulate(model):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()


def test_accelerate(tmp_path: Path) -> None:
    out, collator = tmp_path / "run.jsonl", Collator()
    train_with_accelerate(out, collator)

    run, rank = read_run(out), read_rank(out)
    assert rank.steps == list(range(4))
    assert rank.micro_batches == [2] * 4
    assert rank.tokens == collator.list_steps(2)
    assert rank.padded_tokens == [2 * 2 * LENGTH] * 4
    assert_parts_fit(rank)
    assert run.end == "closed"


def train_on_a_rank(folder: Path) -> list[int]:
    """The Trainer and Accelerate with DDP, a plain loop with FSDP2; tokens of this rank's own."""
    import os
    import warnings

    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    warnings.simplefilter("ignore")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    os.environ |= {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "WORLD_SIZE": f"{ranks}"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    collator = Collator()
    train_with_accelerate(folder / "accelerate.jsonl", collator)
    callback = TrainerCallback(out=folder / "trainer.jsonl", live=False)
    make_trainer(folder, callback, Collator(), max_steps=3, eval_strategy="no").train()
    model = make_model()
    mesh = init_device_mesh("cpu", (ranks,))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    out = folder / "fsdp2.jsonl"
    with flopwatch.Monitor(model, tokens_per_step=2 * 2 * LENGTH, out=out, live=False) as monitor:
        for batch in monitor.data([Collator()(SEQUENCES[:2])] * 4):
            with monitor.step():
                model(**batch).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    return collator.list_steps(2)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory, kept: Path) -> tuple[Path, list[list[int]]]:
    folder = tmp_path_factory.mktemp("ranks")
    return folder, run_on_ranks(2, train_on_a_rank, folder)


@pytest.mark.parametrize(("name", "steps"), [("trainer", 3), ("accelerate", 2), ("fsdp2", 4)])
def test_two_ranks_are_one_run(
    name: str, steps: int, two_ranks: tuple[Path, list[list[int]]]
) -> None:
    run = read_run(two_ranks[0] / f"{name}.jsonl")

    assert (run.world_size, run.data_parallel, run.end) == (2, 2, "closed")
    assert [rank.rank for rank in run.ranks] == [0, 1]
    assert [rank.steps for rank in run.ranks] == [list(range(steps))] * 2
    assert all("communication" in rank.parts_ns for rank in run.ranks)


def test_ranks_count_their_own_tokens(two_ranks: tuple[Path, list[list[int]]]) -> None:
    folder, counted = two_ranks

    assert [rank.tokens for rank in read_run(folder / "accelerate.jsonl").ranks] == counted


def test_tokens_of_a_batch() -> None:
    tokens = torch.ones(2, 8, dtype=torch.long)
    mask = torch.tensor([[1] * 8, [2] * 3 + [0] * 5])
    cases: list[tuple[Any, tuple[int, int] | None]] = [
        ({"input_ids": tokens}, (16, 16)),
        ({"input_ids": tokens, "attention_mask": mask}, (11, 16)),
        ({"input_ids": tokens, "attention_mask": torch.ones(2, 1, 8, 8)}, (16, 16)),
        ({"input_ids": tokens, "labels": torch.full((2, 8), -100)}, (16, 16)),
        ({"inputs_embeds": torch.ones(2, 8, 4), "labels": tokens}, (16, 16)),
        ((torch.ones(2, 3), tokens), (16, 16)),
        (tokens, (16, 16)),
        (torch.ones(2, 3, 8, 8), None),
        ({"pixel_values": torch.ones(2, 3)}, None),
        (None, None),
    ]
    for batch, expected in cases:
        found = count_tokens(batch)
        assert (found and (int(found.useful), found.padded)) == expected


def test_a_batch_that_cannot_be_counted_is_one_warning() -> None:
    tokens = StepTokens(len)
    tokens.add([1, 2, 3])
    assert tokens.take() == {"tokens": 3, "padded_tokens": 3}

    with pytest.warns(UserWarning, match="cannot be counted.*give count_tokens="):
        tokens.add(None)
    tokens.add(None)
    assert tokens.take() == {}
    tokens.add([1])
    assert tokens.take() == {"tokens": 1, "padded_tokens": 1}


def test_an_error_in_a_callback_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    callback = TrainerCallback(out=tmp_path / "run.jsonl", live=False)

    def fail(name: str) -> None:
        raise RuntimeError("no such thing")

    trainer = make_trainer(tmp_path, callback, Collator(), max_steps=4, eval_strategy="no")
    monkeypatch.setattr(callback, "begin_pause", fail)
    with pytest.warns(UserWarning, match="monitor of this training stopped.*no such thing"):
        trainer.train()

    assert trainer.state.global_step == 4
    assert read_rank(tmp_path / "run.jsonl").steps == [0, 1, 2]


def test_a_wrong_setting_is_said_before_the_first_step(tmp_path: Path) -> None:
    callback = TrainerCallback(out=tmp_path / "run.jsonl", live=False, convention="mine")

    with pytest.raises(UsageError, match="mine"):
        make_trainer(tmp_path, callback, Collator()).train()


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("TrainerCallback", "transformers", "torch"),
        ("AccelerateMonitor", "accelerate", "accelerate"),
    ],
)
def test_a_missing_library_is_one_sentence(
    name: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import flopwatch.monitor

    monkeypatch.setattr("flopwatch.lazy.find_spec", lambda _: None)
    with pytest.raises(FlopwatchError, match=rf"needs {package}.*'flopwatch\[{extra}\]'"):
        getattr(flopwatch.monitor, name)
