# SPDX-License-Identifier: Apache-2.0
"""Stack deltas: the rows of a file's native unwind table, in the format of the kernel side's maps."""

from __future__ import annotations

import hashlib
import os
import struct
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rubyunwind._native import ffi, lib
from rubyunwind.abi import UnwindCommand, UnwindOpcode
from rubyunwind.elf.cache import TableCache
from rubyunwind.elf.debuglink import open_debug_file
from rubyunwind.elf.file import EM_AARCH64, ET_REL, ElfFile
from rubyunwind.elf.ids import build_id, file_id
from rubyunwind.elf.thread_roots import thread_roots
from rubyunwind.errors import DecodeError

__all__ = ["StackDeltas", "UnwindInfoTuple", "extract_stack_deltas", "load_stack_deltas"]

UnwindInfoTuple = tuple[int, int, int, int, int]
"""(opcode, fp_opcode, merge_opcode, param, fp_param); opcode COMMAND (0) has the UnwindCommand as param."""

FEW_ROWS = 20  # below that the separate debug file is looked at, too
MAX_SPANS = 64
MAX_CODE = 16 << 20  # bytes of all spans in which signal trampolines are looked for by their code

PT_GNU_EH_FRAME = 0x6474E550  # elf.h
_EH_FRAME_HDR_PCREL = bytes([1, 0x1B])  # version 1, pointer to .eh_frame as DW_EH_PE_pcrel | sdata4

_ROOT_COMMANDS = (UnwindCommand.INVALID, UnwindCommand.STOP)

_INFO = struct.Struct("<BBBxii")  # UnwindInfo of types.h
_COUNTS = struct.Struct("<II?")  # rows, infos, truncated

_Part = tuple[bytes, int, bool]  # data, address, whether it is .eh_frame


class StackDeltas:
    """A table of rows; row i holds from its address up to the next row's. Immutable, safe to share.

    `count` is the number of rows; `infos` are the distinct rules, which rows name by index; `truncated`
    says that rows or rules were left out because there were more than the maps can hold.
    """

    __slots__ = ("_addresses", "_rows", "count", "infos", "truncated")

    def __init__(
        self, addresses: bytes, rows: bytes, infos: Sequence[UnwindInfoTuple], *, truncated: bool = False
    ) -> None:
        """Take packed u64 addresses (ascending) and packed u16 indices into `infos`."""
        self._addresses = addresses
        self._rows = rows
        self.count = len(rows) // 2
        self.infos: list[UnwindInfoTuple] = list(infos)
        self.truncated = truncated

    @property
    def bucket(self) -> int:
        """Number of the exe_id_to_N_stack_deltas map that takes this table."""
        return max(int(lib.STACK_DELTA_BUCKET_SMALLEST), self.count.bit_length())

    def pages(self) -> list[tuple[int, int, int]]:
        """Return (virtual address, first row, number of rows) of each 64 KiB page.

        Every page from the first row's to the last row's is there; one without rows has the index of
        the next row and the number 0. DecodeError when the rows lie too far apart.
        """
        addresses = ffi.from_buffer("u64[]", self._addresses)
        number = lib.cfi_page_count(addresses, self.count)
        if number > lib.CFI_MAX_PAGES:
            raise DecodeError(
                f"unwind rows lie more than {lib.CFI_MAX_PAGES} pages of 64 KiB apart; "
                "no real program is that large, so the file is damaged"
            )
        pages = ffi.new("cfi_page[]", number)
        lib.cfi_pages(addresses, self.count, pages, number)
        return [(page.address, page.first, page.count) for page in pages]

    def flat_pages(self, base: int) -> tuple[int, bytes]:
        """Return the address of the first page of flat_pages, and the pages as an array of FlatPage.

        `base` is where in flat_rows the first row lies; the one before it has to be one that says INVALID,
        for what precedes the first. No pages for rows that lie too far apart.
        """
        addresses = ffi.from_buffer("u64[]", self._addresses)
        number = lib.cfi_flat_page_count(addresses, self.count)
        if not 0 < number <= lib.CFI_MAX_FLAT_PAGES:
            return 0, b""
        pages = ffi.new("FlatPage[]", number)
        lib.cfi_flat_pages(addresses, self.count, base, pages, number)
        return addresses[0] >> lib.FLAT_PAGE_BITS << lib.FLAT_PAGE_BITS, bytes(ffi.buffer(pages))

    def pack(self, global_ids: Sequence[int]) -> bytes:
        """Return the rows as an array of StackDelta.

        `global_ids[i]` is the u16 that stands for `infos[i]`: an index in unwind_info_array, or
        STACK_DELTA_COMMAND_FLAG with a command.
        """
        if len(global_ids) != len(self.infos):
            raise ValueError(f"{len(global_ids)} ids for {len(self.infos)} rules")
        out = bytearray(4 * self.count)
        lib.cfi_pack(
            ffi.from_buffer("u64[]", self._addresses),
            ffi.from_buffer("u16[]", self._rows),
            self.count,
            ffi.new("u16[]", list(global_ids)),
            ffi.from_buffer("StackDelta[]", out, require_writable=True),
        )
        return bytes(out)

    def addresses(self) -> list[int]:
        """Return the address of each row."""
        return list(memoryview(self._addresses).cast("Q"))

    def rows(self) -> list[int]:
        """Return for each row the index of its rule in `infos`."""
        return list(memoryview(self._rows).cast("H"))

    def to_bytes(self) -> bytes:
        """Return the table as bytes, for the cache."""
        packed = b"".join(_INFO.pack(*info) for info in self.infos)
        counts = _COUNTS.pack(self.count, len(self.infos), self.truncated)
        return b"".join((counts, packed, self._addresses, self._rows))

    @classmethod
    def from_bytes(cls, data: bytes) -> StackDeltas:
        """Read what `to_bytes` gave; DecodeError when it is anything else."""
        if len(data) < _COUNTS.size:
            raise DecodeError(f"a table of unwind rows has a head of {_COUNTS.size} bytes, not {len(data)}")
        count, info_count, truncated = _COUNTS.unpack_from(data)
        addresses_at = _COUNTS.size + info_count * _INFO.size
        rows_at = addresses_at + 8 * count
        if len(data) != rows_at + 2 * count:
            raise DecodeError(f"{len(data)} bytes do not hold {count} unwind rows with {info_count} rules")
        infos = list(_INFO.iter_unpack(data[_COUNTS.size : addresses_at]))
        rows = data[rows_at:]
        if count and max(memoryview(rows).cast("H")) >= info_count:
            raise DecodeError("an unwind row names a rule that the table does not have")
        return cls(data[addresses_at:rows_at], rows, infos, truncated=truncated)


