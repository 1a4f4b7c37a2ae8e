# SPDX-License-Identifier: Apache-2.0
"""The scripts that run guests and get kernels: what they say when something is wrong; that nothing is left.

A script stands for qemu here; tests/kernels is what runs in real guests.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "support/ci-kernels"
TOOLS = ("debugfs", "mkfs.ext4", "setpriv", "timeout", "dd")

pytestmark = [
    pytest.mark.skipif(not SCRIPTS.is_dir(), reason=f"no source tree here: {SCRIPTS} does not exist"),
    pytest.mark.skipif(
        any(shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None for tool in TOOLS),
        reason=f"one of {', '.join(TOOLS)} is not installed",
    ),
]


@dataclass
class Guest:
    """What run-guest.sh takes, and a place for programs that it finds first."""

    folder: Path

    @property
    def console(self) -> Path:
        return self.folder / "console.log"

    @property
    def left(self) -> Path:
        """Where the qemu of these tests writes its process id."""
        return self.folder / "pid"

    def start(self, **environment: str) -> subprocess.Popen[str]:
        paths = (self.folder / name for name in ("root.ext4", "kernel", "job.tar", "console.log"))
        return subprocess.Popen(
            [str(SCRIPTS / "run-guest.sh"), *map(str, paths)],
            env={
                **os.environ,
                "PATH": f"{self.folder}/bin:{os.environ['PATH']}:/usr/sbin:/sbin",
                "ARCH": "amd64",
                "VM_TIMEOUT": "30",
                "VM_ACCEL": "tcg",
                **environment,
            },
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, **environment: str) -> tuple[int, str]:
        started = self.start(**environment)
        _, errors = started.communicate(timeout=60)
        return started.returncode, errors

    def qemu(self, script: str) -> None:
        path = self.folder / "bin/qemu-system-x86_64"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\necho $$ >{self.left}\n{script}\n")
        path.chmod(0o755)


@pytest.fixture
def guest(tmp_path: Path) -> Guest:
    made = Guest(tmp_path)
    subprocess.run(
        ["mkfs.ext4", "-q", "-F", str(tmp_path / "root.ext4"), "4M"],
        env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
        check=True,
    )
    (tmp_path / "job.tar").write_bytes(b"a job" * 100)
    (tmp_path / "kernel").write_bytes(bytes(514) + b"HdrS" + bytes(100))
    made.qemu("printf 'booting\\r\\nJOBRC 0\\r\\n'")
    return made


def ended(pid: int, patience: float = 15) -> bool:
    """Whether a process is gone, or a zombie that nobody has waited for, within some seconds."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


def pid_in(path: Path, patience: float = 15) -> int:
    end = time.monotonic() + patience
    while time.monotonic() < end:
        if path.exists() and path.read_text().strip():
            return int(path.read_text())
        time.sleep(0.02)
    raise AssertionError("the guest did not start")


def test_a_job_that_ends_well_is_the_only_success_and_its_console_is_kept(guest: Guest) -> None:
    assert guest.run() == (0, "")
    assert guest.console.read_text() == "booting\nJOBRC 0\n"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'JOBRC 3'", "the job failed (status 3)"),
        ("echo 'Kernel panic - not syncing'; exit 1", "went down before its job ended (qemu's status 1)"),
        (":", "went down before its job ended (qemu's status 0)"),
        ("echo 'it said JOBRC 0'", "went down before its job ended"),
        ("echo 'JOBRC 0'; echo 'JOBRC 1'", "the job failed (status 1)"),
        ("echo 'JOBRC 0'; exec sleep 60", "no end within 1 s"),
        ("trap '' TERM; while :; do sleep 0.1; done", "no end within 1 s"),
    ],
)
def test_whatever_else_happens_is_a_failure_with_its_reason(guest: Guest, script: str, reason: str) -> None:
    guest.qemu(script)
    status, errors = guest.run(VM_TIMEOUT="1")
    assert status == 1
    assert reason in errors
    assert ended(pid_in(guest.left))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_no_guest_is_left_when_the_script_is_ended(guest: Guest, number: signal.Signals) -> None:
    guest.qemu("exec sleep 300")
    started = guest.start()
    pid = pid_in(guest.left)
    started.send_signal(number)
    started.communicate(timeout=30)
    assert started.returncode != 0
    assert ended(pid)


def test_two_at_once_do_not_meet(guest: Guest, tmp_path: Path) -> None:
    guest.qemu("sleep 0.5; echo 'JOBRC 0'")
    others = [guest.start() for _ in range(2)]
    assert [other.wait(timeout=60) for other in others] == [0, 0]


