"""Tables of jobs: what is read, what is predicted of it, and what is refused."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from flopwatch.cli.main import cli
from flopwatch.errors import FlopwatchError, UsageError
from flopwatch.prediction.job_lists import predict_rows
from flopwatch.prediction.job_rows import Row, parse_rows

HEAD = "d_model,n_layers,n_heads,vocab_size,seq_len,n_gpus,gpu_type,precision,micro_batch_seqs"
LINE = "4096,32,32,50368,2048,8,a100_80gb,amp_bf16,6"


def refuse(head: str, line: str) -> str:
    """Why the table is no table, or its row no job."""
    try:
        (row,) = parse_rows(f"{head}\n{line}\n", "jobs.csv")
    except UsageError as error:
        return str(error)
    assert row.job is None
    return f"{row.place}: {row.reason}"


def test_a_row_is_a_job() -> None:
    (row,) = parse_rows(
        f"{HEAD},global_batch_seqs,shard_strategy,act_ckpt,tokens_per_s,note\n"
        f"{LINE},96,SHARD_GRAD_OP,1,37128.5,mine\n",
        "jobs.csv",
    )
    assert row.job is not None
    assert (row.job.ranks, row.job.grad_accum, row.job.sharding) == (8, 2, "zero2")
    assert (row.job.recompute, row.job.precision) == ("full", "bf16-mixed")
    assert (row.device, row.tokens_per_s, row.cells["note"]) == ("a100_80gb", 37128.5, "mine")
    assert row.job.shape.head_size == 128


def test_what_is_not_said_is_usual() -> None:
    head = "d_model,n_layers,seq_len,n_gpus,gpu_type,micro_batch_seqs"
    (row,) = parse_rows(f"\ufeff{head}\n2048,24,512,1,h100_80gb,4\n".lstrip("\ufeff"), "jobs.csv")
    assert row.job is not None
    assert (row.job.shape.heads, row.job.shape.vocabulary, row.tokens_per_s) == (16, 50257, None)
    assert (row.job.grad_accum, row.job.sharding, row.job.recompute) == (1, "full", "none")


def test_a_row_that_cannot_be_predicted_says_why_and_the_others_are(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    lines = [LINE.replace("a100_80gb", "abacus"), LINE, LINE.replace("4096", "wide"), LINE]
    path.write_text("\n".join([HEAD, *lines]))
    code, out, err = run(path, "--json")
    rows = json.loads(out)
    assert code == 0
    assert [row["predicted_tokens_per_s"] is None for row in rows] == [True, False, True, False]
    assert rows[0]["reason"].startswith("no device is called 'abacus'")
    assert (rows[0]["low"], rows[0]["fits"], rows[1]["reason"]) == (None, None, None)
    assert "jobs.csv, line 4: d_model is 'wide'" in err


PARALLEL = (
    "source,stack,d_model,n_layers,n_heads,n_kv_heads,d_ff,gated,vocab_size,tied,seq_len,n_gpus,"
    "gpus_per_node,gpu_type,precision,tensor_parallel,pipeline_parallel,virtual_stages,"
    "context_parallel,expert_parallel,data_parallel,sharding,sequence_parallel,micro_batch_seqs,"
    "grad_accum,recompute,n_experts,active_experts,expert_d_ff,n_shared_experts,n_dense_layers,"
    "head_dim,shard_group"
)


def read_parallel(**changes: object) -> Row:
    usual: dict[str, object] = {
        **dict.fromkeys(PARALLEL.split(","), ""),
        "source": "elsewhere", "stack": "megatron-lm", "d_model": 8192, "n_layers": 80,
        "n_heads": 64, "n_kv_heads": 8, "d_ff": 28672, "gated": 1, "vocab_size": 128256, "tied": 0,
        "seq_len": 8192, "n_gpus": 64, "gpus_per_node": 8, "gpu_type": "h100_80gb",
        "precision": "bf16", "tensor_parallel": 4, "pipeline_parallel": 4, "virtual_stages": 5,
        "context_parallel": 2, "sharding": "zero1", "sequence_parallel": 1,
        "micro_batch_seqs": 1, "grad_accum": 32, "recompute": "none",
    }  # fmt: skip
    line = ",".join(str(value) for value in {**usual, **changes}.values())
    (row,) = parse_rows(f"{PARALLEL}\n{line}\n", "jobs.csv")
    return row


def test_a_row_may_have_all_kinds_of_parallelism() -> None:
    row = read_parallel()
    assert row.job is not None
    assert str(row.job.parallelism) == (
        "64 ranks: data 2, tensor 4, pipeline 4, context 2, sharding zero1"
    )
    assert (row.job.parallelism.virtual_stages, row.job.parallelism.sequence) == (5, True)
    assert row.job.shape.key_value_heads == 8
    moe = read_parallel(n_experts=64, active_experts=6, expert_d_ff=1408, n_shared_experts=2,
                        n_dense_layers=1, expert_parallel=4).job  # fmt: skip
    assert moe is not None
    assert (moe.shape.experts, moe.shape.shared_expert_size, moe.parallelism.expert) == (
        64,
        2816,
        4,
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"precision": "fp8"},
        {"precision": "nvfp4", "gpu_type": "gb200_nvl72", "gpus_per_node": 72},
        {"precision": "fp8", "gpu_type": "a100_80gb"},
        {"gpu_type": "v100_32gb"},
        {"gpu_type": "h100_500w"},
        {"gpu_type": "mi300x", "virtual_stages": "", "recompute": "selective"},
        {"sharding": "hybrid", "shard_group": 2, "sequence_parallel": 0},
        {"sharding": "full", "pipeline_parallel": 1, "context_parallel": 1, "tensor_parallel": 1},
        {"tensor_parallel": 16, "context_parallel": 1},
        {"context_parallel": 8, "seq_len": 262144, "pipeline_parallel": 1},
        {"n_experts": 128, "active_experts": 8, "expert_d_ff": 768, "expert_parallel": 64},
        {"head_dim": 96, "n_layers": 78, "pipeline_parallel": 8, "n_gpus": 512},
        {"source": "vtrain_multi", "stack": "megatron-deepspeed", "gpu_type": "a100"},
    ],
)
def test_every_kind_of_row_is_predicted(changes: dict[str, object]) -> None:
    (found,) = predict_rows([read_parallel(**changes)], None, None)
    assert found.reason is None
    assert found.prediction is not None
    assert 0 < found.prediction.low < found.prediction.tokens_per_s < found.prediction.high
    share = found.prediction.utilisation.mfu
    assert share is not None
    assert 0.02 < share < 0.75


def test_warnings_are_told_beside_the_table(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(f"{HEAD}\n{LINE}\n{LINE.replace('a100_80gb', 'h100_80gb')}\n")
    result = CliRunner().invoke(cli, ["predict", "--rows", str(path)])
    assert "are from H100-SXM: it is predicted from its data sheet" in result.stderr
    assert "(1 of 2)" in result.stderr


def test_recomputation_may_be_selective() -> None:
    (row,) = parse_rows(f"{HEAD},act_ckpt\n{LINE},selective\n", "jobs.csv")
    assert row.job is not None
    assert row.job.recompute == "selective"


def test_gradients_that_are_summed_up_in_16_bits_take_less_time() -> None:
    text = f"{HEAD},mp_mode\n{LINE},DEFAULT\n{LINE},PURE\n"
    usual, pure = predict_rows(parse_rows(text, "jobs.csv"), None, None)
    assert pure.row.job is not None
    assert pure.row.job.reduced_bytes == 2
    assert pure.prediction is not None
    assert usual.prediction is not None
    assert pure.prediction.tokens_per_s > usual.prediction.tokens_per_s


@pytest.mark.parametrize(
    ("cell", "value", "complaint"),
    [
        ("d_model", "wide", "d_model is 'wide'; write a whole number"),
        ("d_model", "1e99", "d_model is '1e99'"),
        ("d_model", "nan", "d_model is 'nan'"),
        ("n_layers", "0", "n_layers is '0'"),
        ("n_layers", "1.5", "n_layers is '1.5'"),
        ("n_heads", "33", "n_heads=33 does not divide d_model=4096"),
        ("precision", "fp7", "there is no precision 'fp7'"),
        ("micro_batch_seqs", "0", "micro_batch_seqs is '0'"),
    ],
)
def test_a_bad_cell_is_one_sentence_with_its_line(cell: str, value: str, complaint: str) -> None:
    cells = dict(zip(HEAD.split(","), LINE.split(","), strict=True))
    said = refuse(HEAD, ",".join({**cells, cell: value}.values()))
    assert said.startswith("jobs.csv, line 2: ")
    assert complaint in said


def test_other_bad_tables_are_refused_too() -> None:
    assert "has no column d_model" in refuse("a,b", "1,2")
    assert "no row below its headings" in refuse(HEAD, "")
    assert "not a multiple of the data-parallel GPUs times" in refuse(
        f"{HEAD},global_batch_seqs", f"{LINE},50"
    )
    assert "there is no sharding 'X'" in refuse(f"{HEAD},shard_strategy", f"{LINE},X")
    assert "mp_mode is 'half'" in refuse(f"{HEAD},mp_mode", f"{LINE},half")
    assert "act_ckpt is 'maybe'" in refuse(f"{HEAD},act_ckpt", f"{LINE},maybe")
    assert "tokens_per_s is '-1'" in refuse(f"{HEAD},tokens_per_s", f"{LINE},-1")


def run(path: Path, *words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, ["predict", "--rows", str(path), *words])
    if isinstance(result.exception, FlopwatchError):
        return 2, "", str(result.exception)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    lines = [f"{LINE},37128,a", f"{LINE.replace('a100_80gb', 'h100_80gb')},,b"]
    path.write_text("\n".join([f"{HEAD},tokens_per_s,note", *lines]))
    return path


def test_rows_come_back_with_what_was_predicted(table: Path) -> None:
    code, out, err = run(table)
    assert code == 0
    first, second = csv.DictReader(io.StringIO(out))
    assert (first["note"], second["note"]) == ("a", "b")
    for row in (first, second):
        low, speed, high = (float(row[k]) for k in ("low", "predicted_tokens_per_s", "high"))
        assert low < speed < high
        assert row["fits"] == "True"
    assert float(first["predicted_tokens_per_s"]) == pytest.approx(37128, rel=0.05)
    assert "1 row with a measured speed: mean absolute error" in err
    assert "largest" in err


def test_rows_as_json_are_numbers_and_truths(table: Path) -> None:
    code, out, _ = run(table, "--json")
    first, second = json.loads(out)
    assert code == 0
    assert first["fits"] is True
    assert second["predicted_tokens_per_s"] > first["predicted_tokens_per_s"]
    # No data are from it: the interval is wider.
    ratios = [row["high"] / row["low"] for row in (first, second)]
    assert ratios[1] > ratios[0]


def test_files_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    assert "does not exist" in run(tmp_path / "missing.csv")[2]
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    assert "not text in UTF-8" in run(binary)[2]
    nul = tmp_path / "nul.csv"
    nul.write_text(f"{HEAD}\n\0\n")
    assert "nul.csv, line 2: " in run(nul)[2]
