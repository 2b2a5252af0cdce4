"""Accounts: how much of what the hardware could do was used."""

from __future__ import annotations

import json
import math
from typing import Any

import click

from flopwatch.commands import options
from flopwatch.errors import UsageError

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
    from flopwatch.account.conventions import find_conventions
    from flopwatch.account.question import Question, answer
    from flopwatch.report import mfu as report
    from flopwatch.report.console import print_sheets

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
