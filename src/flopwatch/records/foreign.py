"""Records of what others have measured: of other programs' files, and of published benchmarks.

A file of another program has times that were not taken side by side, so that none of its records
has a baseline, and `run_id`, a digest of the file's content, keeps it apart from all others.

A published mean is one sample. Where the source says of how many calls it is the mean, that is the
sample's calls. There are no warm-up, no rounds and no interval, and nothing is known of a machine
but what the source says. ``environment["published"]`` marks such a record:

    source, year, unknown    of a publication that the package has, see `published.PUBLICATIONS`
    printed                  words, places and figures of the source that a record has no other
                             field for, so that the published layout can be printed again: a figure
                             of 17 digits, say, which nanoseconds would round
"""

from __future__ import annotations

import gzip
import json
import math
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from flopwatch.devices.kinds import USUAL_ACCELERATOR
from flopwatch.errors import FlopwatchError
from flopwatch.records.quantities import LARGEST_INT
from flopwatch.records.record import Record
from flopwatch.records.store import reading
from flopwatch.settings import COMPARED_SETTINGS, Settings
from flopwatch.suites.case import Case, digest

MAX_FILE_BYTES = 256 * 2**20
"""As Python objects, JSON takes ten times as much memory."""

GPU = Settings(device=USUAL_ACCELERATOR)
"""Of published benchmarks: all so far ran on one."""

SUITE, VARIANT, PARAMS, PHASE = (
    f"flopwatch_{name}" for name in ("suite", "variant", "params", "phase")
)
"""How our exports name a case, so that an import finds it again."""

Form = TypeVar("Form")


class ForeignError(FlopwatchError):
    """A foreign file that cannot be read; its text does not name the file: the caller does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Import:
    """What a foreign file holds."""

    records: list[Record]
    remarks: list[str] = field(default_factory=list)
    """What a record cannot hold, in sentences."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Importer:
    """Both functions take the JSON values of a file: one, or one a line."""

    recognise: Callable[[Sequence[Any]], bool]
    read: Callable[[Sequence[Any]], Import]


def make_record(case: Case, **fields: Any) -> Record:
    """A record of that case; `fields` are more of the record's own."""
    return Record(
        **{
            "case_id": case.id,
            "group_id": case.group,
            "run_id": "",  # an importer does not know the file's digest
            "suite": case.suite,
            "variant": case.variant,
            "baseline": "",
            "params": dict(case.params),
            "status": "ok",
            **fields,
        }
    )


def make_samples(
    times_ns: Mapping[str, Sequence[float]], calls: Sequence[int] | None = None
) -> dict[str, Any]:
    """Fields of a record: its samples by phase, each in a round of its own. `calls` says how many
    calls each is the mean of; None: one."""
    num_samples = len(next(iter(times_ns.values())))
    return {
        "samples_ns": {phase: list(each_ns) for phase, each_ns in times_ns.items()},
        "rounds": list(range(num_samples)),
        "calls_per_sample": list(calls or [1] * num_samples),
    }


def read_text(path: Path) -> str:
    """A foreign file's text, also of one that gzip has packed."""
    with reading(path) as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.GzipFile(fileobj=BytesIO(content)).read(MAX_FILE_BYTES + 1)
        except (OSError, EOFError, zlib.error):
            raise ForeignError("it is a damaged gzip file") from None
    if len(content) > MAX_FILE_BYTES:
        raise ForeignError(f"it is longer than {MAX_FILE_BYTES // 2**20} MiB; divide it")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ForeignError("it is not text in UTF-8") from None


