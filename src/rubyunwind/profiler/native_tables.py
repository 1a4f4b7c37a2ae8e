# SPDX-License-Identifier: Apache-2.0
"""The kernel side's native unwind tables: one writer for all the maps they are spread over."""

from __future__ import annotations

from array import array
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

from rubyunwind._native import ffi
from rubyunwind.abi import (
    STACK_DELTA_COMMAND_FLAG,
    StackDeltaPageKey,
    UnwindCommand,
    UnwindOpcode,
)
from rubyunwind.bpf.kinds import MapFlag
from rubyunwind.errors import BpfError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rubyunwind.bpf.maps import Map
    from rubyunwind.elf.deltas import StackDeltas, UnwindInfoTuple

__all__ = ["NativeTables", "TracerMaps"]

_ROW_SIZE = 4  # struct StackDelta
# What the template in maps.h has; by mmap 70,000 rows take half a millisecond, by updates 20.
_ROW_FLAGS = MapFlag.INNER_MAP | MapFlag.MMAPABLE
_INVALID = STACK_DELTA_COMMAND_FLAG | UnwindCommand.INVALID


class TracerMaps(Protocol):
    """The maps of the tracer: of a Collection in the kernel, or of a HostedCollection."""

    @property
    def maps(self) -> Mapping[str, Map]:
        """Every map by name."""

    def create_array(self, max_entries: int, value_size: int, flags: int, *, name: str = "") -> Map:
        """Create an array that can be put into a map of maps."""


class NativeTables:
    """Fills the stack-delta maps of a collection, each file once however many processes map it.

    A file's rows go into an array of their own, its pages into `stack_delta_page_to_info`; the distinct
    rules of all files share `unwind_info_array`, in the order of their first use.
    """

    def __init__(self, collection: TracerMaps) -> None:
        self._maps = collection.maps
        self._create_array = collection.create_array
        self._infos: dict[UnwindInfoTuple, int] = {}
        self._pages: dict[int, bytes] = {}
        self._buckets: dict[int, int] = {}

    def __contains__(self, file_id: int) -> bool:
        return file_id in self._buckets

    def add(self, files: Mapping[int, StackDeltas]) -> None:
        """Make the rows of files known, by file id. Raises BpfError when a map is full.

        All go into the bucket that the largest of them needs. A bucket is named after the size of its
        arrays, a page says which one its file is in, and arrays have the size they need; but the kernel
        waits some 10 ms (for programs that may use the old value) after each call that changes a map of maps.
        """
        new = {file_id: deltas for file_id, deltas in files.items() if file_id not in self._buckets}
        if not new:
            return
        bucket = max(deltas.bucket for deltas in new.values())
        outer: dict[bytes, Map] = {}
        with ExitStack() as inner:
            for file_id, deltas in new.items():
                rows = self._create_array(max(deltas.count, 1), _ROW_SIZE, _ROW_FLAGS, name="stack_deltas")
                outer[file_id.to_bytes(8, "little")] = inner.enter_context(rows)
                rows.fill(deltas.pack(self._global_ids(deltas.infos)))
            self._maps[f"exe_id_to_{bucket}_stack_deltas"].update_batch(outer)
        for file_id, deltas in new.items():
            self._buckets[file_id] = bucket
            self._add_pages(file_id, bucket, deltas)

    def _add_pages(self, file_id: int, bucket: int, deltas: StackDeltas) -> None:
        # Built as C arrays: a mirror object per page would cost more than the system calls.
        pages = deltas.pages()
        keys = bytes(ffi.buffer(ffi.new("StackDeltaPageKey[]", [(file_id, page) for page, _, _ in pages])))
        values = ffi.new("StackDeltaPageInfo[]", [(first, count, bucket) for _, first, count in pages])
        self._pages[file_id] = keys
        try:
            self._maps["stack_delta_page_to_info"].update_packed(keys, bytes(ffi.buffer(values)))
        except BpfError:
            self.remove(file_id)
            raise

    def remove(self, file_id: int) -> None:
        """Forget a file; nothing happens if it is not there. Its rules stay, others may use them."""
        pages = self._maps["stack_delta_page_to_info"]
        keys = self._pages.pop(file_id, b"")
        for at in range(0, len(keys), StackDeltaPageKey.size):
            pages.pop(keys[at : at + StackDeltaPageKey.size], None)
        bucket = self._buckets.pop(file_id, None)
        if bucket is not None:
            self._maps[f"exe_id_to_{bucket}_stack_deltas"].pop(file_id.to_bytes(8, "little"), None)

    def _global_ids(self, infos: Sequence[UnwindInfoTuple]) -> list[int]:
        """Return what rows refer to each rule by: a command, or an index into unwind_info_array."""
        table = self._maps["unwind_info_array"]
        room = min(table.max_entries, STACK_DELTA_COMMAND_FLAG)
        first = len(self._infos)
        ids: list[int] = []
        fresh: list[UnwindInfoTuple] = []
        for info in infos:
            if info[0] == UnwindOpcode.COMMAND:
                ids.append(STACK_DELTA_COMMAND_FLAG | info[3])
                continue
            index = self._infos.get(info)
            if index is None:
                index = len(self._infos)
                if index >= room:
                    ids.append(_INVALID)  # a stack that needs it ends there, with that reason
                    continue
                self._infos[info] = index
                fresh.append(info)
            ids.append(index)
        if fresh:
            keys = array("I", range(first, first + len(fresh))).tobytes()
            table.update_packed(keys, bytes(ffi.buffer(ffi.new("UnwindInfo[]", fresh))))
        return ids
