"""flopwatch compare: its tables and sentences, and its exit codes as a gate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from flopwatch.cli.main import main
from flopwatch.records.record import Record, encode
from flopwatch.settings import Settings
from tests.analysis.test_verdicts import many, sample


def write(path: Path, records: Sequence[Record]) -> str:
    path.write_bytes(b"".join(encode(record) + b"\n" for record in records))
    return str(path)


@pytest.fixture
def old(tmp_path: Path) -> str:
    return write(tmp_path / "old.jsonl", many(seed=1))


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as leave:
        main(["compare", *words])
    assert isinstance(leave.value.code, int)
    return leave.value.code


def test_what_is_printed_of_two_runs(
    old: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = write(tmp_path / "new.jsonl", many(1.2, seed=2, slowed=2))
    assert run(old, new) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    begin = lines.index("demo")
    answer = " ".join(lines[: begin - 1])
    assert answer.startswith("2 of 12 cases slower: dense size=")
    assert ". basis: absolute times (there is no baseline" in answer
    lines = lines[begin:]
    assert lines[1].split() == ["size", "variant", "old", "new", "time", "verdict"]
    assert lines[2].startswith("0     dense     999 µs  1.20 ms  +20.1 % [")
    assert lines[2].endswith("slower")
    assert lines[4].endswith("same")
    said = lines[lines.index("12 comparisons: 2 slower, 10 same") :]
    assert said[1] == (
        "dense size=0: slower: backward +134 µs (67 % of it), forward +67.0 µs (33 % of it)"
    )
    assert said[2].startswith("dense size=1: slower: backward +2")
    assert said[3] == (
        "intervals are at 99.67 %, so that of all that are called faster or slower 2 % is expected "
        "to be so by chance (Benjamini and Hochberg, 12 comparisons); faster or slower: by at "
        "least 2 %; slightly: surely, but by less; same: the interval lies within that"
    )
    assert said[4].startswith("from run to run a case differs by 0.")


def test_variants_of_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [sample(2e6), sample(1e6, "fast", conditions={"autocast": "float16"})]
    assert run(write(tmp_path / "one.jsonl", records)) == 0
    out = capsys.readouterr().out
    assert "faster, not comparable" in out
    assert "not comparable: autocast unknown in the baseline, float16 here" in out


def make_slight(factor: float = 1.02, reach: float = 0.015) -> list[Record]:
    """A variant whose ratio to the baseline is the factor, give or take so much, in 40 rounds."""
    times_ns = [1e6 * factor * (1 + reach * (n % 3 - 1)) for n in range(40)]
    slight = sample(1e6, "other", samples_ns={"forward": times_ns})
    return [sample(1e6, samples_ns={"forward": [1e6] * 40}), slight]


@pytest.mark.parametrize(
    ("factor", "word", "size"),
    [
        (1.02, "slower", "2.0 % slower (0.5 to 3.5 %)"),
        (0.98, "faster", "2.0 % faster (0.5 to 3.6 %)"),
    ],
)
def test_a_slight_difference_has_its_size_in_words(
    factor: float, word: str, size: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = make_slight(factor)
    one = write(tmp_path / "one.jsonl", records)
    assert run(one, "--threshold", "3%") == 0
    out = capsys.readouterr().out
    assert f"1 comparison: 1 slightly {word}.\n" in out
    assert f"other size=4: {size}, below the threshold of 3 %" in out
    assert run(one, "--fail-if-slower", "3%") == 0
    assert run(one, "--json", "--threshold", "3%") == 0
    assert f'"slightly {word}"' in capsys.readouterr().out


def test_times_that_contradict_a_speedup_are_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The machine slowed down in the middle of the run; the variant left before most of that."""
    base_ns = [1e6 if n < 15 else 6e6 for n in range(40)]
    slow = {"samples_ns": {"forward": base_ns}}
    rounds = list(range(25))
    times_ns = [base_ns[n] / 2 * (1 + 0.001 * (n % 3)) for n in rounds]
    early = {"samples_ns": {"forward": times_ns}, "rounds": rounds, "calls_per_sample": [1] * 25}
    one = write(tmp_path / "one.jsonl", [sample(1e6, **slow), sample(1e6, "fast", **early)])
    words = "fast size=4: 6.00 ms over 501 µs would be 12.0x, not 2.00x: times drifted between"
    assert run(one) == 0
    assert words in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["show", one])
    assert words.removesuffix(" between") in capsys.readouterr().out
    calm = write(tmp_path / "calm.jsonl", [sample(1e6), sample(5e5, "fast")])
    assert run(calm) == 0
    assert "drifted" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("factor", "percent", "code"), [(1.2, "3%", 1), (1.2, "30%", 0), (1.0, "3%", 0), (0.8, "3%", 0)]
)
def test_the_gate(old: str, tmp_path: Path, factor: float, percent: str, code: int) -> None:
    new = write(tmp_path / "new.jsonl", many(factor, seed=2))
    assert run(old, new, "--fail-if-slower", percent) == code
    assert run(old, new) == 0


