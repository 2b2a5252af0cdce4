"""flopwatch explain with traces, as a user calls it: answers, tables, plots, pages, refusals."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from flopwatch.cli.main import main
from tests.cli.test_look import read_table
from tests.output.test_json_schemas import find_errors
from tests.records.test_fuzz import check_outcome, drive
from tests.traces.trace_maker import TraceMaker, make_training_step


def run(*words: str | Path) -> int:
    with pytest.raises(SystemExit) as leave:
        main(["explain", *map(str, words)])
    assert isinstance(leave.value.code, int)
    return leave.value.code


def write_trace(path: Path, *, steps: int = 2, rank: int | None = None, ranks: int = 2) -> Path:
    about = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": ranks}}
    maker = TraceMaker(**about)
    for number in range(steps):
        make_training_step(maker, 100.0 * number, number + 1)
    return maker.write(path)


GOLDEN = """\
trace on NVIDIA H100 80GB HBM3: 2 steps of 100 µs on average. The device computes 44.0 % of the
time; the largest part is launch gaps, 28.0 %.
Most to gain: launch gaps, 28.0 µs of a step (torch.compile or CUDA graphs launch with less work of
the host).

trace, breakdown of an average step
part time share
matmul 20.0 µs 20.0 %
attention 8.00 µs 8.0 %
norm 4.00 µs 4.0 %
loss 4.00 µs 4.0 %
optimizer 8.00 µs 8.0 %
communication, exposed 10.0 µs 10.0 %
memory copies 4.00 µs 4.0 %
waiting for data 10.0 µs 10.0 %
launch gaps 28.0 µs 28.0 %
idle 4.00 µs 4.0 %
total 100 µs 100.0 %

