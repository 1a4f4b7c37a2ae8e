# SPDX-License-Identifier: Apache-2.0
"""An eBPF object as parsed: maps and programs that can be looked at and edited, on any machine.

Neither kernel nor libbpf is touched until `CollectionSpec.load`.
"""

from __future__ import annotations

import os
from collections.abc import Collection as Names
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rubyunwind.bpf.btf import Btf, MapDefinition
from rubyunwind.bpf.kinds import MapType, ProgramType
from rubyunwind.bpf.objectfile import INSTRUCTION_SIZE, Function, ObjectFile
from rubyunwind.errors import DecodeError, NotSupported

if TYPE_CHECKING:
    from rubyunwind.bpf.collection import Collection

__all__ = ["LONG_SUFFIX", "CollectionSpec", "MapSpec", "ProgramSpec", "load_collection_spec", "machine_arch"]

# A program NAME_long of the legacy object does more at a run than NAME, in the same slot of `progs`.
LONG_SUFFIX = "_long"
# Maps of programs that few ask for, of many megabytes: created where they are given a size.
_ON_REQUEST = "off_cpu_"
_ARCHES = {"x86_64": "amd64", "aarch64": "arm64", "amd64": "amd64", "arm64": "arm64"}
# Section names, up to the first slash, and the program type they stand for (as libbpf has them).
_SECTION_TYPES = {
    "perf_event": ProgramType.PERF_EVENT,
    "raw_tp": ProgramType.RAW_TRACEPOINT,
    "raw_tracepoint": ProgramType.RAW_TRACEPOINT,
    "tp": ProgramType.TRACEPOINT,
    "tracepoint": ProgramType.TRACEPOINT,
    "kprobe": ProgramType.KPROBE,
    "kretprobe": ProgramType.KPROBE,
    "uprobe": ProgramType.KPROBE,
    "uretprobe": ProgramType.KPROBE,
}


@dataclass(slots=True)
class MapSpec:
    """A map to be created. Sizes in bytes; every field but `name` may be edited before the load.

    `max_entries` 0 means one per possible CPU for perf event arrays. `inner` is the template that the
    kernel checks inner maps against. `create` False leaves the map out (programs that use it must be
    left out too); it begins as whether any program of the object uses the map.
    """

    name: str
    type: int
    key_size: int
    value_size: int
    max_entries: int
    flags: int = 0
    inner: MapSpec | None = None
    create: bool = True

    @classmethod
    def from_definition(cls, definition: MapDefinition) -> MapSpec:
        """Copy what the object's BTF says; programs and maps as values are u32 descriptors."""
        inner = cls.from_definition(definition.inner) if definition.inner else None
        is_table = definition.has_programs or inner is not None
        return cls(
            definition.name,
            MapType.of(definition.type),
            definition.key_size or (4 if is_table else 0),
            definition.value_size or (4 if is_table else 0),
            definition.max_entries,
            definition.flags,
            inner,
        )


@dataclass(slots=True)
class ProgramSpec:
    """A program of the object, before relocation. `load` False leaves it out of the load."""

    name: str
    section: str
    type: int
    instructions: bytes = field(repr=False)
    license: str
    load: bool = True

    @property
    def instruction_count(self) -> int:
        """Instructions in the program itself, without the subprograms that libbpf appends."""
        return len(self.instructions) // INSTRUCTION_SIZE


