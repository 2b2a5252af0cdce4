"""`flopwatch.jobs` is a library of its own: it needs neither torch nor the rest of the package."""

from __future__ import annotations

import subprocess
import sys

import flopwatch.jobs

ALONE = """
import builtins, pathlib, sys
import flopwatch
from importlib import import_module

allowed = ("flopwatch.jobs", "flopwatch.errors")
folder = pathlib.Path(flopwatch.__file__).parent / "jobs"
names = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
known = sys.stdlib_module_names
real = builtins.__import__

def guarded(name, globals=None, locals=None, fromlist=(), level=0):
    asks = (globals or {}).get("__name__", "").startswith("flopwatch.")
    if asks and not name.startswith(allowed) and name.partition(".")[0] not in known:
        raise ImportError(f"{name} is not for jobs")
    return real(name, globals, locals, fromlist, level)

builtins.__import__ = guarded
for name in names:
    import_module(f"flopwatch.jobs.{name}")

from flopwatch.jobs.training_job import TrainingJob
from flopwatch.jobs.flops import count_micro_batch_flops, scale_to_step
from flopwatch.jobs.rank_memory import estimate_rank_memory

job = TrainingJob("7b", 2048, micro_batch=4)
print(len(names), job.parameters, sum(scale_to_step(job, count_micro_batch_flops(job))["forward"]
      .values()) > 0, sum(estimate_rank_memory(job).values()) > 0)
"""


def test_jobs_import_nothing_else() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    count, parameters, *counted = done.stdout.split()
    assert int(count) > 8
    assert (parameters, counted) == ("6658404352", ["True", "True"])


def test_public_names_are_there() -> None:
    assert all(hasattr(flopwatch.jobs, name) for name in flopwatch.jobs.__all__)
    assert not hasattr(flopwatch.jobs, "count_everything")
