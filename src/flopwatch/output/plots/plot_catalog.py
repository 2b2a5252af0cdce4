"""Which plots there are, what each needs, and which of them a reader wants first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from flopwatch.analysis.summary import Row
from flopwatch.errors import UsageError
from flopwatch.output.plots.bar_plots import make_breakdowns, make_memory, make_parts
from flopwatch.output.plots.curve_plots import (
    make_mfu,
    make_scaling,
    make_throughput,
)
from flopwatch.output.plots.loss_plots import make_losses
from flopwatch.output.plots.plot import Plot
from flopwatch.output.plots.prediction_plot import make_predictions
from flopwatch.output.plots.roofline_plot import make_rooflines
from flopwatch.output.plots.sample_plots import (
    FEWEST_SAMPLES,
    make_distributions,
    make_samples,
)
from flopwatch.output.plots.speedup_plots import make_break_evens, make_speedups
from flopwatch.output.plots.stage_plot import make_steps_of_ranks
from flopwatch.output.plots.step_plots import (
    make_goodputs,
    make_step_parts,
    make_stragglers,
    make_timelines,
)

MOST_PLOTS = 5
"""Next to one table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    shows: str
    needs: str
    """Of the results, as the end of a sentence: "it needs ..."."""
    run: str
    """A command that gives such results."""
    make: Callable[[Sequence[Row]], Iterator[Plot]]
    """Of rows that share a table."""
    most: int = 0
    """How many stand next to a table; 0: it is drawn on request only."""


MONITORED = "flopwatch.Monitor in a training loop"
"""What gives such results, in place of a command."""

KINDS: dict[str, Kind] = {
    "speedups": Kind(
        shows="speedups over the baseline, with intervals and the FLOP limit",
        needs="a variant and its baseline, measured in one run",
        run="flopwatch run dyad --quick",
        make=make_speedups,
        most=1,
    ),
    "break-even": Kind(
        shows="speedups over an axis of counts, and the break-even",
        needs="a variant and its baseline at two or more values of an axis of whole numbers, such "
        "as tokens",
        run="flopwatch run switchback --filter level=layer",
        make=make_break_evens,
        most=2,
    ),
    "losses": Kind(
        shows="losses of models that were trained, over time and tokens",
        needs="curves of losses",
        run="flopwatch run dyad --filter level=quality",
        make=make_losses,
        most=2,
    ),
    "scaling": Kind(
        shows="throughput over ranks, with the ideal line",
        needs="jobs on two or more numbers of ranks",
        run="flopwatch run training --set ranks=1,2",
        make=make_scaling,
        most=1,
    ),
    "throughput": Kind(
        shows="tokens a second over size and sequence length",
        needs="cases that say how many tokens a step has",
        run="flopwatch run steps --quick",
        make=make_throughput,
        most=1,
    ),
    "parts": Kind(
        shows="the parts of a run: phases, and the regions inside them",
        needs="cases with several phases or with regions",
        run="flopwatch run steps --quick",
        make=make_parts,
        most=1,
    ),
    "breakdown": Kind(
        shows="where the time goes: matmuls, memory, ranks, and what is lost",
        needs="cases that declare FLOPs or bytes, on a device whose peak is known or was measured "
        "before the run",
        run="flopwatch peaks, and then flopwatch run steps --quick",
        make=make_breakdowns,
        most=1,
    ),
    "memory": Kind(
        shows="memory that was predicted, by part, and measured, by phase",
        needs="memory that was predicted or measured",
        run="flopwatch run steps --quick",
        make=make_memory,
        most=1,
    ),
    "roofline": Kind(
        shows="speed below what memory and arithmetic allow",
        needs="cases whose FLOPs or bytes are known, on a device whose limits are known or were "
        "measured before the run",
        run="flopwatch peaks, and then flopwatch run attention --quick",
        make=make_rooflines,
        most=1,
    ),
    "predictions": Kind(
        shows="predicted times with their intervals, over measured ones",
        needs="cases that carry a prediction, which a calibrated machine gives them",
        run="flopwatch peaks, flopwatch calibrate, and then flopwatch run steps --quick",
        make=make_predictions,
    ),
    "ranks": Kind(
        shows="one step of a job, rank by rank: passes of stages, transfers, waiting, the bubble",
        needs="jobs on two or more ranks, measured by flopwatch run training",
        run="flopwatch run training --pp 2 --grad-accum 4",
        make=make_steps_of_ranks,
        most=2,
    ),
    "mfu": Kind(
        shows="MFU, or the share of the peak, over size and sequence length",
        needs="cases that declare FLOPs, on a device whose peak is known or was measured before "
        "the run",
        run="flopwatch peaks, and then flopwatch run training --quick",
        make=make_mfu,
    ),
    "samples": Kind(
        shows="samples in the order of taking, warm-up shaded",
        needs="cases with two or more samples",
        run="flopwatch run activations --quick",
        make=make_samples,
    ),
    "distribution": Kind(
        shows="how the times of all variants of a case are distributed",
        needs=f"cases with {FEWEST_SAMPLES} or more samples after warm-up",
        run="flopwatch run activations --quick",
        make=make_distributions,
    ),
    "timeline": Kind(
        shows="the steps of a monitored run over time, with stalls and pauses",
        needs="a monitored run",
        run=MONITORED,
        make=make_timelines,
        most=1,
    ),
    "mean-step": Kind(
        shows="the mean step of a monitored run: data, forward, backward, ...",
        needs="a monitored run with a model, or with monitor.data",
        run=MONITORED,
        make=make_step_parts,
        most=1,
    ),
    "goodput": Kind(
        shows="what the wall clock of a monitored run went to, start by start",
        needs="a monitored run",
        run=MONITORED,
        make=make_goodputs,
        most=1,
    ),
    "stragglers": Kind(
        shows="which rank of a monitored run makes the others wait",
        needs="a monitored run of several ranks, each with a monitor",
        run=MONITORED,
        make=make_stragglers,
        most=1,
    ),
}
"""By name; what a reader wants first comes first."""


def choose_plots(rows: Sequence[Row]) -> list[Plot]:
    """The most informative, of rows that share a table: see `output.tables.divide`."""
    if not rows:
        return []
    is_monitored = rows[0].monitored is not None
    chosen = [
        plot
        for kind in KINDS.values()
        # Of a monitored run, its own plots say more.
        if not is_monitored or kind.run == MONITORED
        for plot in islice(kind.make(rows), kind.most)
        if plot.is_informative
    ]
    return chosen[:MOST_PLOTS]


def find_kind(name: str) -> Kind:
    if name not in KINDS:
        raise UsageError(f"there is no plot {name!r}; there are {', '.join(KINDS)}")
    return KINDS[name]


def make_plots(name: str, tables: Sequence[Sequence[Row]]) -> Iterator[Plot]:
    """All that the tables give of a kind."""
    kind = find_kind(name)
    for rows in tables:
        yield from kind.make(rows)


def describe_missing(name: str) -> str:
    """Why there is none, and what would give one, in a sentence."""
    kind = find_kind(name)
    return (
        f"these results give no plot {name!r}, which needs {kind.needs}; measure such with: "
        f"{kind.run}"
    )


def choose_first(tables: Sequence[Sequence[Row]]) -> Iterator[Plot]:
    """Of every table, the plot that a reader wants first: one that says more than the table, or
    where there is none, any."""
    for rows in tables:
        found = choose_plots(rows)[:1] or (p for kind in KINDS.values() for p in kind.make(rows))
        yield from islice(found, 1)
