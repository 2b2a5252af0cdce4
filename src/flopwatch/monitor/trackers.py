"""Where the steps of a monitor go besides its results file, each with that tracker's own library.

By name (``Monitor(model, trackers=["tensorboard:runs/a", "wandb:my-project"])``) or as objects of
these classes, which take more. None of the libraries is imported before it is used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from flopwatch.errors import UsageError
from flopwatch.lazy import require
from flopwatch.monitor.base import RunFacts, StepFacts, Tracker
from flopwatch.monitor.prometheus_endpoint import Prometheus
from flopwatch.monitor.step_metrics import PREFIX, STEP, describe_run, list_metrics
from flopwatch.records.monitored import End


class TensorBoard:
    """Event files in a folder; without one in ``runs/``, named like the run."""

    def __init__(self, folder: str | None = None) -> None:
        require("tensorboard")
        self._folder = folder
        self._writer: Any = None

    def start(self, run: RunFacts) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(self._folder or f"runs/{run.name}-{run.run_id}")
        rows = (f"| {name} | {value} |" for name, value in describe_run(run).items())
        self._writer.add_text(f"{PREFIX}run", "\n".join(["| | |", "| --- | --- |", *rows]))

    def steps(self, steps: Sequence[StepFacts]) -> None:
        for step in steps:
            for name, value in list_metrics(step).items():
                self._writer.add_scalar(name, value, step.number, walltime=step.ended_unix_s)
        self._writer.flush()

    def close(self, end: End) -> None:
        self._writer.close()


class WandB:
    """Weights & Biases. A run of yours that is open when the first step ends is used, and stays
    open: each of your own rows then gets the figures of the latest step, so that steps which you
    number yourself stay as they are. Else a run of its own, with a row for every step."""

    def __init__(self, project: str | None = None, **settings: Any) -> None:
        """
        Args:
            project: Of a run of its own.
            settings: More that `wandb.init` takes, such as ``entity`` or ``group``.
        """
        require("wandb")
        self._settings = {"project": project, **settings}
        self._run: Any = None
        self._is_own = False

    def start(self, run: RunFacts) -> None:
        import wandb

        facts = describe_run(run)
        self._is_own = wandb.run is None
        if self._is_own:
            self._run = wandb.init(
                **{"name": run.name, "config": {"flopwatch": facts}, **self._settings}
            )
        else:
            self._run = wandb.run
            self._run.config.update({"flopwatch": facts}, allow_val_change=True)
        self._run.define_metric(STEP)
        self._run.define_metric(f"{PREFIX}*", step_metric=STEP)

    def steps(self, steps: Sequence[StepFacts]) -> None:
        for step in steps if self._is_own else steps[-1:]:
            self._run.log({STEP: step.number, **list_metrics(step)}, commit=self._is_own)

    def close(self, end: End) -> None:
        if self._is_own:
            self._run.finish(exit_code=int(end == "exception"))


class MLflow:
    """A run that is open where the tracker is made is used, and stays open; else a run of its own
    in an experiment. Where it goes is what MLflow is told (`mlflow.set_tracking_uri`, or
    the variable MLFLOW_TRACKING_URI)."""

    METRICS_AT_ONCE = 1000
    """More of them its servers refuse."""

    def __init__(self, experiment: str | None = None) -> None:
        require("mlflow")
        import mlflow

        self._experiment = experiment or "flopwatch"
        active = mlflow.active_run()  # of this thread: the one that calls `start` has none
        self._run_id: str | None = None if active is None else active.info.run_id
        self._is_own = active is None
        self._client: Any = None

    def start(self, run: RunFacts) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import RunTag

        self._client = MlflowClient()
        if self._run_id is None:
            found = self._client.get_experiment_by_name(self._experiment)
            experiment_id = (
                self._client.create_experiment(self._experiment)
                if found is None
                else found.experiment_id
            )
            created = self._client.create_run(experiment_id, run_name=run.name)
            self._run_id = created.info.run_id
        # Not parameters: MLflow refuses to change those, and a restart may have more devices.
        tags = [RunTag(f"flopwatch.{k}", str(v)) for k, v in describe_run(run).items()]
        self._client.log_batch(self._run_id, tags=tags)

    def steps(self, steps: Sequence[StepFacts]) -> None:
        from mlflow.entities import Metric

        metrics = (
            Metric(name, value, round(1000 * step.ended_unix_s), step.number)
            for step in steps
            for name, value in list_metrics(step).items()
        )
        while chunk := list(islice(metrics, self.METRICS_AT_ONCE)):
            self._client.log_batch(self._run_id, metrics=chunk)

    def close(self, end: End) -> None:
        if self._is_own:
            status = "FAILED" if end == "exception" else "FINISHED"
            self._client.set_terminated(self._run_id, status)


class Trackio:
    """A run that is open where the tracker is made is used, and stays open; else a run of its own
    in a project."""

    def __init__(self, project: str | None = None, **settings: Any) -> None:
        """
        Args:
            project: Of a run of its own.
            settings: More that `trackio.init` takes, such as ``space_id``.
        """
        require("trackio")
        self._settings = {"project": project or "flopwatch", **settings}
        self._run = self._find_open_run()
        self._is_own = self._run is None

    @staticmethod
    def _find_open_run() -> Any | None:
        variables = sys.modules.get("trackio.context_vars")  # whose values are those of a thread
        return None if variables is None else variables.current_run.get()

    def start(self, run: RunFacts) -> None:
        import trackio

        if self._run is None:
            settings = {"name": f"{run.name}-{run.run_id}", "embed": False, **self._settings}
            self._run = trackio.init(config={"flopwatch": describe_run(run)}, **settings)

    def steps(self, steps: Sequence[StepFacts]) -> None:
        assert self._run is not None
        for step in steps:
            self._run.log(list_metrics(step), step=step.number)

    def close(self, end: End) -> None:
        if self._is_own and self._run is not None:
            self._run.finish()


TRACKERS: Mapping[str, Callable[..., Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
    "trackio": Trackio,
    "prometheus": Prometheus,
}
"""By name. What follows the colon, if anything, is their first argument."""


def open_trackers(
    wanted: Sequence[Tracker | str], warn: Callable[[str], None], *, is_wanted: bool = True
) -> list[Tracker]:
    """Trackers as they are, and those that are named. One that cannot be opened is left out, with a
    warning; a name that is none is refused, on all ranks.

    Args:
        is_wanted: Not on ranks that tell nobody.
    """
    opened: list[Tracker] = []
    for one in wanted:
        name, _, where = one.partition(":") if isinstance(one, str) else ("", "", "")
        if isinstance(one, str) and name not in TRACKERS:
            raise UsageError(f"there is no tracker {name!r}; there are {', '.join(TRACKERS)}")
        if not is_wanted:
            continue
        try:
            opened.append(TRACKERS[name](*[where] * bool(where)) if isinstance(one, str) else one)
        except UsageError:
            raise
        except Exception as error:
            warn(f"{name} is left out: {error}")
    return opened
