"""Plots of results, as data; `svg` and `matplotlib_drawing` draw them."""

from __future__ import annotations

from flopwatch.output.plots.plot import Picture
from flopwatch.output.plots.plot_catalog import KINDS, choose_pictures

__all__ = ["KINDS", "Picture", "choose_pictures"]
