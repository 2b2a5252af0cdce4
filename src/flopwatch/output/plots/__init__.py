"""Plots of results as Vega-Lite specifications: one source for the page, files and notebooks."""

from __future__ import annotations

from flopwatch.output.plots.plot import Plot
from flopwatch.output.plots.plot_catalog import KINDS, choose_plots

__all__ = ["KINDS", "Plot", "choose_plots"]
