# SPDX-License-Identifier: Apache-2.0
"""The tracer without a kernel: the same programs and maps, compiled for the host, over any memory.

A `HostedCollection` has maps that are used like those of a loaded Collection, so whoever fills the one fills
the other; `run` unwinds one thread and returns the record that the programs would have sent.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rubyunwind._native import ffi, lib
from rubyunwind.abi import ProgUnwind
from rubyunwind.bpf.kinds import MapType
from rubyunwind.bpf.lifetime import Resource
from rubyunwind.bpf.map_factory import wrap_map
from rubyunwind.bpf.spec import load_collection_spec
from rubyunwind.errors import NotSupported, RubyUnwindError

if TYPE_CHECKING:
    from rubyunwind.bpf.maps import Map
    from rubyunwind.bpf.spec import CollectionSpec, MapSpec
    from rubyunwind.process.memory import LiveMemory, Memory

__all__ = ["CHAIN_ENTRY", "WALKER_ENTRY", "HostMemory", "HostTask", "HostedCollection"]

# Slots of `progs` hold the position of a program in host.c's table, counted from 1.
_PROGRAMS = {ProgUnwind.STOP: 2, ProgUnwind.NATIVE: 3, ProgUnwind.RUBY: 4}
# What takes a sample: one program that walks all of a stack, or the first of the chain.
WALKER_ENTRY, CHAIN_ENTRY = b"native_tracer_walker", b"native_tracer_entry"

_TOP = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class HostTask:
    """A thread as the entry program sees it.

    `registers` are struct pt_regs of the architecture in its order (x86_64: the first 21 words of ptrace's
    user_regs_struct; aarch64: user_pt_regs), `thread_pointer` is fs_base or tpidr_el0, `ktime` is ns.
    """

    pid: int
    tid: int
    registers: Sequence[int] = ()
    thread_pointer: int = 0
    comm: str = ""
    ktime: int = 0


class HostMemory:
    """Where the programs read. `pieces` are (start, end, offset): addresses and where they lie in `fd`.

    What no piece has is asked of `memory`, if given. `fd` is borrowed. `reads` and `failures` count.
    `pages` of `fd` (a power of two) are kept during a run: a tenth of the time, where many reads go to few.
    """

    def __init__(
        self,
        *,
        fd: int = -1,
        pieces: Sequence[tuple[int, int, int]] = (),
        memory: Memory | None = None,
        pages: int = 0,
    ) -> None:
        self._pieces = ffi.new("host_piece[]", sorted(pieces))
        self._handle = ffi.new_handle(memory)
        self.struct = ffi.new(
            "host_memory *",
            {"fd": fd, "pieces": self._pieces, "piece_count": len(pieces), "context": self._handle},
        )
        if pages & (pages - 1):
            raise ValueError(f"a cache of {pages} pages: it must be a power of two")
        if pages:
            self._pages = ffi.new("host_page[]", pages)
            self.struct.pages, self.struct.page_count = self._pages, pages
        if memory is not None:
            self.struct.read = lib.host_read_python

    @classmethod
    def of_process(cls, memory: LiveMemory, pages: int = 0) -> HostMemory:
        """All of a live process. `memory`, which has to live as long, reads what is `distant` by now."""
        pieces, start = [], 0
        for begin, end, _ in sorted(memory.distant):
            if start < begin:
                pieces.append((start, begin, start))
            start = max(start, end)
        pieces.append((start, _TOP, start))
        return cls(fd=memory.fd, pieces=pieces, memory=memory if memory.distant else None, pages=pages)

    @property
    def reads(self) -> int:
        """Reads asked for so far, failed ones included."""
        return int(self.struct.reads)

    @property
    def failures(self) -> int:
        """Reads that found nothing."""
        return int(self.struct.failures)


@ffi.def_extern(onerror=lambda *_: -1, error=-1)  # type: ignore[untyped-decorator]
def host_read_python(context: Any, address: int, to: Any, length: int) -> int:
    """Read from a Memory for the programs: 0, or -1 where there is nothing."""
    try:
        data = ffi.from_handle(context).read(address, length)
    except RubyUnwindError:
        return -1
    if len(data) != length:  # against the protocol, and memmove would read on behind it
        return -1
    ffi.memmove(to, data, length)
    return 0


class _HostKernel:
    """Stands where libbpf stands for a Map: the same calls, a host map's number for a descriptor."""

    def __init__(self) -> None:
        self._maps: dict[int, Any] = {}

    def add(self, pointer: Any) -> int:
        number = len(self._maps) + 1
        self._maps[number] = pointer
        return number

    def pointer(self, number: int) -> Any:
        return self._maps[number]

    def libbpf_num_possible_cpus(self) -> int:
        return 1

    def bpf_map_lookup_elem(self, number: int, key: bytes, value: Any) -> int:
        return int(lib.host_map_lookup(self._maps[number], key, ffi.cast("void *", value)))

    def bpf_map_update_elem(self, number: int, key: bytes, value: bytes, flags: int) -> int:
        target = self._maps[number]
        if target.type == MapType.HASH_OF_MAPS:
            inner = self._maps.pop(int.from_bytes(value, "little"))  # the outer map takes it over
            value = bytes(ffi.buffer(ffi.new("host_map **", inner)))
        return int(lib.host_map_update(target, key, value, flags))

    def bpf_map_delete_batch(self, number: int, keys: bytes, count: Any, options: Any) -> int:
        return -errno.EOPNOTSUPP

    def bpf_map_delete_elem(self, number: int, key: bytes) -> int:
        return int(lib.host_map_delete(self._maps[number], key))

    def bpf_map_get_next_key(self, number: int, key: Any, following: Any) -> int:
        given = key if isinstance(key, bytes) else ffi.NULL
        return int(lib.host_map_next(self._maps[number], given, ffi.cast("void *", following)))

    def bpf_map_update_batch(self, number: int, keys: bytes, values: bytes, count: Any, options: Any) -> int:
        target = self._maps[number]
        whole = lib.host_map_values(target)
        first, last = int.from_bytes(keys[:4], "little"), int.from_bytes(keys[-4:], "little")
        if whole == ffi.NULL or target.key_size != 4 or last - first != len(keys) // 4 - 1:
            return -errno.ENOTSUP
        if last >= target.max_entries:
            return -errno.E2BIG
        # An array, entries one behind the other: nobody gives them in another order.
        ffi.memmove(ffi.cast("char *", whole) + first * target.value_size, values, len(values))
        return 0


