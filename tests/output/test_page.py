"""The page as text: what it says, what it escapes, how it is written. `test_browser` opens it."""

from __future__ import annotations

import json
import os
import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flopwatch.analysis.summary import summarize
from flopwatch.cli.main import cli
from flopwatch.output.answers import answer_suite
from flopwatch.output.headlines import describe_suite, describe_whole, group_failures
from flopwatch.output.page import document, is_report, render_page
from flopwatch.output.page.headline import list_tiles
from flopwatch.output.page.markup import MOST_REMARKS, Content, Section, make_section
from flopwatch.output.page.table_markup import MOST_ROWS
from flopwatch.output.plots import choose_plots
from flopwatch.output.plots.plot_catalog import make_plots
from flopwatch.output.tables import divide
from flopwatch.records.published import load
from flopwatch.records.record import Record, encode
from flopwatch.settings import Settings
from tests.analysis.test_vs_published import measure_layers
from tests.conftest import make_record
from tests.output.test_case_tables import FAILED, sampled
from tests.plot_tools import GALLERY, SAMPLES, SPEEDUPS, compare

SMALL, LARGE = {"size": 4, "dtype": "float32"}, {"size": 8, "dtype": "float32"}


@pytest.fixture
def records() -> list[Record]:
    return [
        sampled(1e6, 2e6, case_id="1", variant="dense", params=SMALL, group_id="g1"),
        sampled(0.5e6, 1e6, case_id="2", variant="fast", params=SMALL, group_id="g1"),
        sampled(4e6, 8e6, case_id="3", variant="dense", params=LARGE, group_id="g2"),
        make_record(
            **FAILED, case_id="4", variant="fast", params=LARGE, group_id="g2", baseline="dense",
            status="oom", message="needs 3 TiB",
        ),
    ]  # fmt: skip


class TestSentences:
    def test_of_the_whole(self, records: list[Record]) -> None:
        assert describe_whole(summarize(records)) == [
            "3 cases of demo measured in 1 run, 2026-01-01; 1 failed.",
            "Measured on: cpu, 1 thread, hot cache, allocator retain.",
        ]
        assert describe_whole([]) == ["There are no records."]

    def test_what_others_measured_is_told_apart(self) -> None:
        own = [make_record(case_id=str(n), suite="training", run_id=str(n)) for n in range(2)]
        rows = summarize([*own, *load("mosaic")])
        assert describe_whole(rows)[:2] == [
            "2 cases of training measured in 2 runs, 2026-01-01; none failed.",
            "87 cases of training measured by others: published, or imported.",
        ]
        told = describe_suite(rows)
        assert len(told) > 1
        assert all(line.startswith("Measured by others: ") for line in told[1:])
        assert not told[0].startswith("Measured by others: ")

    def test_of_what_did_not_fit_and_of_what_does_not_exist(self, records: list[Record]) -> None:
        others = [
            make_record(
                **FAILED,
                case_id="5",
                group_id="g3",
                status="skipped",
                cause="does-not-fit",
                message="it needs 9 GiB",
            ),
            make_record(
                **FAILED, case_id="6", group_id="g4", status="unsupported", message="no such thing"
            ),
        ]
        assert describe_whole(summarize([*records[:3], *others]))[0] == (
            "3 cases of demo measured in 1 run, 2026-01-01; none failed, 1 did not fit into "
            "memory, 1 unsupported."
        )

    def test_of_several_conditions(self, records: list[Record]) -> None:
        cold = sampled(1e6, 2e6, case_id="1", variant="dense", settings=Settings(cache="cold"))
        assert describe_whole(summarize([*records, cold]))[1] == (
            "Measured under 2 conditions, in tables of their own: cpu, 1 thread, hot cache, "
            "allocator retain; cpu, 1 thread, cold cache, allocator retain."
        )

    def test_of_one_comparison(self, records: list[Record]) -> None:
        assert describe_suite(summarize(records[:2])) == [
            "fast is faster than dense: 2.00x [2.00, 2.00]."
        ]

    def test_of_several_comparisons(self, records: list[Record]) -> None:
        slow = sampled(5e6, 10e6, case_id="4", variant="fast", params=LARGE, group_id="g2")
        odd = [
            sampled(
                1e6,
                2e6,
                case_id="5",
                variant="odd",
                params=SMALL,
                group_id="g1",
                rounds=range(40, 70),
            ),
            sampled(2e6, 4e6, case_id="6", variant="odd", params=LARGE, group_id="g2"),
        ]
        assert describe_suite(summarize([*records[:3], slow, *odd])) == [
            "odd is faster than dense: 2.00x [2.00, 2.00].",
            "fast over dense: 0.80x [0.80, 0.80] at size=8 to 2.00x [2.00, 2.00] at size=4; "
            "faster in 1 and slower in 1 of 2 cases.",
            "Fastest: fast in 1 and odd in 1 of 2 groups (by medians; the baseline where nothing "
            "is clearly faster).",
        ]

    def test_of_what_is_unclear(self, records: list[Record]) -> None:
        few = [
            sampled(1e6, 2e6, case_id=name, variant=name, rounds=range(4), calls_per_sample=[1] * 4,
                    warmup_samples=0, samples_ns={"call": [1e6 * n] * 4})
            for n, name in ((1, "dense"), (2, "fast"))
        ]  # fmt: skip
        assert describe_suite(summarize(few)) == [
            "fast over dense: 0.50x [few samples].",
            "1 of 1 comparison has no verdict: too few independent samples for an interval.",
        ]

    def test_of_intervals_that_are_too_wide(self) -> None:
        noisy = [1e6 * (1 + n % 7) for n in range(20)]
        wide = [
            make_record(case_id=name, variant=name, baseline="dense", samples_ns={"call": times_ns})
            for name, times_ns in (("dense", [3e6] * 20), ("fast", noisy))
        ]
        assert describe_suite(summarize(wide))[1:] == [
            "1 of 1 comparison has no verdict: the interval is too wide for one."
        ]

    def test_of_times_where_nothing_was_compared(self, records: list[Record]) -> None:
        assert describe_suite(summarize([records[0]])) == ["dense takes 3.00 ms ±1.0 %."]
        assert describe_suite(summarize([records[0], records[2]])) == [
            "dense size=4 takes 3.00 ms ±1.0 %, dense size=8 takes 12.0 ms ±1.0 %."
        ]
        assert describe_suite(summarize([records[3]])) == ["Nothing was measured."]

    def test_many_variants_are_not_all_told(self) -> None:
        times = {f"v{n}": 1e6 / n for n in range(1, 12)}
        records = [
            sampled(time, time, case_id=name, variant=name, baseline="v1")
            for name, time in times.items()
        ]
        sentences = describe_suite(summarize(records))
        assert sentences[0] == "v11 is faster than v1: 11.0x [11.0, 11.0]."
        assert sentences[-1] == "4 other variants less fast than these: see the tables."


