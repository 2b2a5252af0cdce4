"""The numbers of a record, with their bounds.

What no measurement gives is refused on reading, so that nothing is computed from it. Within these
bounds, sums and ratios of samples, and the rate of any amount over any sample, are finite.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

SHORTEST_NS, LONGEST_NS = 1e-12, 2.0**63
"""Up to three centuries."""
LARGEST = 1e100
LARGEST_INT = 2**63 - 1
LARGEST_UNSIGNED = 2**64 - 1
"""JSON has whole numbers of any size; what reads records (DuckDB, numpy) has 64 bits."""

Time = Annotated[float, Meta(ge=SHORTEST_NS, lt=LONGEST_NS)]
"""A sample, in nanoseconds; a very short one is the mean of very many calls."""
PartTime = Annotated[float, Meta(ge=0.0, lt=LONGEST_NS)]
"""Time of a part of a sample, which may be 0."""
Amount = Annotated[float, Meta(ge=0.0, le=LARGEST)]
Number = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
Count = Annotated[int, Meta(ge=0, le=LARGEST_INT)]
Calls = Annotated[int, Meta(ge=1, le=LARGEST_INT)]
