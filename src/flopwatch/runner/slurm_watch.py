"""Following the jobs of sweeps until each has ended and all that it measured is stored."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from flopwatch.errors import UsageError
from flopwatch.output.progress import PlainWatcher
from flopwatch.output.units import format_duration, plural
from flopwatch.records.record import Record
from flopwatch.runner.durations import Speed, estimate_group
from flopwatch.runner.schedule import Group
from flopwatch.runner.slurm_queue import (
    ENDS,
    HELD,
    HOPELESS,
    STOPPED,
    VANISHED,
    End,
    JobState,
    NoAnswer,
    Resources,
    cancel,
    find_log,
    find_named,
    read_states,
)
from flopwatch.runner.slurm_sweep import DONE, INTERRUPTED, STOPPED_EARLY, Collector, SentPart
from flopwatch.settings import Settings

STARTING_S = 15.0
"""Of a job: to import torch, and to look at the machine."""
POLL_S = 1.0
ASK_S = (2.0, 10.0)
"""How often Slurm is asked: at first, and when nothing changes."""
GRACE_S = 3.0
"""After a job's end, for its last files to appear on a network file system."""
SILENCE_S = 30.0
"""Without an answer of Slurm's, before it is said."""
OUT_OF_MEMORY = ("exceeded memory limit", "oom_kill event", "oom-kill event")
"""What Slurm writes into a job's log, whose state need not say it."""
UNKNOWN_SPEED = Speed(rates={})
WORK_DONE = None
"""In place of an end that left something unmeasured."""


@dataclass(kw_only=True, slots=True)
class Watched:
    """What is known of a part's job."""

    state: JobState = field(default_factory=lambda: JobState(name="PENDING"))
    ended_s: float | None = None
    """When Slurm was first heard to say so."""
    queued_s: float
    """Since when it waits."""
    began_s: float | None = None
    """When it was first seen running."""


