"""A timeline that opens in Perfetto, with regions in the backward pass too.

The profiler writes what was marked: phases, and regions of the forward pass. In the backward pass
there are only autograd's nodes, whose regions the ledger knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from flopwatch.explain.ledger import Event, list_node_regions

NODE = "autograd::engine::evaluate_function"
"""How the name of an event begins that is autograd's evaluation of one node."""
MARGIN_US = 0.001
"""By which a region reaches beyond its nodes, so that it is around them for every reader."""


def add_regions(path: Path, events: Sequence[Event]) -> None:
    """`events` are those of the step that the trace is of."""
    trace = msgspec.json.decode(path.read_bytes())
    nodes = [one for one in trace["traceEvents"] if one.get("name", "").startswith(NODE)]
    nodes.sort(key=lambda node: node["ts"])
    regions = list_node_regions(events)
    if len(nodes) != len(regions):  # a node of another thread, say; which is which is not known
        return
    trace["traceEvents"] += [*_join(list(zip(nodes, regions, strict=True)))]
    path.write_bytes(msgspec.json.encode(trace))


def _join(placed: Sequence[tuple[dict[str, Any], str]]) -> Iterator[dict[str, Any]]:
    """An event around neighbours that belong to the same region."""
    for (tid, region), run in groupby(placed, lambda one: (one[0]["tid"], one[1])):
        nodes = [node for node, _ in run]
        start = nodes[0]["ts"] - MARGIN_US
        yield {
            "ph": "X",
            "cat": "user_annotation",
            "name": region,
            "pid": nodes[0]["pid"],
            "tid": tid,
            "ts": start,
            "dur": nodes[-1]["ts"] + nodes[-1]["dur"] + MARGIN_US - start,
        }
