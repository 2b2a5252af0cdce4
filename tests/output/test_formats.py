"""The same tables in every format: exact text, and what somebody else's names must not do."""

from __future__ import annotations

import csv
import io
import json
import re
import textwrap
from pathlib import Path

import pytest
from rich.console import Console

from flopwatch.analysis.summary import Row, summarize
from flopwatch.errors import UsageError
from flopwatch.output.console import draw, fit
from flopwatch.output.formats import escape_latex, write_csv, write_result
from flopwatch.output.table_request import WRITERS, Request, answer
from flopwatch.records.published import load
from flopwatch.records.record import encode
from flopwatch.suites.case import case_id
from tests.cli.test_main import flopwatch
from tests.conftest import make_record
from tests.output.test_case_tables import FAILED, sampled

HOSTILE = [
    "=cmd|' /C calc'!A0", "+1+1", "@SUM(A1)", "-x", "a|b", "**b**", "[x](javascript:1)", "<script>",
    "\\input{/etc/passwd}", "a_b^c~d#e$f%g&h{i}j", "\x1b[2Jclear", "two\nlines", "[4pt] x", "é中",
    'quote "me", please', "*star", "`code`",
]  # fmt: skip


@pytest.fixture
def rows() -> list[Row]:
    small = {"size": 4, "dtype": "float32"}
    return summarize(
        [
            sampled(1e6, 2e6, case_id="1", variant="dense", params=small, group_id="g"),
            sampled(0.5e6, 1e6, case_id="2", variant="fast", params=small, group_id="g"),
            make_record(
                **FAILED, case_id="3", variant="huge", params=small, group_id="g", baseline="dense",
                status="oom", message="needs 3 TiB",
            ),
        ]
    )  # fmt: skip


@pytest.fixture
def hostile() -> list[Row]:
    return summarize(
        make_record(
            case_id=case_id("s", name, {}), group_id=str(n), suite="s_%", variant=name,
            baseline=name, params={"=axis|": name},
        )
        for n, name in enumerate(HOSTILE)
    )  # fmt: skip


def write(rows: list[Row], form: str, **asked: str) -> str:
    return WRITERS[form](answer(rows, Request(**asked), form))


def test_markdown_is_exactly_this(rows: list[Row]) -> None:
    expected = """\
        **demo size=4 dtype=float32**

        | variant | forward | backward |   total |      ± |            speedup | verdict  |
        | :------ | ------: | -------: | ------: | -----: | -----------------: | :------- |
        | dense   | 1.00 ms |  2.00 ms | 3.00 ms | ±1.0 % |                    | baseline |
        | fast    |  500 µs |  1.00 ms | 1.50 ms | ±1.0 % | 2.00x [2.00, 2.00] | faster   |
        | huge    |         |          |     oom |        |                    |          |

        cpu, 1 thread, hot cache, allocator retain

        - huge size=4 dtype=float32: oom: needs 3 TiB
    """
    assert write(rows, "markdown") == textwrap.dedent(expected)


def test_latex_is_exactly_this(rows: list[Row]) -> None:
    expected = r"""
        % needs \usepackage{booktabs}
        % huge size=4 dtype=float32: oom: needs 3 TiB
        \begin{table}
          \centering
          \caption{demo size=4 dtype=float32. cpu, 1 thread, hot cache, allocator retain}
          \begin{tabular}{lrrrrrl}
            \toprule
            variant & forward & backward & total & $\pm$ & speedup & verdict \\
            \midrule
            dense & 1.00\,ms & 2.00\,ms & 3.00\,ms & $\pm$1.0\,\% &  & baseline \\
            fast & 500\,$\mu$s & 1.00\,ms & 1.50\,ms & $\pm$1.0\,\% & 2.00$\times$ [2.00, 2.00] & faster \\
            huge &  &  & oom &  &  &  \\
            \bottomrule
          \end{tabular}
        \end{table}
    """  # noqa: E501
    assert write(rows, "latex") == textwrap.dedent(expected).lstrip("\n")


