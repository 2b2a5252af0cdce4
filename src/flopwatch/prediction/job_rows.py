"""Tables of training jobs: a row each, with the columns that published tables have.

    model                                     a name, where dimensions are not given
    d_model, n_layers, n_heads, n_kv_heads,   dimensions of a decoder. `n_heads` may be missing, and
    head_dim, d_ff, gated, vocab_size, tied   is d_model / 128 then; `d_ff`, and is 4 x d_model
                                              then; `vocab_size`, and is 50257 then, padded to 50368
                                              as in the published tables of llm-foundry
    n_experts, active_experts, expert_d_ff,   mixtures of experts
    n_shared_experts, n_dense_layers
    seq_len, micro_batch_seqs, grad_accum     or global_batch_seqs in the place of grad_accum, which
                                              counts where both are given
    n_gpus, gpu_type, gpus_per_node,          as in a100_80gb, or a name that `flopwatch peaks
    network_gbit                              --list` has; h100_500w is limited to that power
    precision, mp_mode                        amp_bf16 or bf16, DEFAULT or PURE
    tensor_parallel, pipeline_parallel,       how ranks divide the job: 1 where nothing is said.
    virtual_stages, schedule,                 `data_parallel` follows from the GPUs
    context_parallel, expert_parallel,
    sequence_parallel, data_parallel
    sharding or shard_strategy, shard_group   none ... hybrid, or FULL_SHARD, SHARD_GRAD_OP,
                                              HYBRID_SHARD, NO_SHARD; full where nothing is said
    recompute or act_ckpt                     none, selective, full, or 0, 1
    recompute_layers, offload,                as --recompute-layers, --offload, --context-exchange,
    context_exchange,                         --expert-tp and --expert-imbalance
    expert_tensor_parallel, expert_imbalance
    tokens_per_s                              of all GPUs, where it was measured
    source, stack                             where it was measured, and by which framework

Other columns are passed on as they are. A row that is no job has a reason, and the others are read.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from flopwatch.errors import UsageError
from flopwatch.jobs.model_shapes import Shape, find_dimensions
from flopwatch.jobs.parallelism import CONTEXT_EXCHANGES, SCHEDULES, Parallelism, find_sharding
from flopwatch.jobs.training_job import OFFLOADS, Recompute, TrainingJob
from flopwatch.prediction.cost import require_predictable
from flopwatch.records.foreign import ForeignError, read_text

MODES: Mapping[str, int | None] = {"pure": 2, "default": None, "full": 4, "": None}
"""Of mixed precision: bytes of a gradient where it is summed up; None: as is usual. Pure mixed
precision sums gradients up in 16 bits, too."""
RECOMPUTES: Mapping[str, Recompute] = {
    **dict.fromkeys(("1", "1.0", "true", "yes", "full"), "full"),
    **dict.fromkeys(("0", "0.0", "false", "no", "none", ""), "none"),
    **dict.fromkeys(("selective", "partial"), "selective"),
}
SWITCHES: Mapping[str, bool] = {
    **dict.fromkeys(("1", "1.0", "true", "yes"), True),
    **dict.fromkeys(("0", "0.0", "false", "no", ""), False),
}
MASTER_WEIGHTS = {"bf16": "bf16-mixed", "fp16": "fp16-mixed"}
"""Tables of jobs in all kinds of parallelism name the precision of matmuls; their optimizers keep
weights in 32 bits."""
OFFLOADED = {"": "none", "0": "none", "no": "none", **{name: name for name in OFFLOADS}}
EXCHANGES = {
    "": "ring", "ulysses": "all-to-all", "a2a": "all-to-all", "all_to_all": "all-to-all",
    **{name: name for name in CONTEXT_EXCHANGES},
}  # fmt: skip
USUAL_HEAD = 128
USUAL_VOCABULARY, USUAL_ROWS = 50_257, 50_368
Value = TypeVar("Value")
NEEDED = ("d_model", "n_layers", "seq_len", "n_gpus", "gpu_type")
BY_NAME = ("model", "seq_len", "n_gpus", "gpu_type")
"""Columns that a table needs, or these in their place."""
LONGEST_CELL = 40
"""Characters of what an error is about."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    place: str
    """In which file and line it stands."""
    cells: Mapping[str, str]
    """As they were read."""
    job: TrainingJob | None
    """None: it is none, for this reason."""
    reason: str | None = None
    tokens_per_s: float | None = None
    """Measured; None where the table does not say."""

    @property
    def device(self) -> str:
        return self.cells.get("gpu_type", "")


