"""Records whose every text is an attack, as a report in Chromium.

Nothing of a record may run, load or leave the page: no script, no request, no dialog, no complaint
of the browser's; and the text is there to be read. A page that escapes nothing comes first: if it
is not caught, the others prove nothing.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flopwatch.cli.main import cli, run_command
from flopwatch.errors import FlopwatchError
from flopwatch.records.published import load
from flopwatch.records.record import decode, encode
from trials.trial import Outcome

BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
CONTROL = "not escaped at all"
RUN = "window.poisoned=1"
PAYLOADS = {
    CONTROL: f"<img src=x onerror={RUN}>",
    "script": f"<script>{RUN}</script>",
    "script ends": f"</script><script>{RUN}</script>",
    "script in comment": f"<!--<script>--><script>{RUN}</script>",
    "handler": f"<img src=x onerror={RUN}>",
    "double quote": f'" onmouseover="{RUN}" autofocus onfocus="{RUN}',
    "single quote": f"' onmouseover='{RUN}' autofocus onfocus='{RUN}",
    "no quote": f"x onfocus={RUN} autofocus tabindex=0",
    "link": f"javascript:{RUN}",
    "anchor": f"<a href='javascript:{RUN}' id=poison>x</a>",
    "frame": f"<iframe srcdoc='<script>parent.{RUN}</script>'></iframe>",
    "drawing": f"<svg onload={RUN}><animate onbegin={RUN} attributeName=x /></svg>",
    "formula": f"<math><mtext><img src=x onerror={RUN}></mtext></math>",
    "style": "<style>*{background:url(http://127.0.0.1:9/x)}</style>",
    "style value": "red;background:url(http://127.0.0.1:9/x)",
    "base": "<base href='http://127.0.0.1:9/'>",
    "refresh": "<meta http-equiv=refresh content='0;url=http://127.0.0.1:9/'>",
    "form": "<form action=http://127.0.0.1:9/><input autofocus name=cookie></form>",
    "table ends": f"</td></tr></table><img src=x onerror={RUN}>",
    "title ends": f"</title></style></textarea></template><script>{RUN}</script>",
    "template": f"{{{{constructor.constructor('{RUN}')()}}}} ${{{RUN}}} <%= {RUN} %>",
    "expression": f"'+(()=>{{{RUN}}})()+'",
    "of Vega": f"datum['x']) || [].map.constructor('{RUN}')() || (1",
    "prototype": "__proto__",
    "constructor": "constructor.prototype.toString",
    "entity": f"&lt;script&gt;{RUN}&lt;/script&gt;&#60;img src=x onerror={RUN}&#62;",
    "JSON": f'"}}]}}</script><script>{RUN}</script>[{{"',
    "separators": f"a\u2028b\u2029c<script>{RUN}</script>",
    "direction": f"\u202e>tpircs/<{RUN}>tpircs<\u2066",
    "controls": f"\x00\x07\x1b[31m\x7f<script>{RUN}</script>",
    "long": "<b>" * 3000,
    "percent": f"%3Cscript%3E{RUN}%3C/script%3E",
}
RECORDS = 8
"""Poisoned with each payload."""


def try_payload(name: str) -> Outcome:
    with tempfile.TemporaryDirectory() as temporary:
        page = Path(temporary) / "report.html"
        if name == CONTROL:
            page.write_text(f"<!doctype html><p>{PAYLOADS[name]}</p>", encoding="utf-8")
            caught = [*visit(page, PAYLOADS[name])]
            failures = (
                [] if any(f.startswith("executed") for f in caught) else ["blind: not caught"]
            )
        else:
            failures = [*make_report(page, PAYLOADS[name])] or [*visit(page, PAYLOADS[name])]
    return Outcome(part="poisoned", name=name, failures=tuple(failures))


def make_report(page: Path, payload: str) -> Iterator[str]:
    """Of real records, poisoned; yields what it must not do."""
    lines = [
        json.loads(encode(record))
        for publication in ("dyad", "switchback", "cs336", "mosaic")
        for record in load(publication)[: RECORDS // 4]
    ]
    file = page.with_suffix(".jsonl")
    poisoned = [json.dumps(poison(line, f"{payload}{n}")) for n, line in enumerate(lines)]
    file.write_text("".join(f"{line}\n" for line in poisoned), encoding="utf-8")
    noted = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(noted):
        code = run_command(
            lambda: cli.main(
                args=["report", str(file), "-o", str(page), "--title", payload],
                standalone_mode=False,
            )
        )
    if code != 0:
        yield f"refused: {noted.getvalue()[-200:]}"


def poison(record: dict[str, Any], payload: str) -> dict[str, Any]:
    """Every text that a reader accepts as any text, and every key of what has free keys."""
    for path in [*list_texts(record)]:
        tried = copy.deepcopy(record)
        container: Any = tried
        for key in path[:-1]:
            container = container[key]
        container[path[-1]] = payload
        if is_accepted(tried):
            record = tried
    for name in ("params", "conditions", "facts", "environment"):
        tried = copy.deepcopy(record)
        values = list((tried.get(name) or {}).values())
        tried[name] = {**(tried.get(name) or {}), payload: values[0] if values else 1.0}
        if is_accepted(tried):
            record = tried
    tried = {**record, "notes": [payload]}
    return tried if is_accepted(tried) else record


def is_accepted(record: dict[str, Any]) -> bool:
    try:
        decode(json.dumps(record).encode())
    except (FlopwatchError, ValueError):
        return False
    return True


def list_texts(content: Any) -> Iterator[tuple[Any, ...]]:
    keys = list(content) if isinstance(content, dict) else range(len(content))
    for key in keys:
        if isinstance(content[key], str):
            yield (key,)
        elif isinstance(content[key], dict | list):
            yield from ((key, *path) for path in list_texts(content[key]))


def visit(page: Path, payload: str) -> Iterator[str]:
    from playwright.sync_api import sync_playwright

    complaints: list[str] = []
    requests: list[str] = []
    with sync_playwright() as playwright:
        # In a container there is no sandbox to be had, and little shared memory.
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        chromium = playwright.chromium.launch(executable_path=BROWSER, args=arguments)
        tab = chromium.new_page()
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
        tab.on("request", lambda request: requests.append(request.url))
        tab.goto(page.as_uri())
        for opened in ("details", "summary"):
            tab.evaluate(f"document.querySelectorAll('{opened}').forEach((e) => e.open = true)")
        tab.mouse.move(400, 300)
        tab.keyboard.press("Tab")
        frames = "requestAnimationFrame(() => requestAnimationFrame(done))"
        tab.evaluate(f"() => new Promise((done) => {frames})")
        if tab.evaluate("window.poisoned === 1"):
            yield "executed"
        shown = tab.evaluate("document.body.textContent")
        chromium.close()
    if len(requests) > 1:
        yield f"requested: {requests[1][:80]}"
    if complaints:
        yield f"complaint: {complaints[0][:200]}"
    # Control characters are shown as something else, and long texts are cut.
    if payload.isprintable() and len(payload) < 100 and payload not in shown:
        yield "not shown as it is"
