"""The page in a real browser: Chromium, without a window, one session for all tests.

Skipped where Chromium or Playwright is missing: `make test-all` installs them.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from flopwatch.output.page import render_page
from flopwatch.output.page.markup import embed_json
from flopwatch.records.record import Record
from tests.output.test_case_tables import FAILED, make_record, sampled
from tests.output.test_page import make_evil
from tests.plot_tools import GALLERY, SPEEDUPS, draw

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="Chromium is not installed")
PATIENCE_MS = 30_000
sync_api.expect.set_options(timeout=PATIENCE_MS)

SPEEDS = {"dense": 1.0, "fast": 2.0, "faster": 9.5, "slow": 0.5}
SIZES = (1, 2, 10, 30)


def make_records() -> list[Record]:
    """Two suites, several variants at several sizes, times that texts and numbers order
    differently, warnings, and a failure."""
    measured = [
        sampled(
            size * 1e5 / speed, size * 2e5 / speed, case_id=f"{suite}{variant}{size}", suite=suite,
            variant=variant, params={"tokens": size, "dtype": "float32"}, group_id=f"{suite}{size}",
            steady=variant != "slow",
        )
        for suite in ("layers", "steps")
        for size in SIZES
        for variant, speed in SPEEDS.items()
    ]  # fmt: skip
    failed = make_record(
        **FAILED, case_id="f", suite="layers", variant="broken", baseline="dense", status="crash",
        message="died with SIGSEGV", params={"tokens": 30, "dtype": "float32"}, group_id="layers30",
    )  # fmt: skip
    return [*measured, failed]


@dataclass
class Visit:
    """A page in a tab, and all that the browser had to say about it."""

    tab: Any
    path: Path
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tab.set_default_timeout(PATIENCE_MS)
        self.tab.on("console", lambda message: self.complaints.append(message.text))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.goto(self.path.as_uri())

    def column(self, name: str) -> list[str]:
        """The texts in a column of the first table, as they stand."""
        script = """(table, name) => {
            const place = [...table.tHead.rows[0].cells].findIndex(c => c.textContent === name);
            return [...table.querySelectorAll("tbody tr")].map(row => row.cells[place].innerText);
        }"""
        texts = self.tab.locator("table.sheet").first.evaluate(script, name)
        return [text.strip() for text in texts]

    def click_head(self, name: str) -> str | None:
        """How the column is sorted then."""
        button = self.tab.locator("table.sheet").first.get_by_role("button", name=name, exact=True)
        button.click()
        sort: str | None = button.locator("..").get_attribute("aria-sort")
        return sort

    def filter(self, selector: str, text: str, told: str | re.Pattern[str]) -> None:
        """Returns when it is told beside the filter what was found."""
        self.tab.locator(f"{selector} input").first.fill(text)
        sync_api.expect(self.tab.locator(f"{selector} output").first).to_have_text(told)

    def settle(self) -> None:
        """Events of what was scrolled come with the next frame."""
        frames = "requestAnimationFrame(() => requestAnimationFrame(done))"
        self.tab.evaluate(f"() => new Promise((done) => {frames})")

    def overflow(self) -> int:
        """By how many pixels the page is wider than its window."""
        script = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        width: int = self.tab.evaluate(script)
        return width


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        # In a container there is no sandbox to be had, and little shared memory.
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        chromium = playwright.chromium.launch(executable_path=BROWSER, args=arguments)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render_page(make_records()), encoding="utf-8")
    return path


@pytest.fixture
def visit(browser: Any, page_file: Path) -> Iterator[Visit]:
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    visit = Visit(tab, page_file)
    yield visit
    assert visit.complaints == []
    assert visit.requests == [page_file.as_uri()]
    tab.close()


def test_a_column_is_sorted_by_its_values(visit: Visit) -> None:
    before = visit.column("total")
    assert visit.click_head("total") == "ascending"
    assert visit.column("total")[:3] == ["31.6 µs", "63.2 µs", "150 µs"]
    assert visit.column("total")[-1] == "crash"  # what has no time comes last
    assert visit.click_head("total") == "descending"
    assert visit.column("total")[:2] == ["18.0 ms unsteady", "9.00 ms"]
    assert visit.column("total")[-1] == "crash"
    assert visit.click_head("total") is None
    assert visit.column("total") == before  # in groups again, the baseline first
    assert visit.column("variant")[:4] == list(SPEEDS)


def test_a_column_of_words_is_sorted_as_people_do(visit: Visit) -> None:
    visit.click_head("tokens")
    assert list(dict.fromkeys(visit.column("tokens"))) == ["1", "2", "10", "30"]
    visit.tab.keyboard.press("Enter")  # the head has the focus
    assert visit.column("tokens")[0] == "30"


def test_a_table_is_filtered_by_words(visit: Visit) -> None:
    visit.filter(".block .controls", "FAST 9.50x", told="4 of 17 rows")
    assert visit.column("variant") == ["faster"] * 4
    visit.filter(".block .controls", "", told="17 rows")
    assert len(visit.column("variant")) == 17


def test_the_page_is_filtered_in_all_tables(visit: Visit) -> None:
    visit.filter(".page-filter", "steps slow", told=re.compile("^5 of "))
    assert not visit.tab.locator("#suite-1").is_visible()
    assert visit.tab.locator("#suite-2").is_visible()
    visit.filter(".page-filter", "", told="")
    assert visit.tab.locator("#suite-1").is_visible()


LIST_MARKS = """figure => [...figure.querySelectorAll(".drawing svg *")]
    .filter(mark => mark.__data__?.tooltip)"""


def list_tips(figure: Any, condition: str = "true") -> list[str]:
    """Of the marks of a plot for which a condition in JavaScript holds."""
    script = f"figure => ({LIST_MARKS})(figure).filter(mark => {condition})"
    tips: list[str] = figure.evaluate(f"{script}.map(mark => mark.__data__.tooltip)")
    return tips


def find_plot(visit: Visit, number: int = 0) -> Any:
    """Drawn, since it is in sight."""
    figure = visit.tab.locator("figure.plot").nth(number)
    figure.scroll_into_view_if_needed()
    figure.locator("svg").wait_for()
    return figure


def test_every_plot_is_drawn_when_it_comes_into_sight(visit: Visit) -> None:
    figures = visit.tab.locator("figure.plot")
    assert figures.count() >= 4
    assert visit.tab.locator("figure.plot svg").count() < figures.count()
    for number in range(figures.count()):
        figure = find_plot(visit, number)
        assert len(list_tips(figure)) > 3
        box, drawing = figure.bounding_box(), figure.locator("svg").bounding_box()
        assert drawing["width"] <= box["width"] + 1
        assert drawing["width"] > 0.9 * box["width"]
        assert not figure.locator("p").count()


def test_plots_follow_the_filter(visit: Visit) -> None:
    figure = find_plot(visit)
    number = len(list_tips(figure))
    visit.filter(".page-filter", "slow", told=re.compile(r"^\d+ of "))
    hidden = list_tips(figure, 'getComputedStyle(mark).visibility === "hidden"')
    assert 0 < len(hidden) < number
    assert not any("slow" in tip for tip in hidden)


def test_tips_are_shown_to_pointers_and_keys(visit: Visit) -> None:
    figure = find_plot(visit)
    plot, tip = figure.locator("svg"), visit.tab.locator(".tip")
    visit.settle()
    assert not tip.is_visible()
    first = f"figure => {{ const {{ x, y, width, height }} = ({LIST_MARKS})(figure)[0]" \
        ".getBoundingClientRect(); return [x + width / 2, y + height / 2]; }"  # fmt: skip
    visit.tab.mouse.move(*figure.evaluate(first))
    sync_api.expect(tip).to_be_visible()
    assert tip.inner_text() in list_tips(figure)
    visit.tab.keyboard.press("Escape")
    assert not tip.is_visible()
    visit.tab.mouse.move(0, 0)
    plot.focus()
    visit.tab.keyboard.press("ArrowRight")
    told = tip.inner_text()
    visit.tab.keyboard.press("ArrowRight")
    assert tip.is_visible()
    assert tip.inner_text() != told
    assert {told, tip.inner_text()} <= set(list_tips(figure))


def test_a_series_is_shown_alone_and_with_all(visit: Visit) -> None:
    """By its name in the legend."""
    figure = visit.tab.locator("figure.plot:has(svg .role-legend-label text)").first
    find_plot(visit, 1)
    name = figure.locator(".role-legend-label text[role=button]").first
    seen = 'Number(mark.getAttribute("opacity") ?? 1) > 0.5'
    before = len(list_tips(figure, seen))
    name.click()
    alone = list_tips(figure, seen)
    assert 0 < len(alone) < before
    name.focus()
    visit.tab.keyboard.press("Enter")
    assert len(list_tips(figure, seen)) == before


@pytest.mark.parametrize("kind", GALLERY)
def test_every_kind_is_drawn_without_a_complaint(browser: Any, tmp_path: Path, kind: str) -> None:
    html = render_page(SPEEDUPS)
    # The page shows the most informative plots only: this one takes the place of the first.
    spec = embed_json("", draw(kind)[0].to_view())
    html = re.sub(
        r'<script type="application/json" data-name="">.*?</script>', lambda _: spec, html
    )
    path = tmp_path / "kind.html"
    path.write_text(html, encoding="utf-8")
    for width, scheme in ((1280, "light"), (390, "dark")):
        tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        visit = Visit(tab, path)
        figure = find_plot(visit)
        wanted = draw(kind)[0].data
        told = {row["tip"] for name in ("points", "bars") for row in wanted.get(name, [])}
        assert set(list_tips(figure)) >= told
        assert visit.overflow() == 0
        assert visit.complaints == []
        assert visit.requests == [path.as_uri()]
        tab.close()


AXE = Path(__file__).parents[1] / "data" / "axe" / "axe.min.js"
"""Without what is a matter of taste: best practices are no rules of WCAG."""
FIND_BARRIERS = """() => axe.run(document, {resultTypes: ["violations"]}).then(({violations}) =>
    violations.filter(({impact}) => impact === "serious" || impact === "critical")
    .map(({id, nodes}) => `${id}: ${nodes.slice(0, 3).map(node => node.html.slice(0, 150))}`))"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 768, 390])
