"""A training job: what follows from it, how it is written, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from flopwatch.errors import UsageError
from flopwatch.jobs.model_shapes import find_dimensions
from flopwatch.jobs.parallelism import (
    SHARDING_SPELLINGS,
    SHARDINGS,
    Parallelism,
    find_sharding,
    require_data_only,
)
from flopwatch.jobs.precision import PRECISIONS, find_precision, name_precision, require_built
from flopwatch.jobs.training_job import (
    OLD_WORDS,
    LinearLayer,
    TrainingJob,
    drop_variant,
    parse_variant,
    read_job,
    read_layer,
)

JOB = TrainingJob(
    "7b", 2048, micro_batch=4, grad_accum=2, parallelism=Parallelism(data=8, sharding="full")
)


def test_batches_and_tokens_follow() -> None:
    assert (JOB.ranks, JOB.local_batch, JOB.global_batch) == (8, 8, 64)
    assert (JOB.micro_batch_tokens, JOB.tokens_per_step) == (8192, 64 * 2048)
    assert JOB.parameters == 6_658_404_352
    assert (JOB.arithmetic.matmul_dtype, JOB.arithmetic.dtype) == ("bfloat16", "float32")


def test_tensor_parallel_ranks_share_a_batch() -> None:
    split = replace(JOB, parallelism=Parallelism(data=2, tensor=4, pipeline=2))
    assert (split.ranks, split.global_batch) == (16, 16)


def test_a_model_may_be_a_shape_and_has_positions_for_its_sequences() -> None:
    shape = find_dimensions("7b")
    assert replace(JOB, model=shape).parameters == JOB.parameters
    assert TrainingJob("gpt-125m", 4096).shape.positions == 4096


@pytest.mark.parametrize("job", [JOB, replace(JOB, model=find_dimensions("small"), linear="x:1")])
def test_a_job_survives_json(job: TrainingJob) -> None:
    assert read_job(json.loads(json.dumps(job.to_dict()))) == job


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "huge"}, "there is no model 'huge'"),
        ({"model": 7}, "give a name, or a Shape"),
        ({"seq_len": 0}, "seq_len is '0'; write a whole number from 1"),
        ({"micro_batch": 1.5}, "micro_batch is '1.5'"),
        ({"grad_accum": True}, "grad_accum is 'True'"),
        ({"precision": "fp7"}, "there is no precision 'fp7'"),
        ({"optimizer": "lion"}, "choose one of adamw, adamw-unfused, sgd"),
        ({"recompute": "some"}, "choose one of none, selective, full"),
        ({"attention": "linear"}, "choose one of sdpa, plain"),
        ({"linear": 0.5}, "linear is '0.5'; give the name of a layer"),
        ({"reduced_bytes": "é" * 3000}, "write a whole number from 1"),
        ({"reduced_bytes": 10**400}, "write a whole number from 1"),
        ({"parallelism": {"data": 0}}, "data is '0'"),
        ({"parallelism": {"rows": 2}}, "parallelism has no 'rows'"),
        ({"parallelism": 3}, "this is no training job"),
        ({"colour": "red"}, "a training job has no 'colour'"),
    ],
)
def test_what_is_no_job_gets_one_sentence(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_job({**JOB.to_dict(), **changes})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_layer_has_a_name() -> None:
    with pytest.raises(UsageError, match="linear is '7'; give the name of a layer"):
        read_layer(
            {**LinearLayer(tokens=8, inputs=16, outputs=16, dtype="float32").to_dict(), "linear": 7}
        )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sharding": "halves"}, "there is no sharding 'halves'; choose one of none, ddp"),
        ({"sequence": True}, "give tensor, too"),
        ({"virtual_stages": 2}, "give pipeline, too"),
        ({"schedule": "2f2b"}, "there is no pipeline schedule '2f2b'"),
        ({"data": 4, "expert": 3}, "expert=3 does not divide the 4 ranks"),
        ({"ranks_per_node": 0}, "ranks_per_node is '0'"),
    ],
)
def test_what_is_no_parallelism_gets_one_sentence(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        Parallelism(**given)
    assert words in str(caught.value)


def test_every_spelling_of_a_sharding_has_one_meaning() -> None:
    assert [find_sharding(name) for name in SHARDINGS] == list(SHARDINGS)
    assert {find_sharding(name.upper()) for name in SHARDING_SPELLINGS} <= set(SHARDINGS)
    assert find_sharding("NO_SHARD") == "ddp"


@pytest.mark.parametrize(
    "given",
    [
        {"tensor": 2},
        {"tensor": 2, "sequence": True},
        {"pipeline": 2},
        {"context": 2},
        {"data": 2, "expert": 2},
        {"sharding": "zero1"},
    ],
)
def test_what_is_not_honoured_yet_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="^predict does not know .* yet; "):
        require_data_only(Parallelism(**given), "predict")


def test_precisions_have_names_and_spellings() -> None:
    assert [find_precision(name) for name in PRECISIONS] == list(PRECISIONS)
    assert [name_precision(d, a) for d, a in (("float32", None), ("bfloat16", None))] == [
        "fp32",
        "bf16",
    ]
    fp8, tf32 = PRECISIONS["fp8"], PRECISIONS["tf32"]
    assert (fp8.matmul_dtype, fp8.activation_dtype, fp8.parameter_bytes) == (
        "float8",
        "bfloat16",
        4,
    )
    assert (tf32.matmul_dtype, tf32.dtype, tf32.element_bytes) == ("tf32", "float32", 4)


def test_models_are_built_in_some_precisions_only() -> None:
    for name in ("fp32", "amp_bf16", "fp16"):
        require_built(name, has_tf32=False)
    require_built("tf32", has_tf32=True)
    with pytest.raises(UsageError, match="^precision tf32 is arithmetic of accelerators .* fp32, "):
        require_built("tf32", has_tf32=False)
    with pytest.raises(UsageError, match="^precision fp8 can be predicted, but models are not "):
        require_built("fp8", has_tf32=True)


def test_a_variant_is_the_job_computed_in_another_way() -> None:
    one = TrainingJob("small", 128)
    assert parse_variant(one, "eager") == one
    assert parse_variant(one, "compiled+recompute-full") == replace(
        one, compiled=True, recompute="full"
    )
    swapped = parse_variant(one, "plain-attention+switchback:global@linear")
    assert swapped == replace(one, attention="plain", linear="switchback:global", swapped="linear")
    hybrid = parse_variant(JOB, "hybrid+recompute-selective")
    assert (hybrid.sharding, hybrid.recompute, hybrid.ranks) == ("hybrid", "selective", 8)
    assert drop_variant(hybrid) == drop_variant(JOB)


@pytest.mark.parametrize("word", OLD_WORDS)
def test_an_old_word_names_the_new_one(word: str) -> None:
    with pytest.raises(UsageError, match=f"{word!r} is called {OLD_WORDS[word]!r} here"):
        parse_variant(JOB, word)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ddp+full", "two words for sharding, 'full' and one before it"),
        ("recompute-full+recompute-selective", "two words for recompute"),
        ("dyad:auto:4+dyad:auto:8", "two words for linear"),
    ],
)
def test_two_words_for_one_thing_are_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_variant(JOB, text)
    assert words in str(caught.value)


def test_a_job_prints_as_one_line() -> None:
    assert str(replace(JOB, recompute="full", hardware="8xA100-80GB")) == (
        "7b, seq_len 2,048, micro-batch 4, grad-accum 2, 8 ranks: data 8, sharding full, "
        "bf16-mixed, recompute full, on 8xA100-80GB"
    )
