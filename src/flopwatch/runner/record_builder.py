"""From a worker's messages to records.

A draft collects what a worker says of one variant while it lives, so that whatever becomes of the
worker, what it had measured is there to be stored.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(kw_only=True)
class Draft:
    """One variant's record in the making."""

    variant: str
    status: Status = "ok"
    reason: str | None = None
    cause: Cause | None = None
    samples_ns: dict[str, list[float]] = field(default_factory=dict)
    rounds: list[int] = field(default_factory=list)
    loops: list[int] = field(default_factory=list)
    ranks: list[Rank] = field(default_factory=list)
    instrumented_ns: list[float] = field(default_factory=list)
    regions: dict[str, Region] = field(default_factory=dict)
    curves: dict[str, list[float]] = field(default_factory=dict)
    peak_memory_bytes: int | None = None
    memory: dict[str, PhaseMemory] = field(default_factory=dict)
    resident_bytes: int | None = None
    first_call_page_faults: int | None = None
    flops: dict[str, dict[str, float]] = field(default_factory=dict)
    bytes: dict[str, float] = field(default_factory=dict)
    job: dict[str, Any] | None = None
    conditions: dict[str, str] = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)
    check: Check | None = None
    notes: list[str] = field(default_factory=list)

    def add_samples(self, content: dict[str, Any]) -> None:
        self.rounds += content["rounds"]
        self.loops += content["loops"]
        columns = zip(*content["ns"], strict=True) if content["ns"] else ()
        for phase, column in zip(content["phases"], columns, strict=False):
            self.samples_ns.setdefault(phase, []).extend(column)
        for row in content["ranks"]:
            self._add_shares(content["phases"], row)
        self.instrumented_ns += content["instrumented_ns"]
        for name, new in content["regions"].items():
            region = self.regions.setdefault(name, Region(calls=new["calls"], samples_ns=[]))
            region.samples_ns.extend(new["samples_ns"])

    def _add_shares(self, phases: list[str], row: list[dict[str, Any]]) -> None:
        """What each rank took in one sample."""
        while len(self.ranks) < len(row):
            self.ranks.append(
                Rank(samples_ns={phase: [] for phase in phases}, waiting_ns=[], transfer_ns=[])
            )
        for rank, share in zip(self.ranks, row, strict=True):
            for phase, elapsed_ns in zip(phases, share["phase_ns"], strict=True):
                rank.samples_ns[phase].append(elapsed_ns)
            rank.waiting_ns.append(share["waiting_ns"])
            rank.transfer_ns.append(share["transfer_ns"])

    def add_points(self, points: list[dict[str, float]]) -> None:
        for point in points:
            for name, value in point.items():
                self.curves.setdefault(name, []).append(value)

    def fail(self, status: Status, reason: str, cause: Cause | None = None) -> None:
        self.status, self.reason, self.cause = status, reason, cause


