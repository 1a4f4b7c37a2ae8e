# SPDX-License-Identifier: Apache-2.0
"""README.md and docs/: their pages, and the commands, examples and links in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["TREE", "Snippet", "anchors", "links", "pages", "snippets"]

TREE = Path(__file__).parents[1]
_SHELL = ("sh", "bash", "console")
_LIST_ITEM = re.compile(r"(?:[-*]|\d+\.) | {2,3}\S")
_LINK = re.compile(r"\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Snippet:
    """A command of a page ("shell", one command, its continued lines joined), or an example ("python")."""

    page: str
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def pages() -> list[Path]:
    """All pages; empty where the tests run without the tree."""
    return sorted(path for path in [TREE / "README.md", *(TREE / "docs").rglob("*.md")] if path.exists())


def snippets(page: Path) -> list[Snippet]:
    """Commands are lines of blocks that are indented by four, or fenced as sh, bash or console."""
    name = str(page.relative_to(TREE))
    found = []
    for line, kind, text in _blocks(page.read_text("utf-8").splitlines()):
        if kind == "python":
            found.append(Snippet(name, line, kind, text))
            continue
        joined, first = "", 0
        for offset, each in enumerate(text.splitlines()):
            first = first if joined else line + offset
            joined += each
            if each.endswith("\\"):
                joined = joined[:-1]
            elif joined.strip():
                found.append(Snippet(name, first, "shell", " ".join(joined.split())))
                joined = ""
            else:
                joined = ""
    return found


def _blocks(lines: list[str]) -> Iterator[tuple[int, str, str]]:
    """Yield the blocks of code: number of the first line, "shell" or "python", text."""
    number = 0
    before = ""  # the last line with something in it
    while number < len(lines):
        line = lines[number]
        if fence := re.match(r"```(\w*)", line):
            end = next(i for i in range(number + 1, len(lines)) if lines[i].startswith("```"))
            kind = "shell" if fence[1] in _SHELL else fence[1]
            if kind in ("shell", "python"):
                yield number + 2, kind, "\n".join(lines[number + 1 : end])
            before, number = lines[end], end + 1
        elif line.startswith("    ") and not lines[number - 1] and not _LIST_ITEM.match(before):
            end = number
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end]):
                end += 1
            yield number + 1, "shell", "\n".join(each[4:] for each in lines[number:end])
            before, number = "", end
        else:
            before, number = line or before, number + 1


def links(page: Path) -> list[str]:
    """The targets of all links and pictures of a page, without its code."""
    text = re.sub(r"(?ms)^```.*?^```|^    .*?$|`[^`\n]*`", "", page.read_text("utf-8"))
    return _LINK.findall(text)


def anchors(page: Path) -> set[str]:
    """The names that headings get: small letters, no punctuation, hyphens for spaces."""
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text("utf-8"))
    headings = re.findall(r"(?m)^#+ (.*)$", text)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
