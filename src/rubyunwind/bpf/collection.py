# SPDX-License-Identifier: Apache-2.0
"""A loaded object: maps and programs in the kernel, owned by one context manager."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Set
from typing import Any

from rubyunwind._libbpf import ffi
from rubyunwind.bpf import messages
from rubyunwind.bpf.compound_maps import ProgArray
from rubyunwind.bpf.kinds import MapFlag, MapType
from rubyunwind.bpf.library import load_library
from rubyunwind.bpf.lifetime import Resource
from rubyunwind.bpf.map_factory import create_array, create_map, wrap_map
from rubyunwind.bpf.maps import Map
from rubyunwind.bpf.program import Program
from rubyunwind.bpf.refusals import check, check_pointer
from rubyunwind.bpf.spec import LONG_SUFFIX, CollectionSpec, MapSpec, machine_arch
from rubyunwind.bpf.verifier import LOG_SIZE, load_failure
from rubyunwind.errors import NotSupported

__all__ = ["Collection"]

_MAP_TABLES = (MapType.ARRAY_OF_MAPS, MapType.HASH_OF_MAPS)
TAIL_CALL_MAP = "progs"
TAIL_CALL_PREFIX = "unwind_"


class Collection:
    """Maps and programs by name. Get one from `CollectionSpec.load`.

    Owns every descriptor of the object and the links made from its programs; `close` (or leaving the
    `with` block) frees them all. Maps and programs taken from it keep it alive, and refuse use with
    LifetimeError after it is closed or in a forked child. Not thread-safe while it is being closed.
    """

    maps: Mapping[str, Map]
    programs: Mapping[str, Program]

    def __init__(
        self,
        spec: CollectionSpec,
        *,
        max_entries: Mapping[str, int],
        without_maps: Set[str],
        without_programs: Set[str],
    ) -> None:
        _refuse_unknown(spec, max_entries, without_maps, without_programs)
        _refuse_foreign(spec)
        library = load_library()
        lib = library.lib
        self.name = spec.name
        # Pages of the log are touched only if a load fails.
        with mmap.mmap(-1, LOG_SIZE) as log, messages.capture() as printed:
            pointer = _open(lib, spec, log)
            self._resource = Resource(
                f"collection {spec.name}", lambda: lib.bpf_object__close(pointer), owner=self
            )
            try:
                with _Templates() as templates:
                    _prepare_programs(lib, pointer, spec, without_programs)
                    _prepare_maps(lib, pointer, spec, max_entries, without_maps, templates)
                    result = lib.bpf_object__load(pointer)
                if result < 0:
                    counts = {p.name: p.instruction_count for p in spec.programs.values()}
                    raise load_failure(-result, spec.name, _log_text(log), printed, counts)
                self.programs = {p.name: p for p in self._loaded_programs(lib, pointer)}
                self.maps = {m.name: m for m in self._created_maps(lib, pointer, spec)}
                self._fill_tail_calls()
            except BaseException:
                self.close()
                raise

    def __repr__(self) -> str:
        state = "closed" if self._resource.closed else f"{len(self.programs)} programs, {len(self.maps)} maps"
        return f"Collection({self.name!r}, {state})"

    def create_array(
        self, max_entries: int, value_size: int, flags: int = MapFlag.INNER_MAP, *, name: str = ""
    ) -> Map:
        """Create an array to be put into a map of maps; it owns its descriptor. See map_factory."""
        return create_array(max_entries, value_size, flags, name=name)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._resource.closed

    def close(self) -> None:
        """Detach links, free programs, maps and their descriptors. Closing twice is harmless."""
        self._resource.close()

    def __enter__(self) -> Collection:
        self._resource.check()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _loaded_programs(self, lib: Any, pointer: Any) -> list[Program]:
        return [
            Program(lib, program, _name(lib.bpf_program__name(program)), section, self._resource, self)
            for program in _each(lib.bpf_object__next_program, pointer)
            if lib.bpf_program__fd(program) >= 0
            for section in [_name(lib.bpf_program__section_name(program))]
        ]

    def _created_maps(self, lib: Any, pointer: Any, spec: CollectionSpec) -> list[Map]:
        return [
            wrap_map(
                lib,
                int(lib.bpf_map__fd(item)),
                template=spec.maps[name].inner if name in spec.maps else None,
                name=name,
                kind=int(lib.bpf_map__type(item)),
                key_size=int(lib.bpf_map__key_size(item)),
                value_size=int(lib.bpf_map__value_size(item)),
                max_entries=int(lib.bpf_map__max_entries(item)),
                flags=int(lib.bpf_map__map_flags(item)),
                resource=self._resource,
                keep=self,
            )
            for item in _each(lib.bpf_object__next_map, pointer)
            for name in [_name(lib.bpf_map__name(item))]
            # From 1.4 on a map that is left out has a descriptor too, of nothing.
            if lib.bpf_map__autocreate(item) and lib.bpf_map__fd(item) >= 0
        ]

    def _fill_tail_calls(self) -> None:
        """Put each unwind_NAME program, or unwind_NAME_long, into slot PROG_UNWIND_NAME of `progs`."""
        from rubyunwind._native import lib as constants

        table = self.maps.get(TAIL_CALL_MAP)
        if not isinstance(table, ProgArray):
            return
        for name, program in self.programs.items():
            slot = (
                getattr(constants, f"PROG_{name.removesuffix(LONG_SUFFIX).upper()}", None)
                if name.startswith(TAIL_CALL_PREFIX)
                else None
            )
            if slot is not None:
                table[int(slot)] = program


class _Templates:
    """Inner maps that exist only during the load, for the kernel to copy their shape."""

    def __init__(self) -> None:
        self._maps: list[Map] = []

    def make(self, spec: MapSpec) -> int:
        """Create a map of that shape and return its descriptor, valid until the block ends."""
        template = create_map(
            spec.type,
            key_size=spec.key_size,
            value_size=spec.value_size,
            max_entries=spec.max_entries,
            flags=spec.flags,
        )
        self._maps.append(template)
        return template.fd

    def __enter__(self) -> _Templates:
        return self

    def __exit__(self, *exc: object) -> None:
        for item in self._maps:
            item.close()


def _refuse_unknown(
    spec: CollectionSpec, max_entries: Mapping[str, int], without_maps: Set[str], without_programs: Set[str]
) -> None:
    for what, given, known in (
        ("map", set(max_entries) | set(without_maps), spec.maps),
        ("program", set(without_programs), spec.programs),
    ):
        unknown = given - set(known)
        if unknown:
            raise KeyError(
                f"{spec.name} has no {what} {', '.join(sorted(unknown))}; it has {', '.join(known)}"
            )


def _refuse_foreign(spec: CollectionSpec) -> None:
    if spec.arch is not None and spec.arch != machine_arch():
        raise NotSupported(
            f"{spec.name} is compiled for {spec.arch} and reads that machine's registers; this is "
            f"{os.uname().machine}. Load the spec for {machine_arch()}.",
            feature=f"object for {spec.arch}",
            needs=spec.arch,
        )


def _open(lib: Any, spec: CollectionSpec, log: mmap.mmap) -> Any:
    name = ffi.new("char[]", spec.name.split(".")[0].encode(errors="replace"))
    opts = ffi.new("struct bpf_object_open_opts *")
    opts.sz = ffi.sizeof("struct bpf_object_open_opts")
    opts.object_name = name
    # With a buffer of ours libbpf retries a failed load with the log on, and prints none of it.
    opts.kernel_log_buf = ffi.cast("char *", ffi.from_buffer(log))
    opts.kernel_log_size = LOG_SIZE
    pointer = lib.bpf_object__open_mem(spec.data, len(spec.data), opts)
    return check_pointer(pointer, f"open {spec.name}", "libbpf refuses the object")


def _prepare_programs(lib: Any, pointer: Any, spec: CollectionSpec, without: Set[str]) -> None:
    for program in _each(lib.bpf_object__next_program, pointer):
        name = _name(lib.bpf_program__name(program))
        wanted = spec.programs.get(name)
        if wanted is None:
            continue
        check(
            lib.bpf_program__set_autoload(program, wanted.load and name not in without),
            f"select program {name}",
        )
        # libbpf takes "perf_event" only as the whole section name; with a suffix it knows no type.
        if wanted.type and not lib.bpf_program__type(program):
            check(lib.bpf_program__set_type(program, wanted.type), f"set the type of program {name}")


def _prepare_maps(
    lib: Any,
    pointer: Any,
    spec: CollectionSpec,
    sizes: Mapping[str, int],
    without: Set[str],
    templates: _Templates,
) -> None:
    declared = {item.name: MapSpec.from_definition(item) for item in spec.btf.map_definitions()}
    for item in _each(lib.bpf_object__next_map, pointer):
        name = _name(lib.bpf_map__name(item))
        wanted = spec.maps.get(name)
        if wanted is None:  # .rodata and friends
            continue
        if name in without or not (wanted.create or name in sizes):
            check(lib.bpf_map__set_autocreate(item, False), f"leave out map {name}")
            continue
        key_size, value_size, entries = (
            wanted.key_size,
            wanted.value_size,
            sizes.get(name, wanted.max_entries),
        )
        if wanted.type == MapType.PERF_EVENT_ARRAY:
            # Descriptors, one slot a CPU, whatever the object declares.
            key_size, value_size = key_size or 4, value_size or 4
            if name not in sizes:
                entries = check(lib.libbpf_num_possible_cpus(), "count possible CPUs")
        for what, now, new, change in (
            ("entries", lib.bpf_map__max_entries(item), entries, lib.bpf_map__set_max_entries),
            ("key size", lib.bpf_map__key_size(item), key_size, lib.bpf_map__set_key_size),
            ("value size", lib.bpf_map__value_size(item), value_size, lib.bpf_map__set_value_size),
            ("flags", lib.bpf_map__map_flags(item), wanted.flags, lib.bpf_map__set_map_flags),
        ):
            if now != new:
                check(change(item, new), f"set {what} of map {name} to {new}")
        if wanted.type in _MAP_TABLES:
            if wanted.inner is None:
                raise ValueError(
                    f"map {name} is a map of maps without an inner template: set spec.maps[{name!r}].inner "
                    "to a MapSpec of the inner maps' shape"
                )
            # libbpf makes the template that the object declares; only another one is ours to make.
            if name not in declared or declared[name].inner != wanted.inner:
                fd = templates.make(wanted.inner)
                check(lib.bpf_map__set_inner_map_fd(item, fd), f"set the inner template of map {name}")


def _each(following: Any, pointer: Any) -> list[Any]:
    found: list[Any] = []
    item = following(pointer, ffi.NULL)
    while item != ffi.NULL:
        found.append(item)
        item = following(pointer, item)
    return found


def _name(text: Any) -> str:
    return bytes(ffi.string(text)).decode(errors="surrogateescape")


def _log_text(log: mmap.mmap) -> str:
    end = log.find(b"\0")
    return log[: end if end >= 0 else LOG_SIZE].decode(errors="replace")