class Harvest:
    """All that one worker said about one group."""

    def __init__(self, variants: tuple[str, ...]) -> None:
        self.drafts = {variant: Draft(variant=variant) for variant in variants}
        self.finished: dict[str, Any] | None = None
        self.unstudied: set[str] = set()
        """Once sampling is finished: variants whose study is still to come."""
        self.progress: dict[str, Any] = {}
        self.broken: str | None = None
        self.broken_status: Status = "crash"
        self.is_port_taken = False
        """Nothing has begun, since ranks could not meet there; at another port they may."""
        self.exhausted = False
        self.sources: dict[str, str] = {}

    def start_over(self) -> None:
        """Forget a worker that has not begun."""
        self.drafts = {variant: Draft(variant=variant) for variant in self.drafts}
        self.broken, self.broken_status, self.is_port_taken = None, "crash", False

    def unfailed(self) -> list[Draft]:
        return [draft for draft in self.drafts.values() if draft.status == "ok"]

    def unfinished(self) -> list[Draft]:
        """Those that have not failed, but would be cut short if the worker ended now."""
        return [draft for draft in self.unfailed() if self.is_cut_short(draft)]

    def is_cut_short(self, draft: Draft) -> bool:
        return self.finished is None or draft.variant in self.unstudied

    def take(self, message: dict[str, Any]) -> None:
        """File one message."""
        handler = getattr(self, f"_take_{message['event']}")
        handler(message)

    def _take_built(self, message: dict[str, Any]) -> None:
        draft = self.drafts[message["variant"]]
        draft.check = _check(message["check"])
        draft.flops, draft.bytes = message["flops"], message["bytes"]
        draft.job = message["job"]
        draft.conditions, draft.facts = message["conditions"], message["facts"]
        draft.first_call_page_faults = message["first_call_page_faults"]
        draft.notes = message["notes"]

    def _take_failed(self, message: dict[str, Any]) -> None:
        draft = self.drafts[message["variant"]]
        draft.check = _check(message["check"]) or draft.check
        draft.fail(message["status"], message["reason"])
        self.unstudied.discard(draft.variant)

    def _take_samples(self, message: dict[str, Any]) -> None:
        for variant, content in message["samples"].items():
            self.drafts[variant].add_samples(content)
        self.progress = message["progress"] or {}

    def _take_finished(self, message: dict[str, Any]) -> None:
        self.finished = message
        self.unstudied = set(message["studies"])

    def _take_points(self, message: dict[str, Any]) -> None:
        self.drafts[message["variant"]].add_points(message["points"])

    def _take_studied(self, message: dict[str, Any]) -> None:
        self.unstudied.discard(message["variant"])

    def _take_memory(self, message: dict[str, Any]) -> None:
        draft = self.drafts[message["variant"]]
        draft.resident_bytes, draft.peak_memory_bytes = (
            message["resident_bytes"],
            message["peak_bytes"],
        )
        draft.memory = msgspec.convert(message["phases"], dict[str, PhaseMemory])

    def _take_broken(self, message: dict[str, Any]) -> None:
        self.broken = message["reason"]
        self.broken_status = message["status"]
        self.is_port_taken = message["is_port_taken"]

    def _take_exhausted(self, message: dict[str, Any]) -> None:
        self.exhausted = True

    def _take_sources(self, message: dict[str, Any]) -> None:
        self.sources = message["sources"]

    def make_record(
        self,
        draft: Draft,
        *,
        group: Group,
        run: str,
        settings: Settings,
        environment: dict[str, Any],
        interrupted: bool = False,
    ) -> Record:
        finished = self.finished or {}
        stop: Stop | None = finished.get("stop")
        if interrupted and self.is_cut_short(draft):
            stop = "interrupted"
        taken = len(draft.rounds)
        warmup_samples = self.progress.get("warmup_rounds")
        if warmup_samples is None or warmup_samples >= taken:
            warmup_samples = taken
            if interrupted and draft.status == "ok":
                draft.fail("skipped", "interrupted before its warm-up was over", "interrupted")
        return Record(
            case_id=group.case_id(draft.variant),
            group_id=group.id,
            run_id=run,
            suite=group.suite,
            variant=draft.variant,
            baseline=group.baseline,
            params=dict(group.params),
            status=draft.status,
            message=draft.reason,
            cause=draft.cause,
            kind="parts" if draft.variant in group.parts else "whole",
            parts_of=group.parts.get(draft.variant),
            layout=group.layout,
            job=draft.job or _copy(group.jobs.get(draft.variant)),
            samples_ns=draft.samples_ns,
            rounds=draft.rounds,
            calls_per_sample=draft.loops,
            warmup_samples=warmup_samples,
            steady=self.progress.get("steady") if taken else None,
            stop_reason=stop if taken else None,
            rebuilt_rounds=finished.get("rebuilt_rounds", []),
            flops=draft.flops,
            bytes=draft.bytes,
            conditions=draft.conditions,
            facts=draft.facts,
            ranks=draft.ranks,
            instrumented_ns=draft.instrumented_ns,
            regions=draft.regions,
            curves=draft.curves,
            peak_memory_bytes=draft.peak_memory_bytes,
            memory=draft.memory,
            resident_bytes=draft.resident_bytes,
            predicted_memory_bytes=dict(group.memory.get(draft.variant, {})),
            first_call_page_faults=draft.first_call_page_faults,
            check=draft.check,
            prediction=_copy(group.predictions.get(draft.variant)),
            notes=draft.notes + finished.get("notes", []),
            settings=settings,
            environment=environment,
            sources=self.sources,
            measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )


