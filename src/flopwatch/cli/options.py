"""The options that commands share. Each is defined once, here, so that it has one name and one
meaning in all commands; and what commands share besides: reading results, printing safely.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click
from click.shell_completion import CompletionItem

from flopwatch.errors import UsageError

if TYPE_CHECKING:
    from flopwatch.jobs.training_job import TrainingJob
    from flopwatch.records.record import Record

Command = TypeVar("Command", bound=Callable[..., Any])

# Written out: to read them from `jobs` would make every `--help` load it. A test compares them.
PRECISIONS = ("fp32", "bf16-mixed", "fp16-mixed", "bf16", "fp16", "tf32", "fp8", "int8")
OPTIMIZERS = ("adamw", "adamw-unfused", "sgd")
RECOMPUTES = ("none", "selective", "full")
ATTENTIONS = ("sdpa", "plain")
SHARDINGS = ("none", "ddp", "zero1", "zero2", "full", "hybrid")
SUFFIXES = {"K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
MOST_SHOWN = 40
"""Characters of what an error is about."""

RENAMED_OPTIONS = {
    "--accumulation": "--grad-accum",
    "--batch": "--micro-batch",
    "--checkpoint": "--recompute none, selective or full",
    "--checkpointing": "--recompute none, selective or full",
    "--context": "--seq-len",
    "--shard": "--sharding",
}


# What a word of an option means, and what can stand there.


def read_count(option: str, word: str) -> int:
    if not word.isdecimal() or not 1 <= int(word[:12]) <= 10**9:
        raise UsageError(
            f"{option} {word[:MOST_SHOWN]!r} is not a whole number from 1 to 1e9; write for "
            f"example {option} 4"
        )
    return int(word)


def read_amount(option: str, word: str) -> float:
    """A number that may end in K, M, B or T."""
    factor = SUFFIXES.get(word[-1:].upper(), 1.0)
    try:
        amount = float(word[:-1] if factor > 1 else word) * factor
    except ValueError:
        amount = 0.0
    if not 0 < amount < 1e18:
        raise UsageError(
            f"{option} {word[:MOST_SHOWN]!r} is not a number above 0; write for example 4M, 300B "
            "or 2.5"
        )
    return amount


def read_word(option: str, word: str) -> str:
    return word


def choose_from(*known: str) -> Callable[[str, str], str]:
    def read(option: str, word: str) -> str:
        if word not in known:
            raise UsageError(
                f"{option} {word[:MOST_SHOWN]!r} is not known; choose from {', '.join(known)}"
            )
        return word

    return read


def list_models() -> Iterable[str]:
    from flopwatch.jobs.model_shapes import ARCHITECTURES, SHAPES

    return [*SHAPES, *(f"{name}:" for name in ARCHITECTURES)]


def list_devices() -> Iterable[str]:
    from flopwatch.devices.device_table import DEVICES

    return [device.name for device in DEVICES]


def list_suites() -> Iterable[str]:
    from flopwatch.suites.catalog import list_built_in

    return [suite.name for suite in list_built_in()]


def list_plots() -> Iterable[str]:
    from flopwatch.output.plots.plot_catalog import KINDS

    return list(KINDS)


def list_stacks() -> Iterable[str]:
    from flopwatch.prediction.software_stacks import load_stacks

    return list(load_stacks())


def list_publications() -> Iterable[str]:
    from flopwatch.records.published import PUBLICATIONS

    return list(PUBLICATIONS)


class Word(click.ParamType[Any]):
    """A value, or several separated by commas, with completion of the last one."""

    name = "value"

    def __init__(
        self,
        read: Callable[[str, str], Any] = read_word,
        list_known: Callable[[], Iterable[str]] = tuple,
        *,
        many: bool = False,
    ) -> None:
        self.read, self.list_known, self.many = read, list_known, many

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):  # a default
            return value
        option = param.opts[0] if param is not None else ""
        if not self.many and "," in value:
            raise UsageError(f"{option} takes one value here, and got {value[:MOST_SHOWN]!r}")
        if not self.many:
            return self.read(option, value)
        words = [word for word in map(str.strip, value.split(",")) if word]
        if not words:
            raise UsageError(f"{option} {value!r} names nothing; give a value, or leave it out")
        return [self.read(option, word) for word in words]

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",") if self.many else ("", "", incomplete)
        return [
            CompletionItem(f"{before}{comma}{name}")
            for name in self.list_known()
            if name.startswith(last)
        ]


class Hardware(Word):
    """As in 8xA100-80GB: the number before the device is kept."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",") if self.many else ("", "", incomplete)
        count, times, device = last.partition("x")
        number = f"{count}x" if times and count.isdecimal() else ""
        begun = device if number else last
        return [
            CompletionItem(f"{before}{comma}{number}{name}")
            for name in self.list_known()
            if name.lower().startswith(begun.lower())
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
    "--model": JobOption("A model's name, or an architecture with its dimensions.",
                         list_known=list_models, metavar="MODEL"),
    "--seq-len": JobOption("Tokens of a sequence.", read_count),
    "--micro-batch": JobOption("Sequences that a rank computes at once.", read_count),
    "--grad-accum": JobOption("Micro-batches of a step: gradient accumulation.", read_count),
    "--global-batch": JobOption("Sequences of a step, over all ranks; sets --grad-accum.",
                                read_count),
    "--global-batch-tokens": JobOption("The same in tokens, as in 4M.", read_amount),
    "--precision": JobOption("The dtype policy: " + ", ".join(PRECISIONS) + ".",
                             list_known=lambda: PRECISIONS, metavar="POLICY"),
    "--optimizer": _choice("What updates the parameters.", *OPTIMIZERS),
    "--recompute": _choice("Activation checkpointing: recompute nothing, all but the linear "
                           "layers, or whole blocks.", *RECOMPUTES),
    "--attention": _choice("sdpa: torch's fused kernel. plain: two matmuls and a softmax, with "
                           "all scores kept.", *ATTENTIONS),
    "--sharding": _choice("How data-parallel ranks share the parameters: none and ddp replicate "
                          "them, zero2 shards gradients and optimizer state, full parameters too, "
                          "hybrid within groups of ranks.", *SHARDINGS),
    "--tp": JobOption("Tensor-parallel ranks.", read_count),
    "--pp": JobOption("Pipeline stages.", read_count),
    "--cp": JobOption("Context-parallel ranks.", read_count),
    "--ep": JobOption("Expert-parallel ranks.", read_count),
    "--hardware": JobOption("Number and kind of devices, as in 8xA100-80GB.",
                            list_known=list_devices, metavar="NxDEVICE", kind=Hardware),
}  # fmt: skip
PARALLELISM = ("--tp", "--pp", "--cp", "--ep")
SPLIT = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}


