"""Published benchmarks: what their records say, what readers refuse, and the command."""

from __future__ import annotations

import pytest

from flopwatch.analysis.summary import Row, summarize
from flopwatch.errors import UsageError
from flopwatch.jobs.model_shapes import find_shape
from flopwatch.jobs.training_job import TrainingJob, parse_variant, read_job
from flopwatch.layers import registry
from flopwatch.output.remarks import describe_conditions
from flopwatch.records.published import PUBLICATIONS, load, read_text
from flopwatch.records.published.published_switchback import SUMS
from flopwatch.records.record import Record
from flopwatch.suites.case import case_id


def find_rows(name: str, **params: object) -> dict[str, Row]:
    """By variant, those of one group."""
    rows = summarize(load(name))
    chosen = [row for row in rows if params.items() <= row.record.params.items()]
    assert len({row.record.group_id for row in chosen}) == 1
    return {row.record.variant: row for row in chosen}


def speedup(row: Row) -> float:
    assert row.speedup is not None
    return round(row.speedup.value, 2)


@pytest.mark.parametrize("name", PUBLICATIONS)
def test_every_publication_says_what_it_is_and_what_is_not_known(name: str) -> None:
    publication = PUBLICATIONS[name]
    assert publication.name == name
    assert publication.unknown
    assert publication.advice
    records = load(name)
    assert records
    for record in records:
        assert record.layout == name
        told = record.environment["published"]
        assert told["source"] == publication.source
        assert told["unknown"] == list(publication.unknown)
        assert record.run_id == f"published:{name}"
        assert (record.warmup_samples, record.steady, record.stop_reason) == (0, None, None)
        conditions = describe_conditions(record)
        assert conditions.startswith(f"published: {publication.source}, {publication.year}")
        assert "thread" not in conditions


@pytest.mark.parametrize(
    ("name", "number"), [("dyad", 31), ("switchback", 7 * 142), ("cs336", 25), ("mosaic", 87)]
)
def test_no_two_records_are_the_same_case(name: str, number: int) -> None:
    assert len(summarize(load(name))) == len(load(name)) == number


def test_the_published_dyad_comparison_is_not_comparable() -> None:
    rows = find_rows("dyad", model="opt-125m", autocast="published")
    assert [speedup(rows[f"dyad:it:{blocks}"]) for blocks in (4, 8)] == [3.22, 3.56]
    for variant in ("dyad:it:4", "dyad:it:8", "dyad:ot:4", "dyad:dt:4"):
        assert rows[variant].differences == {"autocast": ("off", "float16")}


def test_compared_fairly_little_is_left_of_it() -> None:
    rows = find_rows("dyad", model="opt-125m", autocast="off")
    assert [speedup(rows[f"dyad:it:{blocks}"]) for blocks in (4, 8)] == [1.10, 1.65]
    assert speedup(rows["dyad:it:4:published-cat"]) == 1.32
    assert not any(row.differences for row in rows.values())


def test_arithmetic_would_allow_more() -> None:
    rows = find_rows("dyad", model="opt-125m", autocast="off")
    limits = {blocks: rows[f"dyad:it:{blocks}"].limit for blocks in (4, 8)}
    assert limits == {4: pytest.approx(2), 8: pytest.approx(4)}
    assert rows["dense"].flops_per_s == pytest.approx(3 * 2 * 4096 * 768 * 3072 / 4.3023407e-3)


def test_a_printed_speedup_that_names_a_wrong_width_is_kept_with_a_note() -> None:
    sparse = find_rows("dyad", model="opt-6l-2048")["dyad:it:4"]
    printed = sparse.record.environment["published"]["printed"]["speedup"]
    assert (printed["width"], printed["value"]) == ("4096", 1.655038627929274)
    assert speedup(sparse) == 1.66
    assert any("4096" in note for note in sparse.record.notes)


def test_switchback_parts_and_their_sums_are_cases_of_the_suite() -> None:
    params = {"level": "layer", "tokens": 1024, "shape": [1024, 4096], "dtype": "float16"}
    rows = find_rows("switchback", **params)
    assert set(rows) == {"dense", "switchback:rowwise", "switchback:global", *SUMS}
    assert {v: row.record.case_id for v, row in rows.items()} == {
        v: case_id("switchback", v, params) for v in rows
    }
    assert {tuple(row.record.calls_per_sample) for row in rows.values()} == {(64,)}
    assert speedup(rows["switchback:rowwise"]) == 0.47
    whole, parts = rows["switchback:global"].total_ns, rows["parts:global"].total_ns
    assert whole
    assert parts
    assert whole.value == pytest.approx(parts.value) == pytest.approx(0.33118948340415955e6)
    assert "sum of its parts" in rows["switchback:global"].record.notes[0]
    (standard_fwd,) = rows["parts:standard"].record.samples_ns["standard_fwd"]
    (forward,) = rows["dense"].record.samples_ns["forward"]
    assert standard_fwd == forward == pytest.approx(47907.233238220215)


def test_speedups_of_switchback_have_the_published_range() -> None:
    found = [row.speedup.value for row in summarize(load("switchback")) if row.speedup]
    assert (len(found), round(min(found), 2), round(max(found), 2)) == (2 * 142, 0.24, 1.56)


