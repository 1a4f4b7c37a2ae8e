# SPDX-License-Identifier: Apache-2.0
"""Every command and every example on our pages runs, in the order in which they stand there.

What cannot be run is in LEFT_OUT, with the reason; its options are looked at all the same. In what is run,
REPLACED puts real pids and addresses, a receiver of our own, and short times, in the place of those that are
printed. The files that
the pages speak of are there: app.rb is a program that ends, PID 1234 one that goes on.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import click
import pytest

from documents import TREE, Snippet, pages, snippets
from receiver import receiving
from rubyunwind.cli.main import Verbs, cli
from rubyunwind.process.image import LiveProcess

from .recorder import until
from .spinning import RUBY
from .test_lines import code_of

pytestmark = [
    pytest.mark.usefixtures("bpf"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the commands are for root"),
]

APP = """\
class Object
  def inner(n) = n.times { |i| Math.sqrt(i) }
end
class Cart
  def total = inner(50_000).then { sleep PAUSE }
end
cart = Cart.new
PAUSE = ARGV.empty? ? 0 : 0.001 # leaves some of a busy machine to the commands
seconds = Float(ARGV.fetch(0, "0.2"))
cart.total while Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) < seconds
"""
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
CORE = TREE / "tests/cores/ruby-3.1-blocks_and_bmethods.gz"

LEFT_OUT = {
    r"make (demo|test)\b": "this is what runs in `make test`; support/fresh-root-test.sh types them",
    r"make (test-kernels|truth|truth-built|soak|bench|wheels|release-test)\b": "takes minutes",
    r"\./run-tests\.sh|support/ci-|virtme-run |# (python3|exit)": "boots virtual machines",
    r"VM_QEMU=|KERN_DIR=|ARCH=|RUBIES=|\(gdb\)|gdb |Thread 1 hit": "boots virtual machines, and gdb in one",
    r"sudo \.venv/bin/python bench/": "takes minutes",
    r"sudo apt install |python3 -m venv |rubyunwind/bin/pip ": "installs: make release-test does it",
    r"docker |crictl ": "needs a container runtime",
    r"kubectl ": "needs a cluster; tests/unit/test_docs.py has the manifest validated",
    r"go tool pprof ": "make foreign runs it",
    r"curl ": "needs a Collector: make foreign sends it to one",
    r"otelcol ": "is a Collector: make foreign has one with that configuration",
}

# In the order of the pages' own words; the first two need to know the process.
REPLACED = (
    (r"\b1234\b|\bPID\b", "{pid}"),
    (r"0x7f12a4005010 --offset 7\b", "{body:#x} {pc:#x}"),
    (r"(?<=-d )\d+\b", "{seconds}"),
    (r"(?<=--interval )\d+\b", "{seconds}"),
    (r"(?<=-n )10\b", "2"),
    (r"/tmp/|/var/spool/|/etc/rubyunwind/", "{folder}/"),
    (r"https?://(127\.0\.0\.1:\d+|profiles\.example\.com)", "{receiver}"),
    # Without -d these go on until Ctrl-C.
    (r"(rubyunwind record)(?=(?! .*-d )(?! .*-- )(?! ruby ).* (-p|--push) )", "{found} -d {seconds}"),
    (r"(rubyunwind top)(?= -p \d+( -s)?( |$)(?!--once|-n))", "{found} -d {seconds}"),
    (r"\bduration=\d+", "duration={seconds}"),
)

# Before each example: what its page says is there.
BEFORE = """\
import asyncio, rubyunwind
pid, address = {pid}, 0x1000
record = bytes(rubyunwind.Trace(pid=pid, tid=pid))
loop = asyncio.new_event_loop()
handle = list
"""

EVERYTHING = [each for page in pages() for each in snippets(page)]


def why_left_out(command: str) -> str | None:
    return next((why for pattern, why in LEFT_OUT.items() if re.match(pattern, command)), None)


@dataclass(frozen=True)
class Place:
    """A folder with the files of the pages, and the process that they call 1234."""

    folder: Path
    cache: Path
    pid: int
    body: int
    pc: int
    receiver: str

    def fill_in(self, text: str, seconds: float = 0.2) -> str:
        for pattern, by in REPLACED:
            text = re.sub(
                pattern,
                lambda found, by=by: by.format(
                    found=found[0],
                    seconds=seconds,
                    pid=self.pid,
                    body=self.body,
                    pc=self.pc,
                    folder=self.folder,
                    receiver=self.receiver,
                ),
                text,
            )
        return text

    def run(self, *command: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            command,
            cwd=self.folder,
            env={
                **os.environ,
                "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                # Each command is a new interpreter: where no bytecode is kept, it is here.
                **(
                    {"PYTHONPYCACHEPREFIX": str(self.cache), NO_BYTECODE: ""}
                    if os.environ.get(NO_BYTECODE)
                    else {}
                ),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )


def shim(path: Path, script: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def shim_and_app(folder: Path) -> None:
    shim(folder / "bin/rubyunwind", f'exec {shlex.quote(sys.executable)} -m rubyunwind.cli.main "$@"')
    shim(folder / "bin/sudo", 'exec "$@"')
    (folder / "app.rb").write_text(APP)
    shutil.copyfile(CORE, folder / "core.gz")
    (folder / "headers").write_text("Authorization: Bearer secret\n")
    folder.chmod(0o777)  # one command gives its rights away


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The Ruby that goes on, and a recording of the one that ends."""
    folder = tmp_path_factory.mktemp("running")
    shim_and_app(folder)
    with (
        receiving() as receiver,
        subprocess.Popen([RUBY, "--disable-gems", "app.rb", "1e9"], cwd=folder) as process,
    ):
        try:
            with LiveProcess(process.pid) as image:
                found: list[tuple[int, int]] = []
                until(lambda: found.extend(frames_of(image)) or found, "it runs no code")
            place = Place(folder, folder / "cache", process.pid, *found[0], receiver.url)
            recorded = place.run("rubyunwind", "record", "-o", "run.rubyunwind", "--", "ruby", "app.rb")
            assert recorded.returncode == 0, recorded.stderr
            yield place
        finally:
            process.kill()


