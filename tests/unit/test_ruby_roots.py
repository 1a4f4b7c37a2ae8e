# SPDX-License-Identifier: Apache-2.0
"""What the scripts do without a network, and what the tests make of their answers."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

import pytest

from rubies import roots
from rubies.roots import CannotBeHad, Root, built, known, root_of, ruby_in

SCRIPT = Path(__file__).parents[2] / "support/ci-rubies/build-ruby.sh"


FROM_SOURCE = SCRIPT.parent / "build-from-source.sh"


def build(
    *arguments: str, cache: Path, script: Path = SCRIPT, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [script, *arguments],
        env={**os.environ, "XDG_CACHE_HOME": str(cache), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture
def fakes(tmp_path: Path) -> str:
    """Return a PATH with an apt-get that knows one archive and reaches nothing."""
    folder = tmp_path / "fakes"
    folder.mkdir()
    script = """case $* in
  indextargets*) echo 'bookworm main http://archive.invalid/debian/' ;;
  *) echo 'E: Failed to fetch http://archive.invalid/debian/dists/x/InRelease  Could not connect' >&2
     echo 'E: Some index files failed to download.' >&2; exit 100 ;;
esac"""
    (folder / "apt-get").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "dpkg").write_text("#!/bin/sh\necho amd64\n")
    for name in ("apt-get", "dpkg"):
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found is remembered; not what is made up here, and nothing from elsewhere."""
    monkeypatch.setattr(roots, "_look_for", functools.cache(roots._look_for.__wrapped__))


def test_a_series_that_is_not_listed_is_refused_with_those_that_are(tmp_path: Path) -> None:
    done = build("9.9", cache=tmp_path)
    assert done.returncode == 1
    assert f"ruby 9.9 is not in {SCRIPT.parent}/rubies.list; known: {' '.join(known())}" in done.stderr
    assert build(cache=tmp_path).returncode == 1
    assert not list(tmp_path.iterdir())


def test_a_build_that_is_not_listed_is_refused_with_those_that_are(tmp_path: Path) -> None:
    done = build("musl-9.9", cache=tmp_path, script=FROM_SOURCE)
    assert done.returncode == 1
    assert f"musl-9.9 is not in {SCRIPT.parent}/built.list; known: {' '.join(built())}" in done.stderr
    assert build(cache=tmp_path, script=FROM_SOURCE).returncode == 1
    assert not list(tmp_path.iterdir())


def test_every_build_is_of_a_series_whose_suite_is_known() -> None:
    trees = {name for name in built() if name.startswith("tree-")}
    assert {name.rpartition("-")[2] for name in set(built()) - trees} <= set(known())
    # Of a source tree is built what no suite has.
    assert trees
    assert not {name.rpartition("-")[2] for name in trees} & set(known())


@pytest.mark.parametrize(
    ("tree", "reason"),
    [(None, "RUBY_TREES does not say where"), ("2.7.4", "is the source of 2.7.4"), ("", "has no version.h")],
)
def test_a_source_tree_that_is_none_of_that_series_is_refused_with_the_reason(
    tmp_path: Path, tree: str | None, reason: str
) -> None:
    headers = tmp_path / "3.2/include/ruby"
    headers.mkdir(parents=True)
    (headers / "version.h").touch()
    if tree:
        (tmp_path / "3.2/version.h").write_text(f'#define RUBY_VERSION "{tree}"\n')
    trees = "" if tree is None else str(tmp_path)
    done = build("tree-3.2", cache=tmp_path / "cache", script=FROM_SOURCE, RUBY_TREES=trees)
    assert (done.returncode, done.stdout) == (77, "")
    assert done.stderr.startswith("skipped: ruby tree-3.2: ")
    assert reason in done.stderr


def test_a_build_without_its_compiler_or_a_network_is_skipped(tmp_path: Path, fakes: str) -> None:
    done = build("musl-3.3", cache=tmp_path, script=FROM_SOURCE, PATH=fakes.partition(":")[0] + ":/bin")
    if "musl-gcc is not installed" not in done.stderr:
        assert done.stderr.startswith("skipped: ruby musl-3.3: the sources of trixie could not be read: ")
    assert (done.returncode, done.stdout) == (77, "")
    assert [path.name for path in (tmp_path / "rubyunwind/rubies").iterdir()] == ["musl-3.3.lock"]


