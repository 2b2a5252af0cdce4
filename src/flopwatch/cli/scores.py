"""Predictions held against measurements: the cost model's own validation, calibration, scores."""

from __future__ import annotations

import json
from pathlib import Path

import click

from flopwatch.cli import options


@click.command()
@options.as_json
def validate(as_json: bool) -> None:
    """Score the cost model on published jobs and kernels that it has not seen.

    Sizes, memories, or all that is large are left out of the fit and predicted by the rest. This
    takes about a minute.
    """
    from flopwatch.output import score_tables as report
    from flopwatch.output.console import print_sheets
    from flopwatch.prediction.kernel_fit import validate_kernels
    from flopwatch.prediction.validation import validate as score

    found, kernels = score(), validate_kernels()
    if as_json:
        click.echo(json.dumps(report.validation_as_dict(found, kernels), allow_nan=False))
    else:
        print_sheets(report.list_validation_sheets(found, kernels))


@click.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Where it is kept.  [default: FLOPWATCH_CALIBRATION, or beside the "
                   "peaks]")  # fmt: skip
@options.skip_corrupt
@options.as_json
def calibrate(
    results: tuple[Path, ...], out: Path | None, skip_corrupt: bool, as_json: bool
) -> None:
    """Fit the cost model to steps that were measured on this machine, and keep what is found.

    Later predictions for `--hardware here` are made with it, and `flopwatch run` stores a
    prediction beside every step that it measures.

    \b
    flopwatch peaks
    flopwatch run steps --filter model=small,medium --filter variant=eager
    flopwatch calibrate results/steps.jsonl
    flopwatch predict --hardware here --model small --seq-len 128 --micro-batch 4 --precision fp32
    """
    from flopwatch.cli.results import read_records
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


@click.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))
@options.skip_corrupt
@options.as_json
def scorecard(results: tuple[Path, ...], skip_corrupt: bool, as_json: bool) -> None:
    """Say how good the predictions were that were made before each step was measured.

    \b
    flopwatch scorecard results/steps.jsonl results/training.jsonl
    """
    from flopwatch.cli.results import read_records
    from flopwatch.output import score_tables as report
    from flopwatch.output.console import print_sheets
    from flopwatch.prediction.validation import judge_all, tally

    judged = judge_all(read_records(results, skip_corrupt))
    tallies = tally(judged)
    if as_json:
        click.echo(json.dumps(report.scorecard_as_dict(judged, tallies), allow_nan=False))
    else:
        print_sheets(report.list_scorecard_sheets(judged, tallies))