communication, overlapped (not in the sum) 5.00 µs 5.0 %
"""


def test_the_answer_comes_first_then_the_breakdown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(write_trace(tmp_path / "trace.json.gz")) == 0
    lines = read_table(capsys.readouterr().out)
    golden = GOLDEN.splitlines()
    assert lines[: len(golden)] == golden
    text = " ".join(lines)
    assert "idle: something was queued, and had not begun" in text
    assert "1 100 µs 44.0 µs 10.0 µs 5.00 µs 4.00 µs 10.0 µs 28.0 µs 4.00 µs" in text
    assert "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n matmul aten::addmm 1 10.0 µs 10.0 %" in text
    assert "limit: of H100-SXM, bfloat16 989 TFLOP/s (NVIDIA H100" in text


def test_quiet_is_the_answer_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(write_trace(tmp_path / "trace.json"), "-q") == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_ranks_by_files_or_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    files = [write_trace(folder / f"rank{rank}.json", rank=rank) for rank in (1, 0)]
    for given in (files, [folder]):
        assert run(*given) == 0
        text = "\n".join(read_table(capsys.readouterr().out))
        assert "2 ranks: a step takes 100 µs" in text
        assert "No rank makes the others wait in particular." in text
        assert "ranks, an average step of each" in text
        assert "matmul 20.0 µs 20.0 % 20.0 µs 20.0 %" in text
    assert run(*files, "--compare", "-q") == 0
    assert "A step takes 100 µs instead of 100 µs" in capsys.readouterr().out


def test_two_traces_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = write_trace(tmp_path / "old.json"), write_trace(tmp_path / "new.json", steps=3)
    assert run(old, new) == 0
    text = "\n".join(read_table(capsys.readouterr().out))
    assert "old and new, what moved in an average step" in text
    assert "total 100 µs 100 µs 0 1.00x" in text
    assert "by operator: time of its kernels" in text


def test_json_is_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write_trace(tmp_path / "one.json", rank=0)
    other = write_trace(tmp_path / "other.json", rank=1)
    for name, words in (
        ("explain-trace", [one]),
        ("explain-trace", [one, other]),
        ("explain-trace-change", [one, other, "--compare"]),
    ):
        assert run(*words, "--json") == 0
        content = json.loads(capsys.readouterr().out)
        assert find_errors(name, content) == []
    assert run(one, "--json") == 0
    (trace,) = json.loads(capsys.readouterr().out)["traces"]
    for step in (*trace["steps"], trace["whole"]):
        assert sum(step["rows"].values()) == step["total_ns"]
    assert sum(row["time_ns"] for row in trace["rows"]) == trace["step_ns"] == 100_000


def test_a_plot_and_a_page_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write_trace(tmp_path / "trace.json")
    assert run(trace, "-o", tmp_path / "plot.vl.json", "-q") == 0
    spec = json.loads((tmp_path / "plot.vl.json").read_text())
    bars = spec["datasets"]["bars"]
    assert {bar["part"] for bar in bars} >= {"matmul", "communication, exposed", "launch gaps"}
    assert [lane["note"] for lane in spec["datasets"]["lanes"]] == ["100 µs (+5.00 µs)"] * 2
    assert run(trace, "-o", tmp_path / "page.html", "-q") == 0
    page = (tmp_path / "page.html").read_text()
    assert "The device computes 44.0 %" in page
    assert "communication, exposed" in page
    assert run(trace, trace, "--compare", "-o", tmp_path / "page.html", "-q") == 0
    assert "what moved in an average step" in (tmp_path / "page.html").read_text()
    assert "wrote" in capsys.readouterr().err


def test_names_from_a_trace_are_escaped(tmp_path: Path) -> None:
    maker = TraceMaker(device="<script>alert(1)</script>")
    maker.kernel("</script><script>alert(2)</script>", 0, 5, launched=0)
    path = maker.write(tmp_path / "trace.json")
    assert run(path, "-o", tmp_path / "page.html") == 0
    assert "<script>alert" not in (tmp_path / "page.html").read_text()


def test_a_file_that_is_cut_off_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_trace(tmp_path / "trace.json")
    path.write_bytes(path.read_bytes()[:-400])
    assert run(path) == 0
    assert "what is whole of it was read, the end is missing" in capsys.readouterr().out
    assert run(path, "--json") == 0
    assert "what is whole of it was read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["one", "other-job"], "of a job of 2 ranks and"),
        (["one", "one", "one"], "are both of rank 0"),
        (["one", "--compare"], "--compare takes two traces, OLD and NEW, and got 1"),
        (["one", "steps.jsonl"], "these are results and traces; explain one kind at a time"),
        (["one", "--where", "x"], "a trace has no cases and no lines; leave --where out"),
        (["one", "--roofline"], "a trace has no cases and no lines; leave --roofline out"),
        (["one", "-o", "x.txt"], "x.txt does not end in .html, .png, .svg, .pdf, .json"),
        (["one", "-o", "one"], "does not end in"),
        (["none.json"], "none.json does not exist; check the name"),
        (["empty"], "has no traces, no file that ends in .json or .json.gz"),
        (["steps.jsonl", "-o", "x.png"], "this is for traces; `flopwatch plot`"),
    ],
)
def test_what_cannot_be_explained_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_trace(Path("one"), rank=0)
    write_trace(Path("other-job"), rank=1, ranks=8)
    Path("steps.jsonl").write_text('{"case_id": 1}\n')
    Path("empty").mkdir()
    assert run(*words) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert printed.out == ""


def test_a_trace_of_ours_is_replaced_by_nothing(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "trace.json")
    before = trace.read_bytes()
    assert run(trace, "-o", trace) == 2
    assert trace.read_bytes() == before


COMMANDS = [("explain", "FILE"), ("explain", "FILE", "--json"), ("explain", "FILE", "FILE", "-q")]
STRANGE = [b"null", b"-1", b"1e308", b"[]", b"{}", b'"x"', b"true", b"9" * 40, b"\xff", b"\\"]


def test_damaged_traces_never_end_in_a_traceback(tmp_path: Path) -> None:
    """Values replaced, bytes changed, pieces left out, moved and cut off, from a fixed seed."""
    maker = TraceMaker(distributedInfo={"rank": 0, "world_size": 1})
    for number in range(2):
        make_training_step(maker, 100.0 * number, number)
    text = json.dumps(maker.to_dict()).encode()
    chance = random.Random(20)
    path = tmp_path / "trace.json"
    codes = set()
    for _ in range(120):
        path.write_bytes(damage(text, chance))
        for command in COMMANDS:
            outcome = drive(command, path, tmp_path / "out")
            check_outcome(command, outcome)
            codes.add(outcome.code)
    assert codes == {0, 2}


def damage(text: bytes, chance: random.Random) -> bytes:
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(len(text))
        end = min(len(text), start + chance.randint(1, 60))
        way = chance.randrange(5)
        if way == 0:
            text = text[:start] + chance.choice(STRANGE) + text[end:]
        elif way == 1:
            text = text[:start] + bytes([chance.randrange(256)]) + text[start + 1 :]
        elif way == 2:
            text = text[:start] + text[end:]
        elif way == 3:
            colon = text.find(b": ", start)
            comma = text.find(b",", colon)
            text = text[: colon + 2] + chance.choice(STRANGE) + text[comma:]
        else:
            text = text[: max(1, len(text) - chance.randrange(300))]
    return gzip.compress(text) if chance.random() < 0.2 else text
