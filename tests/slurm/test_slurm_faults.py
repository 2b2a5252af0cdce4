"""Whatever ends a job, on a real Slurm: no record is lost, and every end is a row."""

from __future__ import annotations

import subprocess

import pytest

from tests.slurm.conftest import Sweeps


def test_limit_cancelled_requeued_and_controller_restarted(sweeps: Sweeps) -> None:
    """Four jobs of two groups: one reaches its time limit, one is cancelled, one requeued, and the
    controller is restarted meanwhile. Then the same command measures what is missing."""
    slurm = sweeps.slurm
    run = sweeps.start("gates.py", "--groups-per-job", "2")
    firsts = ("limit", "cancel", "requeue", "a")
    sweeps.wait_for(*firsts)
    limit, cancel, requeue = (sweeps.find_job(gate) for gate in firsts[:3])
    slurm.ask("scontrol", "update", f"jobid={limit}", "EndTime=now")
    slurm.ask("scancel", cancel)
    (sweeps.gates / "requeue.reached").unlink()
    slurm.ask("scontrol", "requeue", requeue)
    slurm.stop_controller()
    slurm.start_controller()
    slurm.wait_until(lambda: requeue in slurm.ask("squeue", "--noheader", "--array", "--format=%i"))
    sweeps.wait_until(lambda: "PENDING" in slurm.ask("squeue", "-h", "-j", requeue, "-o", "%T"))
    slurm.ask("scontrol", "update", f"jobid={requeue}", "StartTime=now")  # else in two minutes
    sweeps.wait_for("requeue")
    sweeps.open("requeue", "requeue_2", "a", "b")
    code, printed = sweeps.finish(run)
    assert code == 1, printed
    assert sweeps.read_statuses() == {
        "limit": ["timeout"],
        "limit_2": ["skipped/time-limit"],
        "cancel": ["skipped/cancelled"],
        "cancel_2": ["skipped/cancelled"],
        "requeue": ["skipped/preempted", "ok"],
        "requeue_2": ["ok"],
        "a": ["ok"],
        "b": ["ok"],
    }, printed
    messages = {record.params["gate"]: record.message or "" for record in sweeps.read()}
    assert f"job {limit} on n" in messages["limit"]
    assert "raise --time" in messages["limit"]
    assert not list(sweeps.folder.glob("*.jobs"))

    sweeps.open("limit", "limit_2", "cancel", "cancel_2")
    code, printed = sweeps.run("gates.py", "--groups-per-job", "2")
    assert code == 0, printed
    assert "4 cases are in" in printed
    assert all(statuses[-1] == "ok" for statuses in sweeps.read_statuses().values())
    restarts = [r.environment["slurm"].get("restarts", 0) for r in sweeps.read()]
    assert restarts.count(1) == 2


def test_a_killed_command_is_taken_up_again(sweeps: Sweeps) -> None:
    asked = ("gates.py", "--filter", "gate=a,b", "--groups-per-job", "1")
    first = sweeps.start(*asked)
    sweeps.wait_for("a", "b")
    first.kill()
    sweeps.open("a")
    sweeps.wait_until(lambda: bool(list(sweeps.folder.glob("*.jobs/*/*.end"))))
    second = sweeps.start(*asked)
    sweeps.wait_until(lambda: sweeps.out.exists() and len(sweeps.read()) == 1)
    refused, why = sweeps.run(*asked)
    assert refused == 2
    assert "another flopwatch follows" in why
    sweeps.open("b")
    code, printed = sweeps.finish(second)
    assert code == 0, printed
    assert "following 1 job of an earlier command" in printed
    assert sweeps.read_statuses() == {"a": ["ok"], "b": ["ok"]}


def test_a_lost_node(sweeps: Sweeps) -> None:
    slurm = sweeps.slurm
    run = sweeps.start("gates.py", "--filter", "gate=a,b", "--groups-per-job", "1",
                       "--slurm-arg", "no-requeue", "--slurm-arg", "cpus-per-task=4")  # fmt: skip
    sweeps.wait_for("a", "b")
    node = slurm.ask("squeue", "-h", "-j", sweeps.find_job("a"), "-o", "%N").strip()
    slurm.kill_node(node)
    sweeps.open("b")
    try:
        code, printed = sweeps.finish(run)
    finally:
        slurm.start_node(node)
    assert code == 1, printed
    assert sweeps.read_statuses() == {"a": ["crash"], "b": ["ok"]}, printed
    assert f"on {node} has lost its node" in str([record.message for record in sweeps.read()])


def test_out_of_memory(sweeps: Sweeps) -> None:
    """Here Slurm itself watches a job's memory; with control groups its state says so, too."""
    (sweeps.gates / "a.hoard").touch()
    sweeps.open("a", "b")
    code, printed = sweeps.run("gates.py", "--filter", "gate=a,b", "--groups-per-job", "2",
                               "--slurm-arg", "mem=1500M")  # fmt: skip
    assert code == 1, printed
    assert sweeps.read_statuses() == {"a": ["oom"], "b": ["skipped/job-ended"]}, printed
    assert "--slurm-arg mem=" in (sweeps.read()[0].message or "")


def test_a_full_disk(sweeps: Sweeps) -> None:
    disk = sweeps.folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], check=True)
    try:
        sweeps.out = disk / "out.jsonl"
        asked = ("gates.py", "--filter", "gate=a,b", "--groups-per-job", "2")
        run = sweeps.start(*asked)
        sweeps.open("a")
        sweeps.wait_for("b")
        sweeps.wait_until(lambda: len(sweeps.read()) == 1)
        fill(disk / "filler")
        sweeps.open("b")
        code, printed = sweeps.finish(run)
        assert code == 2, printed
        assert "No space left" in printed or "disk is full" in printed
        (disk / "filler").unlink()
        code, printed = sweeps.run(*asked)
        assert code == 0, printed
        statuses = sweeps.read_statuses()
        assert statuses["a"] == ["ok"]
        assert statuses["b"][-1] == "ok"
        assert statuses["b"][0] != "ok"
    finally:
        sweeps.close()
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(path: object) -> None:
    with open(str(path), "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 512)
        except OSError:
            return


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--slurm-arg", "hold", "--queue-limit", "1s"), "had not started after 1s"),
        (("--time", "20h"), "the partition allows less time; lower --time"),
    ],
    ids=["held", "impossible"],
)
def test_a_job_that_never_starts(sweeps: Sweeps, words: tuple[str, ...], why: str) -> None:
    code, printed = sweeps.run("gates.py", "--filter", "gate=a", *words)
    assert code == 1, printed
    assert sweeps.read_statuses() == {"a": ["skipped/never-started"]}, printed
    assert why in (sweeps.read()[0].message or "")