def test_failures_of_the_same_reason_are_told_once(records: list[Record]) -> None:
    more = [
        make_record(**FAILED, case_id=f"x{n}", group_id=f"x{n}", variant="v", params={"n": n},
                    status="oom", message="needs 3 TiB")
        for n in range(3)
    ]  # fmt: skip
    crash = make_record(**FAILED, case_id="c", group_id="c", status="crash", message="died")
    crashed, oom = sorted(
        group_failures(summarize([crash, *records, *more])), key=lambda f: f.status
    )
    assert (crashed.status, crashed.cases) == ("crash", ["a size=4"])
    assert oom.cases == ["fast size=8 dtype=float32", "v n=0", "v n=1", "v n=2"]


class TestHeadline:
    def test_the_answer_is_a_sentence_with_its_interval(self, records: list[Record]) -> None:
        rows = summarize(records[:2])
        page = render_page(records[:2])
        assert '<p class="answer">fast is 2.00x [2.00, 2.00] faster than dense.</p>' in page
        (tile,) = list_tiles(rows)
        assert (tile.label, tile.value, tile.tone) == ("fast over dense", "2.00x", "faster")

    def test_what_is_unclear_is_not_called_faster(self) -> None:
        noisy = [1e6 * (1 + n % 7) for n in range(20)]
        wide = [
            make_record(case_id=name, variant=name, baseline="dense", samples_ns={"call": times_ns})
            for name, times_ns in (("dense", [3e6] * 20), ("fast", noisy))
        ]
        rows = summarize(wide)
        (answer,) = answer_suite(rows)
        assert answer.startswith("fast vs dense: no clear difference, ")
        assert [tile.tone for tile in list_tiles(rows)] == ["unclear"]

    def test_a_value_without_interval_is_called_so(self) -> None:
        rows = summarize(load("dyad"))
        assert "no intervals" in answer_suite(rows)[0]
        assert {tile.tone for tile in list_tiles(rows)} == {"unknown"}

    def test_cases_of_which_some_have_no_interval_have_no_common_verdict(self) -> None:
        few = {"rounds": [0, 1, 2], "calls_per_sample": [1] * 3, "warmup_samples": 0}
        known = compare({"dense": 1, "fast": 2}, "one", params={"size": 4})
        samples_ns = {"call": [1e7] * 3}
        unknown = compare(
            {"dense": 1, "fast": 2}, "two", params={"size": 8}, samples_ns=samples_ns, **few
        )
        (tile,) = list_tiles(summarize([*known, *unknown]))
        assert tile.tone == "mixed"
        assert tile.detail == "faster in 1, no interval in 1 of 2 cases"


