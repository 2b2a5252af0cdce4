"""Tasks of srun are ranks; what sbatch runs itself is none. `tests/slurm` tries it on a Slurm."""

from __future__ import annotations

import pytest

from flopwatch import env
from flopwatch.devices.slurm_facts import describe_as_one_machine, read_slurm
from flopwatch.errors import UsageError
from flopwatch.runner.torchrun_launcher import find_place

STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_STEP_NODELIST": "localhost,n[08-09]",
    "SLURMD_NODENAME": "n08",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
}


def test_a_task_of_a_step_is_a_rank() -> None:
    place = find_place(STEP)
    assert place is not None
    assert (place.rank, place.ranks, place.local_rank, place.local_ranks) == (3, 5, 1, 2)
    assert place.node_ranks == 5  # nodes differ
    assert place.address == "localhost"
    alike = find_place({**STEP, "SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_TASKS_PER_NODE": "2(x3)"})
    assert alike is not None
    assert alike.node_ranks == 2


def test_jobs_have_ports_of_their_own() -> None:
    ports = {find_place({**STEP, "SLURM_JOB_ID": str(job)}).port for job in range(50)}  # type: ignore[union-attr]
    assert len(ports) == 50
    asked = find_place({**STEP, env.PORT: "5000", "MASTER_ADDR": "here"})
    assert asked is not None
    assert (asked.port, asked.address) == (5000, "here")


def test_a_script_of_sbatch_is_no_rank_and_torchrun_goes_first() -> None:
    batch = {name: value for name, value in STEP.items() if "STEP" not in name}
    assert find_place(batch) is None
    assert find_place({**STEP, "SLURM_STEP_NUM_TASKS": "1"}) is None
    torchrun = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    place = find_place({**STEP, **torchrun, "MASTER_PORT": "29500"})
    assert place is not None
    assert (place.rank, place.ranks, place.port) == (0, 2, 29501)
    assert find_place({**STEP, **torchrun, "WORLD_SIZE": "1"}) is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"SLURM_PROCID": "1", "SLURM_LOCALID": "0"}, "--distribution=block"),
        ({"SLURMD_NODENAME": "elsewhere"}, "do not say on which node"),
        ({"SLURM_PROCID": "x"}, "SLURM_PROCID is 'x'"),
        ({env.PORT: "99999"}, "FLOPWATCH_PORT is '99999'"),
    ],
)
def test_what_cannot_be_understood_is_refused(changes: dict[str, str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        find_place({**STEP, **changes})


def test_nodes_of_a_partition_are_one_machine() -> None:
    job = {
        "SLURM_JOB_ID": "13",
        "SLURM_ARRAY_JOB_ID": "12",
        "SLURM_ARRAY_TASK_ID": "1",
        "SLURM_CLUSTER_NAME": "c",
        "SLURM_JOB_PARTITION": "gpu",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_RESTART_COUNT": "2",
    }
    found = [read_slurm({**job, "SLURMD_NODENAME": node}) for node in ("n1", "n2")]
    assert found[0] == {
        "job_id": "12_1",
        "cluster": "c",
        "partition": "gpu",
        "node": "n1",
        "nodes": ["n1", "n2"],
        "restarts": 2,
    }
    machines = [
        describe_as_one_machine(
            {"machine_id": str(n), "affinity": f"{n}-{n + 3}", "usable_cores": 4}, slurm or {}
        )
        for n, slurm in enumerate(found)
    ]
    assert machines[0] == machines[1]
    assert read_slurm({}) is None
