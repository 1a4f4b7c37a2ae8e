# SPDX-License-Identifier: Apache-2.0
"""Processes held still: what is seen of them then, and that they go on behind as if nothing had been."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from rubyunwind.errors import AttachError
from rubyunwind.process.identity import read_status, threads
from rubyunwind.process.mappings import read_mappings
from rubyunwind.process.memory import LiveMemory
from rubyunwind.process.registers import layout_of
from rubyunwind.process.stopped import StoppedProcess
from rubyunwind.process.threads import read_thread

from .recorder import hear, process, say, until
from .spinning import PATIENCE

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc to compile the programs with")

# Every program prints: the address of its counters, the bounds of spin(), the main thread's pointer.
HEAD = """
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
volatile unsigned long counters[64];
extern char __start_spinning[], __stop_spinning[];
__attribute__((noinline, section("spinning"))) void spin(volatile unsigned long *counter) {
  for (;;) ++*counter;
}
void *spinner(void *counter) { spin(counter); return counter; }
void *sleeper(void *unused) { pause(); return unused; }
pthread_t start(void *(*body)(void *), void *argument) {
  pthread_t thread;
  while (pthread_create(&thread, 0, body, argument)) usleep(100); /* while another calls exec */
  return thread;
}
void ready(void) {
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing spins on behind a test run that was killed */
  printf("%lu %lu %lu %lu\\n", (unsigned long)counters, (unsigned long)__start_spinning,
         (unsigned long)__stop_spinning, (unsigned long)__builtin_thread_pointer());
  fflush(stdout);
}
"""
SPIN = "int main(void) { ready(); spin(counters); }"
TWENTY_THREADS = """
int main(void) {
  for (int i = 1; i < 20; i++) start(i % 2 ? spinner : sleeper, (void *)&counters[i]);
  ready();
  spin(counters);
}
"""
READ = """
int main(void) {
  char line[9] = {0};
  ready();
  int got = read(0, line, 8);
  printf("%d %s\\n", got, line);
  fflush(stdout);
  spin(counters);
}
"""
# Each thread starts the next one and ends; as many at a time as there are chains.
CHAINS = """
void *chain(void *counter) {
  pthread_t next;
  ++*(unsigned long *)counter;
  while (pthread_create(&next, 0, chain, counter)) usleep(100);
  pthread_detach(next);
  return 0;
}
int main(void) {
  for (int i = 0; i < 3; i++) start(chain, (void *)counters);
  ready();
  pthread_exit(0);
}
"""
# Another thread than the main one runs the program anew, which ends all the others; the argument counts.
EXECS = """
char *self;
void *again(void *count) {
  char next[16];
  snprintf(next, sizeof next, "%d", atoi(count) + 1);
  usleep(500);
  execl(self, self, next, (char *)0);
  abort();
}
int main(int argc, char **argv) {
  self = argv[0];
  if (argc < 2) ready();
  for (int i = 0; i < 8; i++) start(sleeper, 0);
  start(again, argc < 2 ? "0" : argv[1]);
  for (int i = 0; i < 8; i++) start(sleeper, 0);
  pause();
}
"""
SIGNALS = """
void handler(int number) { (void)number; counters[1]++; }
int main(void) {
  signal(SIGRTMIN, handler);
  ready();
  spin(counters);
}
"""
# Until its child ends, vfork leaves the main thread in uninterruptible sleep.
VFORK = """
int main(void) {
  start(spinner, (void *)&counters[2]);
  ready();
  if (vfork() == 0) {
    counters[1] = getpid();
    for (;;) pause();
  }
  spin(counters);
}
"""


@dataclass(frozen=True, slots=True)
class Program:
    process: subprocess.Popen[str]
    counters: int
    spin: range
    thread_pointer: int

    @property
    def pid(self) -> int:
        return self.process.pid

    def counter(self, index: int = 0) -> int:
        with LiveMemory(self.pid) as memory:
            return memory.u64(self.counters + 8 * index)

    def goes_on(self, index: int = 0) -> None:
        """Fail unless the counter grows from what it is now."""
        before = self.counter(index)
        until(lambda: self.counter(index) != before, "the program does not go on")

    def stands_still(self, *indices: int) -> bool:
        before = [self.counter(index) for index in indices]
        time.sleep(0.03)
        return before == [self.counter(index) for index in indices]

    def states(self) -> set[str]:
        found = [read_thread(self.pid, tid) for tid in threads(self.pid)]
        return {thread.state for thread in found if thread is not None}


Start = Callable[[str], Program]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with contextlib.ExitStack() as stack:

        def run(source: str) -> Program:
            (tmp_path / "program.c").write_text(HEAD + source)
            command = ["gcc", "-O1", "-w", "program.c", "-o", "program", "-lpthread"]
            subprocess.run(command, cwd=tmp_path, check=True)
            started = stack.enter_context(process(str(tmp_path / "program")))
            counters, low, high, pointer = map(int, hear(started).split())
            return Program(started, counters, range(low, high), pointer)

        yield run


@contextlib.contextmanager
def holder(pid: int) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds `pid` still."""
    script = (
        "import sys, time; from rubyunwind.process.stopped import StoppedProcess\n"
        "with StoppedProcess(int(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    )
    with process(sys.executable, "-c", script, str(pid)) as started:
        assert hear(started) == "held"
        yield started


def refused(pid: int) -> str:
    with pytest.raises(AttachError) as caught, StoppedProcess(pid):
        pass
    return str(caught.value)


def test_registers_of_a_spinning_thread_are_those_of_its_function(start: Start) -> None:
    program = start(SPIN)
    until(lambda: program.counter(), "it does not spin")
    with StoppedProcess(program.pid) as stopped:
        (thread,) = stopped.threads
        (stack,) = [m for m in read_mappings(program.pid) if m.path == "[stack]"]
        assert program.stands_still(0)
    assert (thread.tid, thread.name, thread.state_before) == (program.pid, "program", "R")
    assert thread.pc in program.spin
    assert stack.start <= thread.sp < stack.end
    assert thread.thread_pointer == program.thread_pointer
    assert set(thread.registers) == set(layout_of().names)
    assert stopped.unstopped == ()
    program.goes_on()


def test_twenty_threads_stop_and_go_on(start: Start) -> None:
    program = start(TWENTY_THREADS)
    spinning = [0, *range(1, 20, 2)]
    for index in spinning:
        until(partial(program.counter, index), "a thread does not spin")
    asleep = 20 - len(spinning)
    until(lambda: list(states_of(program.pid).values()).count("S") == asleep, "a thread does not sleep")
    with StoppedProcess(program.pid) as stopped:
        assert program.stands_still(*spinning)
        assert program.states() == {"t"}
    assert [thread.tid for thread in stopped.threads] == threads(program.pid)
    assert len(stopped.threads) == 20
    assert sum(thread.pc in program.spin for thread in stopped.threads) == len(spinning)
    assert sum(thread.state_before == "S" for thread in stopped.threads) == asleep
    assert len({thread.thread_pointer for thread in stopped.threads}) == 20
    for index in spinning:
        program.goes_on(index)


def test_the_time_stopped_grows_inside_and_not_behind(start: Start) -> None:
    program = start(SPIN)
    stopped = StoppedProcess(program.pid)
    assert stopped.stopped_ns == 0
    with stopped:
        early = stopped.stopped_ns
        assert 0 < early < stopped.stopped_ns
    assert early < stopped.stopped_ns == stopped.stopped_ns


def test_a_sleeping_system_call_is_restarted(start: Start) -> None:
    program = start(READ)
    until(lambda: program.states() == {"S"}, "it does not read")
    with StoppedProcess(program.pid) as stopped:
        (thread,) = stopped.threads
    assert thread.state_before == "S"
    assert thread.pc not in program.spin
    say(program.process, "hello")
    assert hear(program.process) == "6 hello"


def test_an_exception_inside_lets_the_process_go(start: Start) -> None:
    program = start(SPIN)
    with pytest.raises(KeyboardInterrupt), StoppedProcess(program.pid):
        raise KeyboardInterrupt
    program.goes_on()


def test_a_process_stopped_by_a_signal_stays_so(start: Start) -> None:
    program = start(TWENTY_THREADS)
    program.process.send_signal(signal.SIGSTOP)
    until(lambda: program.states() == {"T"}, "it does not stop")
    for _ in range(3):
        with StoppedProcess(program.pid) as stopped:
            assert {thread.state_before for thread in stopped.threads} <= {"T", "t"}
            assert len(stopped.threads) == 20
        until(lambda: program.states() == {"T"}, "it is not stopped any more")
        assert program.stands_still(0, 1)
    program.process.send_signal(signal.SIGCONT)
    program.goes_on()
    program.goes_on(1)


def test_a_stop_signal_sent_meanwhile_takes_effect_behind(start: Start) -> None:
    program = start(TWENTY_THREADS)
    with StoppedProcess(program.pid):
        program.process.send_signal(signal.SIGSTOP)
    until(lambda: program.states() == {"T"}, "it does not stop")
    with StoppedProcess(program.pid):
        program.process.send_signal(signal.SIGCONT)
    program.goes_on()


def test_killing_the_holder_lets_the_process_go_on(start: Start) -> None:
    program = start(TWENTY_THREADS)
    with holder(program.pid) as held:
        assert program.stands_still(0, 1)
        held.kill()
        held.wait()
        program.goes_on()
        program.goes_on(1)
    until(lambda: program.states() <= {"R", "S"}, "a thread is still stopped")


def test_signals_sent_during_the_stop_arrive_behind(start: Start) -> None:
    program = start(SIGNALS)
    with StoppedProcess(program.pid):
        for _ in range(20):
            program.process.send_signal(signal.SIGRTMIN)
        assert program.counter(1) == 0
    until(lambda: program.counter(1) == 20, "a signal is lost")


def test_no_signal_is_lost_or_doubled_while_stopping(start: Start) -> None:
    program = start(SIGNALS)
    script = (
        "import os, sys, time\nfor _ in range(3000): os.kill(int(sys.argv[1]), int(sys.argv[2])); "
        "time.sleep(0 if _ % 5 else 1e-4)"
    )
    sender = subprocess.Popen([sys.executable, "-c", script, str(program.pid), str(int(signal.SIGRTMIN))])
    while sender.poll() is None:
        with StoppedProcess(program.pid) as stopped:
            assert len(stopped.threads) == 1
    assert sender.returncode == 0
    until(lambda: program.counter(1) == 3000, f"{program.counter(1)} of 3000 signals arrived")
    program.goes_on()
    assert program.counter(1) == 3000


def states_of(pid: int) -> dict[int, str]:
    """States of all threads that are not at their end."""
    found = (read_thread(pid, tid) for tid in threads(pid))
    return {thread.tid: thread.state for thread in found if thread is not None and thread.state not in "ZX"}


def test_threads_that_start_and_end_during_the_stop_are_all_caught(start: Start) -> None:
    program = start(CHAINS)
    seen: set[int] = set()
    until(lambda: program.pid not in states_of(program.pid), "the main thread does not end")

    def moved_on(before: int) -> bool:
        return program_counter_of(program.pid, program.counters, any_thread=True) != before

    for _ in range(40):
        with StoppedProcess(program.pid, timeout=PATIENCE) as stopped:
            assert stopped.unstopped == ()
            assert stopped.threads
            held = {thread.tid: "t" for thread in stopped.threads}
            # One past its last instruction cannot be stopped and soon is gone; one that was missed would have
            # a successor, and that another, without an end.
            until(lambda: states_of(program.pid) == held, "a thread that was not stopped runs")  # noqa: B023
            seen |= {thread.tid for thread in stopped.threads}
            before = program_counter_of(stopped.threads[0].tid, program.counters)
        until(partial(moved_on, before), "it does not go on")
    assert len(seen) > 20


def program_counter_of(tid: int, counters: int, *, any_thread: bool = False) -> int:
    """The first counter, read through a thread: a main thread that has ended has no memory any more."""
    for one in reversed(threads(tid)) if any_thread else [tid]:
        with contextlib.suppress(Exception), LiveMemory(one) as memory:
            return memory.u64(counters)
    return -1


def test_a_process_that_calls_exec_from_a_thread_is_held_and_goes_on(start: Start) -> None:
    program = start(EXECS)

    def count() -> int:
        words = Path(f"/proc/{program.pid}/cmdline").read_bytes().split(b"\0")
        return int(words[1] or 0) if len(words) > 1 else -1

    def moved_on(before: int) -> bool:
        return count() > max(before, 0)

    for _ in range(100):
        before = count()
        with StoppedProcess(program.pid, timeout=PATIENCE) as stopped:
            assert stopped.unstopped == ()
            assert {thread.tid for thread in stopped.threads} >= {program.pid}
            held = count()
            assert set(threads(program.pid)) == {thread.tid for thread in stopped.threads}
            assert program.states() == {"t"}
            assert count() == held
        until(partial(moved_on, before), "it does not go on")
    assert program.process.poll() is None


def test_a_thread_in_uninterruptible_sleep_is_left_out_and_let_go(start: Start) -> None:
    program = start(VFORK)
    until(lambda: program.counter(1), "no child")
    child = program.counter(1)
    try:
        until(lambda: (t := read_thread(program.pid, program.pid)) and t.state == "D", "it does not wait")
        with StoppedProcess(program.pid, timeout=1) as stopped:
            assert [(thread.tid, thread.state_before) for thread in stopped.unstopped] == [(program.pid, "D")]
            assert len(stopped.threads) == 1
            assert program.stands_still(2)
        program.goes_on(2)
    finally:
        os.kill(child, signal.SIGKILL)
    program.goes_on(0)
    program.goes_on(2)


def test_a_child_killed_while_held_keeps_its_exit_status(start: Start) -> None:
    program = start(TWENTY_THREADS)
    with StoppedProcess(program.pid):
        program.process.kill()
    assert program.process.wait(30) == -signal.SIGKILL


def test_a_process_that_another_one_traces_is_refused_with_its_name(start: Start) -> None:
    program = start(SPIN)
    with holder(program.pid) as held:
        assert f"process {held.pid} ({read_status(held.pid).comm}) traces it already" in refused(program.pid)
        assert program.stands_still(0)
    program.goes_on()


def test_what_can_never_be_stopped_is_refused_with_the_reason(start: Start) -> None:
    program = start(TWENTY_THREADS)
    assert f"name the process: {program.pid}" in refused(threads(program.pid)[1])
    assert "a process cannot stop itself" in refused(os.getpid())
    program.process.kill()
    until(lambda: read_status(program.pid).ended, "it does not end")
    assert "a zombie" in refused(program.pid)
    program.process.wait()
    assert "no such process" in refused(program.pid)
    assert "a pid is a positive number" in refused(0)


def test_a_kernel_thread_is_refused() -> None:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(AttachError):
                if read_status(int(folder.name)).kernel_thread:
                    assert "is a kernel thread" in refused(int(folder.name))
                    return
    pytest.skip("no kernel thread is visible in this container")


def test_another_users_process_is_refused(start: Start) -> None:
    if os.geteuid() != 0:
        assert "belongs to uid 0" in refused(1)
        return
    program = start(SPIN)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            os.write(write_end, refused(program.pid).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as answers:
        answer = answers.read()
    os.waitpid(child, 0)
    assert answer == (
        f"process {program.pid} (program): it cannot be stopped: it belongs to uid 0, we run as uid 65534; "
        "run as root"
    )
    program.goes_on()