class JobCommand(click.Command):
    """Of a job, whose model is an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_extra_args = True
        rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            raise click.UsageError(f"unexpected {rest[0]!r}; a model is --model {rest[0]}", ctx)
        return rest


compile_option = click.option("--compile", "compiled", is_flag=True, help="Through torch.compile.")


def job_options(
    *names: str, many: Iterable[str] = (), **defaults: Any
) -> Callable[[Command], Command]:
    """Options of a training job by their names; of `many`, comma-separated lists are read."""

    def add(command: Command) -> Command:
        for name in reversed(names):
            command = _add_option(command, name, name in many, defaults.get(_name_field(name)))
        return command

    return add


def axis_options(*names: str) -> Callable[[Command], Command]:
    """The same options for `run`: a suite has its own values, and knows which others it accepts."""

    def add(command: Command) -> Command:
        for name in reversed(names):
            command = _add_option(command, name, True, None, read_word)
        return command

    return add


def _name_field(option: str) -> str:
    return option[2:].replace("-", "_")


def _add_option(
    command: Command,
    name: str,
    is_list: bool,
    default: Any,
    read: Callable[[str, str], Any] | None = None,
) -> Command:
    option = JOB[name]
    return click.option(
        name,
        type=option.kind(read or option.read, option.list_known, many=is_list),
        metavar=option.metavar + ("[,...]" if is_list else ""),
        default=None if default is None else str(default),
        show_default=default is not None,
        help=option.help,
    )(command)


def make_job(given: dict[str, Any]) -> TrainingJob:
    """Of the options that a command has. A rank is a device, and one alone shards nothing."""
    from flopwatch.devices.device_names import split_hardware
    from flopwatch.jobs.parallelism import Parallelism
    from flopwatch.jobs.training_job import TrainingJob

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
        "attention", "hardware",
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
    return {field: given.get(name) or 1 for name, field in SPLIT.items()}


def require(given: dict[str, Any], *options: str) -> None:
    missing = [name for name in options if given[_name_field(name)] in (None, [])]
    if missing:
        raise click.UsageError(f"give {', '.join(missing)}; `--help` has examples")


def read_duration(
    context: click.Context, option: click.Parameter, value: str | None
) -> float | None:
    from flopwatch.output.units import parse_duration

    return None if value is None else parse_duration(value)


def read_size(context: click.Context, option: click.Parameter, value: str | None) -> int | None:
    from flopwatch.output.units import parse_bytes

    return None if value is None else parse_bytes(value)


def read_percentage(
    context: click.Context, option: click.Parameter, value: str | None
) -> float | None:
    from flopwatch.output.units import parse_percentage

    return None if value is None else parse_percentage(value)


as_json = click.option("--json", "as_json", is_flag=True, help="As JSON.")
skip_corrupt = click.option("--skip-corrupt", is_flag=True, help="Skip unreadable lines.")
device = click.option("--device", type=click.Choice(["cpu", "cuda"]),
                      help="[default: cuda where torch finds one]")  # fmt: skip
threads = click.option("--threads", type=click.IntRange(min=1), metavar="N",
                       help="[default: usable cores]")  # fmt: skip
results = click.argument(
    "results", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RESULTS..."
)


def read_records(files: Sequence[Path], skip_corrupt: bool = False) -> list[Record]:
    from flopwatch.records.store import read

    contents = [read(file, skip_corrupt=skip_corrupt) for file in files]
    for warning in (warning for one in contents for warning in one.warnings):
        print_remark(f"flopwatch: {warning}")
    return [record for one in contents for record in one.records]


def print_lines(text: str) -> None:
    """An answer, in lines, to stdout, without escapes that a record may hold. JSON and CSV are
    safe by themselves."""
    from flopwatch.output.units import printable_lines

    click.echo(printable_lines(text))


def print_remark(sentence: str) -> None:
    """A remark, to stderr."""
    from flopwatch.output.units import printable

    click.echo(printable(sentence), err=True)
