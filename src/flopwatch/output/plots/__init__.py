"""Plots of results, as data; `svg` and `matplotlib_drawing` draw them."""

from __future__ import annotations

from flopwatch.output.plots.plot import Plot
from flopwatch.output.plots.plot_catalog import KINDS, choose_plots

__all__ = ["KINDS", "Plot", "choose_plots"]
