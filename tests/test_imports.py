"""What may import torch, and what may not."""

from __future__ import annotations

import ast
import pkgutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import flopwatch

PACKAGE = Path(flopwatch.__file__).parent

MAY_IMPORT_TORCH = (
    "flopwatch.suites.builtin.",
    "flopwatch.layers.",
    "flopwatch.models.",
    "flopwatch.monitor.lightning_callback",
    "flopwatch.monitor.trainer_callback",
    "flopwatch.worker.profiler",
    "flopwatch.__main__",
)


def list_modules() -> list[str]:
    found = pkgutil.walk_packages([str(PACKAGE)], prefix="flopwatch.")
    return [module.name for module in found if not module.name.startswith(MAY_IMPORT_TORCH)]


def test_importing_any_module_of_the_runner_does_not_import_torch() -> None:
    """Not even where torch is missing altogether: all of them in one process without it."""
    program = (
        "import sys, importlib\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('torch', 'numpy'):\n"
        "            raise ImportError(name + ' is blocked')\n"
        "sys.meta_path.insert(0, Block())\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *list_modules()],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", list_modules())
def test_torch_is_only_imported_inside_functions(module: str) -> None:
    path = PACKAGE.parent / (module.replace(".", "/") + ".py")
    if not path.exists():
        path = path.with_suffix("") / "__init__.py"
    tree = ast.parse(path.read_text())
    top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in top for alias in node.names}
    names |= {node.module or "" for node in top if isinstance(node, ast.ImportFrom)}
    assert not any(name.partition(".")[0] == "torch" for name in names)


PUBLIC = {
    "Case": "flopwatch.suites.case",
    "Comparison": "flopwatch.worker.comparison",
    "FlopwatchError": "flopwatch.errors",
    "Measurement": "flopwatch.worker.comparison",
    "Monitor": "flopwatch.monitor.training_monitor",
    "Parallelism": "flopwatch.jobs.parallelism",
    "Record": "flopwatch.records.record",
    "Settings": "flopwatch.settings",
    "Stopwatch": "flopwatch.suites.workload",
    "Suite": "flopwatch.suites.suite",
    "TrainingJob": "flopwatch.jobs.training_job",
    "Unsupported": "flopwatch.errors",
    "UsageError": "flopwatch.errors",
    "Workload": "flopwatch.suites.workload",
    "WrongResult": "flopwatch.worker.agreement",
    "compare": "flopwatch.worker.inline",
    "compare_plans": "flopwatch.api",
    "flops": "flopwatch.api",
    "measure": "flopwatch.worker.inline",
    "memory": "flopwatch.api",
    "mfu": "flopwatch.api",
    "plan": "flopwatch.api",
    "plan_deadlines": "flopwatch.api",
    "predict": "flopwatch.api",
    "read": "flopwatch.records.store",
}


def test_the_public_names_are_these() -> None:
    assert flopwatch.__all__ == sorted({*PUBLIC, "__version__"})
    homes = {name: getattr(flopwatch, name).__module__ for name in PUBLIC}
    assert homes == PUBLIC
    assert dir(flopwatch) == flopwatch.__all__
    with pytest.raises(AttributeError, match="no attribute 'benchmark'"):
        _ = flopwatch.benchmark


def test_no_two_modules_share_a_file_name() -> None:
    names = Counter(path.name for path in PACKAGE.rglob("*.py"))

    assert sum(names.values()) > 100
    assert {name for name, count in names.items() if count > 1} <= {
        "__init__.py",
        "base.py",
        "cpu.py",
    }


def test_jobs_is_a_library_of_its_own() -> None:
    """It imports nothing of the package but itself and the errors."""
    imported = {
        name
        for path in (PACKAGE / "jobs").glob("*.py")
        for name in list_imports(ast.parse(path.read_text()))
        if name.startswith("flopwatch")
    }

    assert {
        name for name in imported if not name.startswith(("flopwatch.jobs", "flopwatch.errors"))
    } == set()


def list_imports(tree: ast.Module) -> set[str]:
    nodes = list(ast.walk(tree))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
