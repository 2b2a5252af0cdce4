"""One line that says what is going on, in a terminal or a notebook, and is gone at the end.

Nothing is written where nobody would see it change: into files, pipes and terminals without a
cursor (``TERM=dumb``). It has no colours.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from flopwatch import env
from flopwatch.output.units import escape_html, printable

REFRESH_S = 0.2
"""Drawing costs time that the measurement should have."""
ERASE = "\r\x1b[K"
USUAL_WIDTH = 80


class LiveLine:
    """This one shows nothing."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._drawn_s: float | None = None

    def show(self, text: str, *, force: bool = False) -> None:
        """Replace the line's text, unless the last one is very new."""
        now_s = self._now_s()
        if force or self._drawn_s is None or now_s - self._drawn_s >= REFRESH_S:
            self._drawn_s = now_s
            self._draw(text)

    def _draw(self, text: str) -> None:
        pass

    def _erase(self) -> None:
        pass

    def __enter__(self) -> LiveLine:
        return self

    def __exit__(self, *error: object) -> None:
        if self._drawn_s is not None:
            self._erase()


class TerminalLine(LiveLine):
    def __init__(self, stream: TextIO, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__(now_s)
        self._stream = stream

    def _draw(self, text: str) -> None:
        # One column stays free: a full line would make some terminals begin another.
        self._write(f"{ERASE}{printable(text)[: self._find_width() - 1]}")

    def _erase(self) -> None:
        self._write(ERASE)

    def _find_width(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or USUAL_WIDTH
        except (OSError, ValueError):
            return USUAL_WIDTH

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # closed, or a name that the encoding lacks
            pass


class NotebookLine(LiveLine):
    """An output of the running cell, by IPython's module `display`."""

    def __init__(self, display: Any, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__(now_s)
        self._display = display
        self._handle: Any = None

    def _draw(self, text: str) -> None:
        self._put(printable(text), f"<i>{escape_html(text)}</i>")

    def _erase(self) -> None:
        self._put("", "")

    def _put(self, text: str, page: str) -> None:
        # Not display.HTML: where no HTML is shown, its text is the name of its class.
        content = {"text/plain": text, "text/html": page}
        if self._handle is None:
            self._handle = self._display.display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


def open_live_line(is_wanted: bool = True) -> LiveLine:
    """Where there is somebody to see it; elsewhere one that shows nothing."""
    if not is_wanted:
        return LiveLine()
    display = find_notebook()
    if display is not None:
        return NotebookLine(display)
    stream: Any = sys.stderr
    has_cursor = env.read("TERM") not in ("", "dumb")
    return TerminalLine(stream) if stream and stream.isatty() and has_cursor else LiveLine()


def find_notebook() -> Any | None:
    """IPython's module `display` if this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    # IPython in a terminal has a shell without a kernel.
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from importlib import import_module

    return import_module("IPython.display")
