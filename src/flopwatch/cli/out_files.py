"""Answers in files: a page, or a plot alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flopwatch.cli.options import print_remark
from flopwatch.errors import UsageError

if TYPE_CHECKING:
    from flopwatch.output.plots.plot import Plot
    from flopwatch.output.tables import Sheet


def check_out(out: Path) -> None:
    """Before the work: what cannot be written."""
    from flopwatch.output.page import is_report
    from flopwatch.output.plots.plot_files import ENDINGS, check_path
    from flopwatch.records.file_safety import require_replaceable

    if out.suffix.lower() == ".html":
        require_replaceable(out, is_report, "a report of flopwatch")
    elif out.suffix.lower() in ENDINGS:
        check_path(out)
    else:
        raise UsageError(
            f"{out} does not end in .html, {', '.join(ENDINGS)}; these are pages and plots"
        )


def write_out(
    out: Path,
    title: str,
    answer: Sequence[str],
    sheets: Sequence[Sheet],
    plots: Sequence[Plot],
    footer: str,
) -> None:
    from flopwatch.output.page.answer_page import render_answer_page
    from flopwatch.output.plots.plot_files import draw_files
    from flopwatch.records.file_safety import replace_file

    if out.suffix.lower() == ".html":
        replace_file(out, render_answer_page(title, answer, sheets, plots, footer).encode())
        print_remark(f"wrote {out}")
        return
    if not plots:
        raise UsageError(f"there is nothing to draw for {out}; a page (.html) has the tables")
    for file in draw_files(plots, out):
        print_remark(f"wrote {file}")