def extract_stack_deltas(elf: ElfFile, *, use_debug_file: bool = True) -> StackDeltas:
    """Read a file's unwind rules: .eh_frame, what .debug_frame has beyond it, then the debug file.

    In a C library without them it is known all the same where threads begin: their stacks end there. Damaged
    rules give no rows, or rows that say INVALID. A file without any rules gives an empty table. DecodeError
    when a section cannot be read at all.
    """
    deltas = _extract(elf, _parts(elf))
    if deltas.count < FEW_ROWS and use_debug_file:
        debug = open_debug_file(elf)
        if debug is not None:
            with debug:
                more = _extract(elf, _parts(elf) + _parts(debug))
            if more.count > deltas.count:
                deltas = more
    return _with_roots(deltas, thread_roots(elf)) if deltas.count < FEW_ROWS else deltas


def _with_roots(deltas: StackDeltas, roots: Sequence[tuple[int, int]]) -> StackDeltas:
    """Add rows that say STOP for ranges of addresses, where there are no other rules."""
    invalid, stop = ((int(UnwindOpcode.COMMAND), 0, 0, int(command), 0) for command in _ROOT_COMMANDS)
    rows = dict(zip(deltas.addresses(), (deltas.infos[row] for row in deltas.rows()), strict=True))
    for first, end in roots:
        before = max((address for address in rows if address <= first), default=None)
        known = before is not None and rows[before] != invalid
        if not known and not any(first < address < end for address in rows):
            rows[first] = stop
            rows.setdefault(end, invalid)
    infos = list(dict.fromkeys(rows.values()))
    return StackDeltas(
        array("Q", sorted(rows)).tobytes(),
        array("H", (infos.index(rows[address]) for address in sorted(rows))).tobytes(),
        infos,
        truncated=deltas.truncated,
    )


def load_stack_deltas(elf: ElfFile, cache_dir: str | os.PathLike[str] | None = None) -> StackDeltas:
    """Do what extract_stack_deltas does, but keep the result on disk (below ~/.cache by default).

    The key is the build id, or the file id when there is none. Trouble with the cache is never an error.
    """
    parts = _parts(elf)
    identity = build_id(elf)
    key = identity.hex() if identity is not None else f"file{file_id(elf):016x}"
    named = [part[1:] for part in parts]
    head = repr((elf.machine, elf.type, elf.entry, _flags(elf), _data_base(elf), elf.executable_spans, named))
    digest = hashlib.sha256(head.encode())
    for data, _, _ in parts:
        digest.update(data)
    cache = TableCache(Path(cache_dir) if cache_dir is not None else None)
    stored = cache.get(key, digest.digest())
    if stored is not None:
        try:
            return StackDeltas.from_bytes(stored)
        except DecodeError:
            pass
    deltas = extract_stack_deltas(elf)
    # A small table may grow when somebody installs the debug file.
    if deltas.count >= FEW_ROWS or elf.section(".gnu_debuglink") is None:
        cache.put(key, digest.digest(), deltas.to_bytes())
    return deltas


