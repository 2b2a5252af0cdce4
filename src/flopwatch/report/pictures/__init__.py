"""Pictures of results, as data; `report.svg` and `report.matplotlib_drawing` draw them."""

from __future__ import annotations

from flopwatch.report.pictures.catalog import KINDS, choose_pictures
from flopwatch.report.pictures.picture import Picture

__all__ = ["KINDS", "Picture", "choose_pictures"]
