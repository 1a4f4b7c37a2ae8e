# SPDX-License-Identifier: Apache-2.0
"""What is drawn in a flame graph page, and clicks on it."""

from __future__ import annotations

import json

from browser import Browser

__all__ = ["choose", "click_frame", "drawn", "middle", "table", "whole"]


def drawn(browser: Browser) -> list[list[str]]:
    """Names of the frames in each row, the root's first."""
    rows: list[list[str]] = browser.evaluate(
        "flamegraph.graph.rows.map((row) => row.nodes.filter((n) => n >= 0)"
        ".map((n) => flamegraph.view.frame(n).name))"
    )
    return rows


def middle(browser: Browser, name: str) -> tuple[float, float]:
    """Where the first frame of that name is in the window."""
    x, y = browser.evaluate(
        "(() => { const g = flamegraph.graph, area = g.canvas.getBoundingClientRect();"
        f"const node = g.rows.flatMap((r) => r.nodes).find((n) => n >= 0 && g.view.frame(n).name === {json.dumps(name)});"  # noqa: E501
        "const box = g.box(node);"
        "return [area.x + box.left + box.width / 2, area.y + g.top(box.row) - g.scroller.scrollTop + 9]; })()"
    )
    return x, y


def click_frame(browser: Browser, name: str) -> None:
    browser.click_at(*middle(browser, name))


def table(browser: Browser) -> list[list[str]]:
    rows: list[list[str]] = browser.evaluate(
        "[...document.querySelectorAll('#rows tr')].map((r) => [...r.cells].map((c) => c.textContent))"
    )
    return rows


def choose(browser: Browser, selector: str, value: str) -> None:
    browser.evaluate(
        f"(() => {{ const e = document.querySelector('{selector}'); e.value = {json.dumps(value)};"
        "e.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )


def whole(browser: Browser) -> int:
    return int(browser.evaluate("flamegraph.view.total[0]"))
