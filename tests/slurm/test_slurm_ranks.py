"""Jobs of several ranks on two nodes: through the launcher, and by srun and torchrun by hand."""

from __future__ import annotations

import sys
from pathlib import Path

from flopwatch.runner.rank_processes import find_free_port
from tests.slurm.conftest import Sweeps

TRAINING = (
    "training", "--model", "gpt2:hidden_size=64:layers=1:heads=2", "--seq-len", "16",
    "--micro-batch", "1", "--sharding", "none",
)  # fmt: skip


def check_two_nodes(sweeps: Sweeps, ranks: list[int], printed: str) -> None:
    records = sweeps.read()
    assert [(r.status, r.params["ranks"], len(r.ranks)) for r in records] == [
        ("ok", number, number) for number in ranks
    ], printed
    slurm = records[-1].environment["slurm"]
    assert slurm["nodes"] == ["n1", "n2"]
    assert slurm["cluster"] == "virtual"


def test_launched_on_as_many_nodes_as_each_case_needs(sweeps: Sweeps) -> None:
    """And what two jobs have measured on different nodes can be compared."""
    code, printed = sweeps.run(*TRAINING, "--ranks", "1,4", "--nodes", "2", "--ranks-per-node", "2")
    assert code == 0, printed
    records = sorted(sweeps.read(), key=lambda record: record.params["ranks"])
    assert [len(record.environment["slurm"]["nodes"]) for record in records] == [1, 2]
    assert [len(record.ranks) for record in records] == [1, 4]
    assert len({record.environment["machine"]["machine_id"] for record in records}) == 1
    assert all(record.environment["slurm"]["matmul_flops_per_s"] > 1e6 for record in records)
    assert "sent as 2 jobs of up to 2 nodes" in printed


def test_srun_by_hand(sweeps: Sweeps) -> None:
    srun = ("srun", "--nodes=2", "--ntasks-per-node=2")
    code, printed = sweeps.finish(sweeps.start(*TRAINING, starter=srun))
    assert code == 0, printed
    check_two_nodes(sweeps, [4], printed)
    command = sweeps.read()[0].environment["command"]
    assert command[:3] == ["srun", "--nodes=2", "--ntasks-per-node=2"]


def test_torchrun_by_hand(sweeps: Sweeps) -> None:
    program = str(Path(sys.executable).with_name("torchrun"))
    torchrun = (
        "srun", "--nodes=2", "--ntasks-per-node=1", program, "--nnodes=2", "--nproc-per-node=2",
        "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{find_free_port()}", "--no-python",
    )  # fmt: skip
    code, printed = sweeps.finish(sweeps.start(*TRAINING, starter=torchrun))
    assert code == 0, printed
    check_two_nodes(sweeps, [4], printed)