def read_rows(path: Path) -> list[Row]:
    try:
        return parse_rows(read_text(path), str(path))
    except ForeignError as error:
        raise UsageError(f"{path}: {error}; give a table as CSV") from None


def parse_rows(text: str, name: str) -> list[Row]:
    reader = csv.DictReader(io.StringIO(text))
    try:
        lines = [(reader.line_num, line) for line in reader]
    except csv.Error as error:
        raise UsageError(f"{name} is not CSV ({error}); give a comma-separated table") from None
    columns = reader.fieldnames or ()
    missing = [column for column in NEEDED if column not in columns]
    if missing and not all(column in columns for column in BY_NAME):
        raise UsageError(
            f"{name} has no column {', '.join(missing)}; the table needs {', '.join(NEEDED)}"
        )
    if not lines:
        raise UsageError(f"{name} has no row below its headings; add one for each job")
    return [_read_row(cells, f"{name}, line {number}") for number, cells in lines]


def _read_row(cells: Mapping[str, str | None], place: str) -> Row:
    # Cells beyond the headings are a list, under the key None.
    known = {
        key: (value or "").strip()
        for key, value in cells.items()
        if isinstance(key, str) and not isinstance(value, list)
    }
    try:
        speed = None
        if known.get("tokens_per_s"):
            wanted = "a positive number, or nothing"
            speed = _read_number(known, "tokens_per_s", lambda n: 0 < n < 1e15, wanted)
        job = _make_job(known)
        require_predictable(job)
        return Row(place=place, cells=known, job=job, tokens_per_s=speed)
    except UsageError as error:
        return Row(place=place, cells=known, job=None, reason=str(error))


def is_parallel(cells: Mapping[str, str]) -> bool:
    """Whether the table is one of jobs in all kinds of parallelism."""
    return "tensor_parallel" in cells or "sharding" in cells


def _make_job(cells: Mapping[str, str]) -> TrainingJob:
    tokens = _read_count(cells, "seq_len")
    micro_batch = _read_count(cells, "micro_batch_seqs", 1)
    split = _read_parallelism(cells)
    precision = (cells.get("precision") or "amp_bf16").lower()
    if is_parallel(cells) and not cells.get("mp_mode"):
        precision = MASTER_WEIGHTS.get(precision, precision)
    column = "recompute" if cells.get("recompute") else "act_ckpt"
    recompute = _choose(cells, column, RECOMPUTES, "write 1, 0 or selective")
    layers, imbalance = cells.get("recompute_layers"), cells.get("expert_imbalance")
    return TrainingJob(
        _read_shape(cells, tokens),
        tokens,
        micro_batch=micro_batch,
        grad_accum=_find_grad_accum(cells, micro_batch * split.data),
        recompute=recompute,
        recompute_layers=(
            _read_count(cells, "recompute_layers", least=0)
            if layers and recompute == "full"
            else None
        ),
        offload=_choose(cells, "offload", OFFLOADED, f"choose one of {', '.join(OFFLOADS)}"),
        expert_imbalance=(
            _read_number(cells, "expert_imbalance", lambda n: 1 <= n <= 1e4, "a number from 1")
            if imbalance
            else None
        ),
        precision=precision,
        parallelism=split,
        reduced_bytes=_choose(
            cells, "mp_mode", MODES, "choose one of PURE, DEFAULT, FULL, or leave it out"
        ),
    )