class TestBadges:
    def test_a_warning_stands_beside_its_number(self) -> None:
        drifting = [1e6 * (1 + n / 20) for n in range(40)]
        steady = sampled(1e6, 2e6, case_id="s", group_id="s", params={"size": 9})
        record = make_record(
            case_id="d", samples_ns={"call": drifting}, rounds=list(range(40)),
            calls_per_sample=[1] * 40,
        )  # fmt: skip
        page = render_page([record, steady])
        (number,) = re.findall(r'<a class="badge spoils" href="#(warning-\d+)">drift</a>', page)
        assert f'<li id="{number}">' in page

    def test_what_is_about_a_run_stands_at_no_number(self) -> None:
        page = render_page([sampled(1e6, 2e6, environment={"project": {"dirty": True}})])
        assert '<span class="badge note">dirty tree</span>' in page
        assert ">dirty tree</a>" not in page

    def test_what_concerns_all_rows_is_said_once(self) -> None:
        page = render_page(load("dyad"))
        assert page.count(">few samples</a>") == page.count('<p class="common">')


class TestOtherSections:
    def test_a_run_is_compared_with_the_one_before(self) -> None:
        before = compare({"dense": 1, "fast": 2}, run_id="a", measured_at="2026-01-01T00:00:00")
        now = compare({"dense": 1, "fast": 1.5}, run_id="b", measured_at="2026-01-02T00:00:00")
        page = render_page([*before, *now])
        assert '<section id="runs-compared-1"' in page
        assert "b next to a" in page
        assert "runs-compared" not in render_page(now)

    def test_published_figures_stand_next_to_your_own(self) -> None:
        theirs = load("switchback")
        page = render_page([*theirs, *measure_layers()])
        assert '<section id="published"' in page
        assert '<section id="published"' not in render_page(theirs)

    def test_predictions_have_their_score(self) -> None:
        page = render_page(GALLERY["predictions"])
        assert "off by 55 % on average; 1 of 2 measurements lies inside" in page

    def test_another_kind_of_content_is_one_entry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def render_plan(content: Content) -> list[Section]:
            return [make_section("plan", "Plan", f"<p>{len(content.records)} steps</p>")]

        monkeypatch.setattr(document, "SECTIONS", (*document.SECTIONS, render_plan))
        page = render_page([])
        assert '<li><a href="#plan">Plan</a></li>' in page
        assert "<p>0 steps</p></section>" in page


HARMFUL = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "</pre></table></script><script>alert(3)</script>",
    'javascript:alert(4)" onmouseover="alert(5)',
)


def make_evil() -> list[Record]:
    """Every text of a record is one that a careless page would run."""
    evil = {
        "suite": HARMFUL[0], "baseline": HARMFUL[3], "group_id": HARMFUL[0], "run_id": HARMFUL[2],
        "params": {HARMFUL[1]: HARMFUL[2]}, "notes": list(HARMFUL), "measured_at": HARMFUL[1],
        "conditions": {HARMFUL[0]: HARMFUL[1]}, "facts": {HARMFUL[1]: 1.0},
        "environment": {
            "machine": {"cpu_model": HARMFUL[0]}, "torch": {"version": HARMFUL[2]},
            "project": {"commit": HARMFUL[1]}, "command": list(HARMFUL), HARMFUL[2]: HARMFUL[0],
        },
    }  # fmt: skip
    return [
        sampled(1e6, 2e6, case_id="e1", variant=HARMFUL[3], **evil),
        sampled(2e6, 3e6, case_id="e2", variant=HARMFUL[0], **evil),
        sampled(3e6, 3e6, case_id="e3", variant=HARMFUL[1], **{**evil, "facts": {HARMFUL[1]: 2.0}}),
        make_record(
            **FAILED, case_id="e4", variant=HARMFUL[2], status="crash", message=HARMFUL[1], **evil
        ),
    ]