def _parts(elf: ElfFile) -> list[_Part]:
    """Return the unwind sections that have content, the one that counts most first."""
    parts: list[_Part] = []
    for name in (".eh_frame", ".debug_frame"):
        section = elf.section(name)
        data = elf.data(section) if section is not None else b""
        if section is not None and data:
            parts.append((data, section.address, name == ".eh_frame"))
    if not parts and not elf.sections:
        parts.extend(_eh_frame_without_sections(elf))
    return parts


def _eh_frame_without_sections(elf: ElfFile) -> Iterable[_Part]:
    """Find .eh_frame as the loader does: .eh_frame_hdr points to it, a zero length ends it."""
    for segment in elf.segments:
        if segment.type != PT_GNU_EH_FRAME or segment.file_size < 8:
            continue
        head = elf.read(segment.offset, 8)
        address = segment.address + 4 + int.from_bytes(head[4:8], "little", signed=True)
        for holder in elf.segments:
            into = address - holder.address
            if head[:2] == _EH_FRAME_HDR_PCREL and holder.type == 1 and 0 <= into < holder.file_size:
                yield elf.read(holder.offset + into, holder.file_size - into), address, True
                return


def _extract(elf: ElfFile, parts: list[_Part]) -> StackDeltas:
    if not parts:
        return StackDeltas(b"", b"", [])
    keep: list[Any] = []  # buffers that C reads, alive until it is done
    sections = ffi.new("cfi_section[]", len(parts))
    for slot, (data, address, eh) in zip(sections, parts, strict=True):
        keep.append(ffi.from_buffer("u8[]", data))
        slot.data, slot.size, slot.address, slot.eh = keep[-1], len(data), address, eh
    wanted = sorted(elf.executable_spans)[:MAX_SPANS]
    spans = ffi.new("cfi_span[]", len(wanted))
    room = MAX_CODE
    for slot, (start, end, offset) in zip(spans, wanted, strict=True):
        code = elf.read(offset, min(end - start, room))
        room -= len(code)
        keep.append(ffi.from_buffer("u8[]", code))
        slot.start, slot.end, slot.code, slot.code_size = start, end, keep[-1], len(code)
    source = ffi.new("cfi_source *")
    source.machine, source.entry, source.data_base = elf.machine, elf.entry, _data_base(elf)
    source.flags = _flags(elf)
    source.sections, source.section_count = sections, len(parts)
    source.spans, source.span_count = spans, len(wanted)
    tables = _linkage_tables(elf)[:MAX_SPANS]
    stubs = ffi.new("cfi_span[]", [{"start": start, "end": end} for start, end in tables])
    source.stubs, source.stub_count = stubs, len(tables)
    table = ffi.new("cfi_table *")
    try:
        error = lib.cfi_extract(source, table)
        if error:
            raise DecodeError(f"{elf.name}: its unwind rules could not be read: {os.strerror(error)}")
        return StackDeltas(
            bytes(ffi.buffer(table.addresses, 8 * table.count)),
            bytes(ffi.buffer(table.rows, 2 * table.count)),
            list(_INFO.iter_unpack(ffi.buffer(table.infos, _INFO.size * table.info_count))),
            truncated=bool(table.truncated),
        )
    finally:
        lib.cfi_release(table)


def _linkage_tables(elf: ElfFile) -> list[tuple[int, int]]:
    """Return (start, end) of .plt and its like, for which linkers write no unwind rules on aarch64."""
    if elf.machine != EM_AARCH64:
        return []
    return [
        (section.address, section.address + section.size)
        for section in elf.sections
        if section.name.startswith(".plt") and section.executable
    ]


def _data_base(elf: ElfFile) -> int:
    """Return what data-relative pointers count from: the global offset table, or 0 without one."""
    table = elf.section(".got.plt") or elf.section(".got")
    return table.address if table is not None else 0


def _flags(elf: ElfFile) -> int:
    flags = int(lib.CFI_RELOCATABLE) if elf.type == ET_REL else 0
    # OpenSSL's assembly bases frames on rax, r11 and others; anywhere else that is too rare to carry
    # the registers for it.
    if Path(elf.name).name.startswith("libcrypto.so."):
        flags |= int(lib.CFI_ALLOW_REGISTERS)
    return flags
