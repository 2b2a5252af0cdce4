"""A real Slurm with virtual nodes on this machine: its daemons, in a folder of their own.

It has its own ports, and its own munge with a key of its own, so that a Slurm that is here already
is neither used nor disturbed. Debian's packages are slurm-wlm and munge; it needs to be root.

    with VirtualSlurm(folder, nodes=2) as slurm:
        subprocess.run(["srun", "--nodes", "2", "hostname"], env={**os.environ, **slurm.variables})

A node's memory is watched by Slurm itself (OverMemoryKill), since control groups may not be
available here; processes are found by their parents (proctrack/linuxproc).
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
SBIN = ":/usr/sbin:/sbin"
PATIENCE_S = 60.0

CONFIGURATION = """\
ClusterName=virtual
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerNode=12000
SlurmdParameters=config_overrides
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
KillWait=5
SlurmdTimeout=8
MessageTimeout=10
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] \
CPUs={cpus} RealMemory=100000 State=UNKNOWN
PartitionName=main Nodes=n[1-{nodes}] Default=YES MaxTime=600 State=UP
PartitionName=small Nodes=n1 MaxTime=600 State=UP
"""


def find_missing() -> str | None:
    """Why there can be none here, as a sentence."""
    path = os.environ.get("PATH", "") + SBIN
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if missing:
        return f"no {missing[0]}; apt-get install slurm-wlm munge, as root"
    return None if os.geteuid() == 0 else "a virtual Slurm needs root"


class VirtualSlurm:
    def __init__(self, folder: Path, nodes: int = 2, cpus: int = 4) -> None:
        self.folder = folder
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self._cpus = cpus
        self.variables = {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": os.environ.get("PATH", "") + SBIN,
        }

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "state").mkdir()
        first, *others = find_free_ports(len(self.nodes) + 1)
        (self.folder / "slurm.conf").write_text(
            CONFIGURATION.format(
                host=socket.gethostname().partition(".")[0],
                folder=self.folder,
                port=first,
                nodes=len(self.nodes),
                first=others[0],
                last=others[-1],
                cpus=self._cpus,
            )
        )
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        try:
            self._run(
                "munged", "--force", f"--key-file={key}", f"--socket={self.folder}/munge.socket",
                f"--pid-file={self.folder}/munged.pid", f"--log-file={self.folder}/munged.log",
                f"--seed-file={self.folder}/munge.seed",
            )  # fmt: skip
            self.start_controller()
            for node in self.nodes:
                self.start_node(node)
            self.wait_until(self._are_idle)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(Exception):
            self.ask("scancel", "--user=root", "--signal=KILL", "--full")
            self.ask("scancel", "--user=root")
        for node in self.nodes:
            self.kill_node(node)
        for name in ("slurmctld", "munged"):
            self._kill(name, signal.SIGTERM)

    def ask(self, *command: str) -> str:
        """What a program of Slurm's prints."""
        return self._run(*command).stdout

    def start_controller(self) -> None:
        self._run("slurmctld")

    def stop_controller(self) -> None:
        self._kill("slurmctld", signal.SIGTERM)

    def start_node(self, node: str, *before: str) -> None:
        """`before`: a command that starts it, such as unshare."""
        self._run(*before, "slurmd", "-N", node)

    def kill_node(self, node: str) -> None:
        """As if its power were cut: the daemon, its steps and their processes."""
        steps = list(self._list_steps(node))
        self._kill(node, signal.SIGKILL)
        for pid in steps:
            for child in (*list_descendants(pid), pid):
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)

    def kill_daemon(self, node: str) -> None:
        """Only that: jobs run on."""
        self._kill(node, signal.SIGKILL)

    def wait_until(self, is_true: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        deadline_s = time.monotonic() + patience_s
        while not is_true():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{is_true} is not so after {patience_s:g} s")
            time.sleep(0.1)

    def _are_idle(self) -> bool:
        try:
            states = self.ask("sinfo", "--noheader", "--Node", "--partition=main", "--format=%T")
        except RuntimeError:  # the controller is still starting
            return False
        return states.split() == ["idle"] * len(self.nodes)

    def _list_steps(self, node: str) -> Iterator[int]:
        """Of slurmstepd, which outlives the daemon; its name has none of the node's: the
        environment has."""
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (folder / "comm").read_text().strip().startswith("slurmstepd"):
                    opened = [os.readlink(link) for link in (folder / "fd").iterdir()]
                    if str(self.folder / f"{node}.log") in opened:
                        yield int(folder.name)

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command, env={**os.environ, **self.variables}, capture_output=True, text=True,
            check=False, timeout=PATIENCE_S,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done

    def _kill(self, name: str, number: signal.Signals) -> None:
        try:
            pid = int((self.folder / f"{name}.pid").read_text())
            os.kill(pid, number)
        except (OSError, ValueError):
            return
        deadline_s = time.monotonic() + PATIENCE_S
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline_s:
            time.sleep(0.02)
        with suppress(OSError):
            (self.folder / f"{name}.pid").unlink()


def list_descendants(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *list_descendants(child)]
    return found


def find_free_ports(number: int) -> list[int]:
    """That follow each other. Processes that look at the same time look at different ones."""
    begin = 17100 + os.getpid() % 1000 * number
    for first in range(begin, 30000, 1000 * number):
        with suppress(OSError):
            for port in range(first, first + number):
                socket.create_server(("", port)).close()
            return list(range(first, first + number))
    raise RuntimeError("no ports are free")
