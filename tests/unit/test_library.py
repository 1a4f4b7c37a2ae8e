# SPDX-License-Identifier: Apache-2.0
"""Where libbpf is looked for, in which order, and what is said when it is not there."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from rubyunwind.bpf import library
from rubyunwind.bpf.library import Candidate, Library, candidates, open_first
from rubyunwind.errors import NotSupported


def test_order_is_variable_system_own_copy_pylibbpf(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class File(type(Path())):  # type: ignore[misc]
        def locate(self) -> Path:
            return tmp_path / self

    listed = [
        File("pylibbpf.libs/libelf-1.so"),
        File("pylibbpf/__init__.py"),
        File("pylibbpf/pylibbpf.abi3.so"),
    ]
    monkeypatch.setattr(metadata, "files", lambda name: listed if name == "pylibbpf" else None)
    module = tmp_path / "rubyunwind/bpf/library.py"
    own = tmp_path / "rubyunwind/libs/libbpf.so.1"
    own.parent.mkdir(parents=True)
    own.touch()
    monkeypatch.setattr(library, "__file__", str(module))
    found = list(candidates({"RUBYUNWIND_LIBBPF": "/opt/libbpf.so"}))
    assert [(place.path, place.explicit) for place in found] == [
        ("/opt/libbpf.so", True),
        ("libbpf.so.1", False),
        (str(own), False),
        (str(tmp_path / "pylibbpf/pylibbpf.abi3.so"), False),
    ]
    assert [place.path for place in candidates({})] == ["libbpf.so.1", str(own), found[3].path]
    own.unlink()
    assert [place.path for place in candidates({})] == ["libbpf.so.1", None, found[3].path]


def test_the_first_that_serves_is_used_and_pylibbpf_not_looked_up() -> None:
    opened: list[str] = []

    def opener(path: str) -> Library:
        opened.append(path)
        return Library(None, path, (1, 2))

    places = candidates({})
    got, place = open_first(places, opener)
    assert (got.path, place.origin, opened) == ("libbpf.so.1", "system library", ["libbpf.so.1"])


def test_a_missing_library_names_every_place_and_the_package(tmp_path: Path) -> None:
    places = iter(
        [
            Candidate("system library", str(tmp_path / "libbpf.so.1")),
            Candidate("installed pylibbpf", None),
        ]
    )
    with pytest.raises(NotSupported) as caught:
        open_first(places)
    text = str(caught.value)
    assert f"system library ({tmp_path}/libbpf.so.1): cannot open shared object file" in text
    assert "installed pylibbpf: not there" in text
    assert "apt install libbpf1" in text
    assert "RUBYUNWIND_LIBBPF" in text


def test_a_named_library_that_does_not_open_is_not_passed_over(tmp_path: Path) -> None:
    wrong = tmp_path / "libbpf.so"
    wrong.write_bytes(b"no library")
    with pytest.raises(NotSupported, match=r"file too short|invalid ELF header") as caught:
        open_first(candidates({"RUBYUNWIND_LIBBPF": str(wrong)}))
    assert "no other copy was tried because RUBYUNWIND_LIBBPF is set" in str(caught.value)
    assert "correct or unset RUBYUNWIND_LIBBPF" in str(caught.value)


def test_a_library_that_is_not_libbpf_is_refused_by_name() -> None:
    with pytest.raises(NotSupported, match="it has no libbpf_major_version"):
        open_first(iter([Candidate("system library", "libc.so.6")]))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("unsigned a = 0, b = 8;", "it is version 0.8, 1.0 is needed"),
        ("unsigned a = 1, b = 0;", "version 1.0 without bpf_enable_stats, bpf_map__"),
    ],
)
def test_the_version_and_the_functions_are_checked(tmp_path: Path, source: str, reason: str) -> None:
    code = tmp_path / "fake.c"
    code.write_text(
        source + " unsigned libbpf_major_version(void) { return a; }"
        " unsigned libbpf_minor_version(void) { return b; }"
    )
    fake = tmp_path / "libbpf.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", fake, code], check=True)
    with pytest.raises(NotSupported) as caught:
        open_first(iter([Candidate("system library", str(fake))]))
    assert reason in str(caught.value)


def test_finding_it_does_not_import_metadata_or_pylibbpf() -> None:
    pytest.importorskip("rubyunwind._libbpf")
    code = (
        "import sys\nfrom rubyunwind.bpf.library import load_library\n"
        "try: load_library()\nexcept Exception: print('absent')\n"
        "print(*(m for m in ('cffi', 'pylibbpf', 'importlib.metadata', 'logging') if m in sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    if "absent" in run.stdout:
        pytest.skip("no system libbpf here")
    assert run.stdout.split() == []


def test_the_command_line_of_a_wrong_variable_reaches_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.VARIABLE, "/nonexistent/libbpf.so")
    monkeypatch.setattr(library, "_loaded", None)
    with pytest.raises(NotSupported, match=r"RUBYUNWIND_LIBBPF \(/nonexistent/libbpf\.so\)"):
        library.load_library()


def test_the_copy_inside_pylibbpf_serves() -> None:
    """With the wheel installed: its extension file has every function we use, and is not imported."""
    place = next(place for place in candidates({}) if place.origin == "installed pylibbpf")
    if place.path is None:
        pytest.skip("pylibbpf is not installed")
    opened, _ = open_first(iter([place]))
    assert opened.version >= (1, 0)
    assert "pylibbpf" not in sys.modules
