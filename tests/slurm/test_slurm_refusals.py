"""What cannot work is refused in a sentence, on a real Slurm."""

from __future__ import annotations

import pytest

from tests.slurm.conftest import Sweeps


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--partition", "nope"), "there is no partition 'nope'; there are main, small"),
        (("--constraint", "gpu"), "Slurm refuses the job: Invalid feature specification"),
        (("--nodes", "2"), "gates measures in one process"),
        (("--slurm-arg", "array=3"), "--slurm-arg array is what flopwatch sets itself"),
    ],
    ids=["partition", "constraint", "nodes", "argument"],
)
def test_impossible_requests(sweeps: Sweeps, words: tuple[str, ...], why: str) -> None:
    code, printed = sweeps.run("gates.py", *words)
    assert code == 2
    assert why in printed
    assert len(printed.splitlines()) == 1
    assert not list(sweeps.folder.glob("*.jobs/*"))


def test_a_folder_that_nodes_do_not_share(sweeps: Sweeps) -> None:
    slurm = sweeps.slurm
    slurm.kill_node("n1")
    hide = f'mount -t tmpfs none {sweeps.folder} && exec "$@"'
    slurm.start_node("n1", "unshare", "--mount", "sh", "-c", hide, "sh")
    try:
        code, printed = sweeps.run("gates.py", "--filter", "gate=a", "--partition", "small")
    finally:
        slurm.kill_node("n1")
        slurm.start_node("n1")
    assert code == 2, printed
    assert "to a file system that all nodes share" in printed
    assert not list(sweeps.folder.glob("*.jobs/*"))


def test_no_controller(sweeps: Sweeps) -> None:
    sweeps.slurm.stop_controller()
    try:
        code, printed = sweeps.run("gates.py")
    finally:
        sweeps.slurm.start_controller()
    assert code == 2
    assert "Slurm does not answer here" in printed
