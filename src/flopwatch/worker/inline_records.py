"""What `flopwatch.measure` and `flopwatch.compare` have found, as records for a results file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flopwatch.devices import environment
from flopwatch.records.record import Record
from flopwatch.settings import Settings
from flopwatch.suites.case import case_id, group_id
from flopwatch.worker import allocator, limits
from flopwatch.worker.agreement import WrongResult
from flopwatch.worker.comparison import Comparison, Measurement
from flopwatch.worker.failure import describe_error


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Which case it is, in which run."""

    suite: str
    params: Mapping[str, Any]
    run_id: str
    environment: Mapping[str, Any]
    notes: Sequence[str] = ()


def make_records(result: Comparison | Measurement, origin: Origin) -> list[Record]:
    """One a function."""
    if isinstance(result, Measurement):
        result = Comparison(measurements={result.name: result}, speedups={}, baseline=result.name)
    checks = {} if result.agreement is None else result.agreement.checks
    return [
        replace(_make_sampled(measurement, name, result.baseline, origin), check=checks.get(name))
        for name, measurement in result.measurements.items()
    ]


def make_failures(names: Sequence[str], error: Exception, origin: Origin) -> list[Record]:
    """Of functions that have no times because of this error: of the wrong one, or else of all,
    since none is measured without the others."""
    failure = describe_error(error, limits.read_limit())
    failed, check = names, None
    if isinstance(error, WrongResult):
        failed, check = [name for name in names if name == error.variant], error.check
    return [
        replace(
            _make_record(name, names[0], origin),
            status=failure.status,
            message=failure.message,
            check=check,
        )
        for name in failed
    ]


def _make_sampled(measurement: Measurement, name: str, baseline: str, origin: Origin) -> Record:
    raw = measurement.raw
    assert raw is not None
    return replace(
        _make_record(name, baseline, origin),
        samples_ns=raw.samples_ns,
        rounds=raw.rounds,
        calls_per_sample=raw.calls_per_sample,
        queue=raw.queue,
        warmup_samples=measurement.warmup_samples,
        steady=measurement.steady,
        stop_reason=measurement.stop_reason,
        settings=_describe_settings(raw.settings, origin),
    )


def _make_record(name: str, baseline: str, origin: Origin) -> Record:
    return Record(
        case_id=case_id(origin.suite, name, origin.params),
        group_id=group_id(origin.suite, origin.params),
        run_id=origin.run_id,
        suite=origin.suite,
        variant=name,
        baseline=baseline,
        params=dict(origin.params),
        status="ok",
        notes=list(origin.notes),
        settings=_describe_settings(Settings(), origin),
        environment=dict(origin.environment),
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _describe_settings(settings: Settings, origin: Origin) -> Settings:
    """As they were here: nobody has set up this process for measuring."""
    threads = environment.look_up(origin.environment, "torch.threads") or 1
    return replace(settings, threads=threads, allocator="default")


def read_environment(project: Path, command: Iterable[str]) -> dict[str, Any]:
    """Of this process, but for the load, which is read anew for every record.

    torch is imported where it is installed: if only those records had its section that were made
    after somebody else has imported it, the same case would not be comparable in two runs.
    """
    found = {
        **environment.machine(project),
        "allocator": allocator.apply("default"),  # which changes nothing
        "command": environment.read_command(list(command)),
    }
    with suppress(ImportError, OSError):  # a library that it needs may be missing
        found["torch"] = environment.torch_build()
    return found
