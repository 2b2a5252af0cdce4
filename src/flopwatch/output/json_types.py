"""What commands print with ``--json``, as types: `json_schemas` makes the schemas from them.

Where a part of the output is a dataclass, the dataclass is its type; where it is one with more
fields (its properties, mostly), the type has those, and BASES names the dataclass.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from flopwatch.analysis import ratio_tests, step_breakdown, verdicts, warmup, warnings
from flopwatch.analysis.break_even import Outcome
from flopwatch.analysis.goodput import Goodput
from flopwatch.analysis.hardware_limits import Operation
from flopwatch.analysis.monitored_changes import PartChange
from flopwatch.analysis.monitored_rates import Energy, RunUtilisation, Tokens
from flopwatch.analysis.monitored_run import FirstSteps, Pause, RunMemory, StepPart
from flopwatch.analysis.part_times import MovedPart, Split
from flopwatch.analysis.profile_breakdown import Entry, Operator, Work
from flopwatch.analysis.profile_request import Phase, Request
from flopwatch.analysis.record_device import PeakShare
from flopwatch.analysis.slow_steps import SlowStep
from flopwatch.analysis.statistics import Verdict
from flopwatch.analysis.stragglers import Stragglers
from flopwatch.jobs.precision import Peak
from flopwatch.jobs.training_job import Attention
from flopwatch.jobs.utilisation import Utilisation
from flopwatch.output.profile_tables import Line
from flopwatch.records.monitored import End
from flopwatch.records.record import PhaseMemory, Status, SuiteColumn

Value = str | int | float | bool | None
Params = dict[str, Any]
"""The value of each axis of the suite."""
Base = tuple[type, tuple[str, ...]]
"""The dataclass whose fields a type has besides its own, and those of them that it has not, or has
otherwise."""


class Interval(TypedDict):
    """A median with its interval, whose ends are null where samples are too few for one."""

    median: float
    low: float | None
    high: float | None


class CaseName(TypedDict):
    suite: str
    params: Params
    variant: str


class CaseState(CaseName):
    status: Status
    message: str | None


class IdentifiedCase(CaseState):
    case_id: str
    run_id: str
    measured_at: str


class OldAndNew(TypedDict):
    old: str | None
    new: str | None


class BaselineAndOwn(TypedDict):
    baseline: str | None
    own: str | None


class OwnAndPublished(TypedDict):
    own: str | None
    published: str | None


# run, show


class SuiteName(TypedDict):
    name: str
    summary: str
    package: str | None
    """The package whose plug-in it is; null for a built-in one."""


class PreviewedCase(TypedDict):
    params: Params
    variant: str
    memory_bytes: dict[str, float]
    """By part, as the suite predicts them."""
    misfit: str | None
    """Why it would be skipped."""


class Preview(TypedDict):
    cases: list[PreviewedCase]
    expected_s: float
    shortest_s: float
    longest_s: float
    flops_per_s: dict[str, float]
    """Of a matmul here, by dtype, where the estimate needs it."""
    on_request: dict[str, list[str]]
    grids: list[str]


class CaseMemory(TypedDict):
    resident_bytes: int | None
    phases: dict[str, PhaseMemory]
    estimate_bytes: dict[str, float]


class CaseRegion(TypedDict):
    calls: int
    call_ns: Interval
    share: Interval
    speedup: Interval | None
    verdict: Verdict | None
    limit: float | None
    flops_per_s: float | None


class CaseQuality(TypedDict):
    variant: str
    parameters: float | None
    step_ns: Interval | None
    steps: float
    final_loss: float
    loss_difference: float | None
    reaches_baseline: bool | None
    time_to_baseline_ns: Interval | None
    gain: Interval | None


class CaseParts(TypedDict):
    """The parts of a layer, timed one by one, and how their sum compares with the whole."""

    variant: str
    total_ns: Interval | None
    whole_over_sum: Interval
    speedup_of_sums: Interval | None


class Crossing(TypedDict):
    between: list[float]
    pays: Literal["above", "below"]
    point: float
    low: float | None
    high: float | None


class BreakEvenPoint(TypedDict):
    axis: str
    measured: list[float]
    outcome: Outcome
    faster_from: float | None
    below: float | None
    crossings: list[Crossing]


class BreakEvenSeries(BreakEvenPoint):
    suite: str
    params: Params
    variant: str
    baseline: str
    speedups: list[float | None]
    verdicts: list[Verdict | None]


class RunSlowStep(TypedDict):
    """A step that took much longer than its neighbours."""

    run_id: str


class RunTokens(TypedDict):
    padding_share: float


class RunEnergy(TypedDict):
    power_w: float


class MonitoredRun(TypedDict):
    """A training loop with a monitor: all its starts. Times of steps are of the steady ones."""

    name: str
    starts: int
    world_size: int
    ranks_seen: int
    steps: int
    step_ns: Interval
    mean_step_ns: float
    parts: list[StepPart]
    data_share_of_wall: float | None
    first_steps: FirstSteps | None
    slow_steps: list[RunSlowStep]
    slow_causes: dict[str, int]
    slow_lost_ns: float
    pauses: list[Pause]
    garbage_collections: Pause | None
    tokens: RunTokens | None
    utilisation: RunUtilisation | None
    missing: str | None
    stragglers: Stragglers | None
    goodput: Goodput | None
    memory: RunMemory
    energy: RunEnergy | None
    end: End | None


class MeasuredCase(TypedDict):
    """A case: all columns of its suite's tables, and what a table cannot hold."""

    params: Params
    total_ns: Interval | None
    phases_ns: dict[str, Interval]
    speedup: Interval | None
    differences: dict[str, BaselineAndOwn]
    of_peak: dict[Literal["nominal", "measured"], PeakShare]
    utilisation: Utilisation | None
    memory: CaseMemory
    conditions: dict[str, str]
    facts: dict[str, float]
    columns: dict[str, SuiteColumn]
    ranks: list[Split]
    regions: dict[str, CaseRegion]
    instruments: Interval | None
    """What instruments cost: instrumented runs over plain ones."""
    warmup_samples: int
    monitored: MonitoredRun | None
    notes: list[str]
    quality: CaseQuality | None
    parts: CaseParts | None
    break_even: BreakEvenPoint | None


