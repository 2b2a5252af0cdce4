"""The published CS336 layout: hand-made records in, exact tables out."""
# ruff: noqa: E501  (golden tables)

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from statistics import fmean, stdev

import pytest

from flopwatch.analysis.summary import summarize
from flopwatch.errors import UsageError
from flopwatch.output.layouts import Printout, make_printout
from flopwatch.output.layouts.layout_cs336 import draw_grid, make_headings
from flopwatch.records.record import Record, encode
from flopwatch.settings import Settings
from tests.analysis.test_warmup import FAILED, STEPS, step_record
from tests.cli.test_main import assert_refused, flopwatch
from tests.conftest import make_record


def lay_out(*records: Record) -> Printout:
    return make_printout(summarize(records), "cs336")


def lines(*records: Record) -> str:
    return "\n".join(lay_out(*records).lines)


PUBLISHED = """\
+-------------------+----------------+---------------+-----------------+----------------+
| Experiment_name   |   Forward time |   Forward std |   backward time |   backward std |
+===================+================+===============+=================+================+
| small             |      0.0232807 |   1.94524e-05 |       0.0457747 |    1.09413e-05 |
+-------------------+----------------+---------------+-----------------+----------------+
"""


def test_a_published_table_is_drawn_exactly() -> None:
    numbers = [0.0232807, 1.94524e-05, 0.0457747, 1.09413e-05]
    drawn = draw_grid(make_headings(["forward", "backward"]), [["small", *numbers]])
    assert drawn == PUBLISHED.splitlines()


def test_decimal_points_are_below_one_another() -> None:
    numbers: list[str | float | None] = [12.5, 1.94524e-05, 3, 2e-05, 123456789.0, None, "OOM"]
    drawn = draw_grid(["name", "time"], [["x", number] for number in numbers])
    assert [line.removeprefix("| x      | ") for line in drawn[3::2]] == [
        "12.5         |",
        " 1.94524e-05 |",
        " 3           |",
        " 2e-05       |",
        " 1.23457e+08 |",
        "             |",
        "         OOM |",
    ]


def test_the_cs336_layout_is_exactly_this() -> None:
    memory = {"parameters": 10 * 2.0**30, "activations": 31.2 * 2.0**30}
    records = [
        step_record(first_ms=(1000.0, 0.0, 20.0)),
        step_record("compiled", steady_ms=(80.0, 160.0, 50.0), first_ms=(9000.0, 0.0, 0.0)),
        step_record(model="medium", steady_ms=(1234.5678, 2000.0, 500.0)),
        step_record(
            model="xl",
            **FAILED,
            status="skipped",
            cause="does-not-fit",
            message="it needs 41.2 GiB of memory, and there are 20",
            predicted_memory_bytes=memory,
        ),
        step_record(
            "compiled",
            "xl",
            **FAILED,
            status="oom",
            message="memory ran out",
            predicted_memory_bytes=memory,
        ),
        step_record(model="2.7b", **FAILED, status="oom", message="memory ran out"),
        step_record(model="10b", **FAILED, status="crash", message="died"),
        step_record(context=256),
        make_record(case_id="other"),
    ]
    expected = """\
        steps eager batch=4 context=128 precision=fp32 optimizer=adamw; cpu, 1 thread, hot cache, allocator retain
        +-------------------+----------------+----------------+-----------------+----------------+
        | Experiment_name   |   Forward time |    Forward std |   backward time |   backward std |
        +===================+================+================+=================+================+
        | small             |        0.1     |     0.00102598 |             0.2 |     0.00205196 |
        +-------------------+----------------+----------------+-----------------+----------------+
        | medium            |        1.23457 |     0.0126664  |             2   |     0.0205196  |
        +-------------------+----------------+----------------+-----------------+----------------+
        | xl                |            OOM | needs 41.2 GiB |                 |                |
        +-------------------+----------------+----------------+-----------------+----------------+
        | 2.7b              |            OOM |                |                 |                |
        +-------------------+----------------+----------------+-----------------+----------------+
        | 10b               |          crash |                |                 |                |
        +-------------------+----------------+----------------+-----------------+----------------+

        steps compiled batch=4 context=128 precision=fp32 optimizer=adamw; cpu, 1 thread, hot cache, allocator retain
        +-------------------+----------------+----------------+-----------------+----------------+
        | Experiment_name   |   Forward time |    Forward std |   backward time |   backward std |
        +===================+================+================+=================+================+
        | small             |           0.08 |    0.000820783 |            0.16 |     0.00164157 |
        +-------------------+----------------+----------------+-----------------+----------------+
        | xl                |            OOM | needs 41.2 GiB |                 |                |
        +-------------------+----------------+----------------+-----------------+----------------+

        steps eager batch=4 context=256 precision=fp32 optimizer=adamw; cpu, 1 thread, hot cache, allocator retain
        +-------------------+----------------+---------------+-----------------+----------------+
        | Experiment_name   |   Forward time |   Forward std |   backward time |   backward std |
        +===================+================+===============+=================+================+
        | small             |            0.1 |    0.00102598 |             0.2 |     0.00205196 |
        +-------------------+----------------+---------------+-----------------+----------------+
    """
    assert lines(*records) == textwrap.dedent(expected)


