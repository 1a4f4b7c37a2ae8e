# SPDX-License-Identifier: Apache-2.0
"""The kernel side's native unwind tables: one writer for all the maps they are spread over."""

from __future__ import annotations

from array import array
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple, Protocol

from rubyunwind._native import ffi
from rubyunwind.abi import (
    STACK_DELTA_COMMAND_FLAG,
    StackDelta,
    StackDeltaPageKey,
    UnwindCommand,
    UnwindOpcode,
)
from rubyunwind.bpf.kinds import MapFlag
from rubyunwind.bpf.spec import MapSpec
from rubyunwind.errors import BpfError
from rubyunwind.profiler.extents import Extents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rubyunwind.bpf.maps import Map
    from rubyunwind.elf.deltas import StackDeltas, UnwindInfoTuple

__all__ = ["FlatPlace", "NativeTables", "TracerMaps"]

_ROWS_PER_ELEMENT = 2  # of flat_rows, see maps.h
_PAGES = "stack_delta_page_to_info"
_INVALID = STACK_DELTA_COMMAND_FLAG | UnwindCommand.INVALID
_UNKNOWN_ROW = bytes(StackDelta(unwind_info=_INVALID))


class FlatPlace(NamedTuple):
    """Where a file's pages lie in flat_pages: the ELF address of the first one, its place, how many."""

    text_from: int
    pages_first: int
    pages_count: int


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
    rules of all files share `unwind_info_array`. What a file took is free again once it is removed. Where
    there is no room, `reclaim` is called; it returns whether it has removed anything. `without_room` counts
    files that are not unwound for lack of it.
    """

    def __init__(self, collection: TracerMaps, reclaim: Callable[[], bool] = lambda: False) -> None:
        self._maps = collection.maps
        self._create_array = collection.create_array
        self._reclaim = reclaim
        self._infos: dict[UnwindInfoTuple, int] = {}
        self._uses: Counter[UnwindInfoTuple] = Counter()
        self._free_infos: list[int] = []
        self._rules: dict[int, tuple[UnwindInfoTuple, ...]] = {}
        self._pages: dict[int, bytes] = {}
        self._buckets: dict[int, int] = {}
        self._places: dict[int, FlatPlace] = {}
        self._row_pieces: dict[int, tuple[int, int]] = {}
        rows, pages = self._maps.get("flat_rows"), self._maps.get("flat_pages")
        self._flat_rows = Extents(rows.max_entries if rows is not None else 0)
        self._flat_pages = Extents(pages.max_entries if pages is not None else 0)
        self.without_room = 0

    def place_of(self, file_id: int) -> FlatPlace:
        """Return where the walker finds the pages of a file; none if it has no rows, or they had no room."""
        return self._places.get(file_id, FlatPlace(0, 0, 0))

    def __contains__(self, file_id: int) -> bool:
        return file_id in self._rules

    def __len__(self) -> int:
        return len(self._rules)

    def add(self, files: Mapping[int, StackDeltas]) -> None:
        """Make the rows of files known, by file id. Raises BpfError when a map is full.

        They go into the maps that are there: the ABI's, which the chain reads, the walker's, or both.
        """
        new = {file_id: deltas for file_id, deltas in files.items() if file_id not in self._rules}
        packed = {}
        for file_id, deltas in new.items():
            packed[file_id] = deltas.pack(self._global_ids(deltas.infos))
            self._rules[file_id] = tuple(deltas.infos)
            self._uses.update(deltas.infos)
        for file_id, deltas in new.items():
            self._add_flat(file_id, deltas, packed[file_id])
        if _PAGES in self._maps:
            try:
                self._add_to_buckets(new, packed)
            except BpfError:
                self.without_room += 1
                raise

    # ---- the ABI's maps ----

    def _add_to_buckets(self, files: Mapping[int, StackDeltas], packed: Mapping[int, bytes]) -> None:
        """Put each file into the bucket that is named after the size of its array; a page says which one.

        Where arrays may have the size they need, all go into the bucket that the largest of them needs: the
        kernel waits some 10 ms (for programs that may use the old value) after each call that changes a map
        of maps.
        """
        buckets: dict[int, list[int]] = {}
        for file_id, deltas in files.items():
            buckets.setdefault(deltas.bucket, []).append(file_id)
        if buckets and self._template(max(buckets)).flags & MapFlag.INNER_MAP:
            buckets = {max(buckets): list(files)}
        for bucket, file_ids in buckets.items():
            template = self._template(bucket)
            outer: dict[bytes, Map] = {}
            with ExitStack() as inner:
                for file_id in file_ids:
                    any_size = template.flags & MapFlag.INNER_MAP
                    entries = max(files[file_id].count, 1) if any_size else template.max_entries
                    rows = self._create_array(
                        entries, template.value_size, template.flags, name="stack_deltas"
                    )
                    outer[file_id.to_bytes(8, "little")] = inner.enter_context(rows)
                    rows.fill(packed[file_id])
                self._outer(bucket).update_batch(outer)
            for file_id in file_ids:
                self._buckets[file_id] = bucket
                self._add_pages(file_id, bucket, files[file_id])

    # ---- the walker's ----

    def _add_flat(self, file_id: int, deltas: StackDeltas, packed: bytes) -> None:
        """Put the rows behind those of earlier files; without room the walker knows none of them."""
        rows, pages = self._maps.get("flat_rows"), self._maps.get("flat_pages")
        if rows is None or pages is None:  # only the walker has them
            return
        count = len(deltas.flat_pages(0)[1]) // pages.value_size
        if not count:
            return
        elements = -(-(deltas.count + 1) // _ROWS_PER_ELEMENT)
        first_page = self._room(self._flat_pages, count)
        if first_page is None:
            return
        first_row = self._room(self._flat_rows, elements)
        if first_row is None:
            self._flat_pages.give_back(first_page, count)
            return
        text_from, index = deltas.flat_pages(first_row * _ROWS_PER_ELEMENT + 1)
        packed = _UNKNOWN_ROW + packed
        rows.fill(packed.ljust(elements * rows.value_size, b"\0"), first_row)
        pages.fill(index, first_page)
        self._places[file_id] = FlatPlace(text_from, first_page, count)
        self._row_pieces[file_id] = (first_row, elements)

    def _room(self, extents: Extents, count: int) -> int | None:
        found = extents.take(count)
        if found is None and self._reclaim():
            found = extents.take(count)
        self.without_room += found is None
        return found

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
            self._maps[_PAGES].update_packed(keys, bytes(ffi.buffer(values)))
        except BpfError:
            self.remove(file_id)
            raise

    def rule_id(self, rule: UnwindInfoTuple) -> int:
        """Make a rule known by itself and return what stands for it in a row. It stays."""
        if rule not in self._infos:
            self._uses[rule] += 1
        return self._global_ids([rule])[0]

    def remove(self, file_id: int) -> None:
        """Forget a file, which no process may map any more; nothing happens if it is not there."""
        place = self._places.pop(file_id, None)
        if place is not None:
            self._flat_pages.give_back(place.pages_first, place.pages_count)
            self._flat_rows.give_back(*self._row_pieces.pop(file_id))
        self._drop_rules(self._rules.pop(file_id, ()))
        keys = self._pages.pop(file_id, b"")
        if not keys:
            return
        pages = self._maps[_PAGES]
        for at in range(0, len(keys), StackDeltaPageKey.size):
            pages.discard(keys[at : at + StackDeltaPageKey.size])
        bucket = self._buckets.pop(file_id, None)
        if bucket is not None:
            self._outer(bucket).discard(file_id.to_bytes(8, "little"))

    def _drop_rules(self, rules: Iterable[UnwindInfoTuple]) -> None:
        """Let others have the places of rules that no file has any more."""
        for rule in rules:
            self._uses[rule] -= 1
            if self._uses[rule] <= 0:
                del self._uses[rule]
                index = self._infos.pop(rule, None)
                if index is not None:
                    self._free_infos.append(index)

    def _global_ids(self, infos: Sequence[UnwindInfoTuple]) -> list[int]:
        """Return what rows refer to each rule by: a command, or an index into unwind_info_array."""
        table = self._maps["unwind_info_array"]
        room = min(table.max_entries, STACK_DELTA_COMMAND_FLAG)
        ids: list[int] = []
        fresh: dict[int, UnwindInfoTuple] = {}
        for info in infos:
            if info[0] == UnwindOpcode.COMMAND:
                ids.append(STACK_DELTA_COMMAND_FLAG | info[3])
                continue
            index = self._infos.get(info)
            if index is None:
                index = self._free_infos.pop() if self._free_infos else len(self._infos)
                if index >= room:
                    ids.append(_INVALID)  # a stack that needs it ends there, with that reason
                    continue
                self._infos[info] = index
                fresh[index] = info
            ids.append(index)
        if fresh:
            keys = array("I", fresh).tobytes()
            table.update_packed(keys, bytes(ffi.buffer(ffi.new("UnwindInfo[]", list(fresh.values())))))
        return ids