class WarmupWindow(TypedDict):
    mean_change: float | None
    std_ratio: float | None


class WarmupCosts(TypedDict):
    excess_s: float


class WarmupStudy(IdentifiedCase):
    steps: int
    windows: list[WarmupWindow]
    steady: WarmupWindow | None
    enough: int | None
    is_sure: bool
    at_least: int
    costs: WarmupCosts | None
    calls_per_sample: list[int]
    warmup_samples: int


class PublishedBenchmark(TypedDict):
    name: str
    what: str
    source: str
    year: int
    hardware: str
    file: str
    unknown: list[str]
    advice: list[str]
    records: int


class DyadEntry(IdentifiedCase):
    published_name: str
    hidden_size: float | None
    total_ms: float | None
    forward_ms: float | None
    backward_ms: float | None
    speedup: float | None
    unclear: bool
    differences: dict[str, BaselineAndOwn]
    measured_on: str


class Cs336Entry(IdentifiedCase):
    """A row of its tables, or a sum of low-precision numbers, which has `sum` only."""

    experiment_name: NotRequired[str]
    forward_mean_s: NotRequired[float | None]
    forward_std_s: NotRequired[float | None]
    backward_mean_s: NotRequired[float | None]
    backward_std_s: NotRequired[float | None]
    optimizer_mean_s: NotRequired[float | None]
    optimizer_std_s: NotRequired[float | None]
    samples: NotRequired[int]
    warmup_samples: NotRequired[int]
    needed_bytes: NotRequired[float | None]
    measured_on: NotRequired[str]
    sum: NotRequired[float]


class MosaicEntry(IdentifiedCase):
    model: str
    seq_len: int
    hardware: str | None
    mfu_star: float | None
    mfu: float | None
    hfu_star: float | None
    hfu: float | None
    tokens_per_s: float | None
    tokens_per_s_and_device: float | None
    sequences_per_s: float | None
    parameters: int | None
    global_batch_tokens: int | None
    global_batch_sequences: int | None
    micro_batch: int | None
    grad_accum: int | None
    shard_strategy: str | None
    recompute: str | None
    cpu_offload: str | None
    precision: str | None
    mixed_precision_mode: str | None
    ranks: int | None
    device: str | None
    cluster: str | None
    convention: str
    peak_flops_per_s: float | None
    peak_source: str | None
    impossible: str | None


# profile, explain, plot


class Profile(TypedDict):
    request: Request
    device: str
    threads: int
    torch: str
    attention: Attention
    parameters: int
    phases: list[Phase]
    entries: list[Entry]
    operators: list[Operator]
    step_ns: float
    slowdown: float
    regions: list[Line]
    kinds: list[Line]
    inside_attention: list[Work]
    background_share: float | None


