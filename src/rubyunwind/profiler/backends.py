# SPDX-License-Identifier: Apache-2.0
"""What can sample: BPF programs in the kernel, or a reader in user space; and when the kernel refuses BPF."""

from __future__ import annotations

import errno

from rubyunwind.errors import BpfError, NotSupported, RubyUnwindError

__all__ = ["BACKENDS", "CHAIN", "UNWINDERS", "WALKER", "check_backend", "why_refused"]

BACKENDS = ("auto", "bpf", "user")
WALKER, CHAIN = "walker", "chain"
UNWINDERS = (WALKER, CHAIN)

_REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSYS)
_COST = (
    "sampling from user space instead: Ruby frames and C functions only, no native or kernel frames, "
    "and torn samples are dropped"
)


def check_backend(backend: str) -> None:
    """Raise ValueError for a name that no backend has."""
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r}: it must be one of {', '.join(BACKENDS)}")


def why_refused(error: RubyUnwindError) -> str:
    """Return one line on why BPF is refused and what the fallback costs; "" for any other error.

    Refused is what this kernel, user or container does not allow at all. Not that a process cannot be
    attached to, or that a program of ours does not load.
    """
    if not isinstance(error, NotSupported) and not (isinstance(error, BpfError) and error.errno in _REFUSALS):
        return ""
    reason = " ".join(str(error).split()).rstrip(".")
    return f"BPF is refused ({reason}); {_COST}"