def explain_death(
    exit_code: int, stage: str, log_tail: str, shortage: str | None = None
) -> tuple[Status, str]:
    """Status and reason of a worker that ended without a word; `shortage` is what speaks for a lack
    of memory."""
    if exit_code == -signal.SIGKILL and shortage is not None:
        return "oom", (
            f"killed by the system during {stage}, most likely because memory ran out: {shortage}; "
            "lower --memory-limit so that it fails cleanly"
        )
    if exit_code == -signal.SIGKILL:
        return "crash", (
            f"killed by SIGKILL during {stage}, by somebody or by another program, and nothing "
            "speaks for a lack of memory; --rerun measures it again"
        )
    if exit_code < 0:
        name = signal.Signals(-exit_code).name
        hint = SIGNAL_HINTS.get(name, "")
        return "crash", f"died with {name} during {stage}{hint}{_dying_words(log_tail)}"
    return "crash", f"left with exit code {exit_code} during {stage}{_dying_words(log_tail)}"


SIGNAL_HINTS = {
    "SIGILL": ": an instruction that this CPU announces but does not have; see `flopwatch doctor`",
}


SHORTAGES = ("bad_alloc", "cannot allocate memory", "resource temporarily unavailable")
"""What libraries say before they end a process that gets no memory, in small letters."""


def _dying_words(log_tail: str) -> str:
    """The last words; and where memory was short, those that say so."""
    words = _last_words(log_tail)
    for line in log_tail.splitlines():
        complaint = line.strip()[:200]
        if any(text in complaint.lower() for text in SHORTAGES) and complaint not in words:
            return f"{words} ({complaint})"
    return words


def explain_hang(silence_limit_s: float, stage: str, log_tail: str) -> str:
    return (
        f"nothing was heard for {silence_limit_s:g} s during {stage}{_last_words(log_tail)}; "
        "raise --timeout if it is only slow"
    )


def explain_hang_of_ranks(silence_limit_s: float, stage: str, answers: Sequence[str | None]) -> str:
    """By the stacks that the ranks gave when they were asked: who waits is not to blame."""
    first, *others = answers
    collective = find_collective(first or "")
    if collective is None:
        begin = f"rank 0: nothing was heard for {silence_limit_s:g} s during {stage}"
        told = [begin + _last_words(first or "")]
    else:
        begin = f"rank 0 waits for another rank in {collective}"
        told = [f"{begin}: nothing was heard for {silence_limit_s:g} s during {stage}"]
    for rank, answer in enumerate(others, 1):
        if answer == "":
            told.append(f"rank {rank} does not answer, as if it were stopped")
        elif answer is not None and collective is not None and find_collective(answer) is None:
            told.append(f"rank {rank} is{_last_words(answer) or ' elsewhere'}")
    return "; ".join([*told, "raise --timeout if it is only slow"])


def find_collective(stack: str) -> str | None:
    """The function of torch.distributed that a stack of faulthandler's ends in.

    >>> find_collective('File "/x/torch/distributed/distributed_c10d.py", line 7 in all_reduce')
    'all_reduce'
    """
    frames = [line.strip() for line in stack.splitlines() if line.strip().startswith('File "')]
    if not frames or "/torch/distributed/" not in frames[0]:
        return None
    return frames[0].rpartition(" in ")[2]


def _last_words(log_tail: str) -> str:
    """The user's own line in the stack that faulthandler wrote, or else the last line."""
    lines = [line.strip() for line in log_tail.splitlines() if line.strip()]
    stack = [line for line in lines if line.startswith('File "') and "/flopwatch/" not in line]
    if stack:
        path, _, rest = stack[0].removeprefix('File "').partition('"')
        return f" at {path.rpartition('/')[2]}{rest.replace(', line ', ':', 1)}"
    plain = [line for line in lines if not line.startswith(("File ", "Current thread", "Fatal"))]
    return f" ({plain[-1][:200]})" if plain else ""


def _copy(prediction: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if prediction is None else dict(prediction)


def _check(content: dict[str, Any] | None) -> Check | None:
    return None if content is None else msgspec.convert(content, Check)
