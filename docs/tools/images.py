"""Makes the images of the documentation: a recording of a terminal, the page, and plots of how
far predictions are off. Takes a few minutes, needs Chromium and the extra `plots`.

    python docs/tools/images.py                 # all of them
    python docs/tools/images.py terminal        # one
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import recording

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
RECORDED = (
    "flopwatch run activations --quick --filter dtype=float32",
    "flopwatch predict --model 7b --seq-len 2048 --hardware 8xA100-80GB,8xH100-SXM --micro-batch 4",
)
MEASURED = (
    "run activations --quick",
    "run dyad --quick --filter level=layer",
    "run steps --quick --set variant=eager,plain-attention,recompute-full",
)
PLANNED = (
    "plan --model llama-3-70b --hardware 512xH100-SXM,1024xH100-SXM,256xB200,512xMI300X "
    "--price h100=2.1,b200=3.9,mi300x=1.9 --seq-len 8192 --quiet"
)
PAGE_SIZE = (1280, 1000)
COLOURS = ["#4c78a8", "#e0812b"]


def main() -> None:
    makers = {
        "terminal": make_recording,
        "page": make_page,
        "accuracy": make_accuracy_plots,
        "plan": make_plan_plot,
    }
    for name in sys.argv[1:] or makers:
        makers[name]()


def make_recording() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sessions = [(line, *recording.record(_words(line), _environment())) for line in RECORDED]
        os.chdir(ROOT)
    _write("terminal.svg", recording.draw(sessions))


def make_page() -> None:
    """Of a few quick suites, measured now."""
    with tempfile.TemporaryDirectory() as folder:
        for line in MEASURED:
            _run(["-m", "flopwatch", *shlex.split(line)], folder)
        results = sorted(str(path) for path in Path(folder, "results").glob("*.jsonl"))
        page, shot = Path(folder, "report.html"), Path(folder, "page.png")
        _run(["-m", "flopwatch", "report", *results, "-o", str(page)], folder)
        _photograph(page, shot)
        shutil.copy(shot, IMAGES / "page.png")


def make_plan_plot() -> None:
    """That of the page on predictions."""
    image = IMAGES / "plan_pareto.svg"
    _run(["-m", "flopwatch", *shlex.split(PLANNED), "-o", str(image)], str(ROOT))


def make_accuracy_plots() -> None:
    """Tokens/s of published jobs whose model size was held out of the fit."""
    from flopwatch.prediction.published_steps import load_published
    from flopwatch.prediction.validation import group_by_size, hold_out, is_slow

    rows = []
    for trial in hold_out(load_published(), group_by_size):
        seen, job = trial.observation, trial.observation.job
        if seen.is_doubtful:
            continue
        rows.append(
            {
                "table": {"mosaicgpt": "MosaicGPT"}.get(seen.source, seen.source),
                "size": seen.size,
                "parameters": job.parameters,
                "published": job.tokens_per_step / seen.time_s,
                "predicted": job.tokens_per_step / trial.predicted_s,
                "ratio": seen.time_s / trial.predicted_s,
                "error": 100 * trial.error,
                "slow": is_slow(seen),
            }
        )
    sharded = [row for row in rows if row["table"] in TABLES]
    _plot("accuracy_tokens", _draw_scatter(sharded))
    _plot("accuracy_errors", _draw_errors(sharded))
    _plot("accuracy_sources", _draw_sources(rows))


MOST_POINTS = 120
TABLES = ("MosaicGPT", "llm-foundry")
"""Of data parallelism alone."""


def _draw_sources(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of a source with hundreds of jobs, some: the file would be too large."""
    tables = list(dict.fromkeys(row["table"] for row in rows))
    rows = [
        {"table": table, "ratio": round(row["ratio"], 4)}
        for table in tables
        for own in [[row for row in rows if row["table"] == table]]
        for row in own[:: -(-len(own) // MOST_POINTS)]
    ]
    y = {
        "field": "table",
        "type": "nominal",
        "sort": tables,
        "axis": {"title": None, "labelLimit": 200},
    }
    ticks = {"values": [0.5, 0.7, 0.9, 1, 1.1, 1.4, 2], "format": "~r"}
    x = {
        "field": "ratio",
        "type": "quantitative",
        "scale": {"type": "log", "domain": [0.45, 2.5], "nice": False, "clamp": True},
        "axis": {"title": "predicted over measured tokens/s, its size held out", **ticks},
    }
    dot = {"type": "circle", "size": 22, "opacity": 0.35, "color": COLOURS[0]}
    return {
        "width": 560,
        "height": {"step": 30},
        "data": {"values": rows},
        "layer": [
            {"mark": {"type": "rule", "color": "#888888"}, "encoding": {"x": {"datum": 1}}},
            {
                "transform": [{"calculate": "random()", "as": "jitter"}],
                "mark": dot,
                "encoding": {
                    "x": x,
                    "y": y,
                    "yOffset": {"field": "jitter", "type": "quantitative"},
                },
            },
        ],
    }


def _draw_scatter(rows: list[dict[str, Any]]) -> dict[str, Any]:
    limits = [min(row["published"] for row in rows), max(row["published"] for row in rows)]
    domain = [limits[0] / 1.5, limits[1] * 1.5]
    scale = {"type": "log", "nice": False, "domain": domain}
    axis = {"format": "~s", "tickCount": 6, "grid": False}
    return {
        "width": 420,
        "height": 420,
        "layer": [
            {
                "data": {"values": [{"x": end} for end in domain]},
                "mark": {"type": "line", "color": "#888888", "strokeDash": [4, 4]},
                "encoding": {
                    "x": {"field": "x", "type": "quantitative", "scale": scale},
                    "y": {"field": "x", "type": "quantitative", "scale": scale},
                },
            },
            {
                "data": {"values": rows},
                "mark": {"type": "point", "filled": True, "size": 36, "opacity": 0.75},
                "encoding": {
                    "x": {
                        "field": "published",
                        "type": "quantitative",
                        "scale": scale,
                        "axis": {**axis, "title": "published tokens/s"},
                    },
                    "y": {
                        "field": "predicted",
                        "type": "quantitative",
                        "scale": scale,
                        "axis": {**axis, "title": "predicted tokens/s, its size held out"},
                    },
                    **_mark_tables(),
                },
            },
        ],
    }


def _draw_errors(rows: list[dict[str, Any]]) -> dict[str, Any]:
    sizes = list(dict.fromkeys(r["size"] for r in sorted(rows, key=lambda r: r["parameters"])))
    return {
        "width": 560,
        "height": 300,
        "data": {"values": rows},
        "layer": [
            {"mark": {"type": "rule", "color": "#888888"}, "encoding": {"y": {"datum": 0}}},
            {
                "mark": {"type": "point", "filled": True, "size": 36, "opacity": 0.7},
                "encoding": {
                    "x": {
                        "field": "size",
                        "type": "ordinal",
                        "sort": sizes,
                        "axis": {"title": "model size that was held out", "labelAngle": 0},
                    },
                    "xOffset": {"field": "table", "type": "nominal"},
                    "y": {
                        "field": "error",
                        "type": "quantitative",
                        "axis": {"title": "predicted over published tokens/s, less 1 (%)"},
                    },
                    **_mark_tables(),
                },
            },
        ],
    }


def _mark_tables() -> dict[str, Any]:
    tables = list(TABLES)
    return {
        "color": {
            "field": "table",
            "type": "nominal",
            "scale": {"domain": tables, "range": COLOURS},
            "legend": {"title": None, "orient": "top"},
        },
        "shape": {"field": "table", "type": "nominal", "scale": {"domain": tables}},
    }


def _plot(name: str, spec: dict[str, Any]) -> None:
    import vl_convert

    from flopwatch.output.plots.theme import make_config

    whole = {**spec, "padding": 12, "config": make_config()}
    _write(f"{name}.svg", vl_convert.vegalite_to_svg(whole))


def _photograph(page: Path, shot: Path) -> None:
    width, height = PAGE_SIZE
    chromium = shutil.which("chromium") or sys.exit("there is no chromium; apt-get install it")
    options = ["--no-sandbox", "--headless", "--hide-scrollbars", "--virtual-time-budget=8000"]
    options += [f"--window-size={width},{height}", f"--screenshot={shot}", page.as_uri()]
    subprocess.run([chromium, *options], check=True, stderr=subprocess.DEVNULL)


def _words(line: str) -> list[str]:
    """With this very Python, whatever is first on the path."""
    _, *words = shlex.split(line)
    return [sys.executable, "-m", "flopwatch", *words]


def _environment() -> dict[str, str]:
    return {"PYTHONPATH": str(ROOT / "src")}


def _run(words: Sequence[str], folder: str) -> None:
    environment = os.environ | _environment()
    found = subprocess.run([sys.executable, *words], cwd=folder, env=environment, check=False)
    if found.returncode not in (0, 1):  # 1: a case failed, and is a row of the page
        sys.exit(f"{' '.join(words)} failed")


def _write(name: str, text: str) -> None:
    (IMAGES / name).write_text(text)
    print(f"wrote docs/images/{name}, {len(text) / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