@pytest.mark.skipif(
    os.uname().machine != "x86_64" or not os.access("/dev/kvm", os.W_OK), reason="there is no /dev/kvm"
)
@pytest.mark.parametrize(
    ("probe", "accelerator"), [(33, "kvm"), (0, "tcg,thread=multi"), (134, "tcg,thread=multi")]
)
def test_kvm_is_used_where_a_guest_was_seen_to_run_on_it(guest: Guest, probe: int, accelerator: str) -> None:
    guest.qemu(f'case "$*" in *isa-debug-exit*) exit {probe} ;; esac; echo "$*"; echo "JOBRC 0"')
    assert guest.run(VM_ACCEL="") == (0, "")
    assert f"-accel {accelerator} " in guest.console.read_text()


@pytest.mark.parametrize("content", [b"", b"no kernel", bytes(2000), b"\x1f\x8b" + bytes(600)])
def test_an_image_that_is_no_kernel_is_refused_before_anything_starts(guest: Guest, content: bytes) -> None:
    (guest.folder / "kernel").write_bytes(content)
    status, errors = guest.run()
    assert status == 1
    assert "is no kernel image for amd64 (a bzImage or vmlinuz)" in errors
    assert not guest.left.exists()


def test_a_kernel_of_another_machine_is_refused(guest: Guest) -> None:
    (guest.folder / "bin/qemu-system-aarch64").symlink_to("/bin/true")
    status, errors = guest.run(ARCH="arm64")
    assert (status, "is no kernel image for arm64" in errors) == (1, True)


def test_without_qemu_it_names_the_package(guest: Guest) -> None:
    (guest.folder / "bin/qemu-system-x86_64").unlink()
    for tool in ("bash", "dirname", "awk", "uname"):
        found = shutil.which(tool)
        assert found is not None
        (guest.folder / "bin" / tool).symlink_to(found)
    status, errors = guest.run(PATH=str(guest.folder / "bin"))
    assert status == 1
    assert "qemu-system-x86_64 is not installed (Debian: apt-get install qemu-system-x86)" in errors


def test_a_job_that_does_not_fit_is_said_to_be_too_large(guest: Guest) -> None:
    (guest.folder / "job.tar").write_bytes(os.urandom(8 << 20))
    status, errors = guest.run()
    assert status == 1
    assert "the job (8.0M) does not fit into the guest's disk" in errors
    assert not guest.left.exists()


