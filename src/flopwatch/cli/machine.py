"""The machine that measures, and the devices whose specifications are known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click

from flopwatch.cli import options
from flopwatch.cli.help_texts import Command
from flopwatch.errors import UsageError

if TYPE_CHECKING:
    from flopwatch.runner.doctor import Advice, Diagnosis
    from flopwatch.settings import Device

# Written out: to read them from `devices.matmul_rates` would make every `--help` slower.
DTYPES = ["float32", "tf32", "bfloat16", "float16", "float8", "int8"]

SEVERITY_COLOURS = {"good": "green", "note": "blue", "warn": "yellow"}


@click.command(cls=Command)
@click.option("--low-precision", is_flag=True,
              help="Show what 16 bits do to a sum, and what autocast does to a small model."
              )  # fmt: skip
@options.device("With --low-precision.  [default: the accelerator, if there is one]")
@options.verbose
@options.as_json
def doctor(low_precision: bool, device: Device | None, verbose: bool, as_json: bool) -> None:
    """Check whether this machine is fit for measuring.

    What makes its timings unsteady, and what to change; with -v, all that is known of it.

    \b
    flopwatch doctor
    flopwatch doctor -v
    flopwatch doctor --json > machine.json
    flopwatch doctor --low-precision --device cpu
    """
    if low_precision:
        show_low_precision(device, as_json)
        return
    if device is not None:
        raise click.UsageError("--device says where --low-precision looks; add --low-precision")
    from dataclasses import asdict

    from flopwatch.runner.doctor import describe_machine, diagnose, measure_jitter
    from flopwatch.runner.session import read_environment

    jitter = measure_jitter()  # while nothing of ours is running yet
    environment = read_environment()
    diagnosis = diagnose(environment, jitter)
    if as_json:
        advice = [asdict(one) for one in diagnosis.advice]
        content = {"environment": environment, "jitter": asdict(jitter), "advice": advice}
        options.print_json(content)
        return
    if verbose:
        print_diagnosis(diagnosis)
    else:
        print_advice(describe_machine(environment), diagnosis.advice)


def print_diagnosis(diagnosis: Diagnosis) -> None:
    for title, rows in diagnosis.facts:
        click.echo(click.style(title, bold=True))
        for name, value in rows:
            click.echo(f"  {name:26} {value}")
    click.echo(click.style("Advice", bold=True))
    for one in diagnosis.advice:
        _print_one(one, "  ")


def print_advice(machine: str, advice: Sequence[Advice]) -> None:
    """What the machine is, and what to change; of what is good, only the names."""
    from flopwatch.output.console import print_sentences
    from flopwatch.output.units import plural

    bad = [one for one in advice if one.severity == "warn"]
    things = plural(len(bad), "thing")
    verdict = f"{things} to change before you measure:" if bad else "Fit for measuring."
    print_sentences([f"{machine}. {verdict}"])
    for one in advice:
        if one.severity != "good":
            _print_one(one)
    good = [one.topic for one in advice if one.severity == "good"]
    if good:
        print_sentences([f"good: {', '.join(good)} (-v has the details)"])


def _print_one(one: Advice, indent: str = "") -> None:
    """Wrapped below its first word, as wide as the terminal is."""
    from flopwatch.output.console import find_width

    text = f"{one.topic}: {one.finding}" + (f" {one.action}" if one.action else "")
    lines = wrap(text, find_width() - len(indent) - 6, break_on_hyphens=False)
    mark = click.style(f"{one.severity:5}", fg=SEVERITY_COLOURS[one.severity])
    click.echo(f"{indent}{mark} {lines[0]}")
    for line in lines[1:]:
        click.echo(f"{indent}      {line}")


@click.command(cls=Command)
@click.argument("name", required=False, metavar="[DEVICE]",
                type=options.Word(list_known=options.list_devices))  # fmt: skip
@options.only_list("the nominal peaks of all known devices.")
@click.option("--dtype", "dtypes", multiple=True, type=click.Choice(DTYPES),
              help="Measure matmuls in this dtype only; may be repeated.  [default: all]"
              )  # fmt: skip
@click.option("--ranks", type=click.IntRange(min=1), metavar="N",
              help="Processes for collectives; 1 measures none.  [default: 2, or all GPUs]"
              )  # fmt: skip
@options.quick("fewer sizes, in a quarter of the time.")
@options.out("Peaks are appended; later records carry them only if FLOPWATCH_PEAKS names the "
             "file.  [default: $FLOPWATCH_PEAKS, or in your cache]")  # fmt: skip
@options.device()
@options.threads
@options.verbose
@options.quiet
@options.as_json
@click.pass_context
def peaks(
    context: click.Context,
    /,
    name: str | None,
    only_list: bool,
    out: Path | None,
    verbose: bool,
    quiet: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Measure the peaks of this machine, or look up those of a DEVICE.

    Without DEVICE, measures matmuls by dtype, memory and collectives. The peaks are kept, and later
    records carry them, to compute utilisation. With DEVICE, prints nominal peaks, memory and links,
    each with its source.

    \b
    flopwatch peaks
    flopwatch peaks --quick --dtype float32 --dtype bfloat16 --ranks 1
    flopwatch peaks --json | jq '.best.flops_per_s'
    flopwatch peaks H100-SXM
    flopwatch peaks "NVIDIA A100-SXM4-80GB" --json
    flopwatch peaks --list
    torchrun --nproc-per-node 8 -m flopwatch peaks
    """
    options.refuse_two_lengths(context)
    if name is not None or only_list:
        options.refuse_idle(
            context,
            "nothing is measured of a device that is looked up",
            *("name", "only_list", "as_json"),
        )
        print_nominal_peaks(name, as_json)
        return
    from flopwatch.devices.measured_peaks import append, find_file
    from flopwatch.output.console import print_sentences, print_sheets, print_warnings
    from flopwatch.output.device_tables import (
        answer_peaks,
        as_dict,
        list_best_sheets,
        list_matmul_remarks,
        list_sheets,
    )
    from flopwatch.runner.peaks import (
        choose_options,
        describe_time,
        measure_peaks,
        serve_rank_zero,
    )

    chosen = choose_options(**given)
    if serve_rank_zero(chosen):
        return
    path = out or find_file()
    append(path, [], say=options.say)  # before the minutes that this takes
    if not quiet:
        click.echo(describe_time(chosen), err=True)
    found = measure_peaks(chosen)
    append(path, [found], say=options.say)
    if as_json:
        options.print_json(as_dict(found))
    else:
        print_sentences(answer_peaks(found))
        print_warnings(list_matmul_remarks(found))
    if not as_json and not quiet:
        click.echo()
        print_sheets(list_sheets(found) if verbose else list_best_sheets(found))
    if not quiet:
        click.echo(f"kept in {path}", err=True)


def print_nominal_peaks(name: str | None, as_json: bool) -> None:
    """Of all devices, of those that share a name, or of one, with sources."""
    from dataclasses import asdict

    from flopwatch.devices.device_names import describe_unknown, find_devices, list_devices
    from flopwatch.output.console import print_sheets, print_table
    from flopwatch.output.device_tables import list_figures, list_names, make_sheet

    chosen = list_devices() if name is None else find_devices(name)
    if not chosen:
        raise UsageError(describe_unknown(str(name)))
    if as_json:
        options.print_json([asdict(device) for device in chosen])
    elif len(chosen) > 1:
        print_sheets([make_sheet(chosen)])
    else:
        print_table((chosen[0].name, "", "source"), list_figures(chosen[0]))
        for sentence in list_names(chosen[0]):
            click.echo(sentence)


def show_low_precision(device: Device | None, as_json: bool) -> None:
    import msgspec

    from flopwatch.output.profile_tables import make_precision_sheets
    from flopwatch.runner.session import call
    from flopwatch.worker.precision_effects import Observed

    content = call("observe_precision", {}, device=device)
    options.print_found(as_json, content, make_precision_sheets(msgspec.convert(content, Observed)))