class QueueWatch:
    def __init__(self, collector: Collector, resources: Resources, watcher: PlainWatcher) -> None:
        self.collector, self.watcher = collector, watcher
        self.parts: list[SentPart] = []
        self.tried: list[Record] = []
        """What was only too large, where something smaller fits."""
        self._resources = resources
        self._watched: dict[str, Watched] = {}
        self._num_closed = 0
        self._worked_s = self._done_s = 0.0
        """What closed jobs have taken, and were expected to take."""
        self._asked_s, self._every_s = 0.0, ASK_S[0]
        self._answered_s: float | None = time.monotonic()
        self._said: set[str] = set()

    def adopt(self, parts: Sequence[SentPart]) -> None:
        """What earlier commands have sent; what has ended since is closed at once."""
        for part in parts:
            part.job_id = part.job_id or _find_lost_id(part)
            if part.job_id is None:  # the command was killed before it sent the job
                part.close(WORK_DONE, self.collector, JobState(name=""))
            else:
                self.parts.append(part)
        self._ask()
        self._step()
        while any(self._watch(part).state.has_ended for part in self.parts):
            time.sleep(POLL_S)
            self._step()
        if self.parts:
            self.watcher.say(f"following {plural(len(self.parts), 'job')} of an earlier command")

    def follow(self) -> None:
        """Until all jobs have ended."""
        while self.parts:
            if time.monotonic() - self._asked_s >= self._every_s:
                self._ask()
            self._step()
            if self.parts:
                self.watcher.follow(self.describe())
                time.sleep(POLL_S)

    def list_ids(self) -> list[str]:
        return [part.job_id for part in self.parts if part.job_id is not None]

    def describe(self) -> str:
        states = [self._watch(part).state for part in self.parts]
        waiting = [state for state in states if state.is_pending]
        running = len(states) - len(waiting)
        reasons = sorted({state.reason for state in waiting} - set(NO_REASONS))
        why = f" ({', '.join(reasons)})" if reasons else ""
        lefts = [(part, part.list_unfinished()) for part in self.parts]
        left_s = sum(sum_expected_s(part, groups) for part, groups in lefts)
        left_s *= self._find_correction(left_s)
        at_once = max(1, min(self._resources.max_jobs, running or len(states)))
        left = f"about {format_duration(max(1.0, left_s / at_once))}"
        return (
            f"jobs: {len(waiting)} queued{why}, {running} running, {self._num_closed} done; "
            f"{plural(sum(len(groups) for _, groups in lefts), 'group')} and {left} "
            f"{'left' if running else 'to go once they run'}"
        )

    def _find_correction(self, left_s: float) -> float:
        """By what factor jobs take longer than expected, so far."""
        now_s = time.monotonic()
        begun = [w.began_s for w in map(self._watch, self.parts) if w.began_s is not None]
        worked_s = self._worked_s + sum(now_s - began_s for began_s in begun)
        all_s = sum(sum_expected_s(part, part.part.groups) for part in self.parts)
        done_s = self._done_s + all_s - left_s + STARTING_S * len(begun)
        return max(1.0, worked_s / max(done_s, STARTING_S))

    def _watch(self, part: SentPart) -> Watched:
        assert part.job_id is not None
        return self._watched.setdefault(part.job_id, Watched(queued_s=time.monotonic()))

    def _ask(self) -> None:
        """For the jobs' states; where Slurm does not answer, they are what they were."""
        self._asked_s = now_s = time.monotonic()
        self._every_s = min(1.3 * self._every_s, ASK_S[1])
        try:
            states = read_states(self.list_ids())
        except NoAnswer as error:
            if self._answered_s is not None and now_s - self._answered_s > SILENCE_S:
                self._answered_s = None
                self.watcher.say(f"Slurm does not answer ({error}); jobs go on, and are followed")
            return
        if self._answered_s is None:
            self.watcher.say("Slurm answers again")
        self._answered_s = now_s
        for part in self.parts:
            watched, new = self._watch(part), states[part.job_id or ""]
            if new != watched.state:
                self._every_s = ASK_S[0]
            if not new.is_pending and watched.began_s is None:
                watched.began_s = now_s
            watched.state = new

    def _step(self) -> None:
        for part in list(self.parts):
            if part.collect(self.collector):
                self._every_s = ASK_S[0]
            has_ended, end = self._find_end(part)
            if has_ended:
                part.collect(self.collector)  # what was written until then
                part.close(end, self.collector, self._watch(part).state)
                self.tried += part.list_tries()
                self._count(part)
                self.parts.remove(part)

    def _count(self, part: SentPart) -> None:
        self._num_closed += 1
        began_s = self._watch(part).began_s
        if began_s is not None:
            self._worked_s += time.monotonic() - began_s
            self._done_s += STARTING_S + sum_expected_s(part, part.part.groups)

    def _find_end(self, part: SentPart) -> tuple[bool, End | None]:
        """Whether the part's job has ended, and what that means for what it had not measured."""
        watched, ending = self._watch(part), part.read_ending()
        if ending is not None and ending.why in (DONE, STOPPED_EARLY):
            return True, STOPPED if ending.why == STOPPED_EARLY else WORK_DONE
        if watched.state.is_pending:
            end = self._judge_waiting(part, watched)
            return end is not None, end
        if not watched.state.has_ended:
            watched.ended_s = None
            return False, None
        watched.ended_s = watched.ended_s or time.monotonic()
        if time.monotonic() - watched.ended_s < GRACE_S:
            return False, None
        return True, self._explain(part, watched.state)

    def _judge_waiting(self, part: SentPart, watched: Watched) -> End | None:
        """The end of a job that will not start, or has waited for too long."""
        reason, limit_s = watched.state.reason, self._resources.queue_limit_s
        if reason in HELD and f"{part.job_id}{reason}" not in self._said:
            self._said.add(f"{part.job_id}{reason}")
            self.watcher.say(
                f"{part.name} is held ({reason}): scontrol release {part.job_id} lets it run"
            )
        if reason == OWN_LIMIT:  # it waits for others of ours
            watched.queued_s = time.monotonic()
        why = HOPELESS.get(reason)
        if why is not None:
            sentence = f"cannot start: {why} (Slurm: {reason})"
        elif limit_s is not None and reason and time.monotonic() - watched.queued_s > limit_s:
            waited = format_duration(limit_s)
            sentence = f"had not started after {waited}, --queue-limit (Slurm: {reason})"
        else:
            return None
        try:
            cancel([part.job_id or ""])
        except NoAnswer:
            return None
        return End(status="skipped", cause="never-started", sentence=sentence)

    def _explain(self, part: SentPart, state: JobState) -> End:
        end, ending = ENDS.get(state.name, VANISHED), part.read_ending()
        if ending is not None and ending.why == INTERRUPTED and state.name == "COMPLETED":
            return STOPPED  # the time limit came near while it was starting
        if not part.list_attempts():
            if end.cause == "cancelled":
                sentence = f"{end.sentence} before it started"
                return replace(end, cause="never-started", sentence=sentence)
            if state.name == "FAILED" and not part.has_log():
                self._refuse_folder(part, state)
        if ending is not None and ending.error is not None:
            return replace(end, sentence=f"has failed: {ending.error}")
        log = _read_log(part) if state.name == "FAILED" else ""
        if any(words in log for words in OUT_OF_MEMORY):
            return ENDS["OUT_OF_MEMORY"]
        return replace(end, sentence=_quote(log, part, end)) if log else end

    def _refuse_folder(self, part: SentPart, state: JobState) -> None:
        cancel(self.list_ids())
        shutil.rmtree(part.folder, ignore_errors=True)
        raise UsageError(
            f"{part.name} on {state.nodes} did not find {part.folder.parent}: write the results "
            "with --out to a file system that all nodes share; its jobs are cancelled, and nothing "
            "was measured"
        )


NO_REASONS = ("", "None", OWN_LIMIT := "JobArrayTaskLimit")


def expect_s(group: Group, settings: Settings) -> float:
    """FLOPs are left out: how fast the nodes are is not known here."""
    return estimate_group(group, settings, UNKNOWN_SPEED).total_s


def sum_expected_s(part: SentPart, groups: Sequence[Group]) -> float:
    return sum(expect_s(group, part.sweep.settings) for group in groups)


def _find_lost_id(part: SentPart) -> str | None:
    """Of a job whose command was killed while it sent it."""
    if (job_id := part.read_begin().get("job_id")) is not None:
        return str(job_id)
    try:
        found = find_named(part.sweep.name_array(part.part.shape))
    except NoAnswer:
        found = []
    if not found:
        return None
    numbers = part.sweep.list_numbers(part.part.shape)
    return found[0] if len(numbers) == 1 else f"{found[0]}_{numbers.index(part.number)}"


def _read_log(part: SentPart) -> str:
    try:
        return find_log(part.folder, part.job_id or "").read_text(errors="replace")
    except OSError:
        return ""


def _quote(log: str, part: SentPart, end: End) -> str:
    """With the last line that the job itself has printed; its log is kept."""
    kept = part.folder.parent.with_name(f"{part.folder.parent.name}.{part.job_id}.log")
    with suppress(OSError):
        kept.write_text(log)
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith(("srun:", "slurmstepd"))] or lines
    return f"{end.sentence} ({own[-1][:200]}); see {kept}" if own else end.sentence
