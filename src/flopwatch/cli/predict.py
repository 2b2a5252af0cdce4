"""Predict: throughput, memory, MFU; and how good predictions are."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flopwatch.cli import options
from flopwatch.cli.help_texts import Command
from flopwatch.cli.job_options import (
    IN_DETAIL,
    PARALLELISM,
    JobCommand,
    job_options,
    make_job,
    read_split,
    require,
)
from flopwatch.cli.options import Word, print_found, print_json, read_amount, read_records
from flopwatch.errors import UsageError
from flopwatch.jobs.conventions import CONVENTIONS, find_conventions

if TYPE_CHECKING:
    from flopwatch.settings import Device

HERE = "here"
AMOUNT = Word(read_amount)
stack = click.option("--stack", metavar="NAME", type=Word(list_known=options.list_stacks),
                     help="Software stack: the fitted parameters to use.  [default: the latest "
                          "with data from the device]")  # fmt: skip
network = click.option("--network", "network_gbit", type=AMOUNT, metavar="GBIT",
                       help="Bandwidth between nodes, Gbit/s per device.  "
                            "[default: typical of the device]")  # fmt: skip

LISTS = (
    "--model", "--seq-len", "--micro-batch", "--grad-accum", "--precision", "--optimizer",
    "--recompute", "--sharding", "--hardware",
)  # fmt: skip
DETAILS = ("recompute_layers", "offload", "expert_imbalance")
FOR_TABLES = ("table", "stack", "network_gbit", "as_json")


@click.command(cls=JobCommand)
@job_options(
    "--model", "--seq-len", "--micro-batch", "--hardware", "--grad-accum", "--global-batch",
    "--global-batch-tokens", "--precision", "--optimizer", "--recompute", "--sharding",
    *PARALLELISM, *IN_DETAIL, many=LISTS,
    grad_accum=1, precision="bf16-mixed", optimizer="adamw", recompute="none", sharding="full",
)  # fmt: skip
@stack
@network
@click.option("--rows", "table", type=click.Path(dir_okay=False, path_type=Path),
              help="Predict every row of a CSV file.")  # fmt: skip
@click.option("--parameters", "with_parameters", is_flag=True,
              help="Also print the parameters of the cost model, with their meanings.")  # fmt: skip
@options.quiet
@options.as_json
@click.pass_context
def predict(
    context: click.Context,
    /,
    table: Path | None,
    with_parameters: bool,
    quiet: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Predict the throughput and memory of a training job.

    Most options take comma-separated lists; the result is a table of all combinations.
    `--hardware here` is this machine.

    The vocabulary of 50,257 of gpt-125m to gpt-70b is padded to 50,368, as in the published jobs
    that predictions come from; :vocabulary=N or :padded_vocabulary=N behind a model's name chooses.

    \b
    flopwatch predict --model 7b --seq-len 2048 --hardware 8xA100-80GB --micro-batch 4 \\
        --recompute full --sharding full --precision bf16
    flopwatch predict --model 1b,3b,7b --seq-len 2048 --hardware 8xA100-80GB,8xH100-SXM \\
        --micro-batch 4
    flopwatch predict --model llama-3-70b --seq-len 8192 --hardware 64xH100-SXM --micro-batch 1 \\
        --grad-accum 64 --tp 4 --sequence-parallel yes --pp 4 --sharding zero1
    flopwatch predict --rows jobs.csv > predicted.csv
    """
    if table is not None:
        options.refuse_idle(context, "--rows has its jobs from the table", *FOR_TABLES)
        predict_rows(table, given["stack"], given["network_gbit"], as_json)
        return
    options.refuse_two_lengths(context)
    refuse_two_batches(context)
    require(given, "--model", "--seq-len", "--hardware", "--micro-batch")
    refuse_network_here(given)
    from flopwatch.output import prediction_tables as report
    from flopwatch.output.job_answers import answer_predictions
    from flopwatch.prediction.job_lists import AXES, predict_lists

    found, refusals = predict_lists(
        {axis: given[axis] for axis in AXES},
        global_batch_tokens=find_batch_tokens(given),
        split=read_split(given),
        alike={name: given[name] for name in DETAILS if given[name] is not None},
        stack=given["stack"],
        network_gbit=given["network_gbit"],
    )
    print_found(
        as_json,
        [report.as_dict(each) for each in found],
        report.list_sheets(found, with_parameters=with_parameters, refusals=refusals),
        answer_predictions(found),
        quiet=quiet,
    )
    for refusal in refusals if as_json else ():
        click.echo(f"left out: {refusal}", err=True)


