"""From a worker's messages to records.

A group has one record for each variant from the start, which every message of its worker completes,
so that whatever happens to the worker, what it had measured can be stored.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from flopwatch.records.record import Cause, Check, PhaseMemory, Rank, Record, Region, Status, Stop
from flopwatch.runner.schedule import Group
from flopwatch.settings import Settings


class Skip(NamedTuple):
    """Why a variant is not measured: for code, and for people."""

    cause: Cause
    reason: str


class RecordBuilder:
    """The records of one group, from all that one worker reports about it."""

    def __init__(self, group: Group, *, run: str, settings: Settings) -> None:
        self.records = {
            variant: Record(
                case_id=group.case_id(variant),
                group_id=group.id,
                run_id=run,
                suite=group.suite,
                variant=variant,
                baseline=group.baseline,
                params=dict(group.params),
                status="ok",
                kind="parts" if variant in group.parts else "whole",
                parts_of=group.parts.get(variant),
                layout=group.layout,
                job=_copy(group.jobs.get(variant)),
                predicted_memory_bytes=dict(group.memory.get(variant, {})),
                prediction=_copy(group.predictions.get(variant)),
                settings=settings,
            )
            for variant in group.variants
        }
        self.finished: dict[str, Any] | None = None
        self.progress: dict[str, Any] = {}
        self.needs_restart = False
        """Whether the worker has asked for new processes for what is left."""
        self.broken: dict[str, Any] | None = None
        """The message that the suite could not be loaded, or ranks could not meet."""
        self._curves_to_come: set[str] = set()
        """Once sampling is finished: variants whose curves are still to be taken."""
        self._sources: dict[str, str] = {}

    @property
    def is_port_taken(self) -> bool:
        """Whether nothing has begun, since ranks could not meet at their port; another may do."""
        return self.broken is not None and bool(self.broken["is_port_taken"])

    def list_ok(self) -> list[str]:
        """The variants that have not failed."""
        return [variant for variant, record in self.records.items() if record.status == "ok"]

    def list_unfinished(self) -> list[str]:
        """Those that have not failed, but would be cut short if the worker ended now."""
        return [variant for variant in self.list_ok() if self._is_cut_short(variant)]

    def _is_cut_short(self, variant: str) -> bool:
        return self.finished is None or variant in self._curves_to_come

    def fail(self, variant: str, status: Status, reason: str, cause: Cause | None = None) -> None:
        self._update(variant, status=status, message=reason, cause=cause)

    def take(self, message: dict[str, Any]) -> None:
        """Add one message of the worker."""
        getattr(self, f"_take_{message['event']}")(message)

    def _update(self, variant: str, **changes: Any) -> None:
        self.records[variant] = replace(self.records[variant], **changes)

    def _take_built(self, message: dict[str, Any]) -> None:
        names = (
            "flops",
            "bytes",
            "conditions",
            "facts",
            "first_call_page_faults",
            "notes",
            "unchecked",
        )
        changes = {name: message[name] for name in names}
        changes |= {} if message["job"] is None else {"job": message["job"]}
        self._update(message["variant"], check=_read_check(message["check"]), **changes)

    def _take_failed(self, message: dict[str, Any]) -> None:
        variant = message["variant"]
        check = _read_check(message["check"])
        if check is not None:
            self._update(variant, check=check)
        self.fail(variant, message["status"], message["reason"])
        self._curves_to_come.discard(variant)

    def _take_samples(self, message: dict[str, Any]) -> None:
        for variant, content in message["samples"].items():
            _add_samples(self.records[variant], content)
        self.progress = message["progress"] or {}

    def _take_finished(self, message: dict[str, Any]) -> None:
        self.finished = message
        self._curves_to_come = set(message["curves"])

    def _take_points(self, message: dict[str, Any]) -> None:
        curves = self.records[message["variant"]].curves
        for point in message["points"]:
            for name, value in point.items():
                curves.setdefault(name, []).append(value)

    def _take_curves_taken(self, message: dict[str, Any]) -> None:
        self._curves_to_come.discard(message["variant"])

    def _take_memory(self, message: dict[str, Any]) -> None:
        self._update(
            message["variant"],
            resident_bytes=message["resident_bytes"],
            peak_memory_bytes=message["peak_bytes"],
            memory=msgspec.convert(message["phases"], dict[str, PhaseMemory]),
        )

    def _take_broken(self, message: dict[str, Any]) -> None:
        self.broken = message

    def _take_restart(self, message: dict[str, Any]) -> None:
        self.needs_restart = True

    def _take_sources(self, message: dict[str, Any]) -> None:
        self._sources = message["sources"]

    def finish(
        self, variant: str, environment: dict[str, Any], *, interrupted: bool = False
    ) -> Record:
        """The record, with what is known once the worker has ended."""
        finished = self.finished or {}
        stop: Stop | None = finished.get("stop")
        if interrupted and self._is_cut_short(variant):
            stop = "interrupted"
        taken = len(self.records[variant].rounds)
        warmup_samples = self.progress.get("warmup_rounds")
        if warmup_samples is None or warmup_samples >= taken:
            warmup_samples = taken
            if interrupted and self.records[variant].status == "ok":
                self.fail(
                    variant, "skipped", "interrupted before its warm-up was over", "interrupted"
                )
        record = self.records[variant]
        return replace(
            record,
            warmup_samples=warmup_samples,
            steady=self.progress.get("steady") if taken else None,
            stop_reason=stop if taken else None,
            rebuilt_rounds=finished.get("rebuilt_rounds", []),
            throttled=finished.get("throttled", []),
            environment=environment,
            sources=self._sources,
            measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )


def _add_samples(record: Record, content: dict[str, Any]) -> None:
    record.rounds.extend(content["rounds"])
    record.calls_per_sample.extend(content["loops"])
    columns = zip(*content["ns"], strict=True) if content["ns"] else ()
    for phase, column in zip(content["phases"], columns, strict=False):
        record.samples_ns.setdefault(phase, []).extend(column)
    for row in content["ranks"]:
        _add_shares(record.ranks, content["phases"], row)
    record.instrumented_ns.extend(content["instrumented_ns"])
    for name, new in content["regions"].items():
        region = record.regions.setdefault(name, Region(calls=new["calls"], samples_ns=[]))
        region.samples_ns.extend(new["samples_ns"])


def _add_shares(ranks: list[Rank], phases: list[str], row: list[dict[str, Any]]) -> None:
    """What each rank took in one sample."""
    while len(ranks) < len(row):
        ranks.append(
            Rank(samples_ns={phase: [] for phase in phases}, waiting_ns=[], transfer_ns=[])
        )
    for rank, share in zip(ranks, row, strict=True):
        for phase, elapsed_ns in zip(phases, share["phase_ns"], strict=True):
            rank.samples_ns[phase].append(elapsed_ns)
        rank.waiting_ns.append(share["waiting_ns"])
        rank.transfer_ns.append(share["transfer_ns"])


def explain_death(
    exit_code: int, stage: str, log_tail: str, shortage: str | None = None
) -> tuple[Status, str]:
    """Status and reason of a worker that ended without a report; `shortage` is a sign of an
    out-of-memory kill."""
    if exit_code == -signal.SIGKILL and shortage is not None:
        return "oom", (
            f"killed by the system during {stage}, most likely because memory ran out: {shortage}; "
            "lower --memory-limit so that it fails cleanly"
        )
    if exit_code == -signal.SIGKILL:
        return "crash", (
            f"killed by SIGKILL during {stage}, by a user or another program: no sign of an "
            "out-of-memory kill; --rerun measures it again"
        )
    if exit_code < 0:
        name = signal.Signals(-exit_code).name
        hint = SIGNAL_HINTS.get(name, "")
        return "crash", f"died with {name} during {stage}{hint}{_describe_end(log_tail)}"
    return "crash", f"left with exit code {exit_code} during {stage}{_describe_end(log_tail)}"


SIGNAL_HINTS = {
    "SIGILL": ": an instruction that this CPU announces but does not have; see `flopwatch doctor`",
}


SHORTAGES = ("bad_alloc", "cannot allocate memory", "resource temporarily unavailable")
"""What libraries print before they end a process that gets no memory, in small letters."""


def _describe_end(log_tail: str) -> str:
    """The last line of the log; and where memory was short, the line that says so."""
    last = _find_last_line(log_tail)
    for line in log_tail.splitlines():
        complaint = line.strip()[:200]
        if any(text in complaint.lower() for text in SHORTAGES) and complaint not in last:
            return f"{last} ({complaint})"
    return last


def explain_hang(silence_limit_s: float, stage: str, log_tail: str) -> str:
    return (
        f"no progress for {silence_limit_s:g} s during {stage}{_find_last_line(log_tail)}; "
        "raise --timeout if it is only slow"
    )


def explain_hang_of_ranks(silence_limit_s: float, stage: str, stacks: Sequence[str | None]) -> str:
    """By the stacks of all ranks: a rank that waits in a collective is not the cause."""
    first, *others = stacks
    collective = find_collective(first or "")
    if collective is None:
        begin = f"rank 0: no progress for {silence_limit_s:g} s during {stage}"
        found = [begin + _find_last_line(first or "")]
    else:
        begin = f"rank 0 waits for another rank in {collective}"
        found = [f"{begin}: no progress for {silence_limit_s:g} s during {stage}"]
    for rank, stack in enumerate(others, 1):
        if stack == "":
            found.append(f"rank {rank} does not answer, as if it were stopped")
        elif stack is not None and collective is not None and find_collective(stack) is None:
            found.append(f"rank {rank} is{_find_last_line(stack) or ' elsewhere'}")
    return "; ".join([*found, "raise --timeout if it is only slow"])


def find_collective(stack: str) -> str | None:
    """The function of torch.distributed that a stack of faulthandler's ends in.

    >>> find_collective('File "/x/torch/distributed/distributed_c10d.py", line 7 in all_reduce')
    'all_reduce'
    """
    frames = [line.strip() for line in stack.splitlines() if line.strip().startswith('File "')]
    if not frames or "/torch/distributed/" not in frames[0]:
        return None
    return frames[0].rpartition(" in ")[2]


def _find_last_line(log_tail: str) -> str:
    """The user's own line in the stack that faulthandler wrote, or else the last line."""
    lines = [line.strip() for line in log_tail.splitlines() if line.strip()]
    stack = [line for line in lines if line.startswith('File "') and "/flopwatch/" not in line]
    if stack:
        path, _, rest = stack[0].removeprefix('File "').partition('"')
        return f" at {path.rpartition('/')[2]}{rest.replace(', line ', ':', 1)}"
    plain = [line for line in lines if not line.startswith(("File ", "Current thread", "Fatal"))]
    return f" ({plain[-1][:200]})" if plain else ""


def _copy(prediction: Any) -> dict[str, Any] | None:
    return None if prediction is None else dict(prediction)


def _read_check(content: dict[str, Any] | None) -> Check | None:
    return None if content is None else msgspec.convert(content, Check)
