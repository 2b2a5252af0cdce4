"""A real Slurm with two virtual nodes, and commands that send jobs to it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from flopwatch.records.record import Record
from flopwatch.records.store import read

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from trials.virtual_slurm import VirtualSlurm, find_missing

PATIENCE_S = 240.0
"""Longer than anything takes on a machine that is busy with other tests."""

GATES = '''"""Each case waits until the test opens its gate."""
import os
import time
from pathlib import Path

import flopwatch

suite = flopwatch.Suite(
    "gates",
    axes={"gate": ["limit", "limit_2", "cancel", "cancel_2", "requeue", "requeue_2", "a", "b"]},
    variants=["wait"],
    baseline="wait",
)
hoard = []


@suite.build
def build(case):
    folder = Path(os.environ["GATES"])

    def step():
        (folder / f"{case.gate}.reached").touch()
        while not (folder / case.gate).exists():
            time.sleep(0.02)
        if (folder / f"{case.gate}.hoard").exists():
            hoard.append(b"x" * 1500 * 2**20)
        time.sleep(0.001)

    return step
'''


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VirtualSlurm]:
    missing = find_missing()
    if missing is not None:
        pytest.skip(missing)
    with VirtualSlurm(tmp_path_factory.mktemp("slurm")) as started:
        yield started


class Sweeps:
    """Commands in a folder of their own."""

    def __init__(self, slurm: VirtualSlurm, folder: Path) -> None:
        self.slurm, self.folder, self.gates = slurm, folder, folder / "gates"
        self.gates.mkdir()
        (folder / "gates.py").write_text(GATES)
        self.out = folder / "out.jsonl"
        self._started: list[subprocess.Popen[str]] = []

    def start(self, suite: str, *words: str, starter: Sequence[str] = ()) -> subprocess.Popen[str]:
        command = [*starter, *self.write_command(suite, *words)]
        command += [] if starter else ["--launcher", "slurm"]
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._started.append(process)
        return process

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, **self.slurm.variables, "GATES": str(self.gates)}

    def write_command(self, suite: str, *words: str) -> list[str]:
        return [sys.executable, "-m", "flopwatch", "run", suite, *words, "--device", "cpu",
                "--threads", "1", "--case-budget", "1s", "--out", str(self.out)]  # fmt: skip

    def finish(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        printed, _ = process.communicate(timeout=PATIENCE_S)
        return process.returncode, printed

    def run(self, suite: str, *words: str) -> tuple[int, str]:
        return self.finish(self.start(suite, *words))

    def open(self, *names: str) -> None:
        for name in names:
            (self.gates / name).touch()

    def wait_for(self, *names: str) -> None:
        """Until jobs have come to these gates."""
        self.wait_until(lambda: all((self.gates / f"{name}.reached").exists() for name in names))

    def wait_until(self, is_true: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not is_true():
            assert time.monotonic() < deadline_s, self.describe()
            time.sleep(0.05)

    def describe(self) -> str:
        logs = [path.read_text() for path in self.folder.glob("*.jobs/*/log/*.out")]
        return "\n".join([self.slurm.ask("squeue", "--states=all"), *logs])

    def find_job(self, gate: str) -> str:
        """The id of the job that is at this gate."""
        for path in self.folder.glob("*.jobs/*/*.begin"):
            begun = read_json(path)
            now = path.with_suffix(".now")
            if now.exists() and self._name_groups(path.parent).get(now.read_text()) == gate:
                return str(begun["job_id"])
        raise AssertionError(self.describe())

    def _name_groups(self, folder: Path) -> dict[str, str]:
        from flopwatch.runner.slurm_sweep import read_sweep

        return {g.id: g.params["gate"] for part in read_sweep(folder).parts for g in part.groups}

    def read(self) -> list[Record]:
        return read(self.out).records

    def read_statuses(self) -> dict[str, list[str]]:
        """By gate, in the order in which they were stored."""
        found: dict[str, list[str]] = {}
        for record in self.read():
            cause = f"/{record.cause}" if record.cause else ""
            found.setdefault(record.params["gate"], []).append(record.status + cause)
        return found

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()
        self.slurm.ask("scancel", "--user=root")


def read_json(path: Path) -> dict[str, object]:
    import json

    found: dict[str, object] = json.loads(path.read_bytes())
    return found


@pytest.fixture
def sweeps(slurm: VirtualSlurm, tmp_path: Path) -> Iterator[Sweeps]:
    sweeps = Sweeps(slurm, tmp_path)
    yield sweeps
    sweeps.close()
