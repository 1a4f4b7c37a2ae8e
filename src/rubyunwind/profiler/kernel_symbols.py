# SPDX-License-Identifier: Apache-2.0
"""Names of kernel functions, from /proc/kallsyms."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

__all__ = ["KernelSymbols"]

_KALLSYMS = Path("/proc/kallsyms")
# Lines are "ADDRESS TYPE NAME[\t[MODULE]]" with an address of 16 hexadecimal digits: they sort as text.
_DIGITS = 16
_CHUNK = 1 << 18  # bytes at a time; the kernel makes some 200 MB/s of them
_FUNCTION_TYPES = frozenset(b"tTwW")


class KernelSymbols:
    """Looks kernel addresses up. Reads the table at the first look-up or by `load`: about 50 ms.

    Without CAP_SYSLOG, or with kernel.kptr_restrict = 2, the kernel shows zeros for addresses; then every
    look-up gives None and `reason` says what to do.
    """

    def __init__(self, path: Path = _KALLSYMS) -> None:
        self._path = path
        self._lines: list[bytes] | None = None
        self.reason = ""

    def load(self, between: Callable[[], None] = lambda: None) -> None:
        """Read the table now: no look-up has to wait for it. `between` is called every millisecond or so."""
        if self._lines is None:
            self._lines = self._load(between)

    def lookup(self, address: int) -> str | None:
        """Return the name of the function that holds `address`, or None."""
        self.load()
        assert self._lines is not None
        index = bisect_right(self._lines, b"%0*x\xff" % (_DIGITS, address)) - 1
        if index < 0:
            return None
        # The lines stay as they are: of 100,000 symbols a profile asks for some hundred.
        _, kind, name = self._lines[index].split(b" ", 2)
        if kind[0] not in _FUNCTION_TYPES:
            return None
        return name.decode(errors="replace").replace("\t", " ")

    def _load(self, between: Callable[[], None]) -> list[bytes]:
        lines: list[bytes] = []
        rest = b""
        try:
            with self._path.open("rb", buffering=0) as table:
                while chunk := table.read(_CHUNK):
                    whole, _, rest = (rest + chunk).rpartition(b"\n")
                    lines += self._symbols(whole)
                    between()
        except OSError as error:
            self.reason = f"{self._path} cannot be read: {error.strerror}"
            return []
        lines += self._symbols(rest)
        lines.sort()
        if not lines or lines[-1].startswith(b"0" * _DIGITS):
            self.reason = (
                f"{self._path} shows no addresses: run as root or with CAP_SYSLOG, and with "
                "kernel.kptr_restrict at 0 or 1"
            )
            return []
        return lines

    @staticmethod
    def _symbols(text: bytes) -> list[bytes]:
        return [line for line in text.splitlines() if line[_DIGITS : _DIGITS + 1] == b" "]