class HostedCollection:
    """Maps and programs in user space. A context manager; not for use by two threads at once.

    `max_entries` overrides sizes by map name. `maps` are like a Collection's, with one CPU.
    """

    def __init__(
        self, spec: CollectionSpec | None = None, *, max_entries: Mapping[str, int] | None = None
    ) -> None:
        spec = spec or load_collection_spec()
        host = lib.host_new()
        if host == ffi.NULL:
            raise MemoryError("a host collection")
        self._host = host
        self._resource = Resource("the hosted collection", lambda: lib.host_free(host), owner=self)
        self._kernel = _HostKernel()
        self._scratch: Any = None
        sizes = max_entries or {}
        maps: dict[str, Map] = {}
        for each in spec.maps.values():
            if each.create:
                entries = sizes.get(each.name, each.max_entries) or 1
                maps[each.name] = self._create(each, entries)
        self.maps: Mapping[str, Map] = MappingProxyType(maps)
        for slot, number in _PROGRAMS.items():
            maps["progs"][int(slot)] = number

    def _create(self, spec: MapSpec, entries: int) -> Map:
        name = spec.name
        code = lib.host_map_create(
            self._host, name.encode(), spec.type, spec.key_size, spec.value_size, entries
        )
        if code == -errno.ENOENT:
            raise NotSupported(
                f"the host build has no map {name}: the object and the extension are of different versions. "
                "Build both again (pip install .)",
                feature=f"map {name}",
                needs="objects and extension of one build",
            )
        if code:
            raise MemoryError(f"{entries} entries of map {name}")
        pointer = lib.host_map_find(self._host, name.encode())
        return self._wrap(
            pointer, name, spec.type, spec.key_size, spec.value_size, entries, self, template=spec.inner
        )

    def _wrap(
        self,
        pointer: Any,
        name: str,
        kind: int,
        key_size: int,
        value_size: int,
        entries: int,
        keep: object,
        template: MapSpec | None = None,
    ) -> Map:
        return wrap_map(
            self._kernel,
            self._kernel.add(pointer),
            template=template,
            name=name,
            kind=kind,
            key_size=key_size,
            value_size=value_size,
            max_entries=entries,
            flags=0,
            resource=self._resource,
            keep=keep,
        )

    def create_array(self, max_entries: int, value_size: int, flags: int = 0, *, name: str = "") -> Map:
        """Create an inner array; the map of maps that it is put into takes it over."""
        del flags  # the kernel's, for mmap and sizes
        pointer = lib.host_map_new(MapType.ARRAY, 4, value_size, max_entries)
        if pointer == ffi.NULL:
            raise MemoryError(f"an array of {max_entries} times {value_size} bytes")
        return self._wrap(pointer, name, MapType.ARRAY, 4, value_size, max_entries, self)

    def run(self, task: HostTask, memory: HostMemory, program: bytes = WALKER_ENTRY) -> bytes | None:
        """Run a program on a thread; return the trace record it sends, or None if it sends none.

        A record of the walker has up to 2600 frames, one of the chain 128.
        """
        self._resource.check()
        if lib.host_run(self._host, program, _host_task(task), memory.struct):
            raise KeyError(f"the host build has no program {program.decode()}")
        return self._output()

    def run_context(self, context: int, task: HostTask, memory: HostMemory) -> bytes | None:
        """Walk the Ruby stack of an execution context, as `run` does; None if the process has no Ruby.

        There are no native frames: `task` needs no registers, and the process need not be stopped.
        """
        self._resource.check()
        if lib.host_run_context(self._host, context, _host_task(task), memory.struct):
            return None
        return self._output()

    def run_steady(self, context: int, task: HostTask, memory: HostMemory, attempts: int) -> bytes | None:
        """Walk the Ruby stack of a context as `run_context` does, while its thread runs.

        What calls and returns change is copied first, at one moment, up to `attempts` times until it held
        still (some microseconds each). None: it never did, cannot be read, or is no stack.
        """
        self._resource.check()
        if self._scratch is None:
            self._scratch = ffi.new("u8[]", lib.host_steady_size())
        if lib.host_run_steady(self._host, context, _host_task(task), memory.struct, self._scratch, attempts):
            return None
        return self._output()

    def _output(self) -> bytes | None:
        length = ffi.new("size_t *")
        output = lib.host_output(self._host, length)
        return bytes(ffi.buffer(output, length[0])) if length[0] else None

    def close(self) -> None:
        """Free everything. Twice is harmless."""
        self._resource.close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._resource.closed

    def __enter__(self) -> HostedCollection:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _host_task(task: HostTask) -> Any:
    return ffi.new(
        "host_task *",
        {
            "pid": task.pid,
            "tid": task.tid,
            "ktime": task.ktime,
            "thread_pointer": task.thread_pointer,
            "registers": list(task.registers),
            "comm": task.comm.encode(errors="surrogateescape")[:15],
        },
    )