def test_cs336_tables_differ_in_warmup_and_profiler() -> None:
    records = [r for r in load("cs336") if r.params.get("model") == "small"]
    told = {r.conditions["warm-up"]: r.conditions["profiler"] for r in records}
    assert told == {
        **{f"{steps} steps": "off" for steps in (5, 0, 1, 2)},
        "unknown": "nsys",
    }
    assert {(r.variant, r.conditions["compile"]) for r in records} == {("compiled", "on")}
    (unwarmed,) = [r for r in records if r.params.get("warmup_steps") == 0]
    assert unwarmed.facts == {"forward_std_s": 3.60679, "backward_std_s": 0.261757}


def test_cs336_has_a_model_that_did_not_fit_and_sums_without_times() -> None:
    records = load("cs336")
    (large,) = [record for record in records if record.params.get("model") == "2.7B"]
    assert (large.status, large.params["warmup_steps"]) == ("oom", 5)
    sums = {r.variant: r.facts["sum"] for r in records if r.suite == "precision"}
    assert list(sums.values()) == [10.0001, 9.9531, 10.0021, 10.0021]


def test_variants_and_models_are_those_of_our_suites() -> None:
    layers = {r.variant for n in ("dyad", "switchback") for r in load(n)} - set(SUMS)
    assert len([registry.parse(layer) for layer in layers]) == 9
    steps = TrainingJob("small", 128)
    found = [parse_variant(steps, r.variant) for r in load("cs336") if r.suite == "steps"]
    assert {job.compiled for job in found} == {True}
    jobs = [read_job(record.job or {}) for record in load("mosaic")]
    assert len(jobs) == 87
    assert {job.recompute for job in jobs} == {"none", "full"}
    models = {r.params["model"] for n in ("dyad", "mosaic") for r in load(n)}
    assert len([find_shape(model) for model in models]) == 14


def test_prose_around_the_figures_is_passed_over() -> None:
    def figures(records: list[Record]) -> list[object]:
        return [(r.case_id, r.samples_ns, r.facts, r.status) for r in records]

    for name, publication in PUBLICATIONS.items():
        prose = f"A title: 3 - 4 of them | and more\n\n{read_text(name)}\nAn end.\n"
        assert figures(publication.parse(prose)) == figures(load(name)), name


def test_a_text_of_somebody_else_is_another_run_without_a_source() -> None:
    lines = read_text("switchback").splitlines()
    one, other = (PUBLICATIONS["switchback"].parse(line) for line in lines[:2])
    assert one[0].run_id != other[0].run_id
    assert describe_conditions(one[0]) == (
        "published: source not stated; hardware not stated; means, without intervals"
    )


@pytest.mark.parametrize("name", PUBLICATIONS)
def test_a_text_of_another_kind_is_refused_in_a_sentence(name: str) -> None:
    with pytest.raises(UsageError, match=r"^there (is|are) no .*; give "):
        PUBLICATIONS[name].parse("nothing\n\n| to | see |\n+----+\n")


@pytest.mark.parametrize(
    ("name", "old", "new", "complaint"),
    [
        ("switchback", '"cast_x": ', '"x": ', "line 1 has None for 'cast_x'"),
        ("switchback", '"repeat": 64', '"repeat": 6.4', "line 1 has 6.4 for 'repeat'"),
        ("switchback", '"repeat": 64', f'"repeat": {"9" * 401}', "line 1 has 9{40} for 'repeat'"),
        ("dyad", "seq_len - 128", f"seq_len - {'9' * 401}", "line 1 has a batch that is too large"),
        ("dyad", "seq_len - 128", f"seq_len - {'9' * 5000}", "a batch that is too large"),
        ("dyad", "Sparse_8", f"Sparse_{'9' * 5000}", "which is no name of the DYAD"),
        ("cs336", "no warm-up", f"{'9' * 5000} warm-up", "warm-up steps that is too large"),
        ("switchback", "}", "", "line 1 is cut off or is not JSON"),
        ("dyad", "Sparse_8", "Sparse_x", "line 4 has times of 'Sparse_x'"),
        ("dyad", "total avg: 1.2", "total avg: one", "line 4 has a time that is no number"),
        (
            "dyad",
            "total avg: 1.209",
            "total avg: -1.2",
            "line 4 has a time that is no number above",
        ),
        ("cs336", "0.0232807", "nan", "line 7 does not have a name"),
        ("mosaic", "8659.76", "inf", "line 5 has a cell .*inf is not above 0"),
        ("dyad", "Batch Size", "Size", "no line 'Batch Size - N, seq_len - N'"),
        ("cs336", "0.0232807", "fast", "does not have a name, two times and two"),
        ("mosaic", "8659.76", "8659.86", "line 5 .*speeds contradict one another"),
        ("mosaic", "FULL_SHARD", "SHARED", "line 5 has a cell"),
        ("mosaic", "|    r1z1 |", "|", "line 5 has 22 cells below 23 headings"),
    ],
)
def test_a_damaged_text_is_refused_with_its_line(
    name: str, old: str, new: str, complaint: str
) -> None:
    text = read_text(name)
    assert old in text
    with pytest.raises(UsageError, match=complaint):
        PUBLICATIONS[name].parse(text.replace(old, new, 1))
