"""What arrived in a tracker, read back from its own files with its own reader, where it has one."""

from __future__ import annotations

import json
import struct
import urllib.request
from collections.abc import Iterator
from pathlib import Path

Points = dict[str, dict[int, float]]
"""By metric and step."""

WANDB_BLOCK = 2**15
WANDB_FILE_HEADER = 7
WANDB_RECORD_HEADER = struct.Struct("<IHB")  # checksum, length, type
WANDB_FULL, WANDB_FIRST, WANDB_MIDDLE, WANDB_LAST = 1, 2, 3, 4


def read_tensorboard(folder: Path) -> Points:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {
        tag: {event.step: event.value for event in accumulator.Scalars(tag)}
        for tag in accumulator.Tags()["scalars"]
    }


def read_wandb_records(file: Path) -> Iterator[bytes]:
    """The file is a log of LevelDB: blocks of records, of which long ones are in pieces."""
    data = file.read_bytes()
    assert data[:4] == b":W&B"
    at, pieces = WANDB_FILE_HEADER, b""
    while at + WANDB_RECORD_HEADER.size <= len(data):
        left = WANDB_BLOCK - at % WANDB_BLOCK
        if left < WANDB_RECORD_HEADER.size:
            at += left
            continue
        _, length, kind = WANDB_RECORD_HEADER.unpack_from(data, at)
        at += WANDB_RECORD_HEADER.size
        pieces += data[at : at + length]
        at += length
        if kind in (WANDB_FULL, WANDB_LAST):
            yield pieces
            pieces = b""
        else:
            assert kind in (WANDB_FIRST, WANDB_MIDDLE)


def read_wandb(file: Path) -> tuple[list[dict[str, float]], dict[str, object]]:
    """The history and the configuration of a run that was kept offline."""
    from wandb.proto.wandb_internal_pb2 import Record

    history: list[dict[str, float]] = []
    config: dict[str, object] = {}
    for data in read_wandb_records(file):
        record = Record.FromString(data)
        if record.HasField("history"):
            items = record.history.item
            history.append(
                {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items}
            )
        updates = record.run.config.update if record.HasField("run") else record.config.update
        config |= {one.key: json.loads(one.value_json) for one in updates if one.key}
    return history, config


def read_mlflow(experiment: str) -> tuple[Points, dict[str, str]]:
    """The metrics and the tags of the only run of an experiment."""
    from mlflow import MlflowClient

    client = MlflowClient()
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    (run,) = client.search_runs([found.experiment_id])
    assert run.info.status == "FINISHED"
    points = {
        name: {one.step: one.value for one in client.get_metric_history(run.info.run_id, name)}
        for name in run.data.metrics
    }
    return points, run.data.tags


def read_trackio(project: str) -> tuple[Points, str]:
    """The metrics of the only run of a project, and its name."""
    from trackio.sqlite_storage import SQLiteStorage

    (name,) = SQLiteStorage.get_runs(project)
    points: Points = {}
    for row in SQLiteStorage.get_logs(project, name):
        for metric, value in row.items():
            if metric not in ("step", "timestamp"):
                points.setdefault(metric, {})[row["step"]] = value
    return points, name


def read_prometheus(port: int) -> dict[str, float]:
    """By sample, with its labels."""
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        sample.name
        + "".join(f"{{{k}={v}}}" for k, v in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