def parse_documents(text: str) -> list[Any]:
    """The JSON values of a file: one, or one a line."""
    if not text.strip():
        raise ForeignError("it is empty")
    try:
        documents = [_parse(text)]
    except RecursionError:
        raise ForeignError("it is nested too deeply") from None
    except ValueError as error:
        documents = _parse_lines(text, error)
    if "\\ud" in text.lower():  # JSON can escape one half of a character, which no text can hold
        try:
            json.dumps(documents, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ForeignError("it has text that is not Unicode") from None
        except RecursionError:
            raise ForeignError("it is nested too deeply") from None
    return documents


def _parse_lines(text: str, whole: ValueError) -> list[Any]:
    documents: list[Any] = []
    for number, line in enumerate(text.split("\n"), 1):
        try:
            documents += [_parse(line)] if line.strip() else []
        except RecursionError:
            raise ForeignError(f"line {number} is nested too deeply") from None
        except ValueError as error:
            # The first line of a value that goes over several is none.
            where = f"line {number} is not JSON ({error})" if documents else None
            raise ForeignError(where or f"it is not JSON ({whole})") from None
    return documents


def _parse(text: str) -> Any:
    """NaN, which some programs write, and what is too large for a number become None: unknown."""
    return json.loads(text, parse_constant=lambda name: None, parse_float=_parse_float)


def _parse_float(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def convert(content: Any, form: type[Form], what: str) -> Form:
    """Content of a foreign file in the form that it must have."""
    try:
        return msgspec.convert(content, form)
    except msgspec.ValidationError as error:
        raise ForeignError(f"it is not {what} ({error})") from None
    except RecursionError:
        raise ForeignError(f"it is not {what} (it is nested too deeply)") from None


def scale(number: float, exponent: int) -> float:
    """`number` times ten to the `exponent`, rounded once: 7.7e-06 s are 7700 ns.

    >>> scale(7.7e-06, 9), 7.7e-06 * 1e9
    (7700.0, 7700.000000000001)
    """
    return float(Decimal(repr(float(number))).scaleb(exponent)) if math.isfinite(number) else number


def is_time(number: float) -> bool:
    """Whether a record can have it as a sample."""
    return math.isfinite(number) and number > 0


def pick(content: Mapping[str, Any], key: str, kind: type[Form]) -> Form | None:
    """The value, where it is of that kind: what others read later must not be anything else."""
    value = content.get(key)
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


def hide_host(content: Mapping[str, Any], key: str) -> str | None:
    """Distinguishes machines without naming them; None where there is no name."""
    name = pick(content, key, str)
    return digest(["host", name]) if name else None


def drop_unknown(content: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is None or empty, down to the last level."""
    pruned = {k: drop_unknown(v) if isinstance(v, Mapping) else v for k, v in content.items()}
    return {key: value for key, value in pruned.items() if value is not None and value != {}}


def mark_case(record: Record, phase: str | None = None) -> dict[str, str]:
    """What an export says about a case, so that `find_case` finds it again."""
    marks = {
        SUITE: record.suite,
        VARIANT: record.variant,
        PARAMS: json.dumps(record.params, ensure_ascii=False),
    }
    return marks if phase is None else {**marks, PHASE: phase}


def find_case(marks: Mapping[str, Any]) -> Case | None:
    """The case that an export of ours has marked; a phase is a parameter, so that the whole has
    the same id as before."""
    suite, variant = pick(marks, SUITE, str), pick(marks, VARIANT, str)
    phase = pick(marks, PHASE, str)
    try:
        params = json.loads(marks.get(PARAMS, "{}"))
    except (TypeError, ValueError, RecursionError):
        return None
    if suite is None or variant is None or not isinstance(params, dict):
        return None
    more = {} if phase is None else {"phase": phase}
    return Case(suite=suite, variant=variant, params={**params, **more})


def list_conditions(record: Record) -> dict[str, str]:
    """How it was measured, for an export; what others have measured has no settings of ours."""
    if record.environment.keys() & {"imported", "published"}:
        return {}
    return {name: str(getattr(record.settings, name)) for name in COMPARED_SETTINGS}


def name_some(names: Sequence[str], most: int = 3) -> str:
    """
    >>> name_some(["a", "b", "c", "d", "a"])
    'a, b, c and 1 more'
    """
    different = list(dict.fromkeys(names))
    shown = ", ".join(different[:most])
    return shown if len(different) <= most else f"{shown} and {len(different) - most} more"


def make_published(
    run_id: str,
    case: Case,
    *,
    times_ns: Mapping[str, float] | None = None,
    calls: int = 1,
    printed: Mapping[str, Any],
    gpu: str | None = None,
    **fields: Any,
) -> Record:
    """A record of one published mean, of `calls` calls by phase; None: no time was published."""
    known = {} if gpu is None else {"torch": {"gpu": {"name": gpu}}}
    samples = {phase: [time_ns] for phase, time_ns in (times_ns or {}).items()}
    return make_record(
        case,
        run_id=run_id,
        settings=GPU,
        environment={**known, "published": {"printed": dict(printed)}},
        **(make_samples(samples, [calls]) if samples else {}),
        **fields,
    )


def find_printed(record: Record) -> dict[str, Any] | None:
    """None where it is a measurement of your own."""
    found = record.environment.get("published")
    return None if found is None else dict(found.get("printed", {}))


def parse_figure(text: str, smallest: float = sys.float_info.min) -> float:
    """A ValueError where it is no number, not finite, or less than can be: a time is above 0."""
    figure = float(text)
    if not smallest <= figure < math.inf:
        raise ValueError(f"{text} is not {'above' if smallest else 'at least'} 0")
    return figure


def parse_count(text: str) -> int:
    """A ValueError where it is no whole number, or more than a record can hold."""
    count = int(text)
    if not 0 <= count <= LARGEST_INT:
        raise ValueError("it is too large")
    return count


def name_run(form: str, text: str) -> str:
    """Another text is another run: what it says pairs with nothing in this one."""
    return f"{form}:{digest(text)[:8]}"