def take_loaded(seed: int, machine: float, own: float, scatter: float = 0.005) -> list[Record]:
    """Two variants and their baseline on a machine that makes all times so many times as long; the
    variants are slower than they were by a factor of their own."""
    times_ns = {"dense": 1e6, "fast": 5e5 * own, "slow": 2e6 * own}
    return [sample(ns * machine, name, seed=seed, scatter=scatter) for name, ns in times_ns.items()]


def test_the_gate_finds_a_regression_on_a_machine_in_another_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All ran 90 % faster, the untouched baseline too; the variants have become 11 % slower."""
    old = write(tmp_path / "old.jsonl", take_loaded(1, 1.0, 1.0))
    new = write(tmp_path / "new.jsonl", take_loaded(2, 0.1, 1.11))
    assert run(old, new, "--fail-if-slower", "3%") == 1
    told = capsys.readouterr()
    assert told.out.startswith(
        "  warning: all cases, the baseline dense included, took 89 % less time: the machine was "
        "in another state, or something changed that all of them share; ratios to the baseline "
        "cannot show that\n"
        "2 of 2 cases slower: "
    )
    assert "basis: relative, each case's time over that of its baseline" in told.out
    assert "the baseline dense itself: time −90." in told.out
    assert "2 comparisons: 2 slower" in told.out
    assert "slower, or no longer measured: fast size=4, slow size=4" in told.err
    assert run(old, new, "--fail-if-slower", "3%", "--absolute") == 4
    told = capsys.readouterr()
    assert told.out.startswith(
        "  warning: all cases, the baseline dense included, took 89 % less time: the machine was "
        "in another state"
    )
    assert "3 comparisons: 3 unclear" in told.out
    assert "unclear, machine shift" in told.out
    assert "unclear whether slower: dense size=4" in told.err
    assert run(old, new, "--json") == 0
    content = json.loads(capsys.readouterr().out)
    assert content["basis"] == "relative"
    assert content["baseline_shifts"][0]["new_ns"] == pytest.approx(1e5, rel=0.01)
    assert run(old, new, "--json", "--absolute") == 0
    content = json.loads(capsys.readouterr().out)
    assert content["machine_shift"] == pytest.approx(0.11, rel=0.02)


def test_the_gate_finds_a_baseline_that_became_slower(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = take_loaded(1, 1.0, 1.0)
    after = [sample(1.1e6, seed=2), *take_loaded(2, 1.0, 1.0)[1:]]
    old, new = write(tmp_path / "old.jsonl", before), write(tmp_path / "new.jsonl", after)
    assert run(old, new, "--fail-if-slower", "3%") == 1
    told = capsys.readouterr()
    assert told.out.startswith(
        "  warning: the baseline dense took 10 % more time, and the other cases did not: it seems "
        "to have changed itself; times are compared"
    )
    assert "slower, or no longer measured: dense size=4\n" in told.err
    assert run(old, new, "--relative") == 0
    assert "leave --relative out to compare times" in capsys.readouterr().out


def test_half_of_the_cases_is_not_all_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their median lies between what moved and what did not."""

    def take(seed: int, own: float) -> list[Record]:
        times_ns = {"dense": 1e6, "fast": 5e5 * own, "slow": 2e6}
        return [sample(ns, name, seed=seed) for name, ns in times_ns.items()]

    old = write(tmp_path / "old.jsonl", take(1, 1.0))
    assert run(old, write(tmp_path / "half.jsonl", take(2, 1.12))) == 0
    assert "moved by" not in capsys.readouterr().out
    assert run(old, write(tmp_path / "both.jsonl", take_loaded(2, 1.0, 1.12))) == 0
    assert "moved by +12." in capsys.readouterr().out


