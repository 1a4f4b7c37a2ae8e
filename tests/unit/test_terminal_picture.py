# SPDX-License-Identifier: Apache-2.0
"""Pictures of a terminal show what is on it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

pytest.importorskip("pyte", reason="pyte (PyPI), which interprets the screen, is not installed")
SCRIPT = Path(__file__).parents[2] / "support/terminal_picture.py"
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="no source tree here")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("terminal_picture", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def taken(script: ModuleType, tmp_path: Path, program: str) -> list[tuple[str, dict[str, str]]]:
    """The elements of a picture of a shell's output: text and attributes."""
    script.main(str(tmp_path / "a.svg"), "20x5", "30", "sh", "-c", program)
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    return [(each.text or "", dict(each.attrib)) for each in root]


def test_text_has_its_place_and_its_look(script: ModuleType, tmp_path: Path) -> None:
    plain, red, faint, reverse = "a<b> ", "\\033[31mred\\033[0m", "\\033[2mfaint\\033[0m", "\\033[7mx\\033[0m"
    _, *found = taken(script, tmp_path, f"printf '{plain}{red}\\n  \\033[1mbold\\033[0m {faint}{reverse}'")
    looks = {text.strip(): each for text, each in found if text}
    assert set(looks) == {"a<b>", "red", "bold", "faint", "x"}
    assert looks["red"]["fill"] == script.COLOURS["red"]
    assert float(looks["red"]["x"]) == script.MARGIN + 5 * script.CELL_WIDTH
    assert looks["faint"]["fill"] == script.FAINT
    assert looks["bold"]["font-weight"] == "bold"
    assert float(looks["bold"]["y"]) - float(looks["red"]["y"]) == script.CELL_HEIGHT
    assert looks["x"]["fill"] == script.BACKGROUND


def test_bars_are_as_wide_as_they_say(script: ModuleType, tmp_path: Path) -> None:
    _, (_, bar) = taken(script, tmp_path, "printf '██▌'")
    assert float(bar["width"]) == 2.5 * script.CELL_WIDTH


def test_a_command_that_goes_on_is_ended_and_its_last_screen_is_what_counts(
    script: ModuleType, tmp_path: Path
) -> None:
    script.main(str(tmp_path / "a.svg"), "20x5", "0.5", "sh", "-c", "echo shown; sleep 60; echo never")
    text = (tmp_path / "a.svg").read_text("utf-8")
    assert re.findall(">([^<>]+)</text>", text) == ["shown"]
