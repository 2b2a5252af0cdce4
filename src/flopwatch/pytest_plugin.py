"""The pytest plug-in: options, a mark, the fixture `flopwatch`, and what it found in the terminal.

    def test_speed(flopwatch):
        result = flopwatch.compare({"old": old, "new": new})
        assert result.verdict("new") != "slower"

pytest loads this module in every run. So it imports next to nothing; the fixture itself, in
`pytest_fixture`, is only imported by tests that ask for it.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flopwatch.errors import FlopwatchError

if TYPE_CHECKING:
    from flopwatch.pytest_fixture import Flopwatch

FIXTURE = SECTION = "flopwatch"
RESULTS = pytest.StashKey[list[str]]()
"""Of a test, and of the run for its current one: what it has measured and no report has yet, as
text whose first line is the answer."""
VERDICTS = ("faster", "slower", "slightly faster", "slightly slower", "same", "unclear")
"""Written out: `analysis.statistics` has them as a type, and imports more than a run should."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("flopwatch", "measurements with flopwatch")
    group.addoption("--flopwatch-save", metavar="FILE",
                    help="append the records of all measurements to a results file, for `flopwatch "
                         "show`, `compare` and `report`")  # fmt: skip
    group.addoption("--flopwatch-skip", action="store_true",
                    help="skip tests that measure with flopwatch")  # fmt: skip
    group.addoption("--flopwatch-only", action="store_true",
                    help="run only tests that measure with flopwatch")  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "flopwatch(budget_s=10, threshold=0.02, ...): options of flopwatch.compare and "
        "flopwatch.measure, for all measurements of a test",
    )
    if config.option.flopwatch_skip and config.option.flopwatch_only:
        raise pytest.UsageError("--flopwatch-skip and --flopwatch-only exclude each other")
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist
        return
    config.pluginmanager.register(Summary(config), "flopwatch-summary")
    if config.option.flopwatch_save is not None:
        # Absolute, since workers are given it as it is here.
        path = Path(config.invocation_params.dir, config.option.flopwatch_save)
        config.option.flopwatch_save = str(path)
        if not config.option.collectonly:
            _require_results_file(path)


def _require_results_file(path: Path) -> None:
    """Refuse a file that is not ours before any test runs."""
    from flopwatch.records.store import Store

    try:
        Store.open(path).close()
    except FlopwatchError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.flopwatch_skip:
        for item in filter(_does_measure, items):
            item.add_marker(pytest.mark.skip(reason="--flopwatch-skip"))
    elif config.option.flopwatch_only:
        left_out = [item for item in items if not _does_measure(item)]
        items[:] = filter(_does_measure, items)
        config.hook.pytest_deselected(items=left_out)


def _does_measure(item: pytest.Item) -> bool:
    return FIXTURE in getattr(item, "fixturenames", ())


@pytest.fixture
def flopwatch(request: pytest.FixtureRequest) -> Flopwatch:
    """Measures and compares functions, as `flopwatch.measure` and `flopwatch.compare` do."""
    from flopwatch.pytest_fixture import Flopwatch, read_marks

    if request.config.option.flopwatch_skip:  # a test may ask for the fixture while it runs
        pytest.skip("--flopwatch-skip")
    results = request.node.stash.setdefault(RESULTS, [])
    request.config.stash[RESULTS] = results
    return Flopwatch(item=request.node, defaults=read_marks(request.node), results=results)


def pytest_assertrepr_compare(
    config: pytest.Config, op: str, left: object, right: object
) -> list[str] | None:
    """Of an assertion about a verdict, the last answer: ``assert 'slower' != 'slower'`` alone says
    nothing, and may be all that a log shows."""
    results = config.stash.get(RESULTS, [])
    if not results or left not in VERDICTS:
        return None
    return [f"{left!r} {op} {right!r}: {results[-1].splitlines()[0]}"]


@pytest.hookimpl(hookwrapper=True)  # which pytest 7 knows, too
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Results are a section of the report, which is printed if the test fails, and sent by workers
    of pytest-xdist."""
    outcome = yield
    results = item.stash.get(RESULTS, [])
    outcome.get_result().sections += [(SECTION, result) for result in results]
    results.clear()


class Summary:
    """The answers of all tests, a line each."""

    def __init__(self, config: pytest.Config) -> None:
        self._save: str | None = config.option.flopwatch_save
        self._answers: list[str] = []
        self._workers: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for title, result in report.sections:
            if title == SECTION:
                self._answers.append(f"{report.nodeid}: {result.splitlines()[0]}")
                self._workers.add(getattr(report, "worker_id", ""))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._answers:
            return
        terminalreporter.write_sep("=", SECTION)
        for answer in self._answers:
            terminalreporter.write_line(answer)
        if len(self._workers) > 1:
            terminalreporter.write_line(
                f"measured in {len(self._workers)} processes at once, which disturb each other; "
                "for exact times, measure with -n 0"
            )
        if self._save is not None:
            terminalreporter.write_line(f"records: {self._save}")
