"""Predict: throughput, plans, memory, MFU; and how good predictions are."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from flopwatch.cli import options
from flopwatch.cli.options import (
    PARALLELISM,
    JobCommand,
    Word,
    job_options,
    make_job,
    read_amount,
    read_records,
    require,
)
from flopwatch.errors import UsageError

if TYPE_CHECKING:
    from flopwatch.settings import Device

HERE = "here"
AMOUNT = Word(read_amount)
# Written out: to read them from `jobs` would make every `--help` load it.
CONVENTIONS = [
    "mosaic-2023", "mosaic", "palm", "nanogpt", "megatron", "megatron-causal", "exact",
    "exact-causal",
]  # fmt: skip
stack = click.option("--stack", metavar="NAME", type=Word(list_known=options.list_stacks),
                     help="Software stack, whose fitted parameters to take.  [default: the latest "
                          "with data from the device]")  # fmt: skip
network = click.option("--network", "network_gbit", type=AMOUNT, metavar="GBIT",
                       help="Between nodes, Gbit/s of each device.  [default: what is usual]"
                       )  # fmt: skip

LISTS = (
    "--model", "--seq-len", "--micro-batch", "--grad-accum", "--precision", "--optimizer",
    "--recompute", "--sharding", "--hardware",
)  # fmt: skip
FOR_TABLES = ("table", "stack", "network_gbit", "as_json")


@click.command(cls=JobCommand)
@job_options(
    "--model", "--seq-len", "--micro-batch", "--hardware", "--grad-accum", "--global-batch",
    "--global-batch-tokens", "--precision", "--optimizer", "--recompute", "--sharding",
    *PARALLELISM, many=LISTS,
    grad_accum=1, precision="bf16-mixed", optimizer="adamw", recompute="none", sharding="full",
)  # fmt: skip
@stack
@network
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
    """Predict the throughput and memory of a training job.

    Of most options, comma-separated lists are read: a table of all combinations results.
    `--hardware here` is this machine.

    \b
    flopwatch predict --model 7b --seq-len 2048 --hardware 8xA100-80GB --micro-batch 4 \\
        --recompute full --sharding full --precision bf16
    flopwatch predict --model 1b,3b,7b --seq-len 2048 --hardware 8xA100-80GB,8xH100-SXM \\
        --micro-batch 4
    flopwatch predict --rows jobs.csv > predicted.csv
    """
    refuse_idle(command)
    if table is not None:
        predict_rows(table, given["stack"], given["network_gbit"], as_json)
        return
    require(given, "--model", "--seq-len", "--hardware", "--micro-batch")
    refuse_network_here(given)
    from flopwatch.output import prediction_tables as report
    from flopwatch.output.console import print_sheets
    from flopwatch.prediction.job_lists import AXES, predict_lists

    found, refusals = predict_lists(
        {axis: given[axis] for axis in AXES},
        global_batch_tokens=find_batch_tokens(given),
        split=options.read_split(given),
        stack=given["stack"],
        network_gbit=given["network_gbit"],
    )
    if as_json:
        click.echo(json.dumps([report.as_dict(each) for each in found], allow_nan=False))
        for refusal in refusals:
            click.echo(f"left out: {refusal}", err=True)
    else:
        print_sheets(report.list_sheets(found, with_parameters=with_parameters, refusals=refusals))


def find_batch_tokens(given: dict[str, Any]) -> float | None:
    if not given["global_batch"]:
        tokens: float | None = given["global_batch_tokens"]
        return tokens
    lengths = given["seq_len"] if isinstance(given["seq_len"], list) else [given["seq_len"]]
    if len(lengths) > 1:
        raise click.UsageError("--global-batch is for one --seq-len; or --global-batch-tokens")
    return float(given["global_batch"] * lengths[0])


def refuse_idle(command: click.Context) -> None:
    """Options that other options make useless."""
    given = {
        parameter.name: parameter.opts[0]
        for parameter in command.command.params
        if parameter.name
        and command.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    }
    idle = [option for field, option in given.items() if field not in FOR_TABLES]
    if "table" in given and idle:
        raise click.UsageError(f"--rows has its jobs from the table; leave {idle[0]} out")
    batches = [
        option for option in ("--grad-accum", "--global-batch", "--global-batch-tokens")
        if option in given.values()
    ]  # fmt: skip
    if len(batches) > 1:
        raise click.UsageError(f"{batches[0]} follows from {batches[1]}; give one of them")


def refuse_network_here(given: dict[str, Any]) -> None:
    if given["network_gbit"] and HERE in given["hardware"]:
        raise click.UsageError(
            f"--network is between nodes, and --hardware {HERE} is one; leave it out"
        )


def predict_rows(path: Path, stack: str | None, network_gbit: float | None, as_json: bool) -> None:
    from flopwatch.output import prediction_tables as report
    from flopwatch.prediction.job_lists import predict_rows as predict_all
    from flopwatch.prediction.job_rows import read_rows, write_rows

    predicted = predict_all(read_rows(path), stack, network_gbit)
    rows = [report.row_as_dict(each) for each in predicted]
    if as_json:
        click.echo(json.dumps(rows, allow_nan=False))
    else:
        sys.stdout.write(write_rows(rows))
    for warning in report.list_warnings([each.prediction for each in predicted]):
        click.echo(warning, err=True)
    summary = report.describe_errors(predicted)
    if summary:
        click.echo(summary, err=True)


@click.command(cls=JobCommand)
@job_options(
    "--model", "--seq-len", "--hardware", "--global-batch", "--global-batch-tokens", "--precision",
    "--optimizer", *PARALLELISM,
    precision="bf16-mixed", optimizer="adamw",
)  # fmt: skip
@stack
@network
@click.option("--tokens", "budget_tokens", type=AMOUNT, metavar="N",
              help="To train on, as in 300B.  [default: 20 for each parameter]")  # fmt: skip
@click.option("--price", type=AMOUNT, metavar="P",
              help="Of a device for an hour: what the training costs.")  # fmt: skip
@click.option("--show", "shown", type=click.IntRange(1, 100), default=5, show_default=True,
              help="How many of the best.")  # fmt: skip
@options.as_json
def plan(as_json: bool, shown: int, budget_tokens: float | None, **given: Any) -> None:
    """Find the fastest way to train a model on given hardware.

    Searched are micro-batch, sharding and recomputation, among what fits into memory.
    The global batch is 4M tokens if neither --global-batch nor --global-batch-tokens is given.

    \b
    flopwatch plan --model 13b --hardware 64xA100-80GB --seq-len 4096 --global-batch-tokens 4M
    flopwatch plan --model 7b --hardware 8xH100-SXM --seq-len 2048 --tokens 140B --price 2.5
    """
    require(given, "--model", "--seq-len", "--hardware")
    if given["global_batch"] and given["global_batch_tokens"]:
        raise click.UsageError(
            "--global-batch follows from --global-batch-tokens; give one of them"
        )
    refuse_network_here(given)
    from flopwatch import api
    from flopwatch.output.console import print_sheets
    from flopwatch.output.prediction_tables import list_plan_sheets

    found = api.plan(
        make_job(given),
        global_batch_tokens=find_batch_tokens(given) or 4e6,
        train_tokens=budget_tokens,
        price=given["price"],
        shown=shown,
        stack=given["stack"],
        network_gbit=given["network_gbit"],
    )
    if as_json:
        click.echo(json.dumps(found.to_dict(), allow_nan=False))
    else:
        print_sheets(list_plan_sheets(found))


@click.command(cls=JobCommand)
@job_options(
    "--model", "--seq-len", "--micro-batch", "--grad-accum", "--precision", "--optimizer",
    "--recompute", "--attention", "--hardware", "--sharding", *PARALLELISM, many=["--model"],
    seq_len=128, micro_batch=4, grad_accum=1, precision="fp32", optimizer="adamw",
    recompute="none", attention="sdpa", sharding="full",
)  # fmt: skip
@click.option("--device", type=click.Choice(["cpu", "cuda"]),
              help="Where it would run, without --hardware; it need not be here.  [default: cpu]"
              )  # fmt: skip
@click.option("--fit", callback=options.read_size, metavar="SIZE",
              help="The memory that it must fit into, e.g. 24G.  [default: that of the hardware, "
                   "or 90 % of what is free here]")  # fmt: skip
@click.option("--largest", type=click.Choice(["micro-batch", "seq-len"]),
              help="Print only the largest that fits; 0: none does.")  # fmt: skip
@options.as_json
def memory(
    device: Device | None, fit: int | None, largest: Any, as_json: bool, **given: Any
) -> None:
    """Predict the memory of a training step, and what fits.

    \b
    flopwatch memory --model small
    flopwatch memory --model large --seq-len 1024 --attention plain --fit 24G
    flopwatch memory --model small,medium,large,xl,2.7B
    flopwatch memory --model xl --recompute full --device cuda --fit 80G --largest micro-batch
    flopwatch memory --model 7b --seq-len 2048 --precision bf16-mixed --hardware 8xA100-80GB
    flopwatch memory --model qwen2:hidden_size=896:layers=24:heads=14 --precision bf16-mixed
    """
    require(given, "--model")
    if as_json and largest is not None:
        raise click.UsageError("--largest prints a number by itself, and --json has both; take one")
    if device is not None and given["hardware"] is not None:
        raise click.UsageError("--hardware says what computes; leave --device out")
    from flopwatch import api
    from flopwatch.output.console import print_sheets
    from flopwatch.output.job_tables import list_largest, list_memory_sheets, list_sentences

    jobs = [make_job({**given, "model": model}) for model in given["model"]]
    found = [api.memory(job, device=device, fit_bytes=fit) for job in jobs]
    if as_json:
        click.echo(json.dumps([memory.to_dict() for memory in found]))
    elif largest is not None:
        click.echo("\n".join(list_largest(found, largest)))
    else:
        print_sheets(list_memory_sheets(found))
        for sentence in list_sentences(found):
            click.echo(sentence)


LEAST = 1e-6


def read_tflops(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    advice = "a number from 1e-6 to 1e6; give it in TFLOP/s, as in --peak 312"
    return None if value is None else _require(value, _parse(value), 1e6, advice)


def read_speed(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    advice = "a number from 1e-6 to 1e12; give tokens in a second, as in --tokens-per-s 25651"
    return None if value is None else _require(value, _parse(value), 1e12, advice)


def read_share(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    share = _parse(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    advice = "a share from 1e-6 to 1; write it as in --mfu 0.42, or --mfu 42%"
    return _require(value, share, 1, advice)


def _parse(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return math.nan


def _require(value: str, number: float, most: float, advice: str) -> float:
    """Beyond these bounds there is no hardware, and what follows from them would be no number."""
    if not LEAST <= number <= most:
        raise UsageError(f"{value[: options.MOST_SHOWN]!r} is not {advice}")
    return number


@click.command(cls=JobCommand)
@job_options("--model", "--seq-len", "--hardware", "--precision", "--recompute",
             precision="bf16", recompute="none")  # fmt: skip
@click.option("--tokens-per-s", callback=read_speed, metavar="N", help="Of all devices together.")
@click.option("--mfu", callback=read_share, metavar="SHARE",
              help="Instead of tokens/s: say how fast a job with such an MFU is.")  # fmt: skip
@click.option("--peak", "peak_tflops", callback=read_tflops, metavar="TFLOPS",
              help="Of one device, in place of the data sheet's.")  # fmt: skip
@click.option("--convention", "conventions", type=click.Choice(CONVENTIONS), multiple=True,
              help="Only this one; may be repeated.")  # fmt: skip
@click.option("--parts", is_flag=True, help="FLOPs and bytes of each part of the model, too.")
@click.option("--formula", is_flag=True, help="Print formulas, and where they are from.")
@options.as_json
def mfu(parts: bool, formula: bool, as_json: bool, **given: Any) -> None:
    """Compute MFU and HFU of a job, in every convention.

    \b
    flopwatch mfu --model 7b --seq-len 2048 --tokens-per-s 25651 --hardware 8xA100-80GB
    flopwatch mfu --model 7b --seq-len 2048 --mfu 0.5 --hardware 8xH100-SXM --recompute full
    flopwatch mfu --model gpt-125m --seq-len 512 --tokens-per-s 900 --peak 0.15 --parts
    flopwatch mfu --formula --convention palm
    """
    from flopwatch import api
    from flopwatch.jobs.conventions import find_conventions
    from flopwatch.output import job_tables as report
    from flopwatch.output.console import print_sheets

    if formula:
        conventions = find_conventions(given["conventions"])
        lines = report.list_formulas(conventions)
        formulas = report.formulas_as_dict(conventions)
        click.echo(json.dumps(formulas) if as_json else "\n".join(lines))
        return
    if given["model"] is None or given["seq_len"] is None:
        raise click.UsageError("give --model and --seq-len, or --formula alone")
    asked = ("tokens_per_s", "mfu", "peak_tflops", "conventions")
    found = api.mfu(make_job(given), **{name: given[name] for name in asked})
    if as_json:
        click.echo(json.dumps(report.mfu_as_dict(found), allow_nan=False))
    else:
        print_sheets(report.list_mfu_sheets(found, with_parts=parts))


@click.command()
@click.argument("results", nargs=-1, type=click.Path(path_type=Path), metavar="[RESULTS]...")
@options.skip_corrupt
@options.as_json
def validate(results: tuple[Path, ...], skip_corrupt: bool, as_json: bool) -> None:
    """Score predictions on unseen published jobs, or on RESULTS.

    Published jobs: sizes, memories, or all that is large are left out of the fit and predicted by
    the rest, in about a minute. RESULTS: predictions that were made before each step was measured.

    \b
    flopwatch validate
    flopwatch validate results/steps.jsonl results/training.jsonl
    """
    from flopwatch.output import score_tables as report
    from flopwatch.output.console import print_sheets

    if results:
        from flopwatch.prediction.validation import judge_all, tally

        judged = judge_all(read_records(results, skip_corrupt))
        tallies = tally(judged)
        content = report.scorecard_as_dict(judged, tallies)
        sheets = report.list_scorecard_sheets(judged, tallies)
    else:
        from flopwatch.prediction.validation import validate as score

        found = score()
        content = report.validation_as_dict(found)
        sheets = report.list_validation_sheets(found)
    if as_json:
        click.echo(json.dumps(content, allow_nan=False))
    else:
        print_sheets(sheets)


@click.command()
@options.results
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Where it is kept.  [default: FLOPWATCH_CALIBRATION, or with the "
                   "peaks]")  # fmt: skip
@options.skip_corrupt
@options.as_json
def calibrate(
    results: tuple[Path, ...], out: Path | None, skip_corrupt: bool, as_json: bool
) -> None:
    """Fit the cost model to steps measured on this machine.

    The fit is kept. Later predictions for `--hardware here` are made with it, and `flopwatch run`
    stores a prediction with every step that it measures.

    \b
    flopwatch peaks
    flopwatch run steps --filter model=small,medium --filter variant=eager
    flopwatch calibrate results/steps.jsonl
    flopwatch predict --hardware here --model small --seq-len 128 --micro-batch 4 --precision fp32
    """
    from flopwatch.output import score_tables as report
    from flopwatch.output.console import print_sheets
    from flopwatch.prediction.calibration import append, find_file
    from flopwatch.prediction.calibration import calibrate as fit_records

    calibration, fit = fit_records(read_records(results, skip_corrupt))
    path = out or find_file()
    append(path, calibration)
    if as_json:
        click.echo(json.dumps(report.calibration_as_dict(calibration, fit), allow_nan=False))
    else:
        print_sheets(report.list_calibration_sheets(calibration, fit))
    click.echo(f"kept in {path}", err=True)