def frames_of(image: LiveProcess) -> list[tuple[int, int]]:
    """Addresses and positions of the code that runs; none before the process has a Ruby."""
    try:
        return code_of(image)[1]
    except AssertionError:
        return []


def place_for(running: Place, folder: Path) -> Place:
    """A folder for one page."""
    shim_and_app(folder)
    for name in ("run", "before", "after"):
        shutil.copyfile(running.folder / "run.rubyunwind", folder / f"{name}.rubyunwind")
    return replace(running, folder=folder)


@pytest.fixture
def place(running: Place, tmp_path: Path) -> Place:
    return place_for(running, tmp_path)


def of_page(page: Path, kind: str) -> list[Snippet]:
    return [each for each in snippets(page) if each.kind == kind and not why_left_out(each.text)]


def pages_with(kind: str) -> list[Path]:
    return [page for page in pages() if of_page(page, kind)]


def name_of(page: Path) -> str:
    return str(page.relative_to(TREE))


@pytest.fixture(scope="module")
def outcomes(
    running: Place, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[dict[Path, Future[None]]]:
    """What came of each page; they are run beside each other, as most of the time of a command is waiting."""
    wanted = {item.callspec.params["page"] for item in request.session.items if hasattr(item, "callspec")
              and item.originalname == test_every_command_of_the_page_runs.__name__}  # fmt: skip
    with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as pool:
        yield {
            page: pool.submit(run_page, page, place_for(running, tmp_path_factory.mktemp(page.stem)))
            for page in sorted(wanted, key=lambda page: -len(of_page(page, "shell")))
        }


def run_page(page: Path, place: Place) -> None:
    for snippet in of_page(page, "shell"):
        for seconds in (0.2, 2.0, 10.0):
            done = place.run("bash", "-o", "pipefail", "-c", place.fill_in(snippet.text, seconds))
            out, said = done.stdout.decode(), done.stderr.decode()
            assert done.returncode == 0, f"{snippet}: {said}"
            assert "Traceback" not in said, f"{snippet}: {said}"
            # On a busy machine the program may not have run at all: then it is given more time.
            if not re.search(r"\b0 samples in ", out + said):
                break
        check(place, snippet.text, out, said)


@pytest.mark.parametrize("page", pages_with("shell"), ids=name_of)
def test_every_command_of_the_page_runs(page: Path, outcomes: dict[Path, Future[None]]) -> None:
    outcomes[page].result()


def check(place: Place, command: str, out: str, said: str) -> None:
    """What a command is there for has happened."""
    words = shlex.split(command, comments=True)
    piped = "|" in words
    if words[:2] == ["rubyunwind", "report"] and "-o" not in words:
        assert "samples: " in out, command
    if "--diff" in words and "-o" not in words:
        assert "percentage points" in out
    if "*inner" in words:
        assert "def inner(n) = n.times { |i| Math.sqrt(i) }" in out
    if "--push" in words:
        assert re.search(r"rubyunwind: pushed [1-9]\d* samples in ", said), f"{command}: {said}"
    elif "record" in words and not piped:
        assert re.search(r"rubyunwind: [1-9]\d* samples in ", said), f"{command}: {said}"
    if "-o" in words and not piped and (name := words[words.index("-o") + 1]) != "-":
        assert (place.folder / Path(name).name).stat().st_size > 0, command
    if words[:2] == ["rubyunwind", "top"] or "snapshot" in words:
        assert "Cart#total" in out or "core.gz" in words, f"{command}: {out}"
    if words[:2] == ["rubyunwind", "lines"]:
        assert "app.rb" in out, f"{command}: {out}"
    if "jq" in words and "jsonl" in words and "." in words:
        assert '"frames"' in out, command


@pytest.mark.parametrize("page", pages_with("python"), ids=name_of)
def test_every_example_of_the_page_runs(page: Path, place: Place) -> None:
    for snippet in of_page(page, "python"):
        code = BEFORE.format(pid=place.pid) + place.fill_in(snippet.text)
        done = place.run(sys.executable, "-W", "error", "-X", "utf8", "-c", code)
        assert done.returncode == 0, f"{snippet}: {done.stderr.decode()}"


def test_only_what_is_there_is_left_out() -> None:
    stale = {pattern for pattern in LEFT_OUT if not any(re.match(pattern, each.text) for each in EVERYTHING)}
    assert stale == set()
    assert not any(why_left_out(each.text) for each in EVERYTHING if each.text.startswith("rubyunwind "))


def test_every_replacement_is_needed() -> None:
    texts = [each.text for each in EVERYTHING if not why_left_out(each.text)]
    texts = [re.sub(REPLACED[0][0], "1", text) for text in texts] + texts
    assert [pattern for pattern, _ in REPLACED if not any(re.search(pattern, each) for each in texts)] == []


def not_run() -> list[str]:
    """The command lines of ours inside commands that are left out, and in the manifest."""
    texts = [each.text for each in EVERYTHING if why_left_out(each.text)]
    texts += (TREE / "docs/kubernetes/daemonset.yaml").read_text().splitlines() if pages() else []
    found = []
    for text in texts:
        for ours in re.findall(r"(?<!/)\brubyunwind ((?:record|snapshot|report|top|doctor)\b.*)", text):
            found.append(ours.rstrip("& "))
    return found


@pytest.mark.parametrize("line", not_run())
def test_options_of_what_is_left_out_exist(line: str) -> None:
    name, *words = shlex.split(line, comments=True)
    command = Verbs().get_command(click.Context(cli), name)
    assert command is not None
    command.make_context(name, words)


def test_every_make_target_of_the_pages_exists() -> None:
    targets = {
        target for each in EVERYTHING for target in re.findall(r"(?:^|[\s`])make ([a-z][a-z-]*)", each.text)
    }
    targets |= {
        target for page in pages() for target in re.findall(r"`make ([a-z][a-z-]*)", page.read_text("utf-8"))
    }
    makefile = (TREE / "Makefile").read_text()
    assert targets
    assert [target for target in targets if not re.search(rf"(?m)^{target}:", makefile)] == []


def test_the_sample_of_the_readme_is_one(place: Place) -> None:
    """Its keys are those of jsonl, kind by kind."""
    text = (TREE / "README.md").read_text("utf-8")
    printed = [json.loads(line) for line in re.findall(r"(?m)^\{\"kind\": .*\}$", text)]
    done = place.run("rubyunwind", "record", "-f", "jsonl", "-o", "-", "-d", "0.3", "-p", str(place.pid))
    real = [frame for line in done.stdout.splitlines() for frame in json.loads(line)["frames"]]
    keys = {frame["kind"]: set(frame) for frame in real}
    for frame in printed:
        if frame["kind"] in keys:
            assert set(frame) == keys[frame["kind"]]
