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
from rubyunwind.bpf.spec import MapSpec
from rubyunwind.errors import BpfError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rubyunwind.bpf.maps import Map
    from rubyunwind.elf.deltas import StackDeltas, UnwindInfoTuple

__all__ = ["NativeTables", "TracerMaps"]

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

        A bucket is named after the size of its arrays, and a page says which one its file is in. Where arrays
        may have the size they need, all go into the bucket that the largest of them needs: the kernel waits
        some 10 ms (for programs that may use the old value) after each call that changes a map of maps.
        """
        buckets: dict[int, dict[int, StackDeltas]] = {}
        for file_id, deltas in files.items():
            if file_id not in self._buckets:
                buckets.setdefault(deltas.bucket, {})[file_id] = deltas
        if not buckets:
            return
        largest = max(buckets)
        if self._template(largest).flags & MapFlag.INNER_MAP:
            buckets = {largest: {file_id: d for new in buckets.values() for file_id, d in new.items()}}
        for bucket, new in buckets.items():
            self._add_to_bucket(bucket, new)

    def _add_to_bucket(self, bucket: int, files: Mapping[int, StackDeltas]) -> None:
        template = self._template(bucket)
        any_size = template.flags & MapFlag.INNER_MAP
        outer: dict[bytes, Map] = {}
        with ExitStack() as inner:
            for file_id, deltas in files.items():
                entries = max(deltas.count, 1) if any_size else template.max_entries
                rows = self._create_array(entries, template.value_size, template.flags, name="stack_deltas")
                outer[file_id.to_bytes(8, "little")] = inner.enter_context(rows)
                rows.fill(deltas.pack(self._global_ids(deltas.infos)))
            self._outer(bucket).update_batch(outer)
        for file_id, deltas in files.items():
            self._buckets[file_id] = bucket
            self._add_pages(file_id, bucket, deltas)

    def _outer(self, bucket: int) -> Map:
        return self._maps[f"exe_id_to_{bucket}_stack_deltas"]

    def _template(self, bucket: int) -> MapSpec:
        template = getattr(self._outer(bucket), "template", None)
        assert isinstance(template, MapSpec), "the tracer declares the shape of its inner maps"
        return template

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
            self._outer(bucket).pop(file_id.to_bytes(8, "little"), None)

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
