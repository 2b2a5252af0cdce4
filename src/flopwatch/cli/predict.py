"""Predictions: how fast a job will be, and which one to run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from flopwatch.cli import options
from flopwatch.errors import UsageError

# Written out: to read them from `predict` would make every `--help` load the models.
CHECKPOINTS = ("none", "full", "selective")
SHARDS = ("none", "ddp", "full", "grad-op", "hybrid")
OTHER_SHARDS = {"plain": "none", **{f"{name}-shard": name for name in SHARDS[2:]}}
"""What `plan` prints, and `run training` understands."""
Callback = Callable[[click.Context, click.Parameter, str], list[Any]]
HERE = "here"
SUFFIXES = {"K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}


def read_words(context: click.Context, option: click.Parameter, value: str | None) -> list[str]:
    """A list, parted by commas."""
    words = [word.strip() for word in (value or "").split(",")]
    found = [word for word in words if word]
    if value is not None and not found:
        raise UsageError(f"{option.opts[0]} {value!r} names nothing; give a value, or leave it out")
    return found


def read_counts(context: click.Context, option: click.Parameter, value: str | None) -> list[int]:
    counts = []
    for word in read_words(context, option, value):
        if not word.isdecimal() or not 1 <= int(word[:12]) <= 10**9:
            raise UsageError(
                f"{option.opts[0]} {word[:40]!r} is not a whole number from 1 to 1e9; write for "
                f"example {option.opts[0]} 4, or several as 1,2,4"
            )
        counts.append(int(word))
    return counts


def choose_from(known: tuple[str, ...], others: Mapping[str, str] | None = None) -> Callback:
    """`others` are other spellings."""

    def read(context: click.Context, option: click.Parameter, value: str) -> list[Any]:
        words = [(others or {}).get(word, word) for word in read_words(context, option, value)]
        for word in words:
            if word not in known:
                raise UsageError(
                    f"{option.opts[0]} {word[:40]!r} is not known; choose from {', '.join(known)}"
                )
        return words

    return read


def read_amount(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """A number that may end in K, M, B or T."""
    if value is None:
        return None
    factor = SUFFIXES.get(value[-1:].upper(), 1.0)
    try:
        amount = float(value[:-1] if factor > 1 else value) * factor
    except ValueError:
        amount = 0.0
    if not 0 < amount < 1e18:
        raise UsageError(
            f"{option.opts[0]} {value[:40]!r} is not a number above 0; write for example 4M, 300B "
            "or 2.5"
        )
    return amount


JOB = [
    click.option("--model", "models", callback=read_words,
                 help="A name, or an architecture with its dimensions."),
    click.option("--seq-len", "tokens", callback=read_counts, metavar="N",
                 help="Tokens of a text."),
    click.option("--hardware", callback=read_words, metavar="NxDEVICE",
                 help="As in 8xA100-80GB; here: this machine."),
    click.option("--precision", "precisions", callback=read_words, default="bf16-mixed",
                 show_default=True,
                 help="bf16, bf16-mixed, fp16-mixed, fp8, tf32 or fp32; amp_bf16 "
                      "and the like are understood."),
    click.option("--optimizer", "optimizers", callback=choose_from(tuple(options.OPTIMIZERS)),
                 default="adamw", show_default=True),
    click.option("--stack", metavar="NAME",
                 help="Of software: whose parameters to take.  [default: the latest whose data are "
                      "from the device]"),
    click.option("--network", "network_gbit", callback=read_amount, metavar="GBIT",
                 help="Between machines, Gbit/s of each device.  [default: what is usual]"),
]  # fmt: skip


NEEDED = {
    "models": "--model",
    "tokens": "--seq-len",
    "hardware": "--hardware",
    "micro_batches": "--micro-batch",
}


ONE = {**NEEDED, "precisions": "--precision", "optimizers": "--optimizer"}
"""Of which a plan takes one value each."""
FOR_TABLES = ("table", "stack", "network_gbit", "as_json")


def list_given(command: click.Context) -> dict[str, str]:
    """What stands on the command line, by field, as it is written there."""
    return {
        parameter.name: parameter.opts[0]
        for parameter in command.command.params
        if parameter.name
        and command.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    }


def refuse_idle(command: click.Context) -> None:
    """Options that would change nothing beside others."""
    given = list_given(command)
    idle = [option for field, option in given.items() if field not in FOR_TABLES]
    if "table" in given and idle:
        raise click.UsageError(f"--rows has its jobs from the table; leave {idle[0]} out")
    if "global_batch_tokens" in given and "accumulations" in given:
        raise click.UsageError(
            "--accumulation follows from --global-batch-tokens; give one of them"
        )


def refuse_network_here(given: dict[str, Any]) -> None:
    if given["network_gbit"] and HERE in given["hardware"]:
        raise click.UsageError(
            f"--network is between machines, and --hardware {HERE} is one; leave it out"
        )


def require(given: dict[str, Any], *fields: str) -> None:
    missing = [NEEDED[field] for field in fields if not given[field]]
    if missing:
        raise click.UsageError(f"give {', '.join(missing)}; `--help` has examples")


def job_options(command: Any) -> Any:
    for option in reversed(JOB):
        command = option(command)
    return command


@click.command()
@job_options
@click.option("--micro-batch", "micro_batches", callback=read_counts, metavar="N",
              help="Texts that a device computes at a time.")  # fmt: skip
@click.option("--accumulation", "accumulations", callback=read_counts, default="1",
              show_default=True, metavar="N", help="Micro-batches of a step.")  # fmt: skip
@click.option("--global-batch-tokens", callback=read_amount, metavar="N",
              help="Instead of --accumulation, as in 4M.")  # fmt: skip
@click.option("--checkpoint", "recomputes", callback=choose_from(CHECKPOINTS), default="none",
              show_default=True, help="none, full or selective recomputation.")  # fmt: skip
@click.option("--shard", "shardings", callback=choose_from(SHARDS, OTHER_SHARDS), default="full",
              show_default=True, help="How devices share the model: none (each has all of it, "
                                      "and gradients are averaged in the end), ddp, full, grad-op, "
                                      "hybrid.")  # fmt: skip
@click.option("--rows", "table", type=click.Path(dir_okay=False, path_type=Path),
              help="Predict every row of a table (CSV) instead.")  # fmt: skip
@click.option("--parameters", "with_parameters", is_flag=True,
              help="The parameters of the cost model, too, with their meanings.")  # fmt: skip
@options.as_json
@click.pass_context
def predict(
    command: click.Context,
    /,
    table: Path | None,
    with_parameters: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Predict how fast a training job will be, in what memory, and why.

    Any of model, sequence length, hardware, micro-batch, accumulation, checkpoint, shard, precision
    and optimizer may be a list, parted by commas: a table of all combinations results.

    \b
    flopwatch predict --model 7b --seq-len 2048 --hardware 8xA100-80GB --micro-batch 4 \\
        --checkpoint full --shard full --precision bf16
    flopwatch predict --model 1b,3b,7b --seq-len 2048 --hardware 8xA100-80GB,8xH100-SXM \\
        --micro-batch 4
    flopwatch predict --rows jobs.csv > predicted.csv
    """
    refuse_idle(command)
    if table is not None:
        _predict_rows(table, given["stack"], given["network_gbit"], as_json)
        return
    require(given, "models", "tokens", "hardware", "micro_batches")
    refuse_network_here(given)
    from flopwatch.output import prediction_tables as report
    from flopwatch.output.console import print_sheets
    from flopwatch.prediction.questions import Question, answer

    answers, refusals = answer(Question(**given))
    if as_json:
        click.echo(json.dumps([report.as_dict(each) for each in answers], allow_nan=False))
        for refusal in refusals:
            click.echo(f"left out: {refusal}", err=True)
    else:
        print_sheets(
            report.list_sheets(answers, with_parameters=with_parameters, refusals=refusals)
        )


