# SPDX-License-Identifier: Apache-2.0
"""`rubyunwind record` as its users run it, and the processes that tests let it look at."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .spinning import PATIENCE, RUBY


def until(condition: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
    """Wait for a condition; fail, saying `what` is wrong, when it takes longer than `patience` seconds."""
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, f"in {patience} s: {what}"
        time.sleep(0.005)


class Recorder:
    """A `rubyunwind record` in a session of its own, so that everything it leaves behind can be found."""

    def __init__(
        self,
        *arguments: str | int,
        folder: Path,
        env: dict[str, str] | None = None,
        preexec: Callable[[], None] | None = None,
        program: Sequence[str] = ("-m", "rubyunwind.cli.main"),
        backend: str = "bpf",
        wrapper: Sequence[str] = (),
    ) -> None:
        self._folder = self.folder = folder
        self._out, self._err = folder / "stdout", folder / "stderr"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [*wrapper, sys.executable, *program, "record", "--backend", backend, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=folder,
                env={**os.environ, **(env or {})},
                start_new_session=True,
                preexec_fn=preexec,
            )

    @property
    def out(self) -> bytes:
        return self._out.read_bytes()

    @property
    def err(self) -> str:
        return self._err.read_text("utf-8", "surrogateescape")

    @property
    def files(self) -> set[str]:
        """Names of the files in the test's folder, without what the recorder printed."""
        return {path.name for path in self._folder.iterdir()} - {"stdout", "stderr"}

    @property
    def samples_read(self) -> int:
        """How many samples it says it has read."""
        line = next(line for line in self.err.splitlines() if " samples in " in line)
        return int(line.split()[1])

    def wait(self) -> int:
        """Return the exit status; fail if it does not end."""
        return self.process.wait(PATIENCE)

    def await_recording(self) -> None:
        """Wait until it samples: then it has more perf events than the two rings of every CPU."""
        rings = 2 * (os.cpu_count() or 1)

        def recording() -> bool:
            assert self.process.poll() is None, self.err
            return sum("[perf_event]" in link for link in self.links()) > rings

        until(recording, "the recorder does not sample")

    def links(self) -> list[str]:
        """What its descriptors refer to."""
        found = []
        for descriptor in list(Path(f"/proc/{self.process.pid}/fd").iterdir()):
            with suppress(OSError):
                found.append(str(descriptor.readlink()))
        return found

    def interrupt(self, *, group: bool) -> None:
        """Send SIGINT to the recorder, or to all of its process group, as a terminal's Ctrl-C does."""
        (os.killpg if group else os.kill)(self.process.pid, signal.SIGINT)

    def left_behind(self) -> list[int]:
        """Processes of its session that still run, the recorder itself included."""
        return [pid for pid, session, state in _processes() if session == self.process.pid and state != "Z"]

    def end(self) -> None:
        for pid in self.left_behind():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()


Record = Callable[..., Recorder]


def refused(recorder: Recorder, *texts: str, status: int = 1) -> None:
    """It must end with `status`, say all the texts, and leave no file, of its own or of the command."""
    assert recorder.wait() == status, recorder.err
    for text in texts:
        assert text in recorder.err
    assert recorder.err.startswith(("rubyunwind: ", "Usage: "))
    assert recorder.files == set()


def _processes() -> Iterator[tuple[int, int, str]]:
    """Pid, session and state of every process."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                text = (folder / "stat").read_bytes()
            except OSError:
                continue
            fields = text[text.rindex(b")") + 2 :].split()
            yield int(folder.name), int(fields[3]), fields[0].decode()


@contextmanager
def process(*command: str, script: str = "") -> Iterator[subprocess.Popen[str]]:
    """Run a command; its stdin and stdout are pipes for the test to talk to it."""
    words = [*command, *(["-e", script] if script else [])]
    started = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


@contextmanager
def ruby(script: str) -> Iterator[subprocess.Popen[str]]:
    """Run a Ruby script that prints a line when it is ready."""
    with process(RUBY, "--disable-gems", script=script) as started:
        yield started


def say(process: subprocess.Popen[str], line: str = "") -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"{process.args!r} ended with {process.wait()} before it said anything"
    return line.strip()


def read_jsonl(raw: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in raw.splitlines()]


def labels(sample: dict[str, Any]) -> list[str]:
    """Ruby's part of a stack of the jsonl format, leaf first."""
    return [frame["label"] for frame in sample["frames"] if frame["kind"] in ("ruby", "cfunc")]


def weight(raw: bytes, format_: str) -> int:
    """The sum of the weights in a recording of any format."""
    if format_ == "jsonl":
        return sum(sample["weight"] for sample in read_jsonl(raw))
    if format_ == "folded":
        return sum(int(line.rsplit(b" ", 1)[1]) for line in raw.splitlines())
    return int(sum(column(page_data(raw)["weights"]["weight"])))


def column(packed: list[str]) -> array[Any]:
    """The numbers of a column of a flame graph page."""
    code = {"u8": "B", "u16": "H", "u32": "I", "f64": "d"}[packed[0]]
    return array(code, zlib.decompress(base64.b64decode(packed[1])))


def page_data(raw: bytes) -> dict[str, Any]:
    """The profile inside a flame graph page."""
    _, _, rest = raw.partition(b'type="application/json"')
    text = rest.partition(b">")[2].partition(b"</script>")[0]
    data: dict[str, Any] = json.loads(text)
    return data


def ids(samples: Sequence[dict[str, Any]]) -> set[int]:
    return {sample["pid"] for sample in samples}
