# SPDX-License-Identifier: Apache-2.0
"""Why the kernel does not let a process be traced, and what to do about it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from rubyunwind.errors import AttachError
from rubyunwind.process.capabilities import Capability, effective, holds
from rubyunwind.process.identity import read_status

__all__ = ["Circumstances", "check_traceable", "explain", "refusal", "unreadable"]

YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What decides about tracing: whose process it is, who traces it, and what the system allows.

    `owner` is the target's real uid (-1: unknown), `user` ours, `capable` whether we have CAP_SYS_PTRACE,
    `tracer` the pid that traces the target already (0: none) and its name, `yama` the value of
    kernel.yama.ptrace_scope (None: the kernel has no Yama).
    """

    pid: int
    comm: str
    owner: int
    user: int
    capable: bool
    tracer: int = 0
    tracer_name: str = ""
    yama: int | None = None

    @classmethod
    def of(cls, pid: int, tid: int | None = None) -> Circumstances:
        """Gather them for a process, or for one thread of it. AttachError if it is gone."""
        status = _status_fields(f"/proc/{pid}/task/{tid or pid}/status")
        tracer = int(status.get("TracerPid", "0"))  # of the thread that traces
        by = _status_fields(f"/proc/{tracer}/status") if tracer else {}
        return cls(
            pid=pid,
            comm=read_status(pid).comm,
            owner=int(status.get("Uid", "-1").split()[0]),
            user=os.geteuid(),
            capable=holds(effective(), Capability.CAP_SYS_PTRACE),
            tracer=int(by.get("Tgid", str(tracer))),
            tracer_name=by.get("Name", ""),
            yama=_yama_scope(),
        )


def explain(facts: Circumstances, what: str = "it cannot be stopped") -> str:
    """Return why tracing was refused, most certain reason first, and what to do."""
    who = f"process {facts.pid} ({facts.comm}): {what}: "
    if facts.tracer:
        name = f" ({facts.tracer_name})" if facts.tracer_name else ""
        return who + (
            f"process {facts.tracer}{name} traces it already (a debugger, strace?), and a process has one "
            "tracer; end that one first"
        )
    if facts.yama == 3:
        return who + (
            "the setting kernel.yama.ptrace_scope is 3, which forbids tracing to everyone until the next "
            "boot; boot with a lower one (look in /etc/sysctl.d)"
        )
    if facts.capable:
        return who + (
            "the kernel refused although we have CAP_SYS_PTRACE; a security module or seccomp filter forbids "
            "it, or the process is outside our user namespace: run outside the container, or give it "
            "--cap-add SYS_PTRACE"
        )
    if facts.owner not in (-1, facts.user):
        return who + f"it belongs to uid {facts.owner}, we run as uid {facts.user}; run as root"
    if facts.yama == 2:
        return who + (
            "the setting kernel.yama.ptrace_scope is 2, which asks for CAP_SYS_PTRACE; run as root, or "
            "set it to 0 (sysctl kernel.yama.ptrace_scope=0)"
        )
    if facts.yama == 1:
        return who + (
            "the setting kernel.yama.ptrace_scope is 1, which lets a process trace only its own children; "
            "run as root, start the program as our child, or set it to 0 (sysctl kernel.yama.ptrace_scope=0)"
        )
    return who + (
        "the kernel refused; it is perhaps set-user-ID or has made itself undumpable: run as root or with "
        "CAP_SYS_PTRACE"
    )


def check_traceable(pid: int) -> None:
    """Raise AttachError for what can never be stopped, whoever asks.

    That is: no such process, a thread's id, a kernel thread, a process that has ended, this process.
    """
    status = read_status(pid)
    if pid == os.getpid():
        raise AttachError(f"process {pid} is this one: a process cannot stop itself and look")
    if status.kernel_thread:
        raise AttachError(f"process {pid} ({status.comm}) is a kernel thread: it runs no program")
    if status.ended:
        raise AttachError(f"process {pid} ({status.comm}) has ended and waits for its parent (a zombie)")
    leader = int(_status_fields(f"/proc/{pid}/status").get("Tgid", str(pid)))
    if leader != pid:
        raise AttachError(
            f"{pid} is a thread of process {leader} ({status.comm}); name the process: {leader}"
        )


def refusal(pid: int, tid: int | None = None) -> AttachError:
    """Return the error for a thread of `pid` that the kernel did not let us trace."""
    try:
        return AttachError(explain(Circumstances.of(pid, tid)))
    except AttachError as gone:
        return gone


def unreadable(pid: int) -> AttachError:
    """Return the error for a process whose memory we may not read: that needs the same rights."""
    try:
        # Reading does not mind that another one traces it.
        return AttachError(explain(replace(Circumstances.of(pid), tracer=0), "its memory may not be read"))
    except AttachError as gone:
        return gone


def _status_fields(path: str) -> dict[str, str]:
    """Read a file of "Name:\tvalue" lines; empty if it cannot be read."""
    try:
        text = Path(path).read_bytes().decode("utf-8", "surrogateescape")
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.split("\n"))}


def _yama_scope() -> int | None:
    try:
        return int(YAMA.read_text())
    except (OSError, ValueError):
        return None
