"""What Slurm is asked and told: partitions, jobs sent through submitit, their states, their end.

States are those of squeue, which knows a job until some minutes after its end (MinJobAge, 5 by
default); after that sacct is asked, where the cluster keeps accounts. Every question has a limit:
a controller that is being restarted answers later, and jobs go on meanwhile.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flopwatch.errors import FlopwatchError, UsageError
from flopwatch.lazy import require
from flopwatch.records.record import Cause, Status

ANSWER_S = 10.0
"""For a program of Slurm's."""
PROGRAMS = ("sbatch", "squeue", "sinfo", "scancel")
WARNING_S = 60
"""Before its time limit a job is told to begin nothing more, or a fifth of a short limit before;
Slurm may do so up to a minute earlier."""
OWN_ARGUMENTS = ("array", "output", "error", "job-name", "signal", "open-mode", "time", "nodes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """What the user asks of Slurm; None leaves the choice to the cluster."""

    nodes: int = 1
    ranks_per_node: int = 1
    """Of the largest job."""
    partition: str | None = None
    account: str | None = None
    time_s: float | None = None
    qos: str | None = None
    constraint: str | None = None
    arguments: Sequence[str] = ()
    """Of sbatch, as ``name=value`` or ``name``."""
    max_jobs: int = 8
    groups_per_job: int | None = None
    queue_limit_s: float | None = None

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    def parse_arguments(self) -> dict[str, str | bool]:
        parsed: dict[str, str | bool] = {}
        for text in self.arguments:
            name, equals, value = text.removeprefix("--").partition("=")
            if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
                raise UsageError(
                    f"--slurm-arg {text[:60]!r} is not of the form name=value, as in "
                    "--slurm-arg gres=gpu:8"
                )
            if name in OWN_ARGUMENTS:
                raise UsageError(f"--slurm-arg {name} is what flopwatch sets itself; leave it out")
            parsed[name] = value if equals else True
        return parsed


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """How many processes a job has, and where."""

    nodes: int = 1
    tasks_per_node: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class JobState:
    name: str
    """As squeue has it: PENDING, RUNNING, TIMEOUT; empty where Slurm does not know the job."""
    reason: str = ""
    """Why it waits."""
    nodes: str = ""

    @property
    def is_pending(self) -> bool:
        return self.name in ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")

    @property
    def has_ended(self) -> bool:
        return not self.name or self.name in ENDS or self.name == "COMPLETED"


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """What the end of a job means for the cases that it had not stored."""

    status: Status
    """Of those that it was measuring; what it had not begun is skipped."""
    cause: Cause
    sentence: str


LIMIT_ADVICE = "raise --time, or lower --groups-per-job"
ENDS = {
    "TIMEOUT": End(
        status="timeout", cause="time-limit", sentence=f"reached its time limit; {LIMIT_ADVICE}"
    ),
    "DEADLINE": End(status="timeout", cause="time-limit", sentence="reached its deadline"),
    "OUT_OF_MEMORY": End(
        status="oom",
        cause="job-ended",
        sentence="was killed by Slurm since it took more memory than it had asked for; ask for "
        "more, as in --slurm-arg mem=64G",
    ),
    "NODE_FAIL": End(status="crash", cause="job-ended", sentence="has lost its node"),
    "BOOT_FAIL": End(status="crash", cause="job-ended", sentence="has lost its node at its start"),
    "PREEMPTED": End(status="skipped", cause="preempted", sentence="was preempted by another job"),
    "CANCELLED": End(status="skipped", cause="cancelled", sentence="was cancelled"),
    "FAILED": End(status="crash", cause="job-ended", sentence="has failed"),
    "REVOKED": End(status="skipped", cause="cancelled", sentence="was revoked"),
}
"""By Slurm's state of a job that has ended before its work was done."""
STOPPED = End(
    status="skipped",
    cause="time-limit",
    sentence=f"had no time left to begin it; {LIMIT_ADVICE}",
)
VANISHED = End(
    status="crash",
    cause="job-ended",
    sentence="has ended without a word, and Slurm no longer says why",
)

HOPELESS = {
    "BadConstraints": "no node is what --constraint asks for",
    "PartitionNodeLimit": "the partition allows or has fewer nodes; lower --nodes",
    "PartitionTimeLimit": "the partition allows less time; lower --time",
    "InvalidAccount": "the account is not valid; choose another --account",
    "InvalidQOS": "the QOS is not valid; choose another --qos",
    "DependencyNeverSatisfied": "what it depends on has failed",
    "AssocMaxNodePerJobLimit": "your account allows fewer nodes; lower --nodes",
    "AssocMaxWallDurationPerJobLimit": "your account allows less time; lower --time",
    "QOSMaxNodePerJobLimit": "the QOS allows fewer nodes; lower --nodes",
    "QOSMaxWallDurationPerJobLimit": "the QOS allows less time; lower --time",
}
"""Reasons for which a job waits for ever, unless somebody changes it or the cluster."""
HELD = ("JobHeldUser", "JobHeldAdmin", "launch failed requeued held")


class NoAnswer(FlopwatchError):
    """Slurm could not be asked; the text says why."""


def ask(*command: str) -> str:
    """What a program of Slurm's prints."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=ANSWER_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"{command[0]} has not answered for {ANSWER_S:g} s") from None
    except OSError as error:
        raise NoAnswer(f"{command[0]} cannot be started ({error.strerror})") from None
    if done.returncode:
        raise NoAnswer(find_complaint(done.stderr) or f"{command[0]} failed")
    return done.stdout


def find_complaint(text: str) -> str:
    """
    >>> find_complaint("sbatch: error: Batch job submission failed: Invalid qos specification\\n")
    'Invalid qos specification'
    """
    lines = [line.strip() for line in text.splitlines() if "error" in line]
    return lines[-1].rpartition("error: ")[2].rpartition("failed: ")[2] if lines else ""


def require_slurm(resources: Resources) -> None:
    """Refuse in seconds what cannot work: no Slurm here, none that answers, no such partition."""
    require("submitit")
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        raise UsageError(
            f"--launcher slurm needs {missing[0]}, and there is none on this machine; run it on a "
            "login node of the cluster, or leave --launcher out"
        )
    try:
        listed = ask("sinfo", "--noheader", "--format=%R|%l").splitlines()
    except NoAnswer as error:
        raise UsageError(
            f"Slurm does not answer here: {error}; try sinfo, and run again when that works"
        ) from None
    limits = dict(line.split("|", 1) for line in listed if "|" in line)
    if resources.partition is not None:
        unknown = [name for name in resources.partition.split(",") if name not in limits]
        if unknown:
            raise UsageError(
                f"there is no partition {unknown[0]!r}; there are {', '.join(limits) or 'none'}"
            )


def submit(
    function: Any,
    numbers: Sequence[int],
    *,
    folder: Path,
    name: str,
    shape: Shape,
    max_jobs: int,
    parameters: dict[str, Any],
) -> list[str]:
    """Have ``function(folder, number)`` called in a job for each of the numbers, which are one
    array: the jobs' ids. `parameters` are arguments of sbatch, "time" in minutes."""
    from submitit import SlurmExecutor
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    warning_s = min(WARNING_S, 12 * parameters["time"])
    executor = SlurmExecutor(folder=folder / LOGS)
    executor.update_parameters(
        job_name=name,
        nodes=shape.nodes,
        ntasks_per_node=shape.tasks_per_node,
        array_parallelism=max_jobs,
        wckey=None,
        stderr_to_stdout=True,
        # What Slurm sends reaches all processes of a step: this signal, unlike the one that
        # submitit sends, does nothing to those that do not ask for it.
        additional_parameters={"signal": f"URG@{warning_s}", **parameters},
        # Since Slurm 22.05 srun no longer takes that over from sbatch.
        srun_args=[
            f"--{name}={parameters[name]}" for name in ["cpus-per-task"] if name in parameters
        ],
    )
    try:
        with redirect_stderr(io.StringIO()):  # submitit repeats what sbatch complains of
            jobs = executor.map_array(function, [str(folder)] * len(numbers), numbers)
    except (FailedJobError, FailedSubmissionError, OSError) as error:
        why = find_complaint(str(error)) or str(error).strip().splitlines()[-1]
        raise UsageError(f"Slurm refuses the job: {why}") from None
    return [job.job_id for job in jobs]


LOGS = "log"


def find_log(folder: Path, job_id: str) -> Path:
    return folder / LOGS / f"{job_id}_0_log.out"


def find_named(name: str) -> list[str]:
    """Ids of the jobs of that name, arrays as one."""
    found = ask("squeue", "--noheader", "--states=all", f"--name={name}", "--format=%F")
    return sorted(set(found.split()), key=int)


def read_states(job_ids: Iterable[str]) -> dict[str, JobState]:
    """By id; jobs that Slurm does not know have no name of a state."""
    wanted = list(job_ids)
    states: dict[str, JobState] = {}
    arrays = sorted({job_id.partition("_")[0] for job_id in wanted})
    for line in _ask_squeue(arrays).splitlines():
        job_id, state, reason, nodes = (line.split("|") + [""] * 4)[:4]
        states[job_id] = JobState(name=state, reason=reason, nodes=nodes)
    forgotten = [job_id for job_id in wanted if job_id not in states]
    if forgotten:
        states |= _read_accounts(forgotten)
    return {job_id: states.get(job_id, JobState(name="")) for job_id in wanted}


def _ask_squeue(arrays: Sequence[str]) -> str:
    if not arrays:
        return ""
    try:
        return ask(
            "squeue", "--noheader", "--array", "--states=all", f"--jobs={','.join(arrays)}",
            "--format=%i|%T|%r|%N",
        )  # fmt: skip
    except NoAnswer as error:
        if "Invalid job id" in str(error):  # all of them have been forgotten
            return ""
        raise


def _read_accounts(job_ids: Sequence[str]) -> dict[str, JobState]:
    states: dict[str, JobState] = {}
    with suppress(NoAnswer):  # many clusters keep no accounts
        listed = ask(
            "sacct", "-n", "-P", "-X", "-j", ",".join(job_ids), "-o", "JobID,State,NodeList"
        )
        for line in listed.splitlines():
            job_id, state, nodes = (line.split("|") + [""] * 3)[:3]
            states[job_id] = JobState(name=state.partition(" ")[0], nodes=nodes)
    return states


def cancel(job_ids: Iterable[str]) -> None:
    """Those that have ended are not minded."""
    wanted = list(job_ids)
    if wanted:
        ask("scancel", "--quiet", *wanted)