def under_load(share: float, *records: Record) -> list[Record]:
    environment = {"load": {"background_share": share}}
    return [replace(record, environment=environment) for record in records]


def test_load_is_said_of_both_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = [under_load(share, *take_loaded(n, 1.0, 1.0)) for n, share in ((1, 0.64), (2, 0.02))]
    old, new = (write(tmp_path / f"{n}.jsonl", side) for n, side in enumerate(sides))
    assert run(old, new) == 0
    assert capsys.readouterr().out.startswith(
        "  warning: other processes took 64 % of the cores in the old run, and 2 % in the new one"
    )
    assert run(old) == 0
    assert "other processes took 64 % of the cores meanwhile: " in capsys.readouterr().out
    assert run(new) == 0
    assert "other processes" not in capsys.readouterr().out


def test_what_is_too_noisy_has_words_in_place_of_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = [take_loaded(n, 1.0, 1.0, scatter=3.0) for n in (1, 2)]
    old, new = (write(tmp_path / f"{n}.jsonl", side) for n, side in enumerate(sides))
    for words in ((old, new), (old,)):
        assert run(*words) == 0
        out = capsys.readouterr().out
        assert "[too noisy]" in out
        assert "at the threshold" not in out


def test_the_gate_does_not_pass_what_it_could_not_decide(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = write(tmp_path / "old.jsonl", take_loaded(1, 1.0, 1.0, scatter=0.3))
    new = write(tmp_path / "new.jsonl", take_loaded(2, 1.0, 1.02, scatter=0.3))
    assert run(old, new) == 0
    capsys.readouterr()
    assert run(old, new, "--fail-if-slower", "3%") == 4
    told = capsys.readouterr().err
    assert "unclear whether slower: fast size=4, slow size=4; take more samples" in told
    assert "--allow-unclear" in told
    assert run(old, new, "--fail-if-slower", "3%", "--allow-unclear") == 0
    assert "unclear whether slower" in capsys.readouterr().err


def test_an_unclear_case_that_cannot_be_slower_does_not_hold_the_gate_up(tmp_path: Path) -> None:
    """Its interval is about −6 to +2 %: faster or the same."""
    times_ns = [1e6 * (0.98 + 0.04 * (n % 3 - 1)) for n in range(40)]
    maybe = sample(1e6, "other", samples_ns={"forward": times_ns})
    records = [sample(1e6, samples_ns={"forward": [1e6] * 40}), maybe]
    one = write(tmp_path / "one.jsonl", records)
    assert run(one, "--fail-if-slower", "3%") == 0


def test_the_gate_does_not_judge_what_is_not_comparable(
    old: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slower = [sample(2e6, seed=2, params={"size": 0}, settings=Settings(threads=4))]
    new = write(tmp_path / "new.jsonl", slower)
    assert run(old, new, "--fail-if-slower", "3%") == 3
    assert "nothing was comparable" in capsys.readouterr().err
    assert run(old, new, "--fail-if-slower", "3%", "--despite", "cache") == 3
    assert run(old, new, "--fail-if-slower", "3%", "--despite", "threads") == 1
    assert "slower, or no longer measured: dense size=0" in capsys.readouterr().err


def test_a_case_that_fails_now_is_a_regression(
    old: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = {
        "samples_ns": {},
        "rounds": [],
        "calls_per_sample": [],
        "status": "crash",
        "message": "SIGILL",
    }
    broken = write(tmp_path / "new.jsonl", [sample(1e6, params={"size": 0}, **failed)])
    assert run(old, broken, "--fail-if-slower", "3%") == 1
    assert "dense size=0: no longer measured: crash: SIGILL" in capsys.readouterr().out


def test_nothing_comparable(old: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = write(tmp_path / "other.jsonl", [sample(1e6, suite="another")])
    assert run(old, other) == 3
    told = capsys.readouterr()
    assert "nothing was comparable: no case was measured on both sides" in told.err
    assert "nothing was comparable" not in told.out
    assert run(other) == 3
    told = capsys.readouterr()
    assert "no variant has a baseline that was measured in the same run" in told.err
    assert "both sides" not in told.err
    assert told.out == ""


def test_nothing_is_comparable_where_all_fails_now(
    old: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = {
        "samples_ns": {},
        "rounds": [],
        "calls_per_sample": [],
        "status": "crash",
        "message": "SIGILL",
    }
    broken = write(tmp_path / "new.jsonl", [sample(1e6, params={"size": 0}, **failed)])
    assert run(old, broken) == 3
    told = capsys.readouterr()
    assert told.err.count("nothing was comparable") == 1
    assert "nothing was comparable" not in told.out
    assert "no longer measured: crash: SIGILL" in told.out


def test_fields_that_may_differ_must_be_fields(
    old: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(old, old, "--fail-if-slower", "3%", "--despite", "thread") == 2
    err = capsys.readouterr().err
    assert "--despite 'thread' is no field" in err
    assert "did you mean settings.threads?" in err
    for known in ("threads", "torch.version", "torch", "settings", "size", "variant", "all"):
        assert run(old, old, "--fail-if-slower", "3%", "--despite", known) == 0
    capsys.readouterr()
    assert run(old, old, "--despite", "threads") == 2
    assert "has no effect without" in capsys.readouterr().err


def test_verdicts_elsewhere_are_on_each_case_alone(
    old: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = "the report judge every case by itself, at 99 %"
    two = [sample(2e6), sample(1e6, "fast"), sample(3e6, "slow")]
    assert run(write(tmp_path / "one.jsonl", two)) == 0
    assert sentence in capsys.readouterr().out
    assert run(old, old) == 0
    assert sentence not in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["a", "b", "c"],
        ["a", "--relative"],
        ["a", "--absolute"],
        ["a", "b", "--relative", "--absolute"],
        ["a", "b", "--allow-unclear"],
        ["a", "--break-even", "--absolute"],
        ["a", "b", "--threshold", "1%", "--fail-if-slower", "1%"],
        ["a", "--with", "published:dyad", "--threshold", "1%"],
        ["a", "--with", "dyad"],
        ["a", "b", "--fail-if-slower", "lots"],
        ["a", "--with", "published:nothing"],
        ["a", "--axis", "tokens"],
        ["a", "--break-even", "--threshold", "1%"],
        ["a", "--break-even", "--with", "published:dyad"],
    ],
)
def test_misuse_is_one_sentence(
    words: list[str], old: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*(old if word in "abc" else word for word in words)) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_json(old: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = write(tmp_path / "new.jsonl", many(1.2, seed=2, slowed=2))
    assert run(old, new, "--json") == 0
    content = json.loads(capsys.readouterr().out)
    first = content["comparisons"][0]
    assert first["verdict"] == "slower"
    assert first["speedup"]["median"] == pytest.approx(1 / 1.2, rel=0.01)
    assert [part["name"] for part in first["parts"]] == ["backward", "forward"]
    assert content["false_share"] == 0.02


def test_nothing_beside_published_results_is_nothing_comparable(
    old: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(old, "--with", "published:dyad") == 3
    told = capsys.readouterr().err
    assert told == (
        "flopwatch: nothing was comparable; measure what was published, as by: "
        "flopwatch run dyad --set model=opt-125m\n"
    )
