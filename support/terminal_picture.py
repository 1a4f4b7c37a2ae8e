# SPDX-License-Identifier: Apache-2.0
"""Take a picture of what a command shows on a terminal, as SVG.

    terminal_picture.py OUT.svg COLUMNSxLINES SECONDS COMMAND...

The command runs in a pseudo-terminal of its own. The picture is of the screen after so many seconds, or when
the command ends before; then it is ended. Lines that are empty at the end are left out.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

import pyte

# Pixels: of a cell, of the letters in it, and around the screen.
CELL_WIDTH, CELL_HEIGHT = 8.4, 18
LETTERS = 14
FONTS = "DejaVu Sans Mono, Menlo, Consolas, monospace"
MARGIN = 12
BACKGROUND, FOREGROUND, FAINT = "#15181e", "#d6d9e0", "#7b8290"
# By the names that pyte has for them.
COLOURS = {
    "default": FOREGROUND,
    "faint": FAINT,
    "black": "#3b4252",
    "red": "#ff6b68",
    "green": "#8fce7c",
    "brown": "#e8c06a",
    "blue": "#78a9ff",
    "magenta": "#d69ae8",
    "cyan": "#6fc9d6",
    "white": "#eceff4",
}
# Left blocks by how much of the cell they fill: fonts draw them with gaps between.
BLOCKS = {chr(0x2588 + at): (8 - at) / 8 for at in range(8)}


class Screen(pyte.Screen):
    """A screen that knows faint text, too."""

    def select_graphic_rendition(self, *attributes: int, **other: Any) -> None:
        if attributes == (2,):
            self.cursor.attrs = self.cursor.attrs._replace(fg="faint")
        else:
            super().select_graphic_rendition(*attributes, **other)


def run(words: list[str], columns: int, lines: int, seconds: float) -> Screen:
    """Return the screen of a command."""
    screen = Screen(columns, lines)
    stream = pyte.ByteStream(screen)
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", LC_ALL="C.UTF-8")
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        os.execvp(words[0], words)
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if select.select([fd], [], [], left)[0]:
            try:
                data = os.read(fd, 65536)
            except OSError:  # EIO: it has ended
                break
            stream.feed(data)
    else:
        os.killpg(pid, signal.SIGINT)
        # What it says to take the screen away is read, so that it can end, and not looked at.
        while select.select([fd], [], [], 5)[0]:
            try:
                os.read(fd, 65536)
            except OSError:
                break
    os.close(fd)
    os.waitpid(pid, 0)
    return screen


def pieces(screen: Screen, row: int) -> Iterator[tuple[int, str, tuple[str, str, bool]]]:
    """Yield runs of cells of one look: their column, text, and colour, background, whether they are bold."""
    cells = [screen.buffer[row][column] for column in range(screen.columns)]

    def look(column: int) -> tuple[str, str, bool]:
        cell = cells[column]
        colours = COLOURS.get(cell.fg, f"#{cell.fg}"), COLOURS.get(cell.bg, f"#{cell.bg}")
        if cell.bg == "default":
            colours = colours[0], BACKGROUND
        return (*(reversed(colours) if cell.reverse else colours), cell.bold)  # type: ignore[return-value]

    def key(column: int) -> tuple[tuple[str, str, bool], bool]:
        return look(column), cells[column].data in BLOCKS

    for (found, _), group in groupby(range(screen.columns), key):
        columns = list(group)
        yield columns[0], "".join(cells[column].data for column in columns), found


def svg(screen: Screen) -> str:
    """Return the picture."""
    rows = max((n + 1 for n, line in enumerate(screen.display) if line.strip()), default=1)
    width, height = screen.columns * CELL_WIDTH + 2 * MARGIN, rows * CELL_HEIGHT + 2 * MARGIN
    found = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" font-family="{FONTS}" font-size="{LETTERS}">',
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>',
    ]
    for row in range(rows):
        top = MARGIN + row * CELL_HEIGHT
        for column, text, (colour, background, bold) in pieces(screen, row):
            left, wide = MARGIN + column * CELL_WIDTH, len(text) * CELL_WIDTH
            if background != BACKGROUND:
                found.append(_rect(left, top, wide, background))
            if text[0] in BLOCKS:
                found.append(
                    _rect(left, top + 3, sum(map(BLOCKS.__getitem__, text)) * CELL_WIDTH, colour, 12)
                )
            elif text := text.rstrip():
                wide = len(text) * CELL_WIDTH
                weight = ' font-weight="bold"' if bold else ""
                found.append(
                    f'<text x="{left:g}" y="{top + LETTERS:g}" textLength="{wide:g}" fill="{colour}"{weight} '
                    f'xml:space="preserve">{escape(text)}</text>'
                )
    return "\n".join([*found, "</svg>\n"])


def _rect(left: float, top: float, width: float, colour: str, height: float = CELL_HEIGHT) -> str:
    return f'<rect x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}" fill="{colour}"/>'


def main(out: str, size: str, seconds: str, *words: str) -> None:
    columns, lines = map(int, size.split("x"))
    Path(out).write_text(svg(run(list(words), columns, lines, float(seconds))), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
