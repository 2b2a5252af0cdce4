"""The options of a training job, the same in all commands, and the job that they describe."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import click

from flopwatch.cli.help_texts import Command
from flopwatch.cli.options import (
    Word,
    choose_from,
    list_devices,
    read_amount,
    read_count,
    read_word,
)
from flopwatch.errors import UsageError
from flopwatch.jobs.model_shapes import ARCHITECTURES, SHAPES
from flopwatch.jobs.parallelism import CONTEXT_EXCHANGES, SCHEDULES, SHARDINGS, Parallelism
from flopwatch.jobs.precision import PRECISIONS
from flopwatch.jobs.training_job import (
    ATTENTIONS,
    OFFLOADS,
    OPTIMIZERS,
    RECOMPUTES,
    TrainingJob,
)

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def list_models() -> Iterable[str]:
    from flopwatch.jobs.model_zoo import load_zoo

    return [*SHAPES, *load_zoo(), *(f"{name}:" for name in ARCHITECTURES)]


class Hardware(Word):
    """As in 8xA100-80GB: the number before the device is kept."""

    def list_matches(self, begun: str) -> list[str]:
        count, times, device = begun.partition("x")
        number = f"{count}x" if times and count.isdecimal() else ""
        device = device if number else begun
        return [
            f"{number}{name}"
            for name in self.list_known()
            if name.lower().startswith(device.lower())
        ]


class JobOption(NamedTuple):
    """A field of a training job on the command line."""

    help: str
    read: Callable[[str, str], Any] = read_word
    list_known: Callable[[], Iterable[str]] = tuple
    metavar: str = "N"
    kind: type[Word] = Word


def _choice(help_text: str, *known: str) -> JobOption:
    return JobOption(help_text, choose_from(*known), lambda: known, f"[{'|'.join(known)}]")


JOB = {
    "--model": JobOption("A model's name (`flopwatch models` lists them), the path of a "
                         "config.json, or an architecture with its dimensions.",
                         list_known=list_models, metavar="MODEL"),
    "--seq-len": JobOption("Tokens of a sequence.", read_count),
    "--micro-batch": JobOption("Sequences that a rank computes at once.", read_count),
    "--grad-accum": JobOption("Micro-batches of a step: gradient accumulation.", read_count),
    "--global-batch": JobOption("Sequences of a step, over all ranks; sets --grad-accum.",
                                read_count),
    "--global-batch-tokens": JobOption("Tokens of a step, as in 4M; sets --grad-accum.",
                                       read_amount),
    "--precision": JobOption("The dtype policy: " + ", ".join(PRECISIONS) + ".",
                             list_known=lambda: PRECISIONS, metavar="POLICY"),
    "--optimizer": _choice("The optimizer.", *OPTIMIZERS),
    "--recompute": _choice("Activation checkpointing: recompute nothing, all but the linear "
                           "layers, or whole blocks.", *RECOMPUTES),
    "--recompute-layers": JobOption("With --recompute full: layers of each pipeline stage that are "
                                    "recomputed.  [default: all]", read_count),
    "--offload": _choice("What is kept in the host's memory: activations until the backward pass, "
                         "the optimizer's state and its update.", *OFFLOADS),
    "--attention": _choice("sdpa: torch's fused kernel. plain: two matmuls and a softmax, with "
                           "all scores kept.", *ATTENTIONS),
    "--sharding": _choice("How data-parallel ranks share the parameters: none and ddp replicate "
                          "them, zero2 shards gradients and optimizer state, full parameters too, "
                          "hybrid within groups of ranks.", *SHARDINGS),
    "--tp": JobOption("Tensor-parallel ranks.", read_count),
    "--sequence-parallel": _choice("Whether tensor-parallel ranks divide norms and residuals by "
                                   "tokens, too.", "yes", "no"),
    "--pp": JobOption("Pipeline stages.", read_count),
    "--virtual-stages": JobOption("Model chunks of a pipeline's rank, interleaved.", read_count),
    "--schedule": _choice("Of the pipeline.", *SCHEDULES),
    "--cp": JobOption("Context-parallel ranks.", read_count),
    "--ep": JobOption("Expert-parallel ranks, of the data-parallel ones.", read_count),
    "--context-exchange": _choice("How context-parallel ranks attend: keys and values pass "
                                  "around a ring, or tokens are swapped for heads (Ulysses).",
                                  *CONTEXT_EXCHANGES),
    "--expert-tp": JobOption("Tensor-parallel ranks that divide an expert.  [default: --tp]",
                             read_count),
    "--expert-imbalance": JobOption("Tokens of the rank whose experts have most, over the mean.  "
                                    "[default: 1.15]", read_amount, metavar="X"),
    "--hardware": JobOption("Number and kind of devices, as in 8xA100-80GB.",
                            list_known=list_devices, metavar="NxDEVICE", kind=Hardware),
}  # fmt: skip
PARALLELISM = ("--tp", "--pp", "--cp", "--ep")
IN_DETAIL = (
    "--sequence-parallel", "--virtual-stages", "--schedule", "--context-exchange", "--expert-tp",
    "--expert-imbalance", "--recompute-layers", "--offload",
)  # fmt: skip
"""How parallelism and recomputation do it."""
SPLIT = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}


class JobCommand(Command):
    """Of a job, whose model is an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_extra_args = True
        rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            raise click.UsageError(f"unexpected {rest[0]!r}; a model is --model {rest[0]}", ctx)
        return rest