def _read_shape(cells: Mapping[str, str], tokens: int) -> Shape:
    if not cells.get("d_model") and cells.get("model"):
        return find_dimensions(cells["model"])
    hidden, layers = _read_count(cells, "d_model"), _read_count(cells, "n_layers")
    heads = _read_count(cells, "n_heads", max(hidden // USUAL_HEAD, 1))
    width = _read_count(cells, "head_dim") if cells.get("head_dim") else None
    if width is None and hidden % heads:
        raise UsageError(
            f"n_heads={heads} does not divide d_model={hidden}; mend one of them, or give head_dim"
        )
    is_gated = _choose(cells, "gated", SWITCHES, "write 1 or 0")
    shape = Shape(
        architecture="llama" if is_gated else "gpt",
        hidden_size=hidden,
        feed_forward_size=_read_count(cells, "d_ff", 4 * hidden),
        layers=layers,
        heads=heads,
        vocabulary=_read_count(cells, "vocab_size", USUAL_VOCABULARY),
        padded_vocabulary=None if cells.get("vocab_size") else USUAL_ROWS,
        positions=tokens,
        key_value_heads=_read_key_value_heads(cells, heads),
        head_dim=None if width == hidden // heads else width,
        tied=_choose(cells, "tied", SWITCHES, "write 1 or 0") if cells.get("tied") else None,
    )
    return _add_experts(shape, cells)


def _read_key_value_heads(cells: Mapping[str, str], heads: int) -> int | None:
    found = _read_count(cells, "n_kv_heads", heads)
    return None if found >= heads else found


def _add_experts(shape: Shape, cells: Mapping[str, str]) -> Shape:
    experts = _read_count(cells, "n_experts", 1, least=0)
    if experts <= 1:
        return shape
    size = _read_count(cells, "expert_d_ff", shape.feed_forward_size)
    shared = _read_count(cells, "n_shared_experts", 0, least=0)
    dense = _read_count(cells, "n_dense_layers", 0, least=0)
    return replace(
        shape,
        experts=experts,
        active_experts=min(_read_count(cells, "active_experts", 2), experts),
        expert_size=size,
        shared_expert_size=shared * size or None,
        dense_layers=min(dense, shape.layers) or None,
    )


def _read_parallelism(cells: Mapping[str, str]) -> Parallelism:
    ranks = _read_count(cells, "n_gpus")
    tensor, pipeline, context = (
        _read_count(cells, f"{name}_parallel", 1) for name in ("tensor", "pipeline", "context")
    )
    together = tensor * pipeline * context
    if ranks % together:
        raise UsageError(
            f"n_gpus={ranks} is no multiple of tensor x pipeline x context, {together}; mend one "
            "of them"
        )
    data = ranks // together
    sharding = cells.get("sharding") or cells.get("shard_strategy") or "FULL_SHARD"
    schedule = cells.get("schedule", "").lower().replace("_", "-") or "1f1b"
    stages = _read_count(cells, "virtual_stages", 1) if pipeline > 1 else 1
    expert_tensor = None
    if cells.get("expert_tensor_parallel"):
        expert_tensor = math.gcd(_read_count(cells, "expert_tensor_parallel"), tensor)
    alike = data * context * tensor // (expert_tensor or tensor)
    group = _read_count(cells, "shard_group") if cells.get("shard_group") else None
    return Parallelism(
        data=data,
        tensor=tensor,
        sequence=tensor > 1 and _choose(cells, "sequence_parallel", SWITCHES, "write 1 or 0"),
        pipeline=pipeline,
        virtual_stages=stages,
        schedule=schedule if schedule in SCHEDULES else "1f1b",
        context=context,
        # Experts may be divided among tensor-parallel ranks, too; what is left is data parallel.
        expert=math.gcd(_read_count(cells, "expert_parallel", 1), alike),
        expert_tensor=expert_tensor,
        context_exchange=_choose(
            cells, "context_exchange", EXCHANGES, f"choose one of {', '.join(CONTEXT_EXCHANGES)}"
        ),
        sharding=find_sharding(sharding),
        shard_group=group,
    )


def _find_grad_accum(cells: Mapping[str, str], at_once: int) -> int:
    if cells.get("grad_accum") or not cells.get("global_batch_seqs"):
        return _read_count(cells, "grad_accum", 1)
    batch = _read_count(cells, "global_batch_seqs")
    if batch % at_once:
        raise UsageError(
            f"global_batch_seqs={batch} is not a multiple of the data-parallel GPUs times "
            f"micro_batch_seqs, {at_once}; mend one of them"
        )
    return batch // at_once


def _choose(cells: Mapping[str, str], column: str, table: Mapping[str, Value], hint: str) -> Value:
    text = cells.get(column, "")
    if text.lower() not in table:
        raise UsageError(f"{column} is {text[:LONGEST_CELL]!r}; {hint}")
    return table[text.lower()]


def _read_count(
    cells: Mapping[str, str], column: str, usual: int | None = None, least: int = 1
) -> int:
    if not cells.get(column) and usual is not None:
        return usual
    wanted = f"a whole number from {least} to 1e9"
    return int(_read_number(cells, column, lambda n: least <= n < 1e9 and n == int(n), wanted))


def _read_number(
    cells: Mapping[str, str], column: str, is_valid: Callable[[float], bool], wanted: str
) -> float:
    text = cells.get(column, "")
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not is_valid(number):
        raise UsageError(f"{column} is {text[:LONGEST_CELL]!r}; write {wanted}")
    return number


def write_rows(rows: Iterable[Mapping[str, object]]) -> str:
    """As CSV, with the columns of the first row."""
    listed = list(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(listed[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(listed)
    return text.getvalue()
