# SPDX-License-Identifier: Apache-2.0
"""Maps whose values are not just one struct: programs, per-CPU values, inner maps, stack traces."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rubyunwind._libbpf import ffi
from rubyunwind.bpf.lifetime import Resource
from rubyunwind.bpf.maps import Item, Map
from rubyunwind.bpf.refusals import check

if TYPE_CHECKING:
    from rubyunwind.bpf.spec import MapSpec

__all__ = ["MapOfMaps", "PerCPUMap", "ProgArray", "StackTraceMap"]


class ProgArray(Map):
    """A tail-call table: a program (anything with `.fd`) or a descriptor in each slot.

    Reading gives program ids; iterating, the numbers of the slots that hold a program.
    """

    def __len__(self) -> int:
        """Count the slots that hold a program."""
        return sum(1 for _ in self._raw_keys())

    def _encode_value(self, value: Any) -> bytes:
        return self._encode(value if isinstance(value, int) else int(value.fd), 4, "program")

    def _decode_value(self, raw: bytes) -> int:
        return int.from_bytes(raw, sys.byteorder)

    def _decode_key(self, raw: bytes) -> int:
        return int.from_bytes(raw, sys.byteorder)

    def _raw_keys(self) -> Iterator[bytes]:
        return (raw for raw in super()._raw_keys() if raw in self)


class PerCPUMap(Map):
    """A value per possible CPU: reading gives a list of them, in CPU order.

    Writing takes such a list, or one value for all CPUs.
    """

    @property
    def cpus(self) -> int:
        """Number of possible CPUs, offline ones included."""
        return int(check(self._lib.libbpf_num_possible_cpus(), "count possible CPUs"))

    def total(self, key: Item) -> int:
        """Return the sum over all CPUs of an unsigned counter of up to 8 bytes."""
        return sum(
            int.from_bytes(part, sys.byteorder) for part in self._split(self._lookup(self._encode_key(key)))
        )

    def _stride(self) -> int:
        return (self.value_size + 7) & ~7  # the kernel copies each value rounded up to 8 bytes

    def _buffer_size(self) -> int:
        return self._stride() * self.cpus

    def _split(self, raw: bytes) -> list[bytes]:
        stride = self._stride()
        return [raw[at : at + self.value_size] for at in range(0, len(raw), stride)]

    def _decode_value(self, raw: bytes) -> list[Any]:
        return [super(PerCPUMap, self)._decode_value(part) for part in self._split(raw)]

    def _encode_value(self, value: Any) -> bytes:
        cpus = self.cpus
        many = isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview))
        values: Sequence[Any] = value if many else [value] * cpus
        if len(values) != cpus:
            raise ValueError(f"map {self.name}: {len(values)} values for {cpus} possible CPUs")
        padding = bytes(self._stride() - self.value_size)
        return b"".join(self._encode(item, self.value_size, "value") + padding for item in values)


class MapOfMaps(Map):
    """Values are maps, written as a Map or a descriptor. The kernel takes its own reference.

    Reading gives a Map that owns a descriptor of its own: close it. It needs CAP_SYS_ADMIN; `id_of` does not.
    `template` is the shape that inner maps must have (with BPF_F_INNER_MAP, but for the number of entries).
    """

    template: MapSpec | None = None

    def id_of(self, key: Item) -> int:
        """Return the kernel's id of the inner map."""
        return int.from_bytes(self._lookup(self._encode_key(key)), sys.byteorder)

    def _encode_value(self, value: Any) -> bytes:
        return self._encode(value if isinstance(value, int) else int(value.fd), 4, "inner map")

    def _decode_value(self, raw: bytes) -> Map:
        from rubyunwind.bpf.map_factory import wrap_map

        number = int.from_bytes(raw, sys.byteorder)
        fd = check(
            self._lib.bpf_map_get_fd_by_id(number),
            f"open inner map {number} of {self.name}",
            "maps are opened by id with CAP_SYS_ADMIN only",
        )
        resource = Resource(f"inner map {number} of {self.name}", lambda: os.close(fd))
        try:
            info = ffi.new("struct bpf_map_info *")
            length = ffi.new("uint32_t *", ffi.sizeof("struct bpf_map_info"))
            check(
                self._lib.bpf_obj_get_info_by_fd(fd, info, length),
                f"describe inner map {number} of {self.name}",
            )
            inner = wrap_map(
                self._lib,
                fd,
                name=bytes(ffi.string(info.name)).decode(errors="replace") or f"id {number}",
                kind=info.type,
                key_size=info.key_size,
                value_size=info.value_size,
                max_entries=info.max_entries,
                flags=info.map_flags,
                resource=resource,
            )
        except BaseException:
            resource.close()
            raise
        resource.guard(inner)
        return inner


class StackTraceMap(Map):
    """Kernel stacks by id: reading gives the addresses, innermost first, without the zeros behind them."""

    def _decode_value(self, raw: bytes) -> tuple[int, ...]:
        addresses = memoryview(raw).cast("Q").tolist()
        return tuple(addresses[: addresses.index(0)] if 0 in addresses else addresses)
