# SPDX-License-Identifier: Apache-2.0
"""Turns what libbpf and the kernel answer into errors that say what to do.

Two conventions of libbpf >= 1.0: a call that returns a pointer gives NULL and sets errno, a call that
returns an integer gives -errno.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

from rubyunwind._libbpf import ffi
from rubyunwind.errors import BpfError, NotSupported, RubyUnwindError
from rubyunwind.process.capabilities import Capability, effective, holds

__all__ = ["check", "check_pointer", "missing_capabilities", "refusal"]

NEEDS = "CAP_BPF and CAP_PERFMON, or root"
# ENOTSUPP of include/linux/errno.h: kernel-internal, but bpf(2) lets it out, and strerror knows it not.
ENOTSUPP = 524


def check(result: int, operation: str, detail: str = "") -> int:
    """Return `result`, or raise BpfError if it is -errno."""
    if result < 0:
        raise refusal(-result, operation, detail)
    return result


def check_pointer(pointer: Any, operation: str, detail: str = "") -> Any:
    """Return `pointer`, or raise BpfError with errno if it is NULL. Call it right after the C call."""
    code = ffi.errno
    if pointer == ffi.NULL:
        raise refusal(code, operation, detail)
    return pointer


def missing_capabilities() -> list[str]:
    """Names of the capabilities this thread lacks to load tracing programs; CAP_SYS_ADMIN has both."""
    mask = effective()
    return [each.name for each in (Capability.CAP_BPF, Capability.CAP_PERFMON) if not holds(mask, each)]


def refusal(code: int, operation: str, detail: str = "", *, log: str = "") -> RubyUnwindError:
    """Make the error for errno `code`: NotSupported where rights are missing, else BpfError with advice."""
    if code in (errno.EPERM, errno.EACCES):
        missing = missing_capabilities()
        if missing:
            return NotSupported(
                f"{operation}: refused by the kernel (errno {code}), this process lacks "
                f"{' and '.join(missing)}. Run it as root (sudo), or give it CAP_BPF and CAP_PERFMON.",
                feature=operation,
                needs=NEEDS,
            )
        if code == errno.EPERM:
            detail = _join(detail, _eperm_advice())
    elif code in (errno.EMFILE, errno.ENFILE):
        detail = _join(detail, "no descriptor is left: raise RLIMIT_NOFILE (ulimit -n)")
    elif code == errno.ENOSYS:
        return NotSupported(
            f"{operation}: this kernel has no bpf(2) (errno {code}); it needs CONFIG_BPF_SYSCALL.",
            feature=operation,
            needs="a kernel with CONFIG_BPF_SYSCALL",
        )
    elif code == ENOTSUPP:
        detail = _join(detail, "the kernel does not support it (ENOTSUPP)")
    return BpfError(code, operation, detail, log=log)


def _eperm_advice() -> str:
    """EPERM in spite of the capabilities: memory, or a policy."""
    import resource

    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    limit = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft} bytes"
    return (
        "the capabilities are there. Kernels before 5.11 charge maps to RLIMIT_MEMLOCK "
        f"(now {limit}; ulimit -l unlimited); else a container's seccomp profile, a user namespace or "
        "kernel lockdown forbids bpf(2)"
    )


def _join(*parts: str | Sequence[str]) -> str:
    return "; ".join(str(part) for part in parts if part)
