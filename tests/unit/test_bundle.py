# SPDX-License-Identifier: Apache-2.0
"""A wheel gets its copy of libbpf: made up, both of them. `make release-test` looks at the real ones."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import subprocess
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "support/bundle_libbpf.py"
METADATA = """\
Metadata-Version: 2.4
Name: rubyunwind
Version: 7.8.9
License-Expression: Apache-2.0
License-File: LICENSE
Requires-Python: >=3.10

The text, with License-Expression: none
"""


@pytest.fixture
def bundle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    if not SCRIPT.exists():
        pytest.skip(f"no source tree here: {SCRIPT} does not exist")
    pytest.importorskip("elftools")
    spec = importlib.util.spec_from_file_location("bundle_libbpf", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    common = tmp_path / "common"
    common.mkdir()
    for name in module.TEXTS:
        (common / name).write_text(name)
    monkeypatch.setattr(module, "COMMON", common)
    monkeypatch.setattr(module, "look_beside", lambda library: None)
    return module


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Debian's packages, unpacked, with libraries that do nothing."""
    tree = tmp_path / "tree"
    folder = tree / "usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    for package, name in (("libbpf1", "libbpf.so.1"), ("libelf1", "libelf.so.1")):
        code = f'const char *{package}(void) {{ return "{package}"; }}'
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(folder / f"{name}.0")]
        subprocess.run(command, input=code, text=True, check=True)
        (folder / name).symlink_to(f"{name}.0")
        (tree / "usr/share/doc" / package).mkdir(parents=True)
        (tree / "usr/share/doc" / package / "copyright").write_text(f"of {package}")
    Path(f"{tree}.versions").write_text("libbpf1 1.2 (source package libbpf 1.2)\n")
    return tree


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "rubyunwind-7.8.9-cp313-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("rubyunwind/__init__.py", "")
        archive.writestr("rubyunwind-7.8.9.dist-info/METADATA", METADATA)
        archive.writestr(
            "rubyunwind-7.8.9.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: cp313-abi3-linux_x86_64\n"
        )
        archive.writestr("rubyunwind-7.8.9.dist-info/RECORD", "old")
        archive.writestr("rubyunwind-7.8.9.dist-info/licenses/LICENSE", "ours")
    return path


def test_the_wheel_gets_the_libraries_their_licences_and_its_tag(
    bundle: ModuleType, wheel: Path, tree: Path, tmp_path: Path
) -> None:
    bundle.main(str(wheel), str(tree), str(tmp_path / "out"))
    (made,) = (tmp_path / "out").iterdir()
    assert made.name == "rubyunwind-7.8.9-cp310-abi3-manylinux_2_17_x86_64.whl"
    with zipfile.ZipFile(made) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    info = "rubyunwind-7.8.9.dist-info"
    for name in ("libbpf.so.1", "libelf.so.1"):
        assert content[f"rubyunwind/libs/{name}"] == next(tree.rglob(name)).read_bytes()
    assert b"libbpf1 1.2 (source package libbpf 1.2)" in content["rubyunwind/libs/README"]
    assert content[f"{info}/licenses/libs/libelf1.copyright.txt"] == b"of libelf1"
    head, _, body = content[f"{info}/METADATA"].decode().partition("\n\n")
    assert f"License-Expression: Apache-2.0 AND {bundle.LICENCES}" in head
    assert "License-File: libs/LGPL-3.txt" in head.splitlines()
    assert body == METADATA.partition("\n\n")[2]
    assert content[f"{info}/WHEEL"].decode().splitlines()[1:] == ["Tag: cp310-abi3-manylinux_2_17_x86_64"]
    rows = [line.split(",") for line in content[f"{info}/RECORD"].decode().splitlines()]
    assert {row[0] for row in rows} == set(content)
    for name, digest, size in rows[:-1]:
        found = base64.urlsafe_b64encode(hashlib.sha256(content[name]).digest()).rstrip(b"=").decode()
        assert (digest, int(size)) == (f"sha256={found}", len(content[name]))
    assert rows[-1] == [f"{info}/RECORD", "", ""]


def test_the_same_input_gives_the_same_wheel(
    bundle: ModuleType, wheel: Path, tree: Path, tmp_path: Path
) -> None:
    made = []
    for name in ("one", "two"):
        bundle.main(str(wheel), str(tree), str(tmp_path / name))
        made.append(next((tmp_path / name).iterdir()).read_bytes())
    assert made[0] == made[1]


def test_what_is_missing_is_named(bundle: ModuleType, wheel: Path, tree: Path, tmp_path: Path) -> None:
    next(tree.rglob("libelf.so.1")).unlink()
    with pytest.raises(SystemExit, match=r"has no libelf\.so\.1: is Debian's libelf1 unpacked there"):
        bundle.main(str(wheel), str(tree), str(tmp_path / "out"))
    with pytest.raises(SystemExit, match="not a wheel for x86_64 or aarch64"):
        bundle.machine_of(Path("rubyunwind-1-py3-none-any.whl"))
