# SPDX-License-Identifier: Apache-2.0
"""Dict-like maps over bytes, or over struct mirrors where a map was given their types.

Keys and values: anything bytes() turns into exactly the map's sizes (bytes, memoryview, a mirror), or an
int, which is stored in the machine's byte order. What comes back is bytes, or the mirror.
"""

from __future__ import annotations

import errno
import mmap
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from rubyunwind._libbpf import ffi
from rubyunwind.bpf.kinds import MapFlag, MapType
from rubyunwind.bpf.lifetime import Resource
from rubyunwind.bpf.refusals import check, refusal
from rubyunwind.errors import BpfError

__all__ = ["Item", "Map", "Mirror"]

# include/uapi/linux/bpf.h
BPF_ANY = 0
_ARRAYS = (
    MapType.ARRAY,
    MapType.PERCPU_ARRAY,
    MapType.PROG_ARRAY,
    MapType.PERF_EVENT_ARRAY,
    MapType.ARRAY_OF_MAPS,
)

Self = TypeVar("Self", bound="Map")


class Mirror(Protocol):
    """A struct mirror of rubyunwind.abi."""

    def __bytes__(self) -> bytes: ...

    @classmethod
    def from_bytes(cls, data: bytes, /) -> Any:
        """Decode exactly one struct."""


Item: TypeAlias = "bytes | bytearray | memoryview | int | Mirror"


