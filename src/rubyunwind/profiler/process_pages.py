# SPDX-License-Identifier: Apache-2.0
"""The pages of a process in the kernel's tables: which file each mapping of code is of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rubyunwind._native import ffi
from rubyunwind.abi import PROG_UNWIND_NATIVE, PIDPage, PIDPageMappingInfo, encode_bias_and_unwind_program
from rubyunwind.bpf.prefixes import pid_page_key, pid_page_keys

if TYPE_CHECKING:
    from collections.abc import Mapping, Set

    from rubyunwind.bpf.maps import Map
    from rubyunwind.profiler.native_tables import NativeTables

__all__ = ["PageEntry", "ProcessPages"]

PageEntry = tuple[int, int, int, int]
"""start, end, file id, packed bias and program: what one executable mapping is to the kernel side."""

# What the pages of a process are, for each of the two.
_CHAINS, _WALKERS = "pid_page_to_mapping_info", "pid_mappings"

# What page 0 of a process that is known leads to.
_KNOWN = bytes(
    PIDPageMappingInfo(bias_and_unwind_program=encode_bias_and_unwind_program(0, PROG_UNWIND_NATIVE))
)


class ProcessPages:
    """Keeps the pages of process `pid` in the maps of the chain and of the walker, whichever is loaded."""

    def __init__(self, pid: int, maps: Mapping[str, Map], tables: NativeTables) -> None:
        self._pid = pid
        self._maps = maps
        self._tables = tables
        # Both have page 0 of a process in the chain's map; see announce.
        self._has_chain, self._has_walker = "progs" in maps, _WALKERS in maps
        self._keys: dict[PageEntry, bytes] = {}  # of the pages of each, packed

    @property
    def entries(self) -> Set[PageEntry]:
        """What is in the maps now."""
        return self._keys.keys()

    def announce(self) -> None:
        """Make the process known: that is what its page 0 is for."""
        self._maps[_CHAINS][pid_page_key(self._pid)] = _KNOWN

    def forget(self) -> None:
        """Take everything out of the maps."""
        self._unset(list(self._keys.values()))
        self._maps[_CHAINS].discard(pid_page_key(self._pid))
        self._keys.clear()

    def replace(self, wanted: Set[PageEntry]) -> None:
        """Put in what is wanted and not there, and take out what is there and not wanted."""
        self._unset([keys for entry, keys in self._keys.items() if entry not in wanted])
        fresh = [entry for entry in wanted if entry not in self._keys]
        keys = {
            entry: self._keys.get(entry) or b"".join(pid_page_keys(self._pid, *entry[:2])) for entry in wanted
        }
        self._keys = keys  # before they are there: whoever takes them out finds those that are
        # Built as C arrays: a mirror object for each would cost more than the system calls.
        if self._has_chain:
            self._set(_CHAINS, fresh, ffi.new("PIDPageMappingInfo[]", [entry[2:] for entry in fresh]))
        if self._has_walker:
            mappings = [(*entry, *self._tables.place_of(entry[2])) for entry in fresh]
            self._set(_WALKERS, fresh, ffi.new("NativeMapping[]", mappings))

    def _set(self, name: str, entries: list[PageEntry], values: Any) -> None:
        """Say what each mapping is."""
        size = self._maps[name].value_size
        raw = bytes(ffi.buffer(values))
        keys = [self._keys[entry] for entry in entries]
        counts = [len(packed) // PIDPage.size for packed in keys]
        repeated = [raw[at * size : (at + 1) * size] * count for at, count in enumerate(counts)]
        self._maps[name].update_packed(b"".join(keys), b"".join(repeated))

    def _unset(self, keys: list[bytes]) -> None:
        for name in (_CHAINS,) * self._has_chain + (_WALKERS,) * self._has_walker:
            self._maps[name].discard_packed(b"".join(keys))
