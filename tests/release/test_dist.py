# SPDX-License-Identifier: Apache-2.0
"""What `make wheels` has left in dist/ is what is promised of it. `make release-test` runs this."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from io import StringIO
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

TREE = Path(__file__).parents[2]
DIST = Path(os.environ.get("RUBYUNWIND_DIST", TREE / "dist"))
# ELF's e_machine, as pyelftools names it.
MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
KINDS, ARCHITECTURES = ("release", "debug", "legacy"), ("amd64", "arm64")

pytestmark = pytest.mark.skipif(not DIST.is_dir(), reason=f"{DIST} does not exist: make wheels")


@pytest.fixture(params=sorted(MACHINES))
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def wheel(machine: str) -> Path:
    (found,) = DIST.glob(f"rubyunwind-*_{machine}.whl")
    return found


@pytest.fixture
def unpacked(wheel: Path, tmp_path: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    return tmp_path


def version() -> str:
    found = re.search(r'^version = "([^"]+)"$', (TREE / "pyproject.toml").read_text(), re.MULTILINE)
    assert found
    return found[1]


def tool(name: str) -> str:
    path = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed (pip install {name})")
    return path


def machine_of(path: Path) -> str:
    with path.open("rb") as file:
        return str(ELFFile(file)["e_machine"])


def test_the_name_says_stable_abi_and_manylinux(wheel: Path, machine: str) -> None:
    assert re.fullmatch(
        rf"rubyunwind-{re.escape(version())}-cp310-abi3-manylinux_2_\d+_{machine}\.whl", wheel.name
    )


def test_every_part_is_for_the_right_machine(unpacked: Path, machine: str) -> None:
    package = unpacked / "rubyunwind"
    native = [*package.glob("*.so"), *(package / "libs").glob("*.so*")]
    assert sorted(path.name for path in native) == ["_native.abi3.so", "libbpf.so.1", "libelf.so.1"]
    assert {machine_of(path) for path in native} == {MACHINES[machine]}
    objects = {path.name for path in (package / "objects").iterdir()}
    assert objects == {f"tracer.ebpf.{kind}.{arch}.o" for kind in KINDS for arch in ARCHITECTURES}
    assert {machine_of(package / "objects" / name) for name in objects} == {"EM_BPF"}
    assert not list(unpacked.rglob("*.c"))
    assert (package / "py.typed").exists()


def test_its_record_names_every_file_with_its_hash(unpacked: Path) -> None:
    (record,) = unpacked.glob("*.dist-info/RECORD")
    listed = {row[0]: row[1] for row in csv.reader(StringIO(record.read_text()))}
    there = {str(path.relative_to(unpacked)): path for path in unpacked.rglob("*") if path.is_file()}
    assert set(listed) == set(there)
    for name, path in there.items():
        if path != record:
            digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=")
            assert listed[name] == f"sha256={digest.decode()}"


def test_every_licence_is_in_it(unpacked: Path) -> None:
    (info,) = unpacked.glob("*.dist-info")
    metadata = message_from_bytes((info / "METADATA").read_bytes())
    files = metadata.get_all("License-File") or []
    assert {"LICENSE", "libs/libbpf1.copyright.txt", "libs/libelf1.copyright.txt", "libs/LGPL-3.txt"} <= set(
        files
    )
    for name in files:
        assert (info / "licenses" / name).stat().st_size > 0
    assert "LGPL-2.1-only OR BSD-2-Clause" in metadata["License-Expression"]
    assert metadata["Version"] == version()
    assert "libbpf1 1:1." in (unpacked / "rubyunwind/libs/README").read_text()


def test_the_tag_promises_no_more_than_auditwheel_finds(wheel: Path) -> None:
    said = subprocess.run([tool("auditwheel"), "show", str(wheel)], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    found = re.search(r'platform tag: "manylinux_2_(\d+)_(\w+)"', " ".join(said.stdout.split()))
    assert found, said.stdout
    ours = re.search(r"-manylinux_2_(\d+)_(\w+)$", wheel.stem)
    assert ours
    assert (int(ours[1]) >= int(found[1]), ours[2]) == (True, found[2])


def test_abi3audit_finds_nothing_beyond_the_stable_abi(wheel: Path) -> None:
    said = subprocess.run(
        [tool("abi3audit"), "--strict", "--report", str(wheel)], capture_output=True, text=True
    )
    assert said.returncode == 0, said.stdout + said.stderr


def test_the_sdist_has_the_tree() -> None:
    (sdist,) = DIST.glob("rubyunwind-*.tar.gz")
    assert sdist.name == f"rubyunwind-{version()}.tar.gz"
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    listed = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", "HEAD"], cwd=TREE, capture_output=True, text=True
    )
    assert set(listed.stdout.split("\n")) - {""} <= names
    assert "PKG-INFO" in names