class BreakdownLine(TypedDict):
    name: str
    share: float
    gain_ns: float | None


class BreakdownOperation(TypedDict):
    flops_per_byte: float
    reached_flops_per_s: float
    limit_flops_per_s: float
    share_of_limit: float
    bound: Literal["compute", "memory"]


class BreakdownLimits(TypedDict):
    peaks: dict[str, Peak]
    bandwidth_bytes_per_s: float | None
    bandwidth_source: str | None
    cost_model: str


class Breakdown(CaseName):
    total_ns: float
    fastest_ns: float
    rows: list[BreakdownLine]
    """They add up to `total_ns`."""
    operations: list[BreakdownOperation]
    limits: BreakdownLimits
    remarks: list[str]
    run_id: str
    case_id: str


class BreakdownMove(TypedDict):
    change_ns: float


class BreakdownChange(CaseName):
    old_variant: str
    old_ns: float
    new_ns: float
    change_ns: float
    rows: list[BreakdownMove]
    """Their changes add up to `change_ns`."""
    old_rows: list[BreakdownLine]
    new_rows: list[BreakdownLine]
    differences: dict[str, OldAndNew]


class BreakdownChanges(TypedDict):
    movements: list[BreakdownChange]
    broken: list[CaseName]
    only_old: list[CaseName]
    only_new: list[CaseName]


class DrawnPlot(TypedDict):
    file: str
    name: str
    title: str
    subject: str


class PlotKind(TypedDict):
    name: str
    plots: int
    """That these results have."""
    shows: str
    needs: str
    run: str


# compare, check


class MovedTime(TypedDict):
    change_ns: float


class JudgedCase(CaseName):
    old_variant: str
    old: float
    """Nanoseconds, or with the basis relative the ratio to the baseline."""
    new: float
    speedup: Interval
    verdict: Verdict
    basis: verdicts.Basis
    machine_shift: bool
    comparable: bool
    differences: dict[str, OldAndNew]
    missing: ratio_tests.Missing | None
    """What would settle an unclear verdict."""
    parts: list[MovedTime]
    old_runs: int
    new_runs: int
    old_id: str
    new_id: str


class BaselineTimes(CaseName):
    old_ns: float
    new_ns: float


class Judgement(TypedDict):
    comparisons: list[JudgedCase]
    confidence: float
    false_share: float
    threshold: float
    basis: verdicts.Basis
    machine_shift: float | None
    lone_baseline_shift: float | None
    baseline_shifts: list[BaselineTimes]
    spread: ratio_tests.Spread | None
    common_speedup: float | None
    broken: list[CaseState]
    fixed: list[CaseState]
    only_old: list[CaseState]
    only_new: list[CaseState]
    too_few_samples: list[CaseState]
    no_baseline: list[CaseState]
    monitored: NotRequired[list[RunDifference]]
    """Of two files: monitored runs that both have."""


class RunPartChange(TypedDict):
    change_ns: float


class RunDifference(TypedDict):
    """Two monitored runs. Their steps are not interleaved."""

    old: MonitoredRun
    new: MonitoredRun
    step: RunPartChange
    parts: list[RunPartChange]


class JudgedRevisions(Judgement):
    base: str
    """Its commit."""
    head: str
    remarks: list[str]


class PublishedComparison(CaseName):
    quantity: str | None
    own: Interval | None
    published: Interval | None
    differences: dict[str, OwnAndPublished]
    own_differences: dict[str, BaselineAndOwn]
    published_differences: dict[str, BaselineAndOwn]
    missing: str | None
    """Why there is nothing to compare."""


class FoundWarning(TypedDict):
    kind: str
    severity: warnings.Severity
    sentence: str
    advice: str
    cases: list[IdentifiedCase]


class WarningKind(TypedDict):
    kind: str
    severity: warnings.Severity
    meaning: str
    method: str
    advice: str


BASES: dict[Any, Base] = {
    WarmupWindow: (warmup.Window, ()),
    WarmupCosts: (warmup.Costs, ()),
    BreakdownLine: (step_breakdown.BreakdownRow, ()),
    BreakdownOperation: (Operation, ()),
    BreakdownMove: (step_breakdown.MovedRow, ()),
    MovedTime: (MovedPart, ()),
    RunSlowStep: (SlowStep, ()),
    RunTokens: (Tokens, ()),
    RunEnergy: (Energy, ()),
    RunPartChange: (PartChange, ()),
}