def test_a_full_disk_is_said_with_what_is_needed(guest: Guest) -> None:
    small = guest.folder / "small"
    small.mkdir()
    script = f"mount -t tmpfs -o size=64k tmpfs {small} && exec {sys.executable} -m pytest --version"
    if subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system is not allowed here")
    paths = (guest.folder / name for name in ("root.ext4", "kernel", "job.tar", "console.log"))
    command = " ".join([str(SCRIPTS / "run-guest.sh"), *map(str, paths)])
    done = subprocess.run(
        [
            "unshare",
            "-m",
            "sh",
            "-c",
            f"mount -t tmpfs -o size=64k tmpfs {small} && TMPDIR={small} {command}",
        ],
        env={
            **os.environ,
            "ARCH": "amd64",
            "PATH": f"{guest.folder}/bin:{os.environ['PATH']}:/usr/sbin:/sbin",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"no room for the guest's disk in {small}" in done.stderr
    assert not guest.left.exists()


# ---- kernels ---------------------------------------------------------------------------------


def script(name: str, *arguments: str, path: str = "", cache: Path | None = None) -> tuple[int, str]:
    done = subprocess.run(
        [str(SCRIPTS / name), *arguments],
        env={
            **os.environ,
            "ARCH": "amd64",
            "PATH": path or os.environ["PATH"],
            "XDG_CACHE_HOME": str(cache or "/nonexistent"),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


Fakes = Callable[..., str]


@pytest.fixture
def fakes(tmp_path: Path) -> Fakes:
    """Return a PATH that finds scripts first, by name; tools that builds ask for are there."""

    def make(**scripts: str) -> str:
        folder = tmp_path / "fakes"
        folder.mkdir()
        tools = dict.fromkeys(("flex", "bison", "bc", "gcc", "cc", "make"), ":")
        for name, text in {**tools, **scripts}.items():
            (folder / name).write_text(f"#!/bin/sh\n{text}\n")
            (folder / name).chmod(0o755)
        return f"{folder}:{os.environ['PATH']}"

    return make


def test_a_version_that_nobody_has_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    status, said = script("get-kernel.sh", "9.9", cache=tmp_path)
    assert status == 1
    assert "kernel 9.9 is not in kernels.list; known: 5.10 6.1" in said


def test_an_image_that_is_there_is_taken_again(tmp_path: Path) -> None:
    (tmp_path / "linux-5.4.31.bz").write_bytes(b"kernel")
    assert script("get-kernel.sh", "5.4.31", str(tmp_path)) == (0, f"{tmp_path}/linux-5.4.31.bz\n")


def test_without_a_network_it_says_what_was_tried_and_what_to_do(tmp_path: Path, fakes: Fakes) -> None:
    status, said = script("get-kernel.sh", "5.4.31", str(tmp_path / "kernels"), path=fakes(curl="exit 6"))
    assert status == 1
    assert "linux 5.4.31 could not be fetched from https://" in said
    assert "give its path instead of the version" in said


def test_sources_with_another_checksum_than_is_published_are_deleted(tmp_path: Path, fakes: Fakes) -> None:
    curl = (
        'for last; do :; done; case $last in *sums.asc) echo "00ff  linux-5.4.31.tar.xz" ;;'
        ' *) while [ "$1" != -o ]; do shift; done; echo damaged >"$2" ;; esac'
    )
    status, said = script("build-kernel.sh", "5.4.31", str(tmp_path / "kernels"), path=fakes(curl=curl))
    assert status == 1
    assert "linux-5.4.31.tar.xz has not the checksum" in said
    assert [path.name for path in (tmp_path / "kernels").iterdir()] == ["_build"]


def test_a_directory_without_sources_and_a_damaged_tarball_are_named(tmp_path: Path, fakes: Fakes) -> None:
    path = fakes()
    empty, cut = tmp_path / "empty", tmp_path / "linux-6.0.tar.xz"
    empty.mkdir()
    cut.write_bytes(b"\xfd7zXZ\0 cut")
    status, said = script("build-kernel.sh", str(empty), str(tmp_path / "kernels"), path=path)
    assert (status, f"{empty} holds no kernel's sources" in said) == (1, True)
    status, said = script("build-kernel.sh", str(cut), str(tmp_path / "kernels"), path=path)
    assert (status, f"{cut} cannot be unpacked" in said) == (1, True)
    assert list((tmp_path / "kernels/_build").iterdir()) == []
    status, said = script("build-kernel.sh", "nothing", str(tmp_path / "kernels"), path=path)
    assert (status, "nothing is no file, no directory and no version" in said) == (1, True)


def test_tools_that_are_missing_are_all_named(tmp_path: Path) -> None:
    folder = tmp_path / "few"
    folder.mkdir()
    for tool in ("bash", "dirname", "realpath", "mkdir", "uname"):
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    status, said = script("build-kernel.sh", str(tmp_path), str(tmp_path / "kernels"), path=str(folder))
    assert status == 1
    assert "without: make flex bison bc gcc libelf-dev" in said


MAKE = """
for word; do
  case $word in O=*) build=${word#O=} ;; esac
  target=$word
done
case $target in
  kernelversion) echo 5.4.31 ;;
  allnoconfig) cp "$build/wanted.config" "$build/.config" ;;
  bzImage)
    mkdir -p "$build/arch/x86/boot"
    echo image >"$build/arch/x86/boot/bzImage"
    echo symbols >"$build/vmlinux"
    ;;
esac
"""


def test_a_tree_becomes_an_image_and_its_symbols_under_the_version_it_has(
    tmp_path: Path, fakes: Fakes
) -> None:
    tree, kernels = tmp_path / "tree", tmp_path / "kernels"
    tree.mkdir()
    for name in ("Makefile", "Kconfig"):
        (tree / name).touch()
    status, said = script("build-kernel.sh", str(tree), str(kernels), path=fakes(make=MAKE))
    assert (status, said.splitlines()[0]) == (0, f"{kernels}/linux-5.4.31.bz")
    assert (kernels / "linux-5.4.31.bz").read_text() == "image\n"
    assert (kernels / "_build/linux-5.4.31/vmlinux").read_text() == "symbols\n"
    assert str(tree) in (kernels / "linux-5.4.31.from").read_text()
    config = (kernels / "_build/linux-5.4.31/.config").read_text()
    for wanted in ("CONFIG_BPF_SYSCALL=y", "CONFIG_9P_FS=y", "CONFIG_DEBUG_INFO=y", "CONFIG_ACPI=y"):
        assert wanted in config.splitlines()


def test_a_tree_whose_configuration_lacks_what_we_need_is_refused(tmp_path: Path, fakes: Fakes) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("Makefile", "Kconfig"):
        (tree / name).touch()
    make = MAKE.replace('cp "$build/wanted.config"', 'grep -v BPF_EVENTS "$build/wanted.config" >').replace(
        '> "$build/.config"', '>"$build/.config"'
    )
    status, said = script("build-kernel.sh", str(tree), str(tmp_path / "kernels"), path=fakes(make=make))
    assert status == 1
    assert "linux 5.4.31 would have no CONFIG_BPF_EVENTS" in said
