"""Executes the notebook, and with --write saves it with its outputs, which the site shows.

python docs/tools/run_notebook.py --write
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "first_steps.ipynb"


def execute() -> Any:
    """Raises what a cell raises."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", record_timing=False)
    client.execute(cwd=str(NOTEBOOK.parent))
    return notebook


def main() -> None:
    notebook = execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            # Lines of progress are over: they are shown empty, or went to stderr.
            kept = [one for one in cell.outputs if one.output_type in ("execute_result", "stream")]
            cell.outputs = [one for one in kept if one.get("name") != "stderr"]
    if "--write" in sys.argv[1:]:
        nbformat.write(notebook, NOTEBOOK)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
