# SPDX-License-Identifier: Apache-2.0
"""The pages hang together: every link leads somewhere, every page is listed, every picture is there."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from documents import TREE, anchors, links, pages, snippets

PAGES = pages()
INDEX = TREE / "docs/README.md"
MANIFEST = TREE / "docs/kubernetes/daemonset.yaml"

pytestmark = pytest.mark.skipif(not PAGES, reason="no source tree here")


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(TREE)) for page in PAGES])
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for link in links(page):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if (
            not target.exists()
            or not target.is_relative_to(TREE)
            or (anchor and anchor not in anchors(target))
        ):
            broken.append(link)
    assert broken == []


def test_every_page_is_reached_from_the_readme_and_its_index() -> None:
    every = {page for page in PAGES if page.parent == TREE / "docs"}
    starts = (TREE / "README.md", INDEX)
    linked = {(start.parent / link.partition("#")[0]).resolve() for start in starts for link in links(start)}
    assert every - linked == set()


def test_every_picture_and_file_of_docs_is_used() -> None:
    linked = {(page.parent / link.partition("#")[0]).resolve() for page in PAGES for link in links(page)}
    files = {path for path in (TREE / "docs").rglob("*") if path.is_file()}
    assert files - linked - {INDEX} == set()


def test_snippets_are_told_from_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("documents.TREE", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "Text:\n\n    one --flag   # why\n    two \\\n      --more\n\n    three\n\n"
        "- item\n\n    no command\n\n"
        "```python\nx = 1\n```\n\n```\noutput\n```\n\n```sh\nfour\n```\n[a](b.md#c)\n"
    )
    found = [(each.line, each.kind, each.text) for each in snippets(page)]
    assert found == [
        (3, "shell", "one --flag # why"),
        (4, "shell", "two --more"),
        (7, "shell", "three"),
        (14, "python", "x = 1"),
        (22, "shell", "four"),
    ]
    assert links(page) == ["b.md#c"]


def manifest() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    found: dict[str, Any] = yaml.safe_load(MANIFEST.read_text())
    return found


def test_the_manifest_is_valid_kubernetes() -> None:
    """By the schemas that the validator brings; no network."""
    why = "kubernetes-validate is not installed (make foreign installs it)"
    validator = pytest.importorskip("kubernetes_validate", reason=why)
    document = manifest()
    validator.validate(document, "1.30", strict=True)
    validator.validate(document, validator.latest_version(), strict=True)
    document["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(validator.ValidationError, match="hostPid"):
        validator.validate(document, "1.30", strict=True)


def test_the_manifest_asks_for_the_rights_of_the_page_and_no_more() -> None:
    page = (TREE / "docs/security.md").read_text()
    rights = set(re.findall(r"(?m)^\| `CAP_(\w+)` \|", page))
    assert len(rights) == 6
    pod = manifest()["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    context = container["securityContext"]
    assert set(context["capabilities"]["add"]) == rights
    assert context["capabilities"]["drop"] == ["ALL"]
    assert not context["privileged"]
    assert not context["allowPrivilegeEscalation"]
    assert {name for volume in pod["volumes"] for name in volume} == {"name", "emptyDir"}
    assert {mount["name"] for mount in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}
    assert "hostNetwork" not in pod


def test_the_script_in_the_manifest_records_again_and_again_and_keeps_twelve(tmp_path: Path) -> None:
    """Run by a shell as it is, with another folder, and with a stand-in for the recorder."""
    (script,) = manifest()["spec"]["template"]["spec"]["containers"][0]["args"]
    for number in range(20):
        (tmp_path / f"{number}.rubyunwind").touch()
    recorder = tmp_path / "bin/rubyunwind"
    recorder.parent.mkdir()
    # The third recording lasts until SIGTERM, as ours.
    recorder.write_text(
        "#!/bin/bash\n"
        f'echo "$@" >>{tmp_path}/calls\n'
        f"[ $(wc -l <{tmp_path}/calls) -lt 3 ] && exit 0\n"
        f"trap 'echo ended >{tmp_path}/ended; exit 0' TERM\n"
        f"touch {tmp_path}/third; while :; do sleep 0.01; done\n"
    )
    recorder.chmod(0o755)
    process = subprocess.Popen(
        ["sh", "-c", script.replace("/profiles", str(tmp_path))],
        env={"PATH": f"{recorder.parent}:/usr/bin:/bin"},
        start_new_session=True,
    )
    try:
        while not (tmp_path / "third").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.terminate()
        assert process.wait(30) == 0
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert len(list(tmp_path.glob("*.rubyunwind"))) == 12
    assert (tmp_path / "ended").exists()
    calls = (tmp_path / "calls").read_text().splitlines()
    assert all(call.startswith("record -a -r 49 ") for call in calls)


def test_what_troubleshooting_quotes_is_what_we_print() -> None:
    """Each quotation in its first column is a text of ours, but for what is filled in (`X`, `...`)."""
    texts = {
        node.value
        for path in (TREE / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    page = (TREE / "docs/troubleshooting.md").read_text("utf-8")
    quoted = {
        text for cell in re.findall(r"(?m)^\| (.*?) \|", page) for text in re.findall(r"`([^`]+)`", cell)
    }
    parts = {
        part.strip() for text in quoted for part in re.split(r"\bX\b|\.\.\.|;|[()]", text) if part.strip()
    }
    # Put together from an address, from two halves, or from what the system or a receiver said.
    parts -= {"libruby-3.1.so+0x24ebd0", "[Ruby code that was freed]"}
    parts = {part.removesuffix(": Connection refused").removesuffix(": 404") for part in parts} - {""}
    assert len(parts) >= 15
    assert [part for part in parts if not any(part in text for text in texts)] == []