class Elements(HTMLParser):
    """What a browser would make of a page: its elements, and the attributes that could run."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.scripts += [dict(attrs).get("type")] if tag == "script" else []
        self.attributes += attrs


def test_texts_of_records_stay_texts() -> None:
    found = Elements()
    found.feed(render_page(make_evil(), title=HARMFUL[2]))
    assert found.tags.count("script") == len(found.scripts)
    assert (
        len([kind for kind in found.scripts if kind is None]) == 4
    )  # Vega's three, and the page's
    assert set(found.scripts) == {None, "application/json"}
    assert {"img", "iframe", "object", "form"}.isdisjoint(found.tags)
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    addresses = {value for name, value in found.attributes if name in ("href", "src")}
    assert all(address and address.startswith(("#", "data:,")) for address in addresses)


def test_a_browser_may_run_and_fetch_nothing_else(records: list[Record]) -> None:
    page = render_page(records)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy[1]
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    allowed = re.findall(r"'sha256-([^']+)'", policy[1])
    digests = [b64encode(sha256(script.encode()).digest()).decode() for script in scripts]
    assert digests == allowed[: len(scripts)]
    assert not re.search(r'(src|href)="?(http|//)', page)


def test_a_page_without_plots_has_no_vega() -> None:
    page = render_page(SAMPLES)
    assert page.count("<script") == 1
    assert len(page) < 100_000


def list_specifications(page: str) -> list[dict[str, Any]]:
    found = re.findall(r'<script type="application/json" data-name="">(.*?)</script>', page)
    return [json.loads(text) for text in found]


@pytest.mark.parametrize("name", GALLERY)
def test_the_page_has_the_plots_of_its_tables(name: str) -> None:
    rows = summarize(GALLERY[name])
    page = render_page(GALLERY[name])
    tables = divide(rows)
    wanted = [plot.to_view() for alike in tables for plot in choose_plots(alike)]
    # Predictions have a section of their own.
    wanted += [plot.to_view() for plot in make_plots("predictions", tables)]
    assert list_specifications(page) == wanted
    assert page.count('<figure class="plot') == len(wanted)
    assert page.count("This plot is drawn by a script, which did not run") == len(wanted)


def test_a_specification_cannot_end_its_element() -> None:
    page = render_page(make_evil())
    specs = list_specifications(page)
    assert specs
    assert any("</script>" in json.dumps(spec["datasets"]) for spec in specs)


def test_an_empty_page() -> None:
    assert "There are no records." in render_page([])


def test_a_page_with_thousands_of_cases_has_no_thousands_of_remarks() -> None:
    records = [
        sampled(
            1e6,
            2e6,
            case_id=str(n),
            group_id=str(n),
            variant="dense",
            params={"n": n},
            steady=False,
        )
        for n in range(MOST_ROWS + 50)
    ]
    page = render_page(records)
    assert 0 < page.count("no steady state was detected") <= MOST_REMARKS
    assert f"{len(records) - MOST_REMARKS} more remarks" in page
    assert page.count('<tr class="baseline rest">') == 50


def test_values_to_sort_by_are_raw(records: list[Record]) -> None:
    assert "<td data-v=1500000>1.50 ms</td>" in render_page(records)


class TestCommands:
    def test_one_that_is_known_is_told_as_it_was(self, records: list[Record]) -> None:
        words = ["flopwatch", "run", "~/mine.py", "--filter", "size=4 8"]
        known = sampled(1e6, 1e6, case_id="7", environment={"command": words})
        page = render_page([known])
        assert "<code>flopwatch run ~/mine.py --filter &#x27;size=4 8&#x27;</code>" in page
        assert "rebuilt" not in page

    def test_one_that_is_not_known_is_rebuilt(self, records: list[Record]) -> None:
        page = render_page(records)
        assert "rebuilt from the records of" in page
        assert (
            "<code>flopwatch run demo.py --device cpu --threads 1 --baseline dense "
            "--filter size=4,8 --filter dtype=float32 --filter variant=fast</code>"
        ) in page

    def test_settings_are_rebuilt_too(self) -> None:
        settings = Settings(
            threads=2, cache="cold", allocator="default", target_interval=0.01, budget_s=2.0, seed=3
        )
        page = render_page([sampled(1, 1, suite="activations", variant="dense", settings=settings)])
        assert (
            "flopwatch run activations --quick --target-interval 1% --device cpu --threads 2 "
            "--cache cold --allocator default --seed 3 --baseline dense --filter size=4<"
        ) in page

    def test_grids_of_a_suite_have_a_command_each(self, records: list[Record]) -> None:
        other = sampled(
            1e6, 2e6, case_id="9", variant="dense", params={"model": "small"}, group_id="g9"
        )
        assert render_page([*records, other]).count("<code>flopwatch run demo.py") == 2


def test_a_number_too_large_to_sort_by_is_shown_all_the_same() -> None:
    page = render_page([sampled(1e6, 2e6, variant="dense", params={"size": 10**400})])
    assert str(10**400) in page


def test_what_others_have_measured_has_no_settings_and_no_command() -> None:
    published = {"published": {"source": "A paper", "year": 2023}}
    page = render_page([sampled(1e6, 2e6, variant="dense", environment=published)])
    assert "<code>" not in page
    assert ">published: A paper, 2023; " in page
    assert '<th scope="col">threads</th>' not in page


def test_facts_of_runs_bring_their_names_to_a_narrow_screen(records: list[Record]) -> None:
    page = render_page(records)
    assert '<td data-name="threads">' in page
    assert 'content: attr(data-name) ": "' in page
    assert "#runs .texts td { white-space: nowrap; }" not in page


def test_verdicts_are_said_to_be_on_each_case_alone() -> None:
    sentence = "`flopwatch compare` judges all of them together"
    assert render_page(SPEEDUPS).count(sentence) == 1
    assert sentence not in render_page(SPEEDUPS[:1])


def test_runs_that_are_alike_are_told_once(records: list[Record]) -> None:
    later = sampled(1e6, 2e6, case_id="9", group_id="g9", variant="dense", run_id="later")
    page = render_page([*records, later])
    assert "<summary>2 runs: r, later</summary>" in page
    assert page.count('<th scope="row">') == 2


class TestWriting:
    @pytest.fixture
    def results(self, tmp_path: Path, records: list[Record]) -> Path:
        path = tmp_path / "results.jsonl"
        path.write_bytes(b"".join(encode(record) + b"\n" for record in records))
        return path

    def report(self, *words: object) -> tuple[int, str]:
        answer = CliRunner().invoke(cli, ["report", *map(str, words)])
        if answer.exception is not None and not isinstance(answer.exception, SystemExit):
            return 2, str(answer.exception)
        return answer.exit_code, answer.stdout

    def test_a_page_replaces_a_page(self, results: Path, tmp_path: Path) -> None:
        out = tmp_path / "page.html"
        assert self.report(results, "-o", out)[0] == 0
        assert is_report(out.read_bytes())
        assert self.report(results, "-o", out, "--title", "Ours & theirs")[0] == 0
        assert "<h1>Ours &amp; theirs</h1>" in out.read_text()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "results.jsonl"]

    def test_but_nothing_else(self, results: Path) -> None:
        before = results.read_bytes()
        code, said = self.report(results, "-o", results)
        assert code == 2
        assert said == (
            f"{results} exists and is not a report of flopwatch; choose another, or remove it"
        )
        assert results.read_bytes() == before

    def test_an_error_leaves_no_file(self, tmp_path: Path) -> None:
        (tmp_path / "broken.jsonl").write_text("{}\n")
        assert self.report(tmp_path / "broken.jsonl", "-o", tmp_path / "page.html")[0] == 2
        assert not (tmp_path / "page.html").exists()

    def test_nor_does_a_folder_that_is_not_there(self, results: Path, tmp_path: Path) -> None:
        code, said = self.report(results, "-o", tmp_path / "no" / "page.html")
        assert code == 2
        assert said.endswith("cannot be written (No such file or directory); choose another")

    def test_a_link_goes_on_leading_where_it_leads(self, results: Path, tmp_path: Path) -> None:
        (tmp_path / "link.html").symlink_to(tmp_path / "page.html")
        assert self.report(results, "-o", tmp_path / "link.html")[0] == 0
        assert (tmp_path / "link.html").is_symlink()
        assert is_report((tmp_path / "page.html").read_bytes())

    def test_a_device_is_not_replaced(self, results: Path) -> None:
        assert self.report(results, "-o", os.devnull)[0] == 0
        assert not Path(os.devnull).is_file()

    def test_stdout(self, results: Path) -> None:
        code, said = self.report(results, "-o", "-")
        assert code == 0
        assert said.startswith("<!doctype html>")
        assert said.endswith("</html>\n")
