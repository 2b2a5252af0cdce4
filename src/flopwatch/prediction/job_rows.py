"""Tables of training jobs: a row each, with the columns that published tables have.

    d_model, n_layers, n_heads, vocab_size    dimensions of a GPT-like decoder; `n_heads` may be
                                              missing, and is d_model / 128 then, and `vocab_size`,
                                              and is 50257 then, padded to 50368 as in the
                                              published tables of llm-foundry
    seq_len, micro_batch_seqs, grad_accum     or global_batch_seqs in the place of grad_accum, which
                                              counts where both are given
    n_gpus, gpu_type                          as in a100_80gb, or a name that
                                              `flopwatch peaks --list` has
    precision, mp_mode                        amp_bf16 or bf16, DEFAULT or PURE
    shard_strategy, act_ckpt                  FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD, NO_SHARD, or
                                              our own words; 0, 1 or selective
    tokens_per_s                              of all GPUs, where it was measured

Other columns are passed on as they are.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from flopwatch.errors import UsageError
from flopwatch.jobs.model_shapes import Shape
from flopwatch.jobs.parallelism import Parallelism, find_sharding
from flopwatch.jobs.training_job import Recompute, TrainingJob
from flopwatch.prediction.cost import require_predictable
from flopwatch.records.foreign import ForeignError, read_text

MODES: Mapping[str, int | None] = {"pure": 2, "default": None, "full": 4, "": None}
"""Of mixed precision: bytes of a gradient where it is summed up; None: as is usual. Pure mixed
precision sums gradients up in 16 bits, too."""
RECOMPUTES: Mapping[str, Recompute] = {
    **dict.fromkeys(("1", "true", "yes", "full"), "full"),
    **dict.fromkeys(("0", "false", "no", "none", ""), "none"),
    "selective": "selective",
}
USUAL_HEAD = 128
USUAL_VOCABULARY, USUAL_ROWS = 50_257, 50_368
Value = TypeVar("Value")
NEEDED = ("d_model", "n_layers", "seq_len", "n_gpus", "gpu_type", "micro_batch_seqs")
LONGEST_CELL = 40
"""Characters of what an error is about."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    place: str
    """In which file and line it stands."""
    cells: Mapping[str, str]
    """As they were read."""
    job: TrainingJob
    device: str
    tokens_per_s: float | None
    """Measured; None where the table does not say."""


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
    missing = [column for column in NEEDED if column not in (reader.fieldnames or ())]
    if missing:
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
        job = _make_job(known)
        require_predictable(job)
        speed = None
        if known.get("tokens_per_s"):
            wanted = "a positive number, or nothing"
            speed = _read_number(known, "tokens_per_s", lambda n: 0 < n < 1e15, wanted)
        device = known["gpu_type"]
        return Row(place=place, cells=known, job=job, device=device, tokens_per_s=speed)
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from None


def _make_job(cells: Mapping[str, str]) -> TrainingJob:
    hidden, layers = _read_count(cells, "d_model"), _read_count(cells, "n_layers")
    heads = _read_count(cells, "n_heads", max(hidden // USUAL_HEAD, 1))
    if hidden % heads:
        raise UsageError(f"n_heads={heads} does not divide d_model={hidden}; mend one of them")
    tokens, ranks = _read_count(cells, "seq_len"), _read_count(cells, "n_gpus")
    shape = Shape(
        architecture="gpt",
        hidden_size=hidden,
        feed_forward_size=4 * hidden,
        layers=layers,
        heads=heads,
        vocabulary=_read_count(cells, "vocab_size", USUAL_VOCABULARY),
        padded_vocabulary=None if cells.get("vocab_size") else USUAL_ROWS,
        positions=tokens,
    )
    micro_batch = _read_count(cells, "micro_batch_seqs")
    sharding = find_sharding(cells.get("shard_strategy") or "FULL_SHARD")
    return TrainingJob(
        shape,
        tokens,
        micro_batch=micro_batch,
        grad_accum=_find_grad_accum(cells, micro_batch * ranks),
        recompute=_choose(cells, "act_ckpt", RECOMPUTES, "write 1, 0 or selective"),
        precision=cells.get("precision") or "amp_bf16",
        parallelism=Parallelism(data=ranks, sharding=sharding),
        reduced_bytes=_choose(
            cells, "mp_mode", MODES, "choose one of PURE, DEFAULT, FULL, or leave it out"
        ),
    )


def _find_grad_accum(cells: Mapping[str, str], at_once: int) -> int:
    if cells.get("grad_accum") or not cells.get("global_batch_seqs"):
        return _read_count(cells, "grad_accum", 1)
    batch = _read_count(cells, "global_batch_seqs")
    if batch % at_once:
        raise UsageError(
            f"global_batch_seqs={batch} is not a multiple of n_gpus times micro_batch_seqs, "
            f"{at_once}; mend one of them"
        )
    return batch // at_once


def _choose(cells: Mapping[str, str], column: str, table: Mapping[str, Value], hint: str) -> Value:
    text = cells.get(column, "")
    if text.lower() not in table:
        raise UsageError(f"{column} is {text[:LONGEST_CELL]!r}; {hint}")
    return table[text.lower()]


def _read_count(cells: Mapping[str, str], column: str, usual: int | None = None) -> int:
    if not cells.get(column) and usual is not None:
        return usual
    wanted = "a whole number from 1 to 1e9"
    return int(_read_number(cells, column, lambda n: 1 <= n < 1e9 and n == int(n), wanted))


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
