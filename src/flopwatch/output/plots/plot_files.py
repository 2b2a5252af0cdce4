"""Plots as files that stand alone: PNG, SVG and PDF by vl-convert, which needs no browser, and the
Vega-Lite specification itself."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flopwatch.errors import UsageError
from flopwatch.lazy import require
from flopwatch.output.plots.plot import MAKER, VERSION, Plot
from flopwatch.records.file_safety import replace_file, require_replaceable

ENDINGS = (".png", ".svg", ".pdf", ".json")
PNG_SCALE = 2.0
"""A PNG has so many dots for every pixel."""


def check_path(path: Path) -> None:
    """Refuse what cannot be written, and what would be lost."""
    if path.suffix.lower() not in ENDINGS:
        raise UsageError(
            f"{path} does not end in {', '.join(ENDINGS)}; these are what plots are written as"
        )
    require_replaceable(path, lambda content: MAKER.encode() in content, "a plot of flopwatch")


def draw_files(plots: Sequence[Plot], path: Path | None = None) -> list[Path]:
    """Write each plot, to names of their own without a path, numbered where names are the same;
    none, if one of the files cannot be written."""
    wanted = [path or Path(f"{_name_file(plot)}.png") for plot in plots]
    seen: dict[Path, int] = {}
    files = []
    for file in wanted:
        seen[file] = seen.get(file, 0) + 1
        is_alone = wanted.count(file) == 1
        files.append(file if is_alone else _number(file, seen[file]))
    for file in files:
        check_path(file)
    for plot, file in zip(plots, files, strict=True):
        replace_file(file, draw_bytes(plot, file.suffix.lower()))
    return files


def _name_file(plot: Plot) -> str:
    """The suite's name, as a name of a file: it comes from a record."""
    suite = plot.subject.partition(" ")[0]
    word = "".join(c if c.isalnum() or c in "-_" else "-" for c in suite)[:60] or "results"
    return f"{word}-{plot.name}"


def _number(file: Path, number: int) -> Path:
    """Before all endings: x.vl.json becomes x-1.vl.json."""
    stem, dot, endings = file.name.partition(".")
    return file.with_name(f"{stem}-{number}{dot}{endings}")


def draw_bytes(plot: Plot, ending: str) -> bytes:
    spec = plot.to_spec()
    if ending == ".json":
        return json.dumps(spec, indent=1, ensure_ascii=False).encode() + b"\n"
    require("vl_convert")
    import vl_convert

    # Nothing is fetched, whatever a record says.
    options: dict[str, Any] = {"vl_version": VERSION, "allowed_base_urls": []}
    if ending == ".svg":
        return f"{vl_convert.vegalite_to_svg(spec, **options)}\n<!-- {MAKER} -->\n".encode()
    if ending == ".pdf":
        # Comments may follow the end of a PDF.
        return bytes(vl_convert.vegalite_to_pdf(spec, **options)) + f"\n%{MAKER}\n".encode()
    return _sign_png(vl_convert.vegalite_to_png(spec, scale=PNG_SCALE, **options))


def _sign_png(content: bytes) -> bytes:
    """With the maker as a text, before the last chunk, which is 12 bytes long."""
    text = b"tEXtSoftware\0" + MAKER.encode()
    chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
    return content[:-12] + chunk + content[-12:]