def find_batch_tokens(given: dict[str, Any]) -> float | None:
    if not given["global_batch"]:
        tokens: float | None = given["global_batch_tokens"]
        return tokens
    lengths = given["seq_len"] if isinstance(given["seq_len"], list) else [given["seq_len"]]
    if len(lengths) > 1:
        raise click.UsageError("--global-batch is for one --seq-len; or --global-batch-tokens")
    return float(given["global_batch"] * lengths[0])


def refuse_two_batches(context: click.Context) -> None:
    names = ("--grad-accum", "--global-batch", "--global-batch-tokens")
    given = [option for option in options.list_given(context).values() if option in names]
    if len(given) > 1:
        raise click.UsageError(f"{given[0]} follows from {given[1]}; give one of them", context)


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
        print_json(rows)
    else:
        sys.stdout.write(write_rows(rows))
    for each in predicted:
        if each.reason:
            click.echo(f"{each.row.place}: {each.reason}", err=True)
    for warning in report.list_warnings([p for each in predicted if (p := each.prediction)]):
        click.echo(warning, err=True)
    if summary := report.describe_errors(predicted):
        click.echo(summary, err=True)


@click.command(cls=JobCommand)
@job_options(
    "--model", "--seq-len", "--micro-batch", "--grad-accum", "--precision", "--optimizer",
    "--recompute", "--attention", "--hardware", "--sharding", *PARALLELISM, *IN_DETAIL,
    many=["--model"],
    seq_len=128, micro_batch=4, grad_accum=1, precision="fp32", optimizer="adamw",
    recompute="none", attention="sdpa", sharding="full",
)  # fmt: skip
@options.device("Without --hardware; this machine need not have it.  [default: cpu]")
@click.option("--fit", type=Word(options.read_size), metavar="SIZE",
              help="Memory that the step must fit into, e.g. 24G.  [default: that of the hardware, "
                   "or 90 % of what is free here]")  # fmt: skip
@click.option("--largest", type=click.Choice(["micro-batch", "seq-len"]),
              help="Print only the largest value that fits, 0 if none does.")  # fmt: skip
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
    from flopwatch.output.job_answers import answer_memory
    from flopwatch.output.job_tables import list_largest, list_memory_sheets

    jobs = [make_job({**given, "model": model}) for model in given["model"]]
    found = [api.memory(job, device=device, fit_bytes=fit) for job in jobs]
    if largest is not None:
        click.echo("\n".join(list_largest(found, largest)))
        return
    content = [memory.to_dict() for memory in found]
    print_found(as_json, content, list_memory_sheets(found), answer_memory(found))


LEAST = 1e-6


def read_bounded(most: float, advice: str) -> Callable[[str, str], float]:
    """A number, or a percentage where 1 is the most. Beyond these bounds there is no hardware, and
    what follows from them would be no number."""

    def read(option: str, word: str) -> float:
        is_percentage = most == 1 and word.endswith("%")
        try:
            number = float(word.removesuffix("%")) / 100 if is_percentage else float(word)
        except ValueError:
            number = math.nan
        if not LEAST <= number <= most:
            raise UsageError(f"{word[: options.MOST_SHOWN]!r} is not {advice}")
        return number

    return read


