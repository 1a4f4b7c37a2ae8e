# SPDX-License-Identifier: Apache-2.0
"""Opens perf events, by perf_event_open(2) itself: neither libc nor libbpf wraps it.

The default is the software cpu-clock, which every machine has; hardware counters are missing in many VMs.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING

from rubyunwind._libbpf import ffi
from rubyunwind.bpf.library import LIBC
from rubyunwind.bpf.lifetime import Resource
from rubyunwind.errors import BpfError

if TYPE_CHECKING:
    from rubyunwind.bpf.program import Program

__all__ = ["PerfEvent", "perf_event_open"]

# System call numbers: arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h.
_SYSCALLS = {"x86_64": 298, "aarch64": 241}
# include/uapi/linux/perf_event.h: types, configs, sample_type, open flags, bits of perf_event_attr.
PERF_TYPE_HARDWARE, PERF_TYPE_SOFTWARE = 0, 1
PERF_COUNT_SW_CPU_CLOCK, PERF_COUNT_SW_BPF_OUTPUT = 0, 10
PERF_SAMPLE_RAW = 1 << 10
PERF_FLAG_FD_CLOEXEC = 8
_BITS = {
    "disabled": 0,
    "inherit": 1,
    "exclude_user": 4,
    "exclude_kernel": 5,
    "exclude_hv": 6,
    "exclude_idle": 7,
    "freq": 10,
    "enable_on_exec": 12,
    "exclude_guest": 20,
    "inherit_thread": 35,  # kernel 5.13
}
# _IO('$', 0), _IO('$', 1), _IOW('$', 8, __u32)
PERF_EVENT_IOC_ENABLE, PERF_EVENT_IOC_DISABLE, PERF_EVENT_IOC_SET_BPF = 0x2400, 0x2401, 0x40042408
_RATE_LIMIT = Path("/proc/sys/kernel/perf_event_max_sample_rate")
_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")


class PerfEvent:
    """An open event; owns its descriptor. A context manager.

    A program attached here is detached when the event closes, and an event that was inherited by threads
    and children keeps sampling them until then. In a forked child it refuses use with LifetimeError.
    """

    def __init__(self, fd: int, what: str) -> None:
        self._fd = fd
        self.what = what
        self._resource = Resource(what, lambda: os.close(fd), owner=self)

    def __repr__(self) -> str:
        return f"PerfEvent({self.what!r}{', closed' if self._resource.closed else ''})"

    @property
    def fd(self) -> int:
        """The descriptor, borrowed: never close it."""
        self._resource.check()
        return self._fd

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._resource.closed

    def attach(self, program: Program | int) -> None:
        """Run `program` (or the one with that descriptor) at every tick, here and in what inherits later.

        Attach before enabling: children that were forked in between would have the event but no
        program. One program an event: a second one is EEXIST. The ioctl is used, not a bpf_link: it
        works on every kernel, leaves enabling to us, and costs no further descriptor.
        """
        fd = program if isinstance(program, int) else program.fd
        self._control(PERF_EVENT_IOC_SET_BPF, fd, "attach a program to")

    def enable(self) -> None:
        """Start ticking, inherited copies included."""
        self._control(PERF_EVENT_IOC_ENABLE, 0, "enable")

    def disable(self) -> None:
        """Stop ticking, inherited copies included; `enable` starts again."""
        self._control(PERF_EVENT_IOC_DISABLE, 0, "disable")

    def close(self) -> None:
        """Stop for good and close the descriptor. Closing twice is harmless."""
        self._resource.close()

    def __enter__(self) -> PerfEvent:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _control(self, request: int, argument: int, verb: str) -> None:
        try:
            fcntl.ioctl(self.fd, request, argument)
        except OSError as error:
            raise BpfError(error.errno or errno.EIO, f"{verb} {self.what}") from None


def perf_event_open(
    *,
    pid: int = -1,
    cpu: int = -1,
    frequency: int | None = 99,
    period: int | None = None,
    kind: int = PERF_TYPE_SOFTWARE,
    config: int = PERF_COUNT_SW_CPU_CLOCK,
    disabled: bool = False,
    inherit: bool = False,
    inherit_thread: bool = False,
    enable_on_exec: bool = False,
    exclude_user: bool = False,
    exclude_kernel: bool = False,
    exclude_hv: bool = False,
    exclude_idle: bool = False,
    exclude_guest: bool = False,
) -> PerfEvent:
    """Open an event on thread `pid` (0: the caller's, -1: all, then `cpu` is needed) and `cpu` (-1: any).

    `frequency` is ticks per second; `period` (then frequency is ignored) is counted in the event's unit,
    nanoseconds for the cpu-clock. `inherit` follows threads and children that start after the open;
    `inherit_thread` (kernel 5.13) threads only. `kind` and `config` are perf_event_attr's
    type and config. Raises BpfError that says what to do.
    """
    number = _SYSCALLS.get(os.uname().machine)
    what = _describe(pid, cpu)
    if number is None:
        raise BpfError(errno.ENOSYS, f"open {what}", f"machine {os.uname().machine} is not supported")
    by_frequency = period is None
    switches = {
        "disabled": disabled,
        "inherit": inherit or inherit_thread,
        "exclude_user": exclude_user,
        "exclude_kernel": exclude_kernel,
        "exclude_hv": exclude_hv,
        "exclude_idle": exclude_idle,
        "freq": by_frequency,
        "enable_on_exec": enable_on_exec,
        "exclude_guest": exclude_guest,
        "inherit_thread": inherit_thread,
    }
    attr = ffi.new("struct perf_event_attr *")
    attr.size = ffi.sizeof("struct perf_event_attr")
    attr.type, attr.config, attr.sample_type = kind, config, PERF_SAMPLE_RAW
    attr.sample_period = (frequency if by_frequency else period) or 0
    attr.flags = sum(1 << _BITS[name] for name, on in switches.items() if on)
    fd = LIBC.syscall(
        number,
        attr,
        ffi.cast("int", pid),
        ffi.cast("int", cpu),
        ffi.cast("int", -1),
        ffi.cast("unsigned long", PERF_FLAG_FD_CLOEXEC),
    )
    if fd < 0:
        code = ffi.errno
        raise BpfError(
            code, f"open {what}", _advice(code, pid, frequency if by_frequency else None, inherit_thread)
        )
    return PerfEvent(int(fd), what)


def _describe(pid: int, cpu: int) -> str:
    threads = "all threads" if pid == -1 else f"thread {pid}" if pid else "the calling thread"
    return f"perf event on {threads}, {'any CPU' if cpu == -1 else f'CPU {cpu}'}"


def _advice(code: int, pid: int, frequency: int | None, inherit_thread: bool) -> str:
    if code in (errno.EACCES, errno.EPERM):
        return (
            f"kernel.perf_event_paranoid is {_sysctl(_PARANOID)}: run as root (sudo) or with CAP_PERFMON, "
            "and mind that a container's seccomp profile may forbid perf_event_open"
        )
    if code == errno.ESRCH:
        return f"there is no thread {pid}; it may have exited"
    if code in (errno.EMFILE, errno.ENFILE):
        return "no descriptor is left: raise RLIMIT_NOFILE (ulimit -n)"
    if code in (errno.ENOENT, errno.EOPNOTSUPP):
        return "this machine has no such counter (VMs often have no PMU): use the software cpu-clock"
    if code == errno.ENODEV:
        return "that CPU is offline"
    if code == errno.EINVAL:
        limit = _sysctl(_RATE_LIMIT)
        if frequency is not None and limit.isdigit() and frequency > int(limit):
            return (
                f"{frequency} Hz is above kernel.perf_event_max_sample_rate, which is {limit}: "
                "sample slower or raise it (sysctl)"
            )
        if inherit_thread:
            return "inherit_thread needs kernel 5.13"
        if pid == -1:
            return "all threads can be sampled on a given, existing CPU only"
    return ""


def _sysctl(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return "unknown"