def test_csv_is_exactly_this(rows: list[Row]) -> None:
    columns = "variant,forward_ns,total_ns,speedup,verdict,comparable,message"
    assert write(rows, "csv", columns=columns) == (
        f"{columns}\r\n"
        "dense,1000000.0,3000000.0,,,,\r\n"
        "fast,500000.0,1500000.0,2.0,faster,true,\r\n"
        "huge,,,,,,needs 3 TiB\r\n"
    )


def test_csv_without_columns_has_all(rows: list[Row]) -> None:
    _, fast, _ = csv.DictReader(io.StringIO(write(rows, "csv"), newline=""))
    assert (fast["suite"], fast["size"], fast["dtype"]) == ("demo", "4", "float32")
    assert float(fast["total_high_ns"]) == pytest.approx(1.5e6 * 1.01)
    assert (fast["threads"], fast["cache"], fast["case_id"]) == ("1", "hot", "2")


def test_json_is_exactly_this(rows: list[Row]) -> None:
    assert json.loads(write(rows, "json", columns="variant,total_ns,comparable")) == [
        {"variant": "dense", "total_ns": 3e6, "comparable": None},
        {"variant": "fast", "total_ns": 1.5e6, "comparable": True},
        {"variant": "huge", "total_ns": None, "comparable": None},
    ]


def test_a_terminal_folds_chosen_words_and_cuts_no_number() -> None:
    row = make_record(variant="a variant of many words", params={"axis": "with more words in it"})
    found = answer(summarize([row]), Request(columns="axis,variant,total_ns"), "terminal")
    (sheet,) = (part for whole in found.make_sheets() for part in fit(whole, 36))
    console = Console(file=io.StringIO(), width=36)
    console.print(draw(sheet))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 36
    assert "100 ns" in text
    assert "…" not in text


