# SPDX-License-Identifier: Apache-2.0
"""The Profiler: loads the tracer, attaches it to processes, and gives their samples."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from rubyunwind.abi import MAX_DEEP_FRAMES, Counter
from rubyunwind.bpf.compound_maps import PerCPUMap
from rubyunwind.bpf.cpus import online_cpus
from rubyunwind.bpf.lifetime import LifetimeError, Resource
from rubyunwind.bpf.perf_buffer import PerfBuffer
from rubyunwind.errors import RubyUnwindError
from rubyunwind.profiler.assembler import Assembler
from rubyunwind.profiler.guard import Guard
from rubyunwind.profiler.hotplug import Hotplug
from rubyunwind.profiler.limits import Limits, limits_by_descriptors
from rubyunwind.profiler.map_sizes import FOR_A_FEW, FOR_ALL, trace_pages
from rubyunwind.profiler.off_cpu import OffCPU, ThreadsAway
from rubyunwind.profiler.pace import Pace
from rubyunwind.profiler.samples import Samples
from rubyunwind.profiler.tallies import Tallies
from rubyunwind.profiler.ticks import Ticks, rate_in_force
from rubyunwind.profiler.tracer import OFF_CPU_EXIT, entry_of, load_tracer, off_cpu_of, tracer_spec
from rubyunwind.profiler.tracker import ProcessTracker
from rubyunwind.ruby.layouts import known_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from rubyunwind.bpf.collection import Collection
    from rubyunwind.bpf.program import Link
    from rubyunwind.profiler.sample import Sample, Totals

__all__ = ["Profiler"]

# Seconds between looks at the rings while records are worked on, and how long a call may go on with it: then
# it ends with what it has taken.
_SHORTEST_TAKE, _LONGEST_WORK = 0.001, 0.25


class Profiler:
    """Samples processes while it is entered.

    `pids` are the processes, `rate` is samples a second of CPU time of each thread, `all_processes` takes
    everything that runs on the machine, kernel threads and (but for `include_self`) this process excepted: a
    process is registered when it is first sampled. Processes that a profiled one forks are profiled too
    unless `children` is false. No threads are started: samples come out of `poll` or `samples`, and `fileno`
    can be waited for in any event loop. `map_sizes` overrides how many entries kernel maps get, by name,
    `flavour` ("co-re", "legacy") which build of the programs is loaded: by default what `features` allow.
    With `off_cpu` there are samples of origin "off-cpu", too, or ("only") of no other: for each time that a
    thread was off the CPU its stack, with the ns as weight. It may be an OffCPU, which has more to choose.
    `unwinder` is "walker" (up to 2600 frames a stack) or "chain" (the frozen ABI's 128 frames and 29 tail
    calls); by default the walker, where the flavour has it. `max_frames` bounds the walker's traces.
    `force_version` ("3.4.5") is the release whose layout is taken, whatever a Ruby says of itself; the
    self-check still has to agree. UnsupportedRuby if there is no layout for it.

    Entering raises AttachError (no such process, may not be read), BpfError and NotSupported (no rights, an
    old kernel, no libbpf). A process without Ruby, or with an unsupported one, gives native frames; `notes`
    says so. It is entered once; use before that, after `close` or in a forked child is a LifetimeError, but
    `stats`, `counters`, `notes` and `runtimes` stay after the close.

    `close` may be called from any thread, and ends a `poll` of another one; nothing else is for several.
    """

    backend = "bpf"

    def __init__(
        self,
        pids: Iterable[int] = (),
        *,
        all_processes: bool = False,
        include_self: bool = False,
        rate: int = 99,
        children: bool = True,
        debug_tracer: bool = False,
        flavour: str | None = None,
        unwinder: str | None = None,
        max_frames: int = MAX_DEEP_FRAMES,
        force_version: str | None = None,
        off_cpu: OffCPU | bool | str = False,
        map_sizes: Mapping[str, int] | None = None,
    ) -> None:
        if rate < 1:
            raise ValueError(f"a rate of {rate} Hz: it must be 1 or more")
        self._pids = tuple(pids)
        if all_processes and self._pids:
            raise ValueError("give processes, or all_processes, one of them")
        self._all = all_processes
        self._include_self = include_self
        self._rate = rate
        self._children = children
        self._debug = debug_tracer
        self._flavour = flavour
        self._unwinder = unwinder
        self._max_frames = max_frames
        self._force_version = known_version(force_version)
        self._off_cpu = OffCPU.of(off_cpu)
        self._sizes = {**(FOR_ALL if all_processes else FOR_A_FEW), **(map_sizes or {})}
        self._stack = ExitStack()
        self._tallies = Tallies()
        self._counters: dict[Counter, int] = {}
        self._tables: dict[str, int] = {}
        self._notes: tuple[str, ...] = ()
        self._runtimes: tuple[str, ...] = ()
        self._resource: Resource | None = None
        self._guard = Guard("the Profiler", self._check_resource, self._release)
        self._taken = 0.0
        self._started = False

    def __enter__(self) -> Profiler:
        if self._resource is not None:
            raise LifetimeError("this Profiler was entered before; make a new one for another recording")
        self._resource = resource = Resource("the Profiler", lambda: None)
        with self._guard.use(), ExitStack() as stack:
            stack.callback(resource.close)
            self._collection = stack.enter_context(self._load())
            maps = self._collection.maps
            for name in ("process_exit", "process_exec", "process_fork"):
                self._collection.programs[name].attach_raw_tracepoint()
            cpus = len(online_cpus())
            self._pace = Pace(self._rate, cpus, prompt=self._off_cpu is None)
            self._timer = stack.enter_context(self._pace.timer)
            self._guard.wake = self._timer.wake
            self._traces = stack.enter_context(
                PerfBuffer(
                    maps["trace_events"],
                    pages=trace_pages(cpus),
                    wakeup_events=self._pace.wakeup_events,
                    grouped=True,
                )
            )
            self._reports = stack.enter_context(PerfBuffer(maps["report_events"], pages=1))
            self._timer.watch(self._traces.fileno())
            self._timer.watch(self._reports.fileno())
            self._tracker = ProcessTracker(
                self._collection,
                children=self._children,
                everything=self._all,
                rate=self._rate,
                force_version=self._force_version,
                without=() if self._include_self or not self._all else (os.getpid(),),
                limits=limits_by_descriptors() if self._all else Limits(),
            )
            stack.callback(self._tracker.close)
            self._assembler = Assembler(
                self._tracker,
                maps.get("kernel_stackmap"),
                self._off_cpu.scale if self._off_cpu is not None else (1, 1),
                self._take,
            )
            self._ticks = stack.enter_context(Ticks(entry_of(self._collection), self._rate))
            # Reports first: a CPU that has no ring of traces yet is looked at again.
            self._hotplug = Hotplug(self._timer, (self._reports, self._traces), self._ticks)
            for pid in self._pids:
                self.follow(pid)
            self._start()
            self._stack = stack.pop_all()
        return self

    def _start(self) -> None:
        self._switches: Link | None = None
        self._away: ThreadsAway | None = None
        if self._off_cpu is not None:
            self._away = ThreadsAway(self._collection.maps, self._assembler)
            self._switches = off_cpu_of(self._collection).attach_raw_tracepoint()
            if not self._started:
                self._collection.programs[OFF_CPU_EXIT].attach_raw_tracepoint()
            self._started = True
        if self._off_cpu is None or not self._off_cpu.only:
            self._ticks.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _load(self) -> Collection:
        spec = tracer_spec(self._flavour, debug=self._debug)
        return load_tracer(
            spec,
            unwinder=self._unwinder,
            max_frames=self._max_frames,
            max_entries=self._sizes,
            off_cpu=self._off_cpu,
        )

    def _check_resource(self) -> None:
        """Raise LifetimeError unless the profiler is entered, not closed, and this is no forked child."""
        if self._resource is None:
            raise LifetimeError("this Profiler is not entered yet: use it in a `with` block")
        self._resource.check()

    def follow(self, pid: int, *, from_exec: bool = False, expected: Iterable[Path] = ()) -> None:
        """Sample one more process; `from_exec`: once it executes another program. Raises AttachError.

        `expected` are files that it will map then. They are registered beforehand, which takes a while.
        """
        from rubyunwind.process.identity import check_attachable

        with self._guard.use():
            check_attachable(pid)
            if from_exec:
                # Now, while it waits: later the read would keep us from its first mappings.
                self._assembler.namer.kernel_symbols.load()
                self._tracker.expect(expected)
            self._tracker.follow(pid, from_exec=from_exec)

    @property
    def _open(self) -> bool:
        return self._resource is not None and not self._resource.closed

    @property
    def collection(self) -> Collection:
        """The loaded maps and programs; it belongs to the profiler."""
        self._guard.check()
        return self._collection

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about the processes: no Ruby in it, a layout that was assumed, ..."""
        if not self._open:
            return self._notes
        found: list[str] = []
        allowed = rate_in_force(self._rate)
        if allowed < self._rate:
            found.append(
                f"the kernel has lowered kernel.perf_event_max_sample_rate to {allowed}: not {self._rate} "
                "samples a second are taken, but that many at most"
            )
        if self._assembler.namer.kernel_symbols.reason:
            found.append(f"kernel functions have no names: {self._assembler.namer.kernel_symbols.reason}")
        found += self._hotplug.notes()
        found += self._tracker.notes()
        return tuple(found)

    @property
    def runtimes(self) -> tuple[str, ...]:
        """The interpreters seen so far, such as "ruby 3.1.2"."""
        return tuple(sorted(self._tracker.runtimes)) if self._open else self._runtimes

    @property
    def running(self) -> bool:
        """Whether any profiled process still runs."""
        return self._open and not self._guard.closing and (self._all or bool(self._tracker.processes))

    def fileno(self) -> int:
        """Return a descriptor that is readable when `poll` has something to do. Borrowed."""
        self._guard.check()
        return self._timer.fileno()

    def poll(self, timeout: float = 0.1) -> Samples:
        """Wait up to `timeout` seconds for work, do it, and return the samples that came: a sequence."""
        with self._guard.use():
            self._timer.wait(min(timeout, self._pace.left))
            return Samples() if self._guard.closing else self._work()

    def samples(self, duration: float | None = None) -> Iterator[Sample]:
        """Yield samples for `duration` seconds, or until every profiled process has ended."""
        self._guard.check()
        end = None if duration is None else time.monotonic() + duration
        while self.running:
            left = 1.0 if end is None else end - time.monotonic()
            if left <= 0:
                break
            try:
                samples = self.poll(left)
            except LifetimeError:
                if not self._guard.closing:
                    raise
                return  # another thread was quicker
            yield from samples
        if self._open and not self._guard.closing:  # the reader of the samples may have closed us
            yield from self.stop()

    def stop(self) -> Samples:
        """Stop sampling, until `start`, and return what was still on its way."""
        with self._guard.use():
            self._ticks.close()
            if self._switches is None or self._switches.closed:
                return self._work()
            self._switches.close()
            samples = self._work()
            # Who has not come back by now is a sample with the time so far.
            for trace in self._away.traces() if self._away is not None else ():
                samples.append(self._assembler.sample(trace, -1))
                self._tallies.count(samples[-1], 1)
            return samples

    def start(self) -> None:
        """Sample again after `stop`; it samples from when it is entered. Raises BpfError."""
        with self._guard.use():
            self._tracker.run()  # what has come and gone meanwhile
            self._hotplug.look(at_once=True)
            self._start()

    def _work(self) -> Samples:
        self._timer.clear()
        self._hotplug.look()
        reported = self._reports.consume() > 0
        if reported:
            self._reports.records()
        traces = self._traces.consume()
        self._taken = time.monotonic()
        if not (reported or traces or self._away) and self._pace.may_rest(
            self._assembler.unnamed, self._news
        ):
            return Samples()  # as most of the time on a quiet machine
        samples, wait = self._named(reported)
        self._tallies.malformed = self._traces.malformed
        self._pace.go_on(wait, self._assembler.unnamed, self._news)
        return samples

    @property
    def _news(self) -> int:
        """How much has been met that was not known: its names are to be read soon, before it goes."""
        return self._assembler.fresh + self._tracker.changes

    def _named(self, reported: bool) -> tuple[Samples, float]:
        """Take the traces out of the rings and name them, and again those that came meanwhile.

        Also returns the seconds until the processes are to be looked at again.
        """
        end = time.monotonic() + _LONGEST_WORK
        samples: Samples | None = None
        first = True
        while True:
            # Processes first: what they have just mapped is missed by every sample until it is registered,
            # and one that has just started has names only when it is looked at again.
            wait = self._tracker.run(reported or not first)
            first = False
            if self._away is not None:
                self._away.look()
            self._take()
            if not self._traces.waiting:
                return samples or Samples(), wait
            batch = self._traces.traces()
            fresh = self._assembler.samples(batch)
            for stack, count in zip(fresh.stacks, batch.counts, strict=True):
                self._tallies.count(stack, count)
            if samples is None:
                samples = fresh
            else:
                samples.extend(fresh)
            if not self._traces.waiting:  # all were named before there were more
                return samples, wait
            if time.monotonic() > end:
                self._tallies.unfinished += 1
                return samples, 0.0

    def _take(self) -> None:
        """Empty the rings, unless that has just been done."""
        now = time.monotonic()
        if now - self._taken > _SHORTEST_TAKE:
            self._traces.consume()
            self._taken = now

    @property
    def counters(self) -> dict[Counter, int]:
        """What the kernel side counted, summed over CPUs; the last values once closed."""
        if self._open:
            counters = self._collection.maps["counters"]
            assert isinstance(counters, PerCPUMap)
            self._counters = {which: counters.total(which) for which in Counter}
        return self._counters

    @property
    def stats(self) -> Totals:
        """Counts so far; see Totals."""
        counters = self.counters
        if self._open:
            self._tables = self._tracker.pressure()
        return self._tallies.totals(counters, self._tables, off_cpu=self._off_cpu is not None)

    def close(self) -> None:
        """Stop and release everything, once a `poll` that is on its way has ended. Twice is harmless."""
        if self._open and self._resource is not None and self._resource.here:
            self._guard.close()
        else:
            self._stack.close()

    def _release(self) -> None:
        if self._open:
            with suppress(RubyUnwindError):
                self._ticks.close()
                _ = self.stats
            self._notes, self._runtimes = self.notes, self.runtimes
        self._stack.close()
