# SPDX-License-Identifier: Apache-2.0
"""The kernel side's native unwind tables: one writer for all the maps they are spread over."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rubyunwind.abi import (
    STACK_DELTA_BUCKET_LARGEST,
    STACK_DELTA_BUCKET_SMALLEST,
    STACK_DELTA_COMMAND_FLAG,
    StackDeltaPageInfo,
    StackDeltaPageKey,
    UnwindCommand,
    UnwindInfo,
    UnwindOpcode,
)
from rubyunwind.bpf.map_factory import create_array
from rubyunwind.errors import BpfError

if TYPE_CHECKING:
    from rubyunwind.bpf.collection import Collection
    from rubyunwind.elf.deltas import StackDeltas

__all__ = ["NativeTables"]

_ROW_SIZE = 4  # struct StackDelta
_INVALID = STACK_DELTA_COMMAND_FLAG | UnwindCommand.INVALID


class NativeTables:
    """Fills the stack-delta maps of a collection, each file once however many processes map it.

    A file's rows go into an array of their own, its pages into `stack_delta_page_to_info`; the distinct
    rules of all files share `unwind_info_array`, in the order of their first use.
    """

    def __init__(self, collection: Collection) -> None:
        self._maps = collection.maps
        self._infos: dict[tuple[int, int, int, int, int], int] = {}
        self._pages: dict[int, list[bytes]] = {}
        self._buckets: dict[int, int] = {}

    def __contains__(self, file_id: int) -> bool:
        return file_id in self._buckets

    def add(self, file_id: int, deltas: StackDeltas) -> None:
        """Make the rows of a file known under `file_id`. Raises BpfError when a map is full."""
        if file_id in self._buckets:
            return
        # The bucket is the bit length of the number of rows; buckets differ only in name now that the
        # kernel lets inner arrays have their own size, and the number is part of the map format.
        bucket = max(STACK_DELTA_BUCKET_SMALLEST, deltas.count.bit_length())
        if bucket > STACK_DELTA_BUCKET_LARGEST:
            logging.getLogger(__name__).warning(
                "%d unwind rows are more than the largest bucket holds; the file's frames stay unwound", deltas.count
            )
            return
        packed = deltas.pack([self._global_id(info) for info in deltas.infos])
        with create_array(max(deltas.count, 1), _ROW_SIZE, name="stack_deltas") as rows:
            if deltas.count:
                rows.fill(packed)
            self._maps[f"exe_id_to_{bucket}_stack_deltas"][file_id.to_bytes(8, "little")] = rows
        self._buckets[file_id] = bucket
        keys, values = [], []
        for page, first, count in deltas.pages():
            keys.append(bytes(StackDeltaPageKey(file_id=file_id, page=page)))
            values.append(bytes(StackDeltaPageInfo(first_delta=first, num_deltas=count, map_id=bucket)))
        self._pages[file_id] = keys
        try:
            self._maps["stack_delta_page_to_info"].update_packed(b"".join(keys), b"".join(values))
        except BpfError:
            self.remove(file_id)
            raise

    def remove(self, file_id: int) -> None:
        """Forget a file; nothing happens if it is not there. Its rules stay, others may use them."""
        pages = self._maps["stack_delta_page_to_info"]
        for key in self._pages.pop(file_id, ()):
            pages.pop(key, None)
        bucket = self._buckets.pop(file_id, None)
        if bucket is not None:
            self._maps[f"exe_id_to_{bucket}_stack_deltas"].pop(file_id.to_bytes(8, "little"), None)

    def _global_id(self, info: tuple[int, int, int, int, int]) -> int:
        """Return what a row refers to this rule by: a command, or an index into unwind_info_array."""
        if info[0] == UnwindOpcode.COMMAND:
            return STACK_DELTA_COMMAND_FLAG | info[3]
        index = self._infos.get(info)
        if index is None:
            table = self._maps["unwind_info_array"]
            index = len(self._infos)
            if index >= min(table.max_entries, STACK_DELTA_COMMAND_FLAG):
                return _INVALID  # a stack that needs it ends there, with that reason
            opcode, fp_opcode, merge_opcode, param, fp_param = info
            table[index.to_bytes(4, "little")] = bytes(
                UnwindInfo(
                    opcode=opcode, fp_opcode=fp_opcode, merge_opcode=merge_opcode, param=param, fp_param=fp_param
                )
            )
            self._infos[info] = index
        return index