TFLOPS = Word(read_bounded(
    1e6, "a number from 1e-6 to 1e6; give it in TFLOP/s, as in --peak 312"
))  # fmt: skip
TOKENS_PER_S = Word(read_bounded(
    1e12, "a number from 1e-6 to 1e12; give tokens in a second, as in --tokens-per-s 25651"
))  # fmt: skip
SHARE = Word(read_bounded(
    1, "a share from 1e-6 to 1; write it as in --mfu 0.42, or --mfu 42%"
))  # fmt: skip


@click.command(cls=JobCommand)
@job_options("--model", "--seq-len", "--hardware", "--precision", "--recompute",
             precision="bf16", recompute="none")  # fmt: skip
@click.option(
    "--tokens-per-s", type=TOKENS_PER_S, metavar="N", help="Throughput of all devices together."
)
@click.option("--mfu", type=SHARE, metavar="SHARE",
              help="Compute the tokens/s of a job with this MFU.")  # fmt: skip
@click.option("--peak", "peak_tflops", type=TFLOPS, metavar="TFLOPS",
              help="Peak of one device, instead of the data sheet's.")  # fmt: skip
@click.option("--convention", "conventions", type=click.Choice(list(CONVENTIONS)), multiple=True,
              help="Show only this convention; may be repeated.")  # fmt: skip
@click.option("--parts", is_flag=True, help="Also show FLOPs and bytes of each part of the model.")
@click.option(
    "--formula", is_flag=True, help="Print the formulas of the conventions, and their sources."
)
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
    from flopwatch.output import job_tables as report
    from flopwatch.output.job_answers import answer_utilisation

    if formula:
        conventions = find_conventions(given["conventions"])
        if as_json:
            print_json(report.formulas_as_dict(conventions))
        else:
            click.echo("\n".join(report.list_formulas(conventions)))
        return
    if given["model"] is None or given["seq_len"] is None:
        raise click.UsageError("give --model and --seq-len, or --formula alone")
    asked = ("tokens_per_s", "mfu", "peak_tflops", "conventions")
    found = api.mfu(make_job(given), **{name: given[name] for name in asked})
    sheets = report.list_mfu_sheets(found, with_parts=parts)
    print_found(as_json, report.mfu_as_dict(found), sheets, answer_utilisation(found))


@click.command(cls=Command)
@options.any_results
@options.skip_corrupt
@options.as_json
def validate(results: tuple[Path, ...], skip_corrupt: bool, as_json: bool) -> None:
    """Score predictions on unseen published jobs, or on RESULTS.

    Without RESULTS, published jobs are held out of the fit (by size, source and device, all large
    ones, all with tensor or pipeline parallelism) and predicted from the rest, in half a minute.
    With RESULTS, scores the predictions that records carry, each made before its step was
    measured.

    \b
    flopwatch validate
    flopwatch validate results/steps.jsonl results/training.jsonl
    """
    from flopwatch.output import accuracy_tables as report

    if results:
        from flopwatch.prediction.scorecard import judge_all, tally

        judged = judge_all(read_records(results, skip_corrupt))
        tallies = tally(judged)
        print_found(
            as_json,
            report.scorecard_as_dict(judged, tallies),
            report.list_scorecard_sheets(judged, tallies),
        )
        return
    from flopwatch.prediction.validation import validate as score

    found = score()
    print_found(as_json, report.validation_as_dict(found), report.list_validation_sheets(found))


@click.command(cls=Command)
@options.results
@options.out("Calibrations are appended.  [default: FLOPWATCH_CALIBRATION, or with the peaks]")
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
    from flopwatch.output import accuracy_tables as report
    from flopwatch.prediction.calibration import append, find_file
    from flopwatch.prediction.calibration import calibrate as fit_records

    calibration, fit = fit_records(read_records(results, skip_corrupt))
    path = out or find_file()
    append(path, calibration, say=options.say)
    print_found(
        as_json,
        report.calibration_as_dict(calibration, fit),
        report.list_calibration_sheets(calibration, fit),
    )
    click.echo(f"kept in {path}", err=True)
