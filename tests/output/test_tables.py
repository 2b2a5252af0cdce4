"""Tables and remarks on a narrow terminal: labels stay, numbers go below, sentences are wrapped."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from operator import itemgetter
from pathlib import Path

import pytest

from flopwatch.analysis.summary import summarize
from flopwatch.cli.main import main
from flopwatch.output.case_tables import make_sheets
from flopwatch.output.console import fit
from flopwatch.output.tables import Column, Sheet
from flopwatch.records.record import Record, encode
from tests.conftest import make_record

VARIANTS = ("dense", "dyad:it:4:published-cat", "dyad:it:8:published-cat")
SHAPES = (
    "768x3072", "1024x4096", "2048x8192", "4096x16384", "8192x32768", "1280x5120", "1408x6144",
    "1664x8192", "5120x1280", "6144x1408",
)  # fmt: skip


def make_records() -> list[Record]:
    return [
        make_record(
            case_id=f"{variant} {shape}",
            group_id=shape,
            variant=variant,
            baseline="dense",
            params={"shape": shape, "dtype": "float32" if place % 2 else "bfloat16"},
            samples_ns={"call": [1e6 / (1 + number / 2)] * 4},
            rounds=[*range(4)],
            calls_per_sample=[1] * 4,
        )
        for place, shape in enumerate(SHAPES)
        for number, variant in enumerate(VARIANTS)
    ]


@pytest.fixture
def results(tmp_path: Path) -> str:
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"".join(encode(record) + b"\n" for record in make_records()))
    return str(path)


def show(*words: str) -> int:
    with pytest.raises(SystemExit) as leave:
        main(words)
    assert isinstance(leave.value.code, int)
    return leave.value.code


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.usefixtures("narrow")
def test_a_comparison_keeps_its_variants(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert show("compare", results) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    for shape in SHAPES:
        (title,) = (line for line in out.splitlines() if f"shape={shape} " in f"{line} ")
        assert "variant" not in title
    rows = [line.split()[0] for line in out.splitlines() if "unclear," in line and "0x" in line]
    assert rows == [*VARIANTS[1:]] * len(SHAPES)


def test_each_row_says_over_what_where_baselines_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others = [
        make_record(
            case_id=f"o{v}",
            group_id="o",
            run_id="o",
            variant=v,
            baseline="plain",
            params={"size": 1},
        )
        for v in ("plain", "fast")
    ]
    ours = [
        make_record(
            case_id=f"u{v}",
            group_id="u",
            run_id="u",
            variant=v,
            baseline="dense",
            params={"size": 1},
        )
        for v in ("dense", "fast")
    ]
    path = tmp_path / "two.jsonl"
    path.write_bytes(b"".join(encode(record) + b"\n" for record in [*others, *ours]))
    assert show("compare", str(path)) == 0
    answer, _, *lines = capsys.readouterr().out.splitlines()
    assert "comparisons: " in answer
    assert lines[1].split()[:2] == ["over", "variant"]
    assert [line.split()[:2] for line in lines[2:4]] == [["plain", "fast"], ["dense", "fast"]]


@pytest.mark.usefixtures("narrow")
def test_chosen_columns_keep_their_labels(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    columns = (
        "shape,dtype,variant,total_ns,total_low_ns,speedup,speedup_low,samples,stop_reason,verdict"
    )
    assert show("show", results, "--columns", columns) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    tables = out.count("shape ")
    assert tables > 1
    assert out.count(", continued") == tables - 1
    for variant in VARIANTS:
        shown = [line for line in out.splitlines() if f" {variant} " in f"{line} "]
        assert len(shown) == tables * len(SHAPES)
    for heading in ("total", "low", "speedup", "samples", "stop", "verdict"):
        assert heading in out
    assert out.count("unclear") == len(SHAPES) * 2


@pytest.mark.usefixtures("narrow")
def test_a_pivot_keeps_its_labels(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert show("show", results, "--pivot", "row=variant,col=shape,value=speedup",
                "--where", "variant <> 'dense'") == 0  # fmt: skip
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
    headings = [line for line in out.splitlines() if line.startswith("variant \\ shape")]
    shown = [word for line in headings for word in line.split()[3:]]
    assert sorted(shown) == sorted(SHAPES)
    tables = len(headings)
    assert out.count("speedup by shape") == tables
    assert all(out.count(f"\n{variant} ") == tables for variant in VARIANTS[1:])


def test_in_a_pipe_nothing_is_split(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    columns = ["shape", "dtype", "variant", *["total_ns", "speedup", "verdict"] * 6]
    assert show("show", results, "--columns", ",".join(columns)) == 0
    assert "continued" not in capsys.readouterr().out


def test_words_that_a_group_does_not_share_are_in_no_title() -> None:
    names = ("size", "variant", "part")
    columns: list[Column[dict[str, str]]] = [
        *(Column(name, itemgetter(name), "word") for name in names),
        Column("time", itemgetter("time")),
    ]
    rows = [
        {"size": "4", "variant": "a", "part": "x" * 30, "time": "1 ms"},
        {"size": "4", "variant": "b", "part": "y" * 30, "time": "2 ms"},
    ]
    sheet = Sheet(title="t", columns=columns, items=[rows], remarks=["r"])
    (narrow,) = fit(sheet, 50)
    assert narrow.title == "t size=4"
    assert [cells[0] for cells in narrow.groups[0]] == ["a", "b"]
    assert narrow.remarks == ["r"]


@pytest.mark.usefixtures("narrow")
def test_remarks_are_wrapped(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert show("compare", results) == 0
    told = capsys.readouterr().out
    assert max(map(len, told.splitlines())) <= 80
    assert "would settle it" in " ".join(told.split())


def test_in_a_pipe_a_remark_is_one_line(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert show("compare", results) == 0
    longest = max(capsys.readouterr().out.splitlines(), key=len)
    assert longest.startswith("  unclear, so many more samples")
    assert longest.endswith("--target-interval)")


def test_a_terminal_of_80_columns(results: str) -> None:
    """A real one, whose width nobody has told by a variable."""
    ours, theirs = pty.openpty()
    import fcntl
    import struct
    import termios

    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    unset = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    child = subprocess.Popen(
        [sys.executable, "-c", "from flopwatch.cli.main import main; main()", "compare", results],
        stdin=theirs, stdout=theirs, stderr=theirs, env={**unset, "TERM": "dumb"},
    )  # fmt: skip
    os.close(theirs)
    text = b""
    try:
        while some := os.read(ours, 65536):
            text += some
    except OSError:  # which is how the other end is told to be closed
        pass
    os.close(ours)
    assert child.wait() == 0
    lines = text.decode().replace("\r\n", "\n").splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(VARIANTS[1] in line for line in lines) == len(SHAPES)


def test_columns_that_are_left_out_are_named_and_times_marked_instead() -> None:
    def make_sheet(*samples_ns: float) -> Sheet:
        record = make_record(
            samples_ns={"forward": [*samples_ns], "backward": [*samples_ns]},
            rounds=[*range(len(samples_ns))],
            calls_per_sample=[1] * len(samples_ns),
            warmup_samples=0,
        )
        return make_sheets(summarize([record]))[0]

    noisy = make_sheet(*[1e6, 1e6, 9e6] * 10)
    (wide,), (narrow,) = fit(noisy, 200), fit(noisy, 36)
    assert "too noisy" in wide.groups[0][0]
    assert narrow.headings == ["variant", "total", "speedup", "verdict"]
    assert narrow.groups[0][0][1] == "2.0 ms?"
    assert narrow.remarks[-2:] == [
        "?: too noisy, or too few samples for an interval",
        "left out for width: forward, backward, ±; `flopwatch show --columns` or a wider terminal "
        "shows them",
    ]
    (steady,) = fit(make_sheet(*[1e6, 1.01e6] * 15), 36)
    assert steady.remarks[-2] == "99 % intervals: ±0.5 %"
    (few,) = fit(make_sheet(1e6, 1e6), 200)
    assert "few samples" in few.groups[0][0]