def test_nothing_keeps_people_out(browser: Any, page_file: Path, width: int, scheme: str) -> None:
    """By axe-core, with plots drawn and folds open."""
    # axe is no part of the page, whose policy would refuse it.
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True
    )
    visit = Visit(context.new_page(), page_file)
    for number in range(visit.tab.locator("figure.plot").count()):
        find_plot(visit, number)
    visit.tab.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
    visit.tab.add_script_tag(path=AXE)
    assert visit.tab.evaluate(FIND_BARRIERS) == []
    assert visit.overflow() == 0
    assert visit.complaints == []
    assert visit.requests == [page_file.as_uri()]
    context.close()


def test_axe_finds_what_is_there_to_find(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    path.write_text("<title>t</title><p style='color: #eee'>pale</p><input>", encoding="utf-8")
    tab = browser.new_page()
    tab.goto(path.as_uri())
    tab.add_script_tag(path=AXE)
    found = " ".join(tab.evaluate(FIND_BARRIERS))
    assert "color-contrast" in found
    assert "label" in found
    tab.close()


def test_columns_come_on_demand(visit: Visit) -> None:
    menu, table = visit.tab.locator("details.columns").first, visit.tab.locator("table.sheet").first
    head = table.locator("thead th", has_text="forward")
    assert not head.is_visible()
    menu.locator("summary").click()
    menu.get_by_label("forward").check()
    assert head.is_visible()
    visit.tab.keyboard.press("Escape")
    assert not menu.locator("fieldset").is_visible()
    assert len({len(row.split("\t")) for row in table.locator("tr").all_inner_texts()}) == 1


def test_a_badge_leads_to_its_warning(visit: Visit) -> None:
    badge = visit.tab.locator("table.sheet a.badge, .common a.badge").first
    target = badge.get_attribute("href")
    badge.click()
    warning = visit.tab.locator(f"#warnings {target}")
    sync_api.expect(warning).to_be_in_viewport()
    assert badge.inner_text() in warning.inner_text()


def test_the_navigation_says_where_one_is(visit: Visit) -> None:
    link = visit.tab.locator("nav a", has_text="steps")
    link.click()
    sync_api.expect(link).to_have_attribute("aria-current", "true")
    assert visit.tab.locator("nav [aria-current]").count() == 1
    visit.tab.locator("nav a", has_text="Commands").click()
    sync_api.expect(visit.tab.locator("#commands code").first).to_be_visible()


def test_a_keyboard_reaches_the_results_first(visit: Visit) -> None:
    visit.tab.keyboard.press("Tab")
    assert visit.tab.evaluate("document.activeElement.hash") == "#main"


def test_nothing_made_of_text_is_run(visit: Visit) -> None:
    """The page's policy is in force: Vega draws without it being loosened."""
    find_plot(visit)
    script = (
        "() => { try { return new Function('return 1')(); } catch (error) { return error.name; } }"
    )
    # Playwright's own evaluation is outside of the policy; a handler in the page is not.
    visit.tab.evaluate(f"() => setTimeout(() => document.title = String(({script})()))")
    sync_api.expect(visit.tab).to_have_title("EvalError")
    visit.complaints.clear()


def test_plots_follow_the_colour_scheme(visit: Visit) -> None:
    plot = find_plot(visit).locator("svg")
    sync_api.expect(plot).to_have_css("background-color", "rgb(255, 255, 255)")
    visit.tab.emulate_media(color_scheme="dark")
    sync_api.expect(plot).to_have_css("background-color", "rgb(22, 24, 28)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_tables_and_not_the_page(visit: Visit, scheme: str) -> None:
    visit.tab.set_viewport_size({"width": 390, "height": 844})
    visit.tab.emulate_media(color_scheme=scheme)
    assert visit.overflow() == 0
    box = visit.tab.locator(".box.tall, .box").first
    assert box.evaluate("box => box.scrollWidth > box.clientWidth")
    box.evaluate("box => { box.scrollLeft = 1000; }")
    left = box.locator("tbody th").first.bounding_box()["x"]
    assert left == pytest.approx(box.bounding_box()["x"], abs=1)  # names stay in sight


def test_dark_is_dark(visit: Visit) -> None:
    def shade(selector: str, style: str) -> int:
        """From 0, black, to 765."""
        script = f"element => getComputedStyle(element).{style}"
        colour = visit.tab.locator(selector).first.evaluate(script)
        return sum(map(int, colour[4:-1].split(",")))

    assert shade("body", "backgroundColor") > 700
    assert shade("body", "color") < 150
    visit.tab.emulate_media(color_scheme="dark")
    assert shade("body", "backgroundColor") < 100
    assert shade("body", "color") > 600


def test_print_has_no_controls(visit: Visit) -> None:
    visit.tab.emulate_media(media="print")
    for selector in (".controls", ".more", ".side", ".tip", "#runs"):
        assert not any(part.is_visible() for part in visit.tab.locator(selector).all()), selector
    visit.tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert visit.tab.locator("#commands code").first.is_visible()
    visit.tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert not visit.tab.locator("#commands code").first.is_visible()


def test_long_tables_are_shown_in_part_and_printed_whole(browser: Any, tmp_path: Path) -> None:
    records = [
        sampled(1e6 + n, 2e6, case_id=str(n), group_id=str(n), variant="dense", params={"n": n})
        for n in range(130)
    ]
    path = tmp_path / "long.html"
    path.write_text(render_page(records), encoding="utf-8")
    tab = browser.new_page()
    visit = Visit(tab, path)
    rows, told = tab.locator("table.sheet tbody tr"), tab.locator(".block output")
    assert rows.count() == 100
    assert told.inner_text() == "the first 100 of 130 rows"
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert rows.count() == 130
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert rows.count() == 100
    tab.get_by_role("button", name="show 130").click()
    assert rows.count() == 130
    assert told.inner_text() == "130 rows"
    assert visit.complaints == []
    tab.close()


def test_without_scripts_all_is_there_but_the_controls(browser: Any, page_file: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(page_file.as_uri())
    assert tab.locator("table.sheet tbody tr").count() >= 33
    assert tab.locator("figure.plot p").first.is_visible()
    assert "did not run" in tab.locator("figure.plot p").first.inner_text()
    assert tab.locator("figure.plot figcaption").first.is_visible()
    assert tab.locator("button, input").count() == 0
    context.close()


def show_next_tip(tab: Any) -> None:
    """By the keyboard. Scrolling hides tips, and the page may still scroll to the focus."""
    for _ in range(20):
        tab.keyboard.press("ArrowRight")
        if tab.locator(".tip").is_visible():
            return
    raise AssertionError("no tip is shown")


def test_texts_of_records_run_nowhere(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "evil.html"
    path.write_text(render_page([*make_evil(), *make_records()]), encoding="utf-8")
    tab = browser.new_page()
    visit = Visit(tab, path)
    visit.filter(".page-filter", "<script>", told=re.compile(r"^\d+ of "))
    figure = find_plot(visit)
    assert any("<script>" in tip for tip in list_tips(figure))
    figure.locator("svg").focus()
    for _ in range(3):
        show_next_tip(tab)
    assert tab.locator("img, iframe, [onerror], [onmouseover]").count() == 0
    assert tab.locator("script:not([type])").count() == 4  # Vega's three, and the page's
    assert visit.complaints == []
    assert visit.requests == [path.as_uri()]
    tab.close()