def test_a_build_that_is_there_is_taken_again_and_is_no_package_of_its_series(tmp_path: Path) -> None:
    rubies = tmp_path / "rubyunwind/rubies"
    for name in ("musl-3.3-3.3.8-2", "musl-static-3.3-3.3.8-2", "3.3-3.3.8-1"):
        (rubies / name).mkdir(parents=True)
    done = build("musl-3.3", cache=tmp_path, script=FROM_SOURCE)
    assert (done.returncode, done.stdout) == (0, f"{rubies}/musl-3.3-3.3.8-2\n")
    done = build("3.3", cache=tmp_path, PATH=os.environ["PATH"])
    assert (done.returncode, done.stdout) == (0, f"{rubies}/3.3-3.3.8-1\n")


def test_a_root_that_is_there_is_taken_again_and_the_newest_of_several(tmp_path: Path) -> None:
    rubies = tmp_path / "rubyunwind/rubies"
    for version in ("3.3.8-2", "3.3.8-10", "3.3.8-9~exp1"):
        (rubies / f"3.3-{version}").mkdir(parents=True)
    (rubies / "3.4-3.4.1-1").mkdir()
    done = build("3.3", cache=tmp_path, PATH=os.environ["PATH"])
    assert (done.returncode, done.stdout) == (0, f"{rubies}/3.3-3.3.8-10\n")


def test_without_a_network_it_is_skipped_with_the_reason_and_leaves_nothing(
    tmp_path: Path, fakes: str
) -> None:
    done = build("3.3", cache=tmp_path, PATH=fakes)
    assert (done.returncode, done.stdout) == (77, "")
    assert done.stderr == (
        "skipped: ruby 3.3: trixie could not be read: Failed to fetch "
        "http://archive.invalid/debian/dists/x/InRelease  Could not connect\n"
    )
    assert [path.name for path in (tmp_path / "rubyunwind/rubies").iterdir()] == ["3.3.lock"]


def test_a_machine_whose_sources_name_no_archive_of_debian_is_a_reason_to_skip(
    tmp_path: Path, fakes: str
) -> None:
    (tmp_path / "fakes/apt-get").write_text("#!/bin/sh\nexit 0\n")
    done = build("3.3", cache=tmp_path, PATH=fakes)
    assert done.returncode == 77
    assert done.stderr.startswith("skipped: ruby 3.3: the apt sources of this machine name no Debian archive")


def fake_script(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, *, name: str = SCRIPT.name) -> None:
    script = folder / name
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    monkeypatch.setattr(roots, "SCRIPTS", folder)
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def test_a_root_has_its_series_and_the_version_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_script(tmp_path, monkeypatch, "echo /cache/3.4-3.4.11-1~exp1")
    root = root_of("3.4")
    assert root == Root("3.4", "3.4.11-1~exp1", Path("/cache/3.4-3.4.11-1~exp1"))
    assert root.program == "/usr/bin/ruby3.4"


def test_a_build_has_another_script_and_the_program_of_its_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_script(tmp_path, monkeypatch, "echo /cache/musl-3.3-3.3.8-2", name=FROM_SOURCE.name)
    root = root_of("musl-3.3")
    assert root == Root("musl-3.3", "3.3.8-2", Path("/cache/musl-3.3-3.3.8-2"))
    assert root.program == "/usr/bin/ruby3.3"


def test_what_cannot_be_had_is_told_from_what_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_script(tmp_path, monkeypatch, 'echo "skipped: ruby 3.4: sid has no ruby3.4" >&2; exit 77')
    with pytest.raises(CannotBeHad, match=r"^ruby 3\.4: sid has no ruby3\.4$"):
        root_of("3.4")
    fake_script(tmp_path, monkeypatch, "echo 'no space left' >&2; exit 1")
    with pytest.raises(RuntimeError, match="no space left"):
        root_of("3.3")
    with pytest.raises(CannotBeHad, match="sid has no"):
        root_of("3.4")  # not tried again


def test_without_root_no_ruby_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_script(tmp_path, monkeypatch, "exit 1")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(CannotBeHad, match="chroot needs root"):
        root_of("3.4")


def test_the_programs_are_in_the_root_for_as_long_as_they_run(tmp_path: Path) -> None:
    (tmp_path / "programs").mkdir()
    with ruby_in(Root("3.3", "3.3.8-2", tmp_path)) as ruby:
        assert ruby.root == tmp_path
        assert ruby.start[-3:] == [str(tmp_path), "/usr/bin/ruby3.3", "--disable-gems"]
        program = tmp_path / ruby.programs.lstrip("/") / "recursion.rb"
        assert program.read_text().startswith("# SPDX")
    assert list((tmp_path / "programs").iterdir()) == []
