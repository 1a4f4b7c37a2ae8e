# SPDX-License-Identifier: Apache-2.0
"""Names of kernel functions, from /proc/kallsyms."""

from __future__ import annotations

import re
from bisect import bisect_right
from pathlib import Path

__all__ = ["KernelSymbols"]

_KALLSYMS = Path("/proc/kallsyms")
# Lines are "ADDRESS TYPE NAME[\t[MODULE]]"; a module's functions lie outside the kernel's text.
_FUNCTION = re.compile(rb"^([0-9a-f]+) [tTwW] (.+)$", re.MULTILINE)


class KernelSymbols:
    """Looks kernel addresses up. Reads the table at the first look-up: 50 to 100 ms, 100,000 lines.

    Without CAP_SYSLOG, or with kernel.kptr_restrict = 2, the kernel shows zeros for addresses; then every
    look-up gives None and `reason` says what to do.
    """

    def __init__(self, path: Path = _KALLSYMS) -> None:
        self._path = path
        self._addresses: list[int] | None = None
        self._names: list[str] = []
        self.reason = ""

    def lookup(self, address: int) -> str | None:
        """Return the name of the function that holds `address`, or None."""
        addresses = self._addresses
        if addresses is None:
            addresses = self._addresses = self._load()
        index = bisect_right(addresses, address) - 1
        return self._names[index] if index >= 0 else None

    def _load(self) -> list[int]:
        try:
            text = self._path.read_bytes()
        except OSError as error:
            self.reason = f"{self._path} cannot be read: {error.strerror}"
            return []
        found = sorted((int(address, 16), name) for address, name in _FUNCTION.findall(text))
        if not any(address for address, _ in found):
            self.reason = (
                f"{self._path} shows no addresses: run as root or with CAP_SYSLOG, and with kernel.kptr_restrict "
                "at 0 or 1"
            )
            return []
        self._names = [name.decode(errors="replace").replace("\t", " ") for _, name in found]
        return [address for address, _ in found]
