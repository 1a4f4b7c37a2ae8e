# SPDX-License-Identifier: Apache-2.0
"""A made-up Ruby process: memory in which tests put strings, iseqs and method entries as a layout says."""

from __future__ import annotations

import struct

from rubyunwind.process.memory import MemoryReadError
from rubyunwind.ruby.layouts import Layout

BASE = 0x7F0000000000
_EMBEDDED_LIMIT = 23


class RubyMemory:
    """Memory over one growing block at BASE; implements the Memory protocol and counts reads."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.block = bytearray()
        self.reads = 0

    def read(self, address: int, length: int) -> bytes:
        self.reads += 1
        start = address - BASE
        if start < 0 or length < 0 or start + length > len(self.block):
            raise MemoryReadError(address, length, "not in this test")
        return bytes(self.block[start : start + length])

    def u64(self, address: int) -> int:
        return int(struct.unpack("<Q", self.read(address, 8))[0])

    def u32(self, address: int) -> int:
        return int(struct.unpack("<I", self.read(address, 4))[0])

    def place(self, data: bytes, *, align: int = 8) -> int:
        """Append `data` and return its address. Some bytes lie behind it, as in a real process."""
        self.block.extend(bytes(-len(self.block) % align))
        address = BASE + len(self.block)
        self.block.extend(data)
        self.block.extend(bytes(64))
        return address

    def words(self, *values: int) -> int:
        return self.place(struct.pack(f"<{len(values)}Q", *values))

    def write(self, address: int, data: bytes) -> None:
        self.block[address - BASE : address - BASE + len(data)] = data

    def poke(self, address: int, value: int) -> None:
        self.write(address, struct.pack("<Q", value & (1 << 64) - 1))

    def string(self, text: str | bytes, *, heap: bool | None = None, frozen: bool = True) -> int:
        flags = 0x5 | frozen << 11
        raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
        if heap is None:
            heap = len(raw) > _EMBEDDED_LIMIT
        if heap:
            return self.words(flags | 1 << 13, 0, len(raw), self.place(raw), 0)
        if self.layout.string_embedded_len_in_object:
            head = struct.pack("<3Q", flags, 0, len(raw))
        else:
            head = struct.pack("<2Q", flags | len(raw) << 14, 0)
        return self.place((head + raw).ljust(40, b"\0"))

    def array(self, *elements: int, heap: bool = False) -> int:
        if heap:
            return self.words(0x7, 0, len(elements), len(elements), self.words(*elements))
        return self.words(0x7 | 1 << 13, 0, *elements, *([0] * (3 - len(elements))))

    def iseq(
        self,
        label: str = "foo",
        path: str = "/a.rb",
        *,
        kind: int = 1,
        size: int = 10,
        lines: tuple[int, int, int] = (0, 0, 0),
        parent: int = 0,
        local: int | None = None,
    ) -> tuple[int, int]:
        """Return (iseq, body). `lines` are entries, their number, succinct table; `local` None: itself."""
        layout = self.layout
        body = self.place(bytes(320))
        iseq = self.place(bytes(layout.iseq_body) + struct.pack("<Q", body) + bytes(16))
        code = self.place(bytes(8 * size))
        location = body + layout.body_location
        self.write(body + layout.body_type, struct.pack("<I", kind))
        self.write(body + layout.body_iseq_size, struct.pack("<I", size))
        self.poke(body + layout.body_iseq_encoded, code)
        self.poke(location + layout.location_pathobj, self.string(path))
        self.poke(location + layout.location_label, self.string(label))
        self.poke(body + layout.body_insns_info, lines[0])
        self.write(body + layout.body_insns_info_size, struct.pack("<I", lines[1]))
        if layout.body_succ_index_table is not None:
            self.poke(body + layout.body_succ_index_table, lines[2])
        self.poke(body + layout.body_parent_iseq, parent)
        self.poke(body + layout.body_local_iseq, iseq if local is None else local)
        return iseq, body

    def one_line(self, line: int) -> tuple[int, int, int]:
        """A line table with a single entry."""
        entry = bytearray(self.layout.insn_entry_size)
        struct.pack_into("<i", entry, self.layout.insn_entry_line, line)
        return self.place(bytes(entry)), 1, 0

    def klass(self, path: str | None, *, kind: int = 2, attached: int | None = None) -> int:
        """A class or module; with `attached`, the singleton class of that object."""
        layout = self.layout
        assert layout.class_classpath is not None
        assert layout.class_attached_object is not None
        assert layout.class_singleton_flag is not None
        flags = kind | (layout.class_singleton_flag if attached is not None else 0)
        address = self.place(struct.pack("<Q", flags) + bytes(200))
        self.poke(address + layout.class_classpath, self.string(path) if path is not None else 8)
        if attached is not None:
            self.poke(address + layout.class_attached_object, attached)
        return address

    def method_entry(self, owner: int, identifier: int) -> int:
        layout = self.layout
        definition = self.place(bytes(56))
        self.poke(definition + layout.def_original_id, identifier)
        entry = self.words(0x1A | 6 << 12, 0, 0, 0, 0)
        self.poke(entry + layout.ment_def, definition)
        self.poke(entry + layout.ment_owner, owner)
        return entry

    def svar(self, target: int) -> int:
        return self.words(0x1A | 2 << 12, target, 0, 0, 0)

    def cref(self) -> int:
        return self.words(0x1A | 1 << 12, 0, 0, 0, 0)

    def identifiers(self, names: list[str]) -> tuple[int, dict[str, int]]:
        """A symbol table that holds `names` behind the operators; returns its address and the ids."""
        first = self.layout.last_operator_id + 1
        count = max(first + len(names), 600)
        strings = [self.string(f"sym{serial}") for serial in range(first)] + [self.string(n) for n in names]
        units = []
        for start in range(0, count, 512):
            pairs: list[int] = []
            for serial in range(start, start + 512):
                pairs += [strings[serial] if serial < len(strings) else 8, 8]
            units.append(self.array(*pairs, heap=True))
        hash_or_table = self.words(0x8, 0, 0, 0, 0)
        table = self.words(count, hash_or_table, self.array(*units, heap=True), hash_or_table)
        return table, {name: first + index << 4 for index, name in enumerate(names)}