compile_option = click.option("--compile", "compiled", is_flag=True, help="Use torch.compile.")


def job_options(
    *names: str,
    many: Iterable[str] = (),
    read: Callable[[str, str], Any] | None = None,
    **defaults: Any,
) -> Callable[[Decorated], Decorated]:
    """Options of a training job by their names. Of `many`, comma-separated lists are read; `read`
    stands in for what reads the words of each option."""

    def add(command: Decorated) -> Decorated:
        for name in reversed(names):
            option, default = JOB[name], defaults.get(name_field(name))
            command = click.option(
                name,
                type=option.kind(read or option.read, option.list_known, many=name in many),
                metavar=option.metavar + ("[,...]" if name in many else ""),
                default=None if default is None else str(default),
                show_default=default is not None,
                help=option.help,
            )(command)
        return command

    return add


def name_field(option: str) -> str:
    return option[2:].replace("-", "_")


def make_job(given: dict[str, Any]) -> TrainingJob:
    """Of the options that a command has. A rank is a device, and one alone shards nothing."""
    from flopwatch.devices.device_names import split_hardware

    require(given, "--model", "--seq-len")
    hardware, split = given.get("hardware"), read_split(given)
    together = split["tensor"] * split["pipeline"] * split["context"]
    devices = together if hardware is None else split_hardware(hardware)[0]
    if devices % together:
        raise UsageError(
            f"--tp, --pp and --cp divide the model among {together} ranks, and {devices} devices "
            "are no multiple of that; change one of them"
        )
    fields = (
        "model", "seq_len", "micro_batch", "grad_accum", "precision", "optimizer", "recompute",
        "attention", "hardware", "recompute_layers", "offload", "expert_imbalance",
    )  # fmt: skip
    return TrainingJob(
        **{name: given[name] for name in fields if given.get(name) is not None},
        parallelism=Parallelism(
            **split,
            data=devices // together,
            sharding=given.get("sharding", "none") if devices > 1 else "none",
        ),
    )


def read_split(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of `Parallelism` that divide the model."""
    split = {field: given.get(name) or 1 for name, field in SPLIT.items()}
    stages, schedule = given.get("virtual_stages") or 1, given.get("schedule")
    return {
        **split,
        "sequence": given.get("sequence_parallel") == "yes",
        "context_exchange": given.get("context_exchange") or "ring",
        "expert_tensor": given.get("expert_tp"),
        "virtual_stages": stages,
        "schedule": schedule or ("interleaved" if stages > 1 else "1f1b"),
    }


def require(given: dict[str, Any], *options: str) -> None:
    missing = [name for name in options if given[name_field(name)] in (None, [])]
    if missing:
        raise click.UsageError(f"give {', '.join(missing)}; `--help` has examples")
