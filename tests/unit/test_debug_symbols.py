# SPDX-License-Identifier: Apache-2.0
"""Functions whose names were stripped off have them again where the debug file is installed."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rubyunwind.elf import debuglink
from rubyunwind.elf.debuglink import debug_symbols
from rubyunwind.elf.file import ElfFile
from rubyunwind.profiler import files as files_module
from rubyunwind.profiler.files import MappedFile

SOURCE = """\
static __attribute__((noinline)) int hidden_one(int n) { return n * 3 + 1; }
static __attribute__((noinline)) int hidden_two(int n) { return hidden_one(n) - 7; }
int exported(int n) { return hidden_two(n) + hidden_one(n + 1); }
"""


def run(*words: str | Path) -> str:
    return subprocess.run(
        list(map(str, words)), capture_output=True, text=True, timeout=60, check=True
    ).stdout


@pytest.fixture(params=["build id", "link"])
def library(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path, dict[str, int]]:
    """A stripped library, the root its debug file is below, and its functions with their addresses."""
    for tool in ("cc", "objcopy", "strip", "nm", "readelf"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} here")
    source, path, debug = tmp_path / "x.c", tmp_path / "libx.so", tmp_path / "libx.debug"
    source.write_text(SOURCE)
    identity = "--build-id=sha1" if request.param == "build id" else "--build-id=none"
    run(
        "cc",
        "-g",
        "-O1",
        "-fno-inline",
        "-fno-ipa-cp",
        "-shared",
        "-fPIC",
        f"-Wl,{identity}",
        "-o",
        path,
        source,
    )
    known = {
        name: int(address, 16)
        for address, name in re.findall(
            r"^([0-9a-f]+) [tT] (hidden_\w+|exported)$", run("nm", path), re.MULTILINE
        )
    }
    assert known.keys() == {"hidden_one", "hidden_two", "exported"}
    run("objcopy", "--only-keep-debug", path, debug)
    run("strip", path)
    run("objcopy", f"--add-gnu-debuglink={debug}", path)
    root = tmp_path / "root"
    found = re.search(r"Build ID: ([0-9a-f]+)", run("readelf", "-n", path))
    if found is not None:
        place = root / ".build-id" / found[1][:2] / f"{found[1][2:]}.debug"
    else:
        place = root / tmp_path.relative_to("/") / debug.name
    place.parent.mkdir(parents=True)
    debug.rename(place)
    return path, root, known


def test_stripped_functions_have_the_names_of_the_debug_file(
    library: tuple[Path, Path, dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, root, known = library
    asked = []

    def sought(elf: ElfFile) -> object:
        asked.append(elf)
        return debug_symbols(elf, root)

    monkeypatch.setattr(files_module, "debug_symbols", sought)
    file = MappedFile(ElfFile.open(path), "/usr/lib/libx.so")
    assert file.frame(known["exported"] + 1).name == "exported"
    assert asked == []  # not before it is needed
    for name, address in known.items():
        assert file.frame(address + 2).name == name
    file.frame(known["hidden_one"] + 3)
    assert len(asked) == 1
    file.close()


def test_without_the_debug_file_they_are_named_by_where_they_begin(
    library: tuple[Path, Path, dict[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _, known = library
    nothing = functools.partial(debug_symbols, root=tmp_path / "nowhere")
    monkeypatch.setattr(files_module, "debug_symbols", nothing)
    file = MappedFile(ElfFile.open(path), "/usr/lib/libx.so")
    assert file.frame(known["hidden_two"] + 1).name == f"libx.so+{known['hidden_two']:#x}"
    file.close()


def test_too_many_symbols_are_left_alone(
    library: tuple[Path, Path, dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, root, _ = library
    with ElfFile.open(path) as elf:
        assert debug_symbols(elf, root) is not None
        monkeypatch.setattr(debuglink, "MOST_SYMBOLS", 2)
        assert debug_symbols(elf, root) is None
