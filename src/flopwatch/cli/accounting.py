"""Models: where their time goes, what they need, and in what precision they compute.

Accounts: how much of what the hardware could do was used.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import click

from flopwatch.cli import options
from flopwatch.errors import UsageError

if TYPE_CHECKING:
    from flopwatch.settings import Device


@click.command()
@click.argument("model")
@options.step_options
@click.option("--steps", type=click.IntRange(min=1), default=5, show_default=True,
              help="With the profiler, and as many without.")  # fmt: skip
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True,
              help="How many of the slowest operations to list.")  # fmt: skip
@click.option("--trace", metavar="FILE",
              help="Write the timeline of the last step, for ui.perfetto.dev.")  # fmt: skip
@click.option("--nvtx", is_flag=True,
              help="Mark NVTX ranges for another profiler instead; implied by nsys.")  # fmt: skip
@options.device
@options.threads
@options.as_json
def profile(device: Device | None, threads: int | None, as_json: bool, **given: Any) -> None:
    """Say where the time of a training step of MODEL goes, by region and by kind of operation.

    \b
    flopwatch profile small
    flopwatch profile small --attention plain --context 512 --trace small.json
    flopwatch profile opt-125m --checkpointing --top 20
    flopwatch profile qwen2:hidden_size=256:layers=4 --json
    """
    from dataclasses import asdict

    import msgspec

    from flopwatch.analysis.profile_request import Profile, make_request
    from flopwatch.output.console import print_sheets
    from flopwatch.output.profile_tables import as_dict, list_sentences, list_sheets
    from flopwatch.runner.session import call

    request = make_request(**given)
    click.echo(f"{request.steps} steps of {request.model} with the profiler, in turns with as many "
               "without", err=True)  # fmt: skip
    content = call("flopwatch.worker.profiler:profile", {"request": asdict(request)},
                   device=device, threads=threads)  # fmt: skip
    found = msgspec.convert(content, Profile)
    if as_json:
        click.echo(json.dumps(as_dict(found)))
    else:
        print_sheets(list_sheets(found))
        click.echo("\n".join(["", *list_sentences(found)]))
    if request.trace:
        click.echo(f"wrote {request.trace}; open it in https://ui.perfetto.dev", err=True)


@click.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@options.step_options
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True,
              help="Where it would run; it need not be here.")  # fmt: skip
@click.option("--fit", callback=options.read_size, metavar="SIZE",
              help="The memory that it must fit into, e.g. 24G.  [default: 90 % of what is free]"
              )  # fmt: skip
@click.option("--largest", type=click.Choice(["batch", "context"]),
              help="Print only the largest that fits; 0: none does.")  # fmt: skip
@options.as_json
def memory(
    models: tuple[str, ...], fit: int | None, largest: Any, as_json: bool, **given: Any
) -> None:
    """Predict what training a MODEL needs in memory, and what would fit. Nothing is run.

    \b
    flopwatch memory small
    flopwatch memory large --context 1024 --attention plain --fit 24G
    flopwatch memory small medium large xl 2.7B
    flopwatch memory xl --checkpointing --device cuda --fit 80G --largest batch
    flopwatch memory qwen2:hidden_size=896:layers=24:heads=14 --precision bf16-mixed
    """
    from flopwatch.jobs.memory_capacity import ask, find_room_bytes
    from flopwatch.jobs.step_memory import Plan
    from flopwatch.output.console import print_sheets
    from flopwatch.output.memory_tables import as_dict, list_largest, list_sentences, list_sheets

    if as_json and largest is not None:
        raise click.UsageError("--largest prints a number by itself, and --json has both; take one")
    plan = Plan(**given)
    answers = ask(models, plan, find_room_bytes(fit, plan))
    if as_json:
        click.echo(json.dumps([as_dict(answer) for answer in answers]))
    elif largest is not None:
        click.echo("\n".join(list_largest(answers, largest)))
    else:
        print_sheets(list_sheets(answers))
        for sentence in list_sentences(answers):
            click.echo(sentence)


@click.command()
@options.device
@options.as_json
def precision(device: Device | None, as_json: bool) -> None:
    """Show what short numbers do to a sum, and what autocast makes of a small model.

    \b
    flopwatch precision
    flopwatch precision --device cpu --json
    """
    import msgspec

    from flopwatch.output.console import print_table
    from flopwatch.output.precision_tables import lay_out
    from flopwatch.runner.session import call
    from flopwatch.worker.precision_study import Observed

    content = call("flopwatch.worker.precision_study:observe", {}, device=device)
    if as_json:
        click.echo(json.dumps(content))
        return
    for table in lay_out(msgspec.convert(content, Observed)):
        click.echo(table.title)
        print_table(table.columns, table.rows)
        for remark in table.remarks:
            click.echo(remark)


# Written out: to read them from `account` would make every `--help` load the models.
PRECISIONS = ["bf16", "fp16", "fp32", "tf32", "fp8", "int8"]
CONVENTIONS = [
    "mosaic-2023", "mosaic", "palm", "nanogpt", "megatron", "megatron-causal", "exact",
    "exact-causal",
]  # fmt: skip
LEAST = 1e-6
SHOWN = 40
"""Characters of what an error is about."""


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
        raise UsageError(f"{value[:SHOWN]!r} is not {advice}")
    return number


@click.command()
@click.option("--model", help="A name, or an architecture with its dimensions.")
@click.option("--seq-len", "tokens", type=click.IntRange(1, 10**9), help="Tokens of a text.")
@click.option("--tokens-per-s", callback=read_speed, metavar="N", help="Of all devices together.")
@click.option("--mfu", callback=read_share, metavar="SHARE",
              help="Instead of tokens/s: say how fast a job with such an MFU is.")  # fmt: skip
@click.option("--hardware", metavar="NxDEVICE", help="As in 8xA100-80GB.  [default: one device]")
@click.option("--checkpointing", "recompute", type=click.Choice(["none", "full", "selective"]),
              default="none", show_default=True,
              help="What is computed again in the backward pass: blocks, or all but their linear "
                   "layers.")  # fmt: skip
@click.option("--precision", type=click.Choice(PRECISIONS), default="bf16", show_default=True,
              help="Of products: whose peak is taken.")  # fmt: skip
@click.option("--peak", "peak_tflops", callback=read_tflops, metavar="TFLOPS",
              help="Of one device, in place of the data sheet's.")  # fmt: skip
@click.option("--convention", "conventions", type=click.Choice(CONVENTIONS), multiple=True,
              help="Only this one; may be repeated.")  # fmt: skip
@click.option("--parts", is_flag=True, help="FLOPs and bytes of each part of the model, too.")
@click.option("--formula", is_flag=True, help="Print formulas, and where they are from.")
@options.as_json
def mfu(
    model: str | None,
    tokens: int | None,
    parts: bool,
    formula: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Say what share of the hardware's peak a training job reaches, in every convention.

    \b
    flopwatch mfu --model 7b --seq-len 2048 --tokens-per-s 25651 --hardware 8xA100-80GB
    flopwatch mfu --model 7b --seq-len 2048 --mfu 0.5 --hardware 8xH100-SXM --checkpointing full
    flopwatch mfu --model gpt-125m --seq-len 512 --tokens-per-s 900 --peak 0.15 --parts
    flopwatch mfu --formula --convention palm
    """
    from flopwatch.jobs.conventions import find_conventions
    from flopwatch.jobs.mfu import Question, answer
    from flopwatch.output import mfu_tables as report
    from flopwatch.output.console import print_sheets

    if formula:
        conventions = find_conventions(given["conventions"])
        lines = report.list_formulas(conventions)
        formulas = report.formulas_as_dict(conventions)
        click.echo(json.dumps(formulas) if as_json else "\n".join(lines))
        return
    if model is None or tokens is None:
        raise click.UsageError("give --model and --seq-len, or --formula alone")
    found = answer(Question(model=model, tokens=tokens, **given))
    if as_json:
        click.echo(json.dumps(report.as_dict(found), allow_nan=False))
    else:
        print_sheets(report.list_sheets(found, with_parts=parts))
