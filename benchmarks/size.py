"""How large and how orderly the source is: files, lines, names that are used twice, modules with a
single importer, and classes that describe a training job.

A class describes a training job if it has a sequence length, or a model, and at least three more of
what a job is described by. One should: `TrainingJob`. Others that are printed are results or parts
of the cost model that repeat a job's fields.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"
MAY_REPEAT = {"__init__.py", "base.py", "cpu.py"}
FIELDS = [
    {"model", "shape"},
    {"seq_len", "context"},
    {"micro_batch", "batch"},
    {"grad_accum", "accumulation"},
    {"precision", "dtype"},
    {"optimizer"},
    {"recompute", "checkpointing", "checkpoint"},
    {"attention"},
    {"compile", "compiled"},
    {"sharding", "shard", "parallelism", "ranks"},
]
ENOUGH = 4


def main() -> None:
    paths = sorted(SOURCE.rglob("*.py"))
    trees = {name_module(path): ast.parse(path.read_text()) for path in paths}
    lines = sum(len(path.read_text().splitlines()) for path in paths)
    names = Counter(path.name for path in paths if path.name not in MAY_REPEAT)
    repeated = sorted(name for name, count in names.items() if count > 1)
    importers = count_importers(trees)
    single = [name for name, count in importers.items() if count == 1]
    jobs = find_job_classes(trees)
    print(f"files: {len(paths)}")
    print(f"lines: {lines}")
    print(f"file names used twice: {len(repeated)} {' '.join(repeated)}")
    print(f"modules with a single importer: {len(single)}")
    print(f"classes that describe a training job: {len(jobs)} {' '.join(jobs)}")


def name_module(path: Path) -> str:
    """
    >>> name_module(SOURCE / "flopwatch" / "jobs" / "__init__.py")
    'flopwatch.jobs'
    """
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def count_importers(trees: Mapping[str, ast.Module]) -> Counter[str]:
    """By module: how many others import it, anywhere."""
    importers: Counter[str] = Counter()
    for importer, tree in trees.items():
        imported = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        importers.update(imported & trees.keys() - {importer})
    return importers


def find_job_classes(trees: Mapping[str, ast.Module]) -> list[str]:
    return [
        f"{module}.{node.name}"
        for module, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and _describes_job(node)
    ]


def _describes_job(node: ast.ClassDef) -> bool:
    own = {
        field.target.id
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }
    return (
        bool(own & (FIELDS[0] | FIELDS[1])) and sum(bool(own & each) for each in FIELDS) >= ENOUGH
    )


if __name__ == "__main__":
    main()
