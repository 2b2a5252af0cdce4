"""The machine that measures."""

from __future__ import annotations

import json

import click

from flopwatch.commands import options


@click.command()
@options.as_json
def doctor(as_json: bool) -> None:
    """Say what this machine is, what makes its timings unsteady, and what to change.

    \b
    flopwatch doctor
    flopwatch doctor --json > machine.json
    """
    from dataclasses import asdict

    from flopwatch.doctor import diagnose, measure_jitter
    from flopwatch.session import read_environment

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


SEVERITY_COLOURS = {"good": "green", "note": "blue", "warn": "yellow"}
