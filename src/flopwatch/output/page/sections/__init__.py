"""The sections of a page, in order. Another kind of content is one file here and one entry of
SECTIONS: a function of the page's content that returns its sections, none where it has nothing to
show."""

from __future__ import annotations

from collections.abc import Callable

from flopwatch.output.page.markup import Content, Section
from flopwatch.output.page.sections.comparison_section import (
    render_published_comparisons,
    render_run_comparisons,
)
from flopwatch.output.page.sections.monitor_section import render_runs
from flopwatch.output.page.sections.prediction_section import render_predictions
from flopwatch.output.page.sections.run_section import render_commands, render_environments
from flopwatch.output.page.sections.suite_section import render_suites
from flopwatch.output.page.sections.warning_section import render_failures, render_warnings

SECTIONS: tuple[Callable[[Content], list[Section]], ...] = (
    render_run_comparisons,
    render_runs,
    render_suites,
    render_predictions,
    render_published_comparisons,
    render_warnings,
    render_failures,
    render_environments,
    render_commands,
)
"""What a reader asks first comes first."""
