# SPDX-License-Identifier: Apache-2.0
"""Write a large AsciiDoc document: what `make demo` lets asciidoctor convert.

    demo_document.py OUT [SECTIONS [no-tables]]

The text is the same at each run. A file already there with that text is left alone.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

# fmt: off
WORDS = [
    "stack", "frame", "table", "window", "river", "copper", "signal", "method",
    "garden", "ledger", "pattern", "harbour", "thread", "object", "engine", "lantern",
    "counter", "marble", "parser", "bridge", "meadow", "kernel", "ribbon",
]
# fmt: on


def sentence(pick: random.Random) -> str:
    words = [pick.choice(WORDS) for _ in range(pick.randint(6, 18))]
    words[pick.randrange(len(words))] = pick.choice(["*bold*", "_slanted_", "`code`", "<<section-1,a link>>"])
    return " ".join(words).capitalize() + "."


def section(number: int, pick: random.Random, *, tables: bool) -> str:
    paragraph = "\n".join(sentence(pick) for _ in range(pick.randint(3, 7)))
    items = "\n".join(f"{'*' * pick.randint(1, 3)} {sentence(pick)}" for _ in range(8))
    rows = "\n".join(f"|{number} |{pick.choice(WORDS)} |{sentence(pick)}" for _ in range(6))
    code = "\n".join(f"  puts {pick.choice(WORDS)!r} * {pick.randint(1, 9)}" for _ in range(4))
    table = f'[cols="1,2,6"]\n|===\n{rows}\n|===\n\n' if tables else ""
    return (
        f"[#section-{number}]\n== Section {number}: {pick.choice(WORDS)}\n\n{paragraph}\n\n{items}\n\n"
        f"{table}"
        f"[source,ruby]\n----\ndef section_{number}\n{code}\nend\n----\n\n"
        f"NOTE: {sentence(pick)}\n\n"
    )


def main(out: str, sections: str = "6000", without: str = "") -> None:
    pick = random.Random(1)
    tables = without != "no-tables"
    body = "".join(section(number, pick, tables=tables) for number in range(1, int(sections) + 1))
    text = f"= A long document\n:toc:\n:sectnums:\n\n{body}"
    path = Path(out)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