def read_markdown(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_no_name_breaks_markdown(hostile: list[Row]) -> None:
    text = write(hostile, "markdown", columns="variant,status,=axis|")
    head, rules, *body = read_markdown(text)
    assert head == ["variant", "status", "=axis\\|"]
    assert rules == [":" + "-" * (len(rule) - 1) for rule in rules]
    assert len(body) == len(HOSTILE)
    assert all(len(cells) == 3 for cells in body)
    assert not re.search(r"(?<!\\)(<|\*\*|`)|\](\(|:)|\x1b", text.partition("\n")[2])


def check_latex(text: str) -> None:
    """What an engine would stumble over."""
    lines = [line.strip() for line in text.splitlines() if not line.startswith("%")]
    code = "\n".join(lines)
    assert code.isascii()
    bare = re.sub(r"\\[\\%&$#_{}]", "", code)  # without what is escaped
    depth = 0
    for char in bare:
        depth += {"{": 1, "}": -1}.get(char, 0)
        assert depth >= 0
    assert depth == 0
    assert bare.count("$") % 2 == 0
    assert not re.search(r"[#^~%]", bare)
    assert "_" not in bare
    known = (
        r"\\(begin|end|centering|caption|par|footnotesize|toprule|midrule|bottomrule|text\w+|pm|mu"
        r"|times|,|-)"
    )
    assert not re.search(r"\\(?!,)", re.sub(known, "", bare))
    for spec, body in re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", code, re.S):
        rows = [line for line in body.split("\n") if line.endswith(r"\\")]
        assert {len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows} == {len(spec)}
        assert not any(row.startswith(("[", "*")) for row in rows)
    assert code.count("\\begin{") == code.count("\\end{")


def test_no_name_breaks_latex(hostile: list[Row], rows: list[Row]) -> None:
    check_latex(write(hostile, "latex", columns="variant,status,=axis|"))
    check_latex(write(hostile, "latex"))
    check_latex(write(rows, "latex", pivot="row=variant,col=size,value=total_ns"))
    assert escape_latex("a\\b") == r"a\textbackslash{}b"


@pytest.mark.parametrize("broken", ["a_b", "50 %", "{", "$", "\\input{x}", "é"])
def test_the_check_of_latex_finds_what_is_not_escaped(broken: str) -> None:
    with pytest.raises(AssertionError):
        check_latex(f"\\begin{{tabular}}{{l}}\n{broken} \\\\\n\\end{{tabular}}")


def test_no_name_is_a_formula_and_numbers_stay(hostile: list[Row]) -> None:
    text = write(hostile, "csv", columns="variant,total_ns,=axis|")
    head, *body = csv.reader(io.StringIO(text, newline=""))
    assert head == ["variant", "total_ns", "'=axis|"]
    assert not any(cell.startswith(("=", "+", "-", "@")) for row in body for cell in row)
    kept = [name.replace("\x1b", " ") for name in HOSTILE]  # a terminal would obey it
    assert [cells[0].removeprefix("'") for cells in body] == kept
    assert {float(cells[1]) for cells in body} == {100.0}
    assert write_csv(["x"], [[-1.5], ["-1.5"], ["-1e"]]) == "x\r\n-1.5\r\n-1.5\r\n'-1e\r\n"


def test_no_name_moves_the_cursor(hostile: list[Row]) -> None:
    console = Console(file=io.StringIO(), width=120, color_system=None)
    for sheet in answer(hostile, Request(columns="variant"), "terminal").make_sheets():
        console.print(draw(sheet))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "\x1b" not in text
    assert len(text.splitlines()) == len(HOSTILE) + 3  # title, heading, conditions


def test_published_layouts_go_through_the_same_writers() -> None:
    mosaic, cs336, dyad = (summarize(load(name)) for name in ("mosaic", "cs336", "dyad"))
    head, *lines = csv.reader(io.StringIO(write(mosaic, "csv", layout="mosaic"), newline=""))
    assert (head[0], len(lines)) == ("Model", 87)
    check_latex(write(mosaic, "latex", layout="mosaic"))
    check_latex(write(cs336, "latex", layout="cs336"))
    with pytest.raises(UsageError, match=r"'cs336' is \d+ tables here, and csv holds one"):
        write(cs336, "csv", layout="cs336")
    for form in ("csv", "markdown", "latex"):
        with pytest.raises(UsageError, match=f"'dyad' is no table, which {form} would need"):
            write(dyad, form, layout="dyad")


def test_what_a_query_gave_is_written_too() -> None:
    columns, rows = ["variant", "n", "list"], [("a|b", 2, [1, 2]), ("c", None, None)]
    assert write_result(columns, rows, "csv") == 'variant,n,list\r\na|b,2,"[1, 2]"\r\nc,,\r\n'
    assert read_markdown(write_result(columns, rows, "markdown"))[1:] == [
        [":------", "--:", ":-----"], ["a\\|b", "2", "[1, 2]"], ["c", "", ""],
    ]  # fmt: skip
    check_latex(write_result(columns, rows, "latex"))
    assert json.loads(write_result(columns, rows, "json"))[0] == {
        "variant": "a|b", "n": 2, "list": [1, 2],
    }  # fmt: skip


def test_the_command_writes_what_it_was_asked_for(tmp_path: Path, rows: list[Row]) -> None:
    path = tmp_path / "demo.jsonl"
    path.write_bytes(b"".join(encode(row.record) + b"\n" for row in rows))
    printed = flopwatch("show", path, "--format", "csv", "--columns", "variant", cwd=tmp_path)
    assert printed.returncode == 0
    assert printed.stdout.split() == ["variant", "dense", "fast", "huge"]
    both = flopwatch("show", path, "--format", "csv", "--json", cwd=tmp_path)
    assert both.returncode == 2
    asked = flopwatch(
        "query", "SELECT count(*) AS n FROM records", path, "--format", "markdown", cwd=tmp_path
    )
    assert asked.stdout == "|   n |\n| --: |\n|   3 |\n"
