# SPDX-License-Identifier: Apache-2.0
"""Take the picture of a flame graph page that our pages show.

    picture.py PAGE.html OUT.png [HEIGHT [CHOICES]]

CHOICES is what stands behind the # in the address of the page: native=off.
A headless Chromium opens the page as `make page-test` does.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/page"))

from browser import Browser, find_chromium

WIDTH = 1200


def main(page: str, out: str, height: str = "600", choices: str = "") -> None:
    program = find_chromium()
    if program is None:
        raise SystemExit("there is no Chromium here: apt install chromium")
    with tempfile.TemporaryDirectory() as profile, Browser(program, Path(profile)) as browser:
        browser.size(WIDTH, int(height))
        browser.open(Path(page).resolve().as_uri() + (f"#{choices}" if choices else ""))
        Path(out).write_bytes(browser.screenshot())
        if browser.log:
            raise SystemExit("the page complains: " + "; ".join(browser.log))


if __name__ == "__main__":
    main(*sys.argv[1:])
