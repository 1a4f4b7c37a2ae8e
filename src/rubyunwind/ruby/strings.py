# SPDX-License-Identifier: Apache-2.0
"""Reading Ruby's strings, arrays and symbols out of another process: type checked and bounded."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from rubyunwind.errors import RubyUnwindError

if TYPE_CHECKING:
    from rubyunwind.process.memory import Memory
    from rubyunwind.ruby.layouts import Layout

__all__ = [
    "MAX_STRING",
    "T_ARRAY",
    "T_CLASS",
    "T_HASH",
    "T_ICLASS",
    "T_IMEMO",
    "T_MODULE",
    "T_STRING",
    "BadObject",
    "array_element",
    "object_type",
    "path_of",
    "read_string",
    "read_string_bytes",
    "string_length",
]

MAX_STRING = 16384
"""Bytes read of one string; a longer one is cut there. Far above any path or label people write."""

# enum ruby_value_type, include/ruby/internal/value_type.h: the same numbers since before 2.5.
T_CLASS = 0x02
T_MODULE = 0x03
T_STRING = 0x05
T_ARRAY = 0x07
T_HASH = 0x08
T_IMEMO = 0x1A
T_ICLASS = 0x1C
_TYPE_MASK = 0x1F

# RSTRING_NOEMBED and RARRAY_EMBED_FLAG are both FL_USER1 (1 << 13): set means "on the heap" for a string
# and "inside the object" for an array. Embedded string lengths sat in FL_USER2..6 up to 3.1.
_FL_USER1 = 1 << 13
_FL_FREEZE = 1 << 11  # the same since before 2.5
_STRING_LEN_SHIFT = 14
_STRING_LEN_MASK = 0x1F

# struct RString {RBasic; len; union {heap.ptr ...}}, struct RArray {RBasic; union {heap {len; aux; ptr};
# ary[]}}: RBasic is flags and class, 16 bytes.
_ARRAY_EMBEDDED = 16
_OBJECT = struct.Struct("<5Q")


class BadObject(RubyUnwindError):
    """An address that should hold a Ruby object of some type holds something else."""


def object_type(flags: int) -> int:
    """Return the T_... number in an object's flags word."""
    return flags & _TYPE_MASK


def _read_object(memory: Memory, value: int, what: str) -> bytes:
    # Objects are 8-byte aligned; nil, true, Fixnums and Symbols are not, or are tiny numbers.
    if value & 7 or value < 4096:
        raise BadObject(f"{what} is {value:#x}, which is no heap object")
    return memory.read(value, _OBJECT.size)


def _object(memory: Memory, value: int, what: str) -> tuple[int, ...]:
    return _OBJECT.unpack(_read_object(memory, value, what))


def read_string_bytes(memory: Memory, layout: Layout, value: int, *, frozen: bool = False) -> bytes:
    """Return the bytes of the String at `value`, at most MAX_STRING of them.

    Raises BadObject when it is no String, or is to be a frozen one and is not; MemoryReadError when it cannot
    be read.
    """
    return _string_bytes(memory, layout, value, _read_object(memory, value, "a string"), frozen=frozen)


def _string_bytes(memory: Memory, layout: Layout, value: int, head: bytes, *, frozen: bool) -> bytes:
    """Return the bytes of the String whose first bytes are `head`, as read_string_bytes does."""
    words = _OBJECT.unpack(head)
    flags = words[0]
    if object_type(flags) != T_STRING:
        raise BadObject(f"the object at {value:#x} is no String (type {object_type(flags):#x})")
    if frozen and not flags & _FL_FREEZE:
        raise BadObject(f"the String at {value:#x} is one that may change: the one before it was freed")
    if flags & _FL_USER1:
        return _bounded(memory, words[3], words[2])
    short = flags >> _STRING_LEN_SHIFT & _STRING_LEN_MASK
    inside = words[2] if layout.string_embedded_len_in_object else short
    start = layout.string_embedded
    if start + inside <= len(head):  # as most labels
        return head[start : start + inside]
    return _bounded(memory, value + start, inside)


def string_length(memory: Memory, layout: Layout, value: int) -> int:
    """Return the length in bytes of the String at `value`, also when its characters cannot be read."""
    words = _object(memory, value, "a string")
    flags = words[0]
    if object_type(flags) != T_STRING:
        raise BadObject(f"the object at {value:#x} is no String (type {object_type(flags):#x})")
    if flags & _FL_USER1 or layout.string_embedded_len_in_object:
        return words[2]
    return flags >> _STRING_LEN_SHIFT & _STRING_LEN_MASK


def _bounded(memory: Memory, address: int, length: int) -> bytes:
    if length >> 63:
        raise BadObject(f"a string has the length {length - (1 << 64)}")
    return memory.read(address, min(length, MAX_STRING)) if length else b""


def read_string(memory: Memory, layout: Layout, value: int, *, frozen: bool = False) -> str:
    """Return the String at `value` as text; bytes that are no UTF-8 become surrogates (surrogateescape).

    The names of code are frozen (rb_fstring in prepare_iseq_build and rb_iseq_pathobj_new, iseq.c): with
    `frozen` most of what comes to their place once the code is freed is not taken for one.
    """
    return _text(read_string_bytes(memory, layout, value, frozen=frozen))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def array_element(memory: Memory, value: int, index: int) -> int:
    """Return element `index` of the Array at `value`.

    Raises BadObject when it is no Array or is known to be shorter, MemoryReadError when it cannot be read.
    """
    return _element(memory, value, _object(memory, value, "an array"), index)


def _element(memory: Memory, value: int, words: tuple[int, ...], index: int) -> int:
    flags = words[0]
    if object_type(flags) != T_ARRAY:
        raise BadObject(f"the object at {value:#x} is no Array (type {object_type(flags):#x})")
    if flags & _FL_USER1:
        first = _ARRAY_EMBEDDED // 8
        if index < len(words) - first:
            return words[first + index]
        return memory.u64(value + _ARRAY_EMBEDDED + 8 * index)
    if index >= words[2]:
        raise BadObject(f"the Array at {value:#x} has {words[2]} elements, number {index} was asked for")
    return memory.u64(words[4] + 8 * index)


def path_of(memory: Memory, layout: Layout, pathobj: int) -> str:
    """Return the path as Ruby was given it: pathobj is that String, or the Array [path, realpath]."""
    head = _read_object(memory, pathobj, "a path")
    words = _OBJECT.unpack(head)
    if object_type(words[0]) == T_ARRAY:
        return read_string(memory, layout, _element(memory, pathobj, words, 0), frozen=True)
    return _text(_string_bytes(memory, layout, pathobj, head, frozen=True))
