# SPDX-License-Identifier: Apache-2.0
"""Names of classes: what Ruby 3.4 prints before a method's name, read from the class in older versions, too.

From 3.3 on a class has its path in a member. Up to 3.1 it is an instance variable that no program can name
(`__classpath__`), and so is the object that a singleton class belongs to (`__attached__`). 3.2 has these
variables by shapes, which nothing here reads.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from rubyunwind.errors import RubyUnwindError
from rubyunwind.ruby.strings import T_CLASS, T_MODULE, BadObject, object_type, read_string

if TYPE_CHECKING:
    from rubyunwind.process.memory import Memory
    from rubyunwind.ruby.identifiers import IdentifierTable
    from rubyunwind.ruby.layouts import Layout

__all__ = ["ClassPaths"]

_PATH, _ATTACHED = "__classpath__", "__attached__"

# struct st_table, include/ruby/st.h, since 2.4: entries_start, entries_bound and entries are words 4 to 6. An
# st_table_entry (st.c) is hash, key, record; the hash of one that was deleted is RESERVED_HASH_VAL.
_TABLE_ENTRIES = 32
_ENTRY = struct.Struct("<3Q")
_DELETED = (1 << 64) - 1
_MOST_ENTRIES = 1024


class ClassPaths:
    """Reads the paths of a process's classes. `identifiers` are its symbols, None if they were not found."""

    def __init__(self, memory: Memory, layout: Layout, identifiers: IdentifierTable | None) -> None:
        self._memory = memory
        self._layout = layout
        self._identifiers = identifiers
        self._names: dict[int, str] = {}  # of instance variables that classes have

    @property
    def readable(self) -> bool:
        """Whether classes of this version tell their path."""
        layout = self._layout
        if layout.class_classpath is not None:
            return True
        return layout.classext_variables is not None and self._identifiers is not None

    def prefix(self, owner: int) -> str:
        """Return what stands before the name of a method of the class `owner`: "Foo#", "Foo." or "".

        "Foo." is for a singleton method. "" for an anonymous class or module, for the singleton class of an
        object that is no class, and where paths cannot be read.
        """
        try:
            flags = self._class_flags(owner)
            separator = "#"
            if object_type(flags) == T_CLASS and flags & (self._layout.class_singleton_flag or 0):
                owner = self._attached(owner)
                separator = "."
                self._class_flags(owner)
            path = self._path(owner)
        except RubyUnwindError:
            return ""
        # A temporary path ("#<Class:0x...>::Inner") is not shown; permanent ones start with a constant.
        return "" if not path or path.startswith("#<") else path + separator

    def _path(self, owner: int) -> str:
        where = self._layout.class_classpath
        value = self._memory.u64(owner + where) if where is not None else self._variable(owner, _PATH)
        return read_string(self._memory, self._layout, value) if value else ""

    def _attached(self, owner: int) -> int:
        where = self._layout.class_attached_object
        return self._memory.u64(owner + where) if where is not None else self._variable(owner, _ATTACHED)

    def _variable(self, owner: int, name: str) -> int:
        """Return the value of a class's instance variable, 0 if it has none of that name."""
        layout, memory = self._layout, self._memory
        if layout.class_ext is None or layout.classext_variables is None:
            return 0
        table = memory.u64(memory.u64(owner + layout.class_ext) + layout.classext_variables)
        if not table:
            return 0
        start, bound, entries = _ENTRY.unpack(memory.read(table + _TABLE_ENTRIES, _ENTRY.size))
        if not 0 <= start <= bound <= _MOST_ENTRIES:
            raise BadObject(f"a class has {bound} instance variables")
        data = memory.read(entries + start * _ENTRY.size, (bound - start) * _ENTRY.size)
        for mark, key, value in _ENTRY.iter_unpack(data):
            if mark != _DELETED and self._name(key) == name:
                return int(value)
        return 0

    def _name(self, key: int) -> str:
        known = self._names.get(key)
        if known is None and self._identifiers is not None:
            known = self._names[key] = self._identifiers.name(key)
        return known or ""

    def _class_flags(self, value: int) -> int:
        if value & 7 or value < 4096:
            raise BadObject(f"{value:#x} is no class")
        flags = self._memory.u64(value)
        if object_type(flags) not in (T_CLASS, T_MODULE):
            raise BadObject(f"the object at {value:#x} is no class (type {object_type(flags):#x})")
        return flags