@dataclass(slots=True)
class CollectionSpec:
    """A parsed object: its maps and programs by name, its type information, and its bytes."""

    name: str
    maps: dict[str, MapSpec]
    programs: dict[str, ProgramSpec]
    btf: Btf = field(repr=False)
    data: bytes = field(repr=False)
    arch: str | None = None

    @classmethod
    def parse(cls, data: bytes, *, name: str = "object", arch: str | None = None) -> CollectionSpec:
        """Parse the bytes of an eBPF object. Raises DecodeError for anything else, cut or damaged."""
        try:
            return cls._parse(data, name, arch)
        except DecodeError as error:
            raise DecodeError(
                f"{name}: {error}. Build it again (make ebpf), or install the package again."
            ) from None

    @classmethod
    def _parse(cls, data: bytes, name: str, arch: str | None) -> CollectionSpec:
        elf = ObjectFile.parse(data)
        if elf.find("maps"):
            raise DecodeError("it declares maps in a legacy 'maps' section, expected BTF maps in '.maps'")
        section = elf.find(".BTF")
        if section is None:
            raise DecodeError(f"it has no .BTF section among {len(elf.sections)} (compile with -g)")
        btf = Btf.parse(bytes(section.data))
        maps = {item.name: MapSpec.from_definition(item) for item in btf.map_definitions()}
        used = elf.referenced()
        for item in maps.values():
            item.create = item.name in used and not item.name.startswith(_ON_REQUEST)
        text = elf.license()
        programs = {
            item.name: ProgramSpec(
                item.name,
                item.section,
                _type_of(item),
                item.instructions,
                text,
                # A leading "?" is libbpf's mark for programs that are loaded on request only.
                load=not item.section.startswith("?"),
            )
            for item in elf.functions()
            # Functions in .text are subprograms; programs have sections of their own.
            if item.section != ".text" and item.is_global
        }
        if not programs:
            raise DecodeError("it holds no program")
        return cls(name, maps, programs, btf, data, arch)

    def load(
        self,
        *,
        max_entries: Mapping[str, int] | None = None,
        without_maps: Names[str] = (),
        without_programs: Names[str] = (),
    ) -> Collection:
        """Create the maps and load the programs; the Collection owns every descriptor.

        `max_entries` overrides sizes by map name (a map that is given a size is created), `without_maps`
        and `without_programs` leave things out, for this load only.
        Raises BpfError (verifier failures with `.log`), NotSupported where rights or libbpf are
        missing or the object is for another architecture, and KeyError for names that are not there.
        """
        from rubyunwind.bpf.collection import Collection  # the only way in to libbpf

        return Collection(
            self,
            max_entries=dict(max_entries or {}),
            without_maps=frozenset(without_maps),
            without_programs=frozenset(without_programs),
        )


def _type_of(item: Function) -> int:
    return _SECTION_TYPES.get(item.section.removeprefix("?").split("/")[0], ProgramType.UNSPEC)


def machine_arch(machine: str | None = None) -> str:
    """Return "amd64" or "arm64" for `machine` (default: this one); NotSupported for others."""
    found = machine or os.uname().machine
    arch = _ARCHES.get(found)
    if arch is None:
        raise NotSupported(
            f"no eBPF object exists for {found}: rubyunwind supports x86_64 and aarch64.",
            feature=f"machine {found}",
            needs="x86_64 or aarch64",
        )
    return arch


def load_collection_spec(
    debug_tracer: bool = False, *, arch: str | None = None, path: Path | None = None, legacy: bool = False
) -> CollectionSpec:
    """Parse the tracer's object, release or debug, for `arch` ("amd64", "arm64"; default: this machine's).

    `legacy` takes the build for kernels before 5.10, which has no debug twin (ValueError).
    `path` names another object file; then `arch` is None unless given, and any machine loads it.
    Raises DecodeError if the file is damaged, NotSupported if there is none.
    """
    if path is not None:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise NotSupported(
                f"cannot read the eBPF object {path}: {error.strerror}",
                feature="eBPF object",
                needs=str(path),
            ) from error
        return CollectionSpec.parse(data, name=path.name, arch=machine_arch(arch) if arch else None)
    arch = machine_arch(arch)
    if legacy and debug_tracer:
        raise ValueError(
            "there is no debug build of the legacy programs: the texts of its prints need Linux 5.2"
        )
    name = f"tracer.ebpf.{'legacy' if legacy else 'debug' if debug_tracer else 'release'}.{arch}.o"
    return CollectionSpec.parse(_object_bytes(name), name=name, arch=arch)


def _object_bytes(name: str) -> bytes:
    path = Path(__file__).parent.parent / "objects" / name
    if path.is_file():
        return path.read_bytes()
    # An editable install keeps built files elsewhere and knows where; 36 ms, so only then.
    from importlib import resources

    installed = resources.files("rubyunwind").joinpath("objects", name)
    if installed.is_file():
        return installed.read_bytes()
    raise NotSupported(
        f"the eBPF object {name} is not built: {path} does not exist. In a source tree run `make ebpf` "
        "(needs clang 14 or newer); an installed package without it is broken, install it again.",
        feature="eBPF object",
        needs="make ebpf",
    )
