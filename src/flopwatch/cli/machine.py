"""The machine that measures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from flopwatch.cli import options

# Written out: to read them from `devices.matmul_sweep` would make every `--help` slower.
DTYPES = ["float32", "tf32", "bfloat16", "float16", "float8", "int8"]


@click.command()
@options.as_json
def doctor(as_json: bool) -> None:
    """Say what this machine is, what makes its timings unsteady, and what to change.

    \b
    flopwatch doctor
    flopwatch doctor --json > machine.json
    """
    from dataclasses import asdict

    from flopwatch.runner.doctor import diagnose, measure_jitter
    from flopwatch.runner.session import read_environment

    jitter = measure_jitter()  # while nothing of ours is running yet
    environment = read_environment()
    diagnosis = diagnose(environment, jitter)
    if as_json:
        advice = [asdict(one) for one in diagnosis.advice]
        content = {"environment": environment, "jitter": asdict(jitter), "advice": advice}
        click.echo(json.dumps(content))
        return
    for title, rows in diagnosis.facts:
        click.echo(click.style(title, bold=True))
        for name, value in rows:
            click.echo(f"  {name:26} {value}")
    click.echo(click.style("Advice", bold=True))
    for one in diagnosis.advice:
        mark = click.style(f"{one.severity:5}", fg=SEVERITY_COLOURS[one.severity])
        click.echo(
            f"  {mark} {one.topic}: {one.finding}" + (f" {one.action}" if one.action else "")
        )


@click.command()
@click.argument("name", required=False)
@options.as_json
def devices(name: str | None, as_json: bool) -> None:
    """List the devices whose nominal peaks are known; of one, every figure with its source.

    \b
    flopwatch devices
    flopwatch devices H100-SXM
    flopwatch devices "NVIDIA A100-SXM4-80GB" --json
    """
    from dataclasses import asdict

    from flopwatch.devices.device_names import describe_unknown, find_devices
    from flopwatch.devices.device_table import DEVICES
    from flopwatch.errors import UsageError
    from flopwatch.output.console import print_sheets, print_table
    from flopwatch.output.device_tables import list_figures, list_names, make_sheet

    chosen = DEVICES if name is None else find_devices(name)
    if not chosen:
        raise UsageError(describe_unknown(str(name)))
    if as_json:
        click.echo(json.dumps([asdict(device) for device in chosen]))
    elif len(chosen) > 1:
        print_sheets([make_sheet(chosen)])
    else:
        print_table((chosen[0].name, "", "source"), list_figures(chosen[0]))
        for sentence in list_names(chosen[0]):
            click.echo(sentence)


@click.command()
@click.option("--dtype", "dtypes", multiple=True, type=click.Choice(DTYPES),
              help="Only products in these; may be repeated.  [default: all that there are]"
              )  # fmt: skip
@click.option("--ranks", type=click.IntRange(min=1), metavar="N",
              help="Processes for collectives; 1: none of those.  [default: 2, or all GPUs]"
              )  # fmt: skip
@click.option("--quick", is_flag=True, help="Fewer sizes, in a quarter of the time.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Where to keep it, appended to; later records carry what is there only if "
                   "FLOPWATCH_PEAKS names that file.  [default: $FLOPWATCH_PEAKS, or in your "
                   "cache]")  # fmt: skip
@options.device
@options.threads
@options.as_json
def peaks(out: Path | None, as_json: bool, **given: Any) -> None:
    """Measure what this machine can do at best: products by dtype, memory, collectives.

    The result is kept, and later records carry it, so that utilisation can be told by it.

    \b
    flopwatch peaks
    flopwatch peaks --quick --dtype float32 --dtype bfloat16 --ranks 1
    flopwatch peaks --json | jq '.best.flops_per_s'
    """
    from flopwatch.devices.instruction_sets import probe
    from flopwatch.devices.measured_peaks import append, find_file
    from flopwatch.errors import UsageError
    from flopwatch.output.console import print_sheets
    from flopwatch.output.device_tables import as_dict, list_sheets
    from flopwatch.runner.peaks import describe_time, make_request, measure_peaks

    if given["device"] == "cuda" and not probe().cuda_devices:
        raise UsageError("--device cuda, but torch finds no CUDA device here; try --device cpu")
    request = make_request(**given)
    path = out or find_file()
    append(path, [])  # before anybody waits for nothing
    click.echo(describe_time(request), err=True)
    found = measure_peaks(request)
    append(path, [found])
    if as_json:
        click.echo(json.dumps(as_dict(found)))
    else:
        print_sheets(list_sheets(found))
    click.echo(f"kept in {path}", err=True)


SEVERITY_COLOURS = {"good": "green", "note": "blue", "warn": "yellow"}