def test_what_was_skipped_for_another_reason_is_not_out_of_memory() -> None:
    skipped = step_record(
        **FAILED,
        status="skipped",
        message="the run's budget was used up",
        predicted_memory_bytes={"parameters": 2.0**30},
    )
    text = lines(skipped)
    assert "| small             |        skipped |               |" in text
    assert "OOM" not in text
    assert "needs" not in text


@pytest.mark.parametrize(
    "change",
    [
        {"batch": 8},
        {"context": 256},
        {"precision": "bf16"},
        {"optimizer": "sgd"},
        {"settings": Settings(threads=2)},
        {"variant": "compiled"},
    ],
)
def test_what_a_table_does_not_say_divides_it(change: dict[str, object]) -> None:
    text = lines(step_record(), step_record(**change))  # type: ignore[arg-type]
    assert text.count("Experiment_name") == 2


def test_numbers_are_means_and_deviations_without_warm_up() -> None:
    skewed = [1e9] * 10 + [1e6] * 15 + [5e6] * 5
    record = step_record(samples_ns={"forward": skewed, "backward": skewed, "optimizer": skewed})
    (content,) = lay_out(record).content
    for phase in ("forward", "backward", "optimizer"):
        assert content[f"{phase}_mean_s"] == pytest.approx(fmean(skewed[10:]) / 1e9)
        assert content[f"{phase}_std_s"] == pytest.approx(stdev(skewed[10:]) / 1e9)
    assert (content["samples"], content["warmup_samples"]) == (20, 10)


def test_without_steps_it_says_how_to_make_them() -> None:
    for record in (make_record(), make_record(params=STEPS), make_record(layout="cs336")):
        with pytest.raises(UsageError, match="flopwatch run steps"):
            lay_out(record)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    path = tmp_path / "steps.jsonl"
    lost = step_record(
        model="xl", **FAILED, status="oom", message="died", predicted_memory_bytes={"all": 2.0**35}
    )
    path.write_bytes(b"".join(encode(record) + b"\n" for record in [step_record(), lost]))
    return path


def test_the_command_prints_the_table_then_the_usual_ones_and_remarks(results: Path) -> None:
    shown = flopwatch("show", results, "-v", cwd=results.parent).stdout
    laid_out = flopwatch("show", results, "--layout", "cs336", cwd=results.parent)
    assert laid_out.returncode == 0
    assert laid_out.stdout.endswith(f"+\n\n{shown}")
    assert "needs 32.0 GiB" in laid_out.stdout
    for words in ("means", "in seconds", "n - 1", "forward includes the loss", "optimizer"):
        assert words in laid_out.stderr


def test_the_command_gives_all_numbers_as_json(results: Path) -> None:
    arguments = ["show", results, "--layout", "cs336", "--json"]
    small, xl = json.loads(flopwatch(*arguments, cwd=results.parent).stdout)
    assert small["experiment_name"] == "small"
    assert small["forward_mean_s"] == pytest.approx(0.1)
    assert small["optimizer_mean_s"] == pytest.approx(0.05)
    assert (small["params"], small["needed_bytes"]) == (STEPS, None)
    assert (xl["status"], xl["forward_mean_s"], xl["needed_bytes"]) == ("oom", None, 2**35)


def test_the_command_refuses_results_of_another_suite(results: Path, tmp_path: Path) -> None:
    results.write_bytes(encode(make_record()) + b"\n")
    refused = flopwatch("show", results, "--layout", "cs336", cwd=tmp_path)
    assert_refused(refused, "flopwatch run steps")
