"""The same as `json_types`, for what commands say of training jobs, of their predictions and of
devices."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from flopwatch.devices.advice import Advice, Jitter
from flopwatch.devices.device_specs import Figure, Link, Practice, Rates
from flopwatch.devices.measured_peaks import Peaks
from flopwatch.jobs.flops import Passes
from flopwatch.jobs.parallelism import Sharding
from flopwatch.jobs.step_memory import StepMemory, Tensor
from flopwatch.jobs.training_job import Recompute, TrainingJob
from flopwatch.jobs.utilisation import Utilisation
from flopwatch.output.json_types import Base, Params
from flopwatch.prediction import layer_cost, plan_losers, plan_sensitivity
from flopwatch.prediction.calibration import Calibration
from flopwatch.prediction.scorecard import Tally
from flopwatch.prediction.validation import Score


class Job(TypedDict):
    """A training job, as `TrainingJob.to_dict()` writes it."""


class PredictedPart(TypedDict):
    name: str
    time_s: float
    ideal_s: float
    bound: layer_cost.Bound


class PredictedSpeed(TypedDict):
    job: Job
    device: str
    ranks: int
    parameters: int
    stack: str
    predicted_tokens_per_s: float
    low: float
    """Of the 90 % interval of tokens/s."""
    high: float
    step_s: float
    mfu: float | None
    hfu: float | None
    convention: str
    fits: bool | None
    memory_bytes: dict[str, float]
    available_bytes: float | None
    parts: list[PredictedPart]
    warnings: list[str]
    sources: list[str]


class Prediction(PredictedSpeed):
    model: str
    seq_len: int
    hardware: str
    micro_batch: int
    grad_accum: int
    recompute: Recompute
    sharding: Sharding
    precision: str
    optimizer: str


class PlannedJob(PredictedSpeed):
    tensor: int
    sequence: bool
    pipeline: int
    virtual_stages: int
    schedule: str
    context: int
    expert: int
    data: int
    sharding: Sharding
    recompute: Recompute
    micro_batch: int
    grad_accum: int
    global_batch: int
    global_batch_tokens: int
    training_time_s: float
    gpu_hours: float
    cost: float | None


class OtherChoice(TypedDict):
    axis: plan_losers.Axis
    value: str | int
    tokens_per_s: float | None
    why: str
    configuration: str | None
    """That is the best with this value."""


class PlanChange(TypedDict):
    """What follows if something is not as it was assumed."""

    what: plan_sensitivity.What
    tokens_per_s: float | None
    """Of the plan's best configuration then; null where it does not fit, or cannot have such a
    batch."""
    best_tokens_per_s: float | None
    is_same: bool
    """Whether the plan's best is still the best."""
    best_configuration: str | None


class EmittedConfiguration(TypedDict):
    framework: str
    text: str
    remarks: list[str]
    tokens_per_s: float
    """Predicted of the best configuration that the framework can run."""


class Plan(TypedDict):
    model: str
    tokens: float
    asked_global_batch_tokens: float
    tried: int
    fitting: int
    best: list[PlannedJob]
    others: list[OtherChoice]
    alike: int
    """Configurations that are predicted within the 90 % interval of the best, itself included."""
    changes: list[PlanChange]
    emitted: NotRequired[EmittedConfiguration]
    """With --emit."""


class ComparedPlan(TypedDict):
    model: str
    hardware: str
    tokens: float
    tried: int
    fitting: int
    best: PlannedJob
    is_fastest: bool
    """Of the same model."""
    is_cheapest: bool
    dominated_by: str | None
    """Hardware that is as fast and as cheap, and better in one of both."""


class PlanComparison(TypedDict):
    plans: list[ComparedPlan]
    refusals: list[str]


class Deadline(TypedDict):
    model: str
    device: str
    days: float
    tokens: float
    is_met: bool
    devices: int | None
    """The fewest that are enough; null: no number of them is."""
    most_devices: int | None
    """That there are, as given."""
    enough: PlannedJob | None
    smaller: PlannedJob | None
    """On the next smaller number of devices that is sensible."""
    closest: PlannedJob
    """On as many as there are; where no number is enough, on the number that is fastest."""
    reason: str | None
    """Why it is not met, and what would be possible."""


class Deadlines(TypedDict):
    deadlines: list[Deadline]
    refusals: list[str]


class KeptTensor(TypedDict):
    size_bytes: int


class DetailedMemory(TypedDict):
    """A training step in detail, where a rank has all of the model."""

    tensors: list[KeptTensor]
    activation_bytes: int
    forward_peak_bytes: int
    backward_peak_bytes: int
    peak_bytes: int
    peak: str
    parts: dict[str, int]


class PredictedMemory(TypedDict):
    job: Job
    parts: dict[str, float]
    """Bytes."""
    total_bytes: float
    available_bytes: float | None
    fits: bool | None
    step: DetailedMemory | None
    largest_micro_batch: int | None
    largest_seq_len: int | None


class ConventionUtilisation(TypedDict):
    parameters: int | None
    source: str
    formulas: list[str]


class PartAmounts(TypedDict):
    flops: Passes
    bytes: Passes


class ComputedMfu(TypedDict):
    job: Job
    devices: int
    device: str | None
    dtype: str
    peak_flops_per_s: float | None
    peak_source: str | None
    conventions: list[ConventionUtilisation]
    model: str
    seq_len: int
    recompute: Recompute
    parameters: int
    active_parameters: int
    parts: dict[str, PartAmounts]


class Formulas(TypedDict):
    name: str
    source: str
    formulas: list[str]


class ListedModel(TypedDict):
    name: str
    also: list[str]
    """Other names; most other spellings are known, too."""
    family: str
    source: str
    architecture: str
    parameters: int
    active_parameters: int
    """That a token goes through."""
    published_parameters: float | None
    """As its authors say."""
    layers: int
    hidden_size: int
    attention: str
    other_layers: str
    """Than those with full attention."""
    feed_forward: str
    vocabulary: int
    positions: int


class Validation(TypedDict):
    jobs: list[Score]


class ScoredRecord(TypedDict):
    case_id: str
    suite: str
    variant: str
    params: Params
    measured_at: str
    predicted_s: float
    measured_s: float
    is_inside: bool
    errors: dict[str, float]


class Scores(TypedDict):
    records: list[ScoredRecord]
    tallies: list[Tally]


class FoundParameter(TypedDict):
    name: str
    value: float
    error: float
    expected: float
    determined: float


class FittedCalibration(TypedDict):
    found: list[FoundParameter]


# doctor, peaks


class Diagnosis(TypedDict):
    environment: dict[str, Any]
    jitter: Jitter
    advice: list[Advice]


class BestPeaks(TypedDict):
    flops_per_s: dict[str, float | None]
    sustained_flops_per_s: dict[str, float | None]
    memory_bytes_per_s: dict[str, float | None]
    bus_bytes_per_s: dict[str, float | None]


class MeasuredPeaks(TypedDict):
    best: BestPeaks


class NominalDevice(TypedDict):
    name: str
    drivers: list[str]
    shorts: list[str]
    rates: Rates
    memory_gb: Figure | None
    bandwidth_gb_per_s: Figure | None
    link: Link | None
    bridge: Link | None
    practice: Practice
    kind: str


BASES: dict[Any, Base] = {
    Job: (TrainingJob, ("shape",)),
    KeptTensor: (Tensor, ()),
    DetailedMemory: (StepMemory, ("tensors",)),
    ConventionUtilisation: (Utilisation, ()),
    FittedCalibration: (Calibration, ()),
    MeasuredPeaks: (Peaks, ()),
}
