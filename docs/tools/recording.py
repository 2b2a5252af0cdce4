"""A terminal session as an SVG that plays by itself: commands really run, in a terminal.

What a program writes is followed line by line, with its times. Lines that stay are drawn as lines
that appear; lines of progress, which are overwritten, are drawn for as long as they stood. Without
animations (in print, or where motion is reduced) the end of the session is shown.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from rich.color import Color
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

COLUMNS = 100
CHARACTER, LINE, MARGIN = 8.4, 19, 18
"""Pixels: width of a character at 14 pixels, height of a line, space around."""
TYPING_S, PAUSE_S, LONGEST_S = 0.9, 0.7, 5.0
"""A command is typed in so long; before the next; a command that takes longer plays faster."""
CONTROL = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])|\x1b\][^\x07]*\x07|\r|\n")
THEME = TerminalTheme(
    (24, 26, 33),
    (222, 226, 234),
    [(60, 64, 76), (240, 113, 120), (152, 195, 121), (229, 192, 123), (97, 175, 239),
     (198, 140, 230), (86, 182, 194), (200, 204, 212)],
    [(120, 126, 140), (255, 134, 140), (170, 214, 140), (240, 205, 140), (130, 195, 250),
     (215, 165, 240), (110, 205, 215), (240, 242, 246)],
)  # fmt: skip
STYLE = f"""
text {{ font: 14px ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace;
  white-space: pre; fill: {THEME.foreground_color.hex}; }}
.gone {{ opacity: 0; }}
@keyframes hidden {{ from {{ opacity: 0; }} to {{ opacity: 0; }} }}
@keyframes shown {{ from {{ opacity: 1; }} to {{ opacity: 1; }} }}
@media (prefers-reduced-motion: reduce) {{ g {{ animation: none !important; }} }}
"""


@dataclass
class Screen:
    """Lines of a terminal, each with what it showed and since when."""

    row: int = 0
    history: list[list[tuple[float, str]]] = field(default_factory=list)
    fresh: bool = False
    """Whether the next text begins the line anew."""

    def feed(self, text: str, now_s: float) -> None:
        place = 0
        for found in CONTROL.finditer(text):
            self.write(text[place : found.start()], now_s)
            self.control(found, now_s)
            place = found.end()
        self.write(text[place:], now_s)

    def control(self, found: re.Match[str], now_s: float) -> None:
        if found[0] == "\n":
            self.row, self.fresh = self.row + 1, True
        elif found[0] == "\r":
            self.fresh = True
        elif found[2] == "m":
            self.write(found[0], now_s)
        elif found[2] == "A":
            self.row = max(0, self.row - int(found[1] or 1))
        elif found[2] == "K":
            self.show("", now_s)

    def write(self, text: str, now_s: float) -> None:
        if text:
            self.show(text if self.fresh else self.line() + text, now_s)
            self.fresh = False

    def line(self) -> str:
        while len(self.history) <= self.row:
            self.history.append([(0.0, "")])
        return self.history[self.row][-1][1]

    def show(self, text: str, now_s: float) -> None:
        if text != self.line():
            self.history[self.row].append((now_s, text))


def record(command: Sequence[str], environment: dict[str, str]) -> tuple[Screen, float]:
    """What a command showed, and how many seconds it took."""
    screen, (ours, theirs) = Screen(), pty.openpty()
    size = {"COLUMNS": str(COLUMNS), "LINES": "50", "TERM": "xterm-256color"}
    begin_s = time.perf_counter()
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | environment | size
    ) as process:
        os.close(theirs)
        waiting = b""
        while True:
            try:
                waiting += os.read(ours, 65536)
            except OSError:  # the terminal is closed
                break
            text = waiting.decode(errors="ignore")
            screen.feed(text, time.perf_counter() - begin_s)
            waiting = b""
    os.close(ours)
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed with {process.returncode}")
    return screen, time.perf_counter() - begin_s


def draw(sessions: Sequence[tuple[str, Screen, float]]) -> str:
    """Commands as typed, with what they showed."""
    groups, row, now_s = [], 0, 0.3
    for command, screen, seconds in sessions:
        groups.append(_draw_line(row, Text.assemble(("$ ", "bold green"), command), now_s))
        row, now_s = row + 1, now_s + TYPING_S
        pace = min(1.0, LONGEST_S / seconds)
        for states in _crop(screen.history):
            groups += _draw_states(row, [(now_s + pace * t, text) for t, text in states])
            row += 1
        row, now_s = row + 1, now_s + pace * seconds + PAUSE_S
    width, height = COLUMNS * CHARACTER + 2 * MARGIN, row * LINE + 2 * MARGIN + 10
    dots = "".join(
        f'<circle cx="{MARGIN + 16 * n}" cy="16" r="5" fill="{colour}"/>'
        for n, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        f'width="{width:.0f}" height="{height}"><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" rx="8" fill="{THEME.background_color.hex}"/>{dots}'
        f"{''.join(groups)}</svg>\n"
    )


def _crop(history: list[list[tuple[float, str]]]) -> list[list[tuple[float, str]]]:
    """Without the empty lines at the end, where progress was."""
    used = list(history)
    while used and not _plain(used[-1][-1][1]):
        used.pop()
    return used


def _plain(text: str) -> str:
    return Text.from_ansi(text).plain.strip()


def _draw_states(row: int, states: list[tuple[float, str]]) -> list[str]:
    """A line that stays, and before it those that were overwritten, five a second at most."""
    drawn, until_s = [], states[-1][0]
    for begin_s, text in reversed(states[:-1]):
        if _plain(text) and until_s - begin_s >= 0.2:
            drawn.append(_draw_line(row, Text.from_ansi(text), begin_s, until_s))
            until_s = begin_s
        elif not _plain(text):
            until_s = begin_s
    return [*drawn, _draw_line(row, Text.from_ansi(states[-1][1]), states[-1][0])]


def _draw_line(row: int, text: Text, begin_s: float, until_s: float | None = None) -> str:
    if not text.plain.strip():
        return ""
    y = MARGIN + 26 + row * LINE
    spans, column = [], 0
    for segment in text.render(Console(width=1000, legacy_windows=False)):
        if segment.text.strip():
            x = MARGIN + column * CHARACTER
            length = f'textLength="{len(segment.text) * CHARACTER:.1f}"'
            style = _find_style(segment.style)
            spans.append(f'<tspan x="{x:.1f}" {length}{style}>{escape(segment.text)}</tspan>')
        column += len(segment.text)
    if until_s is None:
        play, kind = f"hidden {begin_s:.2f}s", ""
    else:
        play, kind = f"shown {until_s - begin_s:.2f}s {begin_s:.2f}s", ' class="gone"'
    line = "".join(spans).rstrip("\n")
    return f'<g{kind} style="animation: {play}"><text y="{y}">{line}</text></g>'


def _find_style(style: object) -> str:
    colour = getattr(style, "color", None)
    found = ""
    if isinstance(colour, Color) and not colour.is_default:
        found += f' fill="{colour.get_truecolor(THEME).hex}"'
    if getattr(style, "bold", False):
        found += ' font-weight="bold"'
    if getattr(style, "dim", False):
        found += ' opacity="0.6"'
    return found
