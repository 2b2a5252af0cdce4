"""`flopwatch plot`: what it draws, where, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flopwatch.cli.main import main
from flopwatch.output.plots import KINDS
from flopwatch.records.record import Record, encode
from tests.conftest import make_record
from tests.plot_tools import BREAK_EVEN, GALLERY, LOSSES, SAMPLES, SPEEDUPS, compare


def write(path: Path, records: list[Record]) -> Path:
    path.write_bytes(b"".join(encode(record) + b"\n" for record in records))
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plot(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["plot", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert isinstance(left.value.code, int)
    return left.value.code, out, err


def test_the_most_telling_plot_is_drawn_here(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(here / "r.jsonl", SPEEDUPS)
    assert plot(capsys, file) == (0, "", "wrote demo-speedups.png: Speedup over dense, demo\n")
    assert (here / "demo-speedups.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "start"),
    [("p.png", b"\x89PNG"), ("p.SVG", b"<svg"), ("p.pdf", b"%PDF-"), ("p.vl.json", b"{\n")],
)
def test_the_ending_says_the_format(
    here: Path, capsys: pytest.CaptureFixture[str], name: str, start: bytes
) -> None:
    file = write(here / "r.jsonl", SPEEDUPS)
    code, _, err = plot(capsys, file, "-o", here / name)
    assert code == 0, err
    assert (here / name).read_bytes().startswith(start)


@pytest.mark.parametrize("name", GALLERY)
def test_a_plot_is_drawn_by_its_name(
    here: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    file = write(here / "r.jsonl", GALLERY[name])
    code, out, err = plot(capsys, file, "--plot", name, "--most", 1, "--json")
    assert code == 0, err
    (told,) = json.loads(out)
    assert told["name"] == name
    assert (here / told["file"]).read_bytes().startswith(b"\x89PNG")


def test_several_plots_are_numbered(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(here / "r.jsonl", LOSSES)
    code, _, err = plot(capsys, file, "--plot", "losses", "-o", "loss.png")
    assert code == 0
    assert err.count("wrote loss-") == 2
    assert {path.name for path in here.glob("*.png")} == {"loss-1.png", "loss-2.png"}


def test_specifications_are_numbered_before_their_ending(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(here / "r.jsonl", LOSSES)
    assert plot(capsys, file, "--plot", "losses", "-o", "loss.vl.json")[0] == 0
    assert {path.name for path in here.glob("*.vl.json")} == {"loss-1.vl.json", "loss-2.vl.json"}
    spec = json.loads(Path("loss-1.vl.json").read_text())
    assert spec["$schema"].endswith("vega-lite/v5.json")
    assert spec["datasets"]["points"]


def test_tables_have_a_plot_each(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write(here / "a.jsonl", SPEEDUPS)
    other = [make_record(case_id=r.case_id, group_id=r.group_id, suite="other/one",
                         variant=r.variant, baseline="dense", samples_ns=r.samples_ns) for r in
             compare({"dense": 1, "a": 2, "b": 3})]  # fmt: skip
    second = write(here / "b.jsonl", other)
    code, _, err = plot(capsys, first, second)
    assert code == 0, err
    # A suite's name comes from a record, and is no path.
    assert {path.name for path in here.glob("*.png")} == {
        "demo-speedups.png", "other-one-speedups.png"
    }  # fmt: skip


def test_no_more_than_the_most_are_drawn(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(here / "r.jsonl", BREAK_EVEN)
    code, _, err = plot(capsys, file, "--plot", "samples", "--most", 2)
    assert code == 0
    assert "only the first 2 plots; --most draws more" in err
    assert len(list(here.glob("*.png"))) == 2


def test_where_nothing_tells_more_than_the_table_anything_is_drawn(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(here / "r.jsonl", SAMPLES)
    code, _, err = plot(capsys, file)
    assert code == 0
    assert err.startswith("wrote demo-samples.png")


def test_own_plots_are_drawn_anew_and_nothing_else_is_lost(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(here / "r.jsonl", SPEEDUPS)
    for ending in ("png", "svg", "pdf", "json"):
        assert plot(capsys, file, "-o", f"p.{ending}")[0] == 0
        assert plot(capsys, file, "-o", f"p.{ending}")[0] == 0
    Path("holiday.png").write_bytes(b"\x89PNG mine")
    code, out, err = plot(capsys, file, "-o", "holiday.png")
    assert (code, out) == (2, "")
    assert err == (
        "flopwatch: holiday.png exists and is not a plot of flopwatch; choose another, "
        "or remove it\n"
    )
    assert Path("holiday.png").read_bytes() == b"\x89PNG mine"


def test_nothing_is_written_if_one_file_cannot_be(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(here / "r.jsonl", LOSSES)
    Path("loss-2.png").write_bytes(b"mine")
    assert plot(capsys, file, "--plot", "losses", "-o", "loss.png")[0] == 2
    assert not Path("loss-1.png").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-o", "p.gif"], "p.gif does not end in .png, .svg, .pdf, .json"),
        (["-o", "no/where.png"], "no/where.png cannot be written (No such file or directory)"),
        (["--plot", "pie"], "there is no plot 'pie'; there are speedups,"),
        (["--plot", "scaling"], "needs jobs on two or more numbers of ranks; measure such with: "
                                "flopwatch run training --set ranks=1,2"),
        (["--list", "-o", "p.png"], "--list draws nothing"),
        (["--list", "--plot", "parts"], "--list draws nothing"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused_in_a_sentence(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    file = write(here / "r.jsonl", SPEEDUPS)
    code, out, err = plot(capsys, file, *arguments)
    assert (code, out) == (2, "")
    assert sentence in err
    assert not list(here.glob("*.png"))


@pytest.mark.parametrize(
    ("records", "sentence"),
    [
        ([], "there are no records to draw"),
        (
            [make_record(status="crash", samples_ns={}, rounds=[], calls_per_sample=[])],
            "nothing to draw",
        ),
    ],
)
def test_results_without_measurements_are_refused(
    here: Path, capsys: pytest.CaptureFixture[str], records: list[Record], sentence: str
) -> None:
    code, _, err = plot(capsys, write(here / "r.jsonl", records))
    assert code == 2
    assert sentence in err


def test_the_list_says_what_can_be_drawn(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(here / "r.jsonl", BREAK_EVEN)
    code, out, err = plot(capsys, file, "--list", "--json")
    assert (code, err) == (0, "")
    counts = {kind["name"]: kind["plots"] for kind in json.loads(out)}
    assert counts.keys() == KINDS.keys()
    assert counts["break-even"] == 1
    assert counts["samples"] == 4
    assert counts["scaling"] == 0
    code, out, _ = plot(capsys, file, "--list")
    assert code == 0
    assert all(name in out for name in KINDS)
    assert not list(here.glob("*.png"))