def _predict_rows(path: Path, stack: str | None, network_gbit: float | None, as_json: bool) -> None:
    from flopwatch.output import prediction_tables as report
    from flopwatch.prediction.job_rows import read_rows, write_rows
    from flopwatch.prediction.questions import answer_rows

    predicted = answer_rows(read_rows(path), stack, network_gbit)
    rows = [report.row_as_dict(each) for each in predicted]
    if as_json:
        click.echo(json.dumps(rows, allow_nan=False))
    else:
        sys.stdout.write(write_rows(rows))
    for doubt in report.list_doubts([each.prediction for each in predicted]):
        click.echo(doubt, err=True)
    summary = report.describe_errors(predicted)
    if summary:
        click.echo(summary, err=True)


@click.command()
@job_options
@click.option("--global-batch-tokens", callback=read_amount, default="4M", show_default=True,
              metavar="N", help="Tokens of a step.")  # fmt: skip
@click.option("--tokens", "budget_tokens", callback=read_amount, metavar="N",
              help="To train on, as in 300B.  [default: 20 for each parameter]")  # fmt: skip
@click.option("--price", callback=read_amount, metavar="P",
              help="Of a device for an hour: what the training costs.")  # fmt: skip
@click.option("--show", "shown", type=click.IntRange(1, 100), default=5, show_default=True,
              help="How many of the best.")  # fmt: skip
@options.as_json
def plan(as_json: bool, shown: int, budget_tokens: float | None, **given: Any) -> None:
    """Search for the fastest configuration that fits: micro-batch, sharding, recomputation.

    \b
    flopwatch plan --model 13b --hardware 64xA100-80GB --seq-len 4096 --global-batch-tokens 4M
    flopwatch plan --model 7b --hardware 8xH100-SXM --seq-len 2048 --tokens 140B --price 2.5
    """
    require(given, "models", "tokens", "hardware")
    refuse_network_here(given)
    for field, option in ONE.items():
        if field in given and len(given[field]) > 1:
            raise click.UsageError(f"a plan is for one job; give one value of {option}")
    from flopwatch.jobs.model_shapes import find_dimensions
    from flopwatch.output import plan_tables as report
    from flopwatch.output.console import print_sheets
    from flopwatch.prediction.plans import Wish, make_plan
    from flopwatch.prediction.questions import find_hardware

    (model,), (hardware,) = given["models"], given["hardware"]
    ranks, machine, stack = find_hardware(hardware, given["stack"], given["network_gbit"])
    wish = Wish(
        shape=find_dimensions(model),
        tokens=given["tokens"][0],
        ranks=ranks,
        machine=machine,
        stack=stack,
        batch_tokens=given["global_batch_tokens"],
        precision=given["precisions"][0],
        optimizer=given["optimizers"][0],
        budget_tokens=budget_tokens,
        price=given["price"],
    )
    found = make_plan(wish, shown)
    if as_json:
        click.echo(json.dumps(report.as_dict(found, model), allow_nan=False))
    else:
        print_sheets(report.list_sheets(found, model))