class Map:
    """A map in the kernel. `max_entries` is what it was created with, sizes are bytes.

    Maps of a collection belong to it; those that were created alone (map_factory.py) own their descriptor:
    close them, or use them as context managers. Errors: KeyError for a key that is not there; BpfError when
    the map is full or the kernel refuses; LifetimeError after close or fork; ValueError for a wrong size.
    """

    def __init__(
        self,
        lib: Any,
        fd: int,
        *,
        name: str,
        kind: int,
        key_size: int,
        value_size: int,
        max_entries: int,
        flags: int,
        resource: Resource,
        keep: object = None,
    ) -> None:
        self._lib = lib
        self._fd = fd
        self._resource = resource
        self._keep = keep  # the collection that owns the descriptor, if one does
        self.name = name
        self.type = MapType.of(kind)
        self.key_size = key_size
        self.value_size = value_size
        self.max_entries = max_entries
        self.flags = flags
        self.key_type: type[Mirror] | None = None
        self.value_type: type[Mirror] | None = None

    def __repr__(self) -> str:
        kind = self.type.name if isinstance(self.type, MapType) else f"type {self.type}"
        return (
            f"<{kind} map {self.name!r}: {self.key_size}-byte keys, {self.value_size}-byte values, "
            f"max_entries {self.max_entries}>"
        )

    @property
    def fd(self) -> int:
        """The descriptor, borrowed: never close it. LifetimeError once its owner is closed."""
        self._resource.check()
        return self._fd

    def typed(self: Self, *, key: type[Mirror] | None = None, value: type[Mirror] | None = None) -> Self:
        """Decode keys and values as these mirrors from now on; returns the map itself."""
        self.key_type, self.value_type = key or self.key_type, value or self.value_type
        return self

    # ---- a dict ----

    def __getitem__(self, key: Item) -> Any:
        return self._decode_value(self._lookup(self._encode_key(key)))

    def __setitem__(self, key: Item, value: Any) -> None:
        self._update(self._encode_key(key), self._encode_value(value))

    def __delitem__(self, key: Item) -> None:
        raw = self._encode_key(key)
        result = self._lib.bpf_map_delete_elem(self.fd, raw)
        if result == -errno.ENOENT:
            raise KeyError(key)
        check(result, f"delete from map {self.name}")

    def __contains__(self, key: Item) -> bool:
        try:
            self._lookup(self._encode_key(key))
        except KeyError:
            return False
        return True

    def __iter__(self) -> Iterator[Any]:
        return map(self._decode_key, self._raw_keys())

    def __len__(self) -> int:
        """Count the entries: one system call each, except for arrays, where all always exist."""
        return self.max_entries if self.type in _ARRAYS else sum(1 for _ in self._raw_keys())

    def get(self, key: Item, default: Any = None) -> Any:
        """Return the value of `key`, or `default`."""
        try:
            return self[key]
        except KeyError:
            return default

    def pop(self, key: Item, *default: Any) -> Any:
        """Remove `key` and return its value; `default`, or KeyError, if it is not there."""
        try:
            value = self[key]
            del self[key]
        except KeyError:
            if default:
                return default[0]
            raise
        return value

    def discard(self, key: Item) -> None:
        """Remove `key` if it is there, in one system call."""
        result = self._lib.bpf_map_delete_elem(self.fd, self._encode_key(key))
        if result != -errno.ENOENT:
            check(result, f"delete from map {self.name}")

    def keys(self) -> Iterator[Any]:
        """Iterate over keys."""
        return iter(self)

    def values(self) -> Iterator[Any]:
        """Iterate over values."""
        return (value for _, value in self.items())

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over pairs, leaving out what vanishes on the way. Programs change maps meanwhile."""
        for raw in self._raw_keys():
            try:
                value = self._lookup(raw)
            except KeyError:
                continue
            yield self._decode_key(raw), self._decode_value(value)

    def update(self, items: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> None:
        """Set every pair, one system call each."""
        for key, value in _pairs(items):
            self[key] = value

    def clear(self) -> None:
        """Delete all entries; zero them in an array, whose entries cannot be deleted."""
        keys = list(self._raw_keys())
        if self.type in (MapType.ARRAY, MapType.PERCPU_ARRAY):
            zero = bytes(self._buffer_size())
            for key in keys:
                self._update(key, zero)
            return
        for key in keys:
            result = self._lib.bpf_map_delete_elem(self.fd, key)
            if result != -errno.ENOENT:
                check(result, f"clear map {self.name}")

    # ---- many at once ----

    def update_batch(self, items: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> None:
        """Set every pair, in one system call where the kernel can (5.6; LPM tries later), else one each."""
        pairs = [(self._encode_key(key), self._encode_value(value)) for key, value in _pairs(items)]
        self.update_packed(b"".join(k for k, _ in pairs), b"".join(v for _, v in pairs))

    def update_packed(self, keys: bytes, values: bytes) -> None:
        """Set len(keys) / key_size pairs from packed keys and values, as update_batch does."""
        count, rest = divmod(len(keys), self.key_size)
        size = self._buffer_size()
        if rest or len(values) != count * size:
            raise ValueError(
                f"map {self.name}: {len(keys)} bytes of keys and {len(values)} of values are no pairs of "
                f"{self.key_size} and {size} bytes"
            )
        if not count:
            return
        done = ffi.new("uint32_t *", count)
        if not self._lib.bpf_map_update_batch(self.fd, keys, values, done, ffi.NULL):
            return
        # No batches here, or one pair was refused. Single updates find out which, and why; doing some
        # of them twice changes nothing.
        for index in range(count):
            key = keys[index * self.key_size : (index + 1) * self.key_size]
            self._update(key, values[index * size : (index + 1) * size])

    def discard_packed(self, keys: bytes) -> None:
        """Remove those of len(keys) / key_size packed keys that are there, in one system call if it can."""
        count, rest = divmod(len(keys), self.key_size)
        if rest:
            raise ValueError(f"map {self.name}: {len(keys)} bytes are no keys of {self.key_size} bytes")
        done = ffi.new("uint32_t *", count)
        if not count or not self._lib.bpf_map_delete_batch(self.fd, keys, done, ffi.NULL):
            return
        # No batches here, or one was not there.
        for at in range(0, len(keys), self.key_size):
            self.discard(keys[at : at + self.key_size])

    def fill(self, values: bytes | bytearray | memoryview, first: int = 0) -> None:
        """Write packed values to an array, from `first` on: by mmap where the map allows, else batch."""
        count, rest = divmod(len(values), self.value_size)
        if self.type != MapType.ARRAY or rest or first + count > self.max_entries:
            raise ValueError(
                f"{self!r} cannot be filled with {len(values)} bytes: that takes an ARRAY, whole values, "
                f"and no more than {self.max_entries}"
            )
        if not count:
            return
        stride = (self.value_size + 7) & ~7  # array elements are 8-byte aligned (kernel/bpf/arraymap.c)
        if self.flags & MapFlag.MMAPABLE and (stride == self.value_size or self.value_size == 4):
            start = first * stride
            offset = start // mmap.PAGESIZE * mmap.PAGESIZE
            size = -(-(start + count * stride) // mmap.PAGESIZE) * mmap.PAGESIZE - offset
            at = start - offset
            with mmap.mmap(self.fd, size, offset=offset) as memory, memoryview(memory) as view:
                if stride == self.value_size:
                    view[at : at + len(values)] = bytes(values)
                else:
                    with view.cast("I") as words, memoryview(bytes(values)).cast("I") as source:
                        words[at // 4 : at // 4 + 2 * count : 2] = source
        else:
            self.update_packed(array("I", range(first, first + count)).tobytes(), bytes(values))

    def memory_bytes(self) -> int:
        """Kernel memory the map is charged with, from /proc/self/fdinfo; 0 where that is not told."""
        for line in Path(f"/proc/self/fdinfo/{self.fd}").read_text().splitlines():
            if line.startswith("memlock:"):
                return int(line.split()[1])
        return 0

    def close(self) -> None:
        """Close the descriptor of a map that owns it; nothing for a collection's. Twice is harmless."""
        if self._keep is None:
            self._resource.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- encoding, overridden where values are not plain bytes ----

    def _encode_key(self, key: Item) -> bytes:
        return self._encode(key, self.key_size, "key")

    def _encode_value(self, value: Any) -> bytes:
        return self._encode(value, self.value_size, "value")

    def _decode_key(self, raw: bytes) -> Any:
        return raw if self.key_type is None else self.key_type.from_bytes(raw)

    def _decode_value(self, raw: bytes) -> Any:
        return raw if self.value_type is None else self.value_type.from_bytes(raw)

    def _buffer_size(self) -> int:
        """Bytes that one value takes in a system call."""
        return self.value_size

    def _encode(self, item: Item, size: int, what: str) -> bytes:
        if isinstance(item, int):
            try:
                return item.to_bytes(size, sys.byteorder, signed=item < 0)
            except OverflowError:
                raise ValueError(f"map {self.name}: {what} {item} does not fit into {size} bytes") from None
        raw = bytes(item)
        if len(raw) != size:
            raise ValueError(f"map {self.name}: {what} has {len(raw)} bytes, the map's have {size}")
        return raw

    # ---- system calls ----

    def _lookup(self, raw: bytes) -> bytes:
        value = ffi.new("char[]", self._buffer_size())
        result = self._lib.bpf_map_lookup_elem(self.fd, raw, value)
        if result == -errno.ENOENT:
            raise KeyError(self._decode_key(raw))
        check(result, f"look up in map {self.name}")
        return bytes(ffi.buffer(value))

    def _update(self, raw: bytes, value: bytes) -> None:
        result = self._lib.bpf_map_update_elem(self.fd, raw, value, BPF_ANY)
        if result < 0:
            raise self._update_error(-result, raw)

    def _update_error(self, code: int, raw: bytes) -> Exception:
        operation = f"update map {self.name}"
        if code in (errno.E2BIG, errno.ENOSPC):
            if self.type in _ARRAYS:
                index = int.from_bytes(raw, sys.byteorder)
                return BpfError(code, operation, f"index {index} is outside max_entries {self.max_entries}")
            return BpfError(code, operation, f"the map is full: max_entries is {self.max_entries}")
        if code == errno.EINVAL and self.type in (MapType.ARRAY_OF_MAPS, MapType.HASH_OF_MAPS):
            return BpfError(
                code,
                operation,
                "the inner map differs from the template in type, sizes or flags (or, without "
                "BPF_F_INNER_MAP in both, in max_entries)",
            )
        return refusal(code, operation)

    def _raw_keys(self) -> Iterator[bytes]:
        key: Any = ffi.NULL
        # A key that is deleted while we stand on it sends the kernel back to the start: bounded.
        for _ in range(self.max_entries):
            following = ffi.new("char[]", self.key_size)
            result = self._lib.bpf_map_get_next_key(self.fd, key, following)
            if result == -errno.ENOENT:
                return
            check(result, f"iterate over map {self.name}")
            key = bytes(ffi.buffer(following))
            yield key


def _pairs(items: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> Iterable[tuple[Any, Any]]:
    return items.items() if isinstance(items, Mapping) else items
