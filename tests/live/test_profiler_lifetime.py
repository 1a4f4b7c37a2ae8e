# SPDX-License-Identifier: Apache-2.0
"""A profiler that is entered twice, closed twice, used after its close or in a forked child."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from rubyunwind import AttachError, Profiler, Recording
from rubyunwind.bpf.lifetime import LifetimeError

from .spinning import gather

pytestmark = pytest.mark.usefixtures("bpf")


@pytest.fixture
def busy() -> Iterator[int]:
    """A process that uses the CPU and is no Ruby."""
    process = subprocess.Popen(["sh", "-c", "while :; do :; done"])
    yield process.pid
    process.kill()
    process.wait()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a link may be gone before Path looks


def test_after_its_close_it_refuses_use_and_keeps_what_it_counted(busy: int) -> None:
    with Profiler([busy], rate=499) as profiler:
        gather(profiler, 20)
    profiler.close()
    assert profiler.stats.read >= 20
    assert profiler.notes == (f"pid {busy}: no Ruby was found in it; native frames only",)
    assert not profiler.running
    for use in (profiler.poll, profiler.stop, profiler.fileno, lambda: list(profiler.samples())):
        with pytest.raises(LifetimeError, match="the Profiler is closed"):
            use()
    with pytest.raises(LifetimeError, match="entered before; make a new one"):
        profiler.__enter__()


def test_entering_twice_is_refused_and_does_not_disturb_the_first(busy: int) -> None:
    with Profiler([busy], rate=499) as profiler:
        with pytest.raises(LifetimeError, match="entered before"):
            profiler.__enter__()
        assert gather(profiler, 5)


def test_the_reader_of_the_samples_may_close_it(busy: int) -> None:
    with Profiler([busy], rate=499) as profiler:
        for _ in profiler.samples():
            profiler.close()
    assert profiler.stats.read > 0


def test_a_forked_child_is_refused_and_takes_nothing_from_its_parent(busy: int) -> None:
    with Profiler([busy], rate=499) as profiler:
        pid = os.fork()
        if pid == 0:
            try:
                profiler.poll(0)
            except LifetimeError as error:
                refused = "does not survive fork" in str(error)
                profiler.close()
                os._exit(0 if refused else 2)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert gather(profiler, 20)  # still sampled after the child has closed its copy


def test_a_process_that_is_not_there_leaves_no_descriptor_open() -> None:
    with Profiler():  # what the first one loads for good is loaded
        pass
    before = descriptors()
    with pytest.raises(AttachError, match="no such process"), Profiler([2**22 - 1]):
        pass
    assert descriptors() == before


def test_a_recording_that_cannot_begin_runs_no_command() -> None:
    with Profiler():
        pass
    before = descriptors()
    recording = Recording(command=["no-such-command-anywhere"], backend="bpf")
    with pytest.raises(Exception, match="cannot run no-such-command-anywhere") as caught, recording:
        pass
    assert getattr(caught.value, "exit_status", None) == 127
    assert descriptors() == before
