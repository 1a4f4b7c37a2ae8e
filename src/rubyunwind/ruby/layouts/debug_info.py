# SPDX-License-Identifier: Apache-2.0
"""A layout from debug information: for a Ruby that no release's layout is known to fit.

Reading DWARF takes seconds, so the releases, whose structs are known, do not wait for it.
"""

from __future__ import annotations

import io
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from rubyunwind.errors import DecodeError

if TYPE_CHECKING:
    from rubyunwind.elf.file import ElfFile
    from rubyunwind.ruby.layouts.layout import Layout

__all__ = ["layout_from_debug_info"]

_EC, _CFP, _THREAD = "rb_execution_context_struct", "rb_control_frame_struct", "rb_thread_struct"
_BODY, _LOCATION, _ENTRY = "rb_iseq_constant_body", "rb_iseq_location_struct", "iseq_insn_info_entry"
_VM, _RACTOR = "rb_vm_struct", "rb_ractor_struct"

# Members of Layout, and the member of CRuby's structs (vm_core.h, ractor_core.h, iseq.h, method.h) that each
# is the offset of. A dot leads into a struct inside, "" means the size. The first one that is there counts.
_MEMBERS: dict[str, tuple[tuple[str, str], ...]] = {
    "ec_vm_stack": ((_EC, "vm_stack"),),
    "ec_vm_stack_size": ((_EC, "vm_stack_size"),),
    "ec_cfp": ((_EC, "cfp"),),
    "ec_thread_ptr": ((_EC, "thread_ptr"),),
    "cfp_pc": ((_CFP, "pc"),),
    "cfp_iseq": ((_CFP, "iseq"), (_CFP, "_iseq")),
    "cfp_self": ((_CFP, "self"),),
    "cfp_ep": ((_CFP, "ep"),),
    "cfp_size": ((_CFP, ""),),
    "iseq_body": (("rb_iseq_struct", "body"),),
    "body_type": ((_BODY, "type"),),
    "body_iseq_size": ((_BODY, "iseq_size"),),
    "body_iseq_encoded": ((_BODY, "iseq_encoded"),),
    "body_location": ((_BODY, "location"),),
    "body_insns_info": ((_BODY, "insns_info.body"),),
    "body_insns_info_size": ((_BODY, "insns_info.size"),),
    "body_succ_index_table": ((_BODY, "insns_info.succ_index_table"),),
    "body_parent_iseq": ((_BODY, "parent_iseq"),),
    "body_local_iseq": ((_BODY, "local_iseq"),),
    "location_pathobj": ((_LOCATION, "pathobj"),),
    "location_base_label": ((_LOCATION, "base_label"),),
    "location_label": ((_LOCATION, "label"),),
    "insn_entry_size": ((_ENTRY, ""),),
    "insn_entry_line": ((_ENTRY, "line_no"),),
    "ment_defined_class": (("rb_callable_method_entry_struct", "defined_class"),),
    "ment_def": (("rb_callable_method_entry_struct", "def"),),
    "ment_owner": (("rb_callable_method_entry_struct", "owner"),),
    "def_original_id": (("rb_method_definition_struct", "original_id"),),
    "vm_main_ractor": ((_VM, "ractor.main_ractor"),),
    "vm_main_thread": ((_VM, "ractor.main_thread"), (_VM, "main_thread")),
    "vm_objspace": ((_VM, "gc.objspace"), (_VM, "objspace")),
    "thread_vm": ((_THREAD, "vm"),),
    "thread_ec": ((_THREAD, "ec"),),
    "thread_ractor": ((_THREAD, "ractor"),),
    "thread_name": ((_THREAD, "name"),),
    "thread_native": ((_THREAD, "nt"),),
    "ractor_running_ec": ((_RACTOR, "threads.running_ec"),),
    "threads": ((_RACTOR, "threads.set"), (_VM, "living_threads")),
}
_WANTED = {struct for places in _MEMBERS.values() for struct, _ in places}
# Without these nothing is read right.
_NEEDED = {_EC, _CFP, _BODY}
# The file is the profiled process's to choose: it does not keep us for longer (seconds).
_PATIENCE = 10.0


class _Stream(io.RawIOBase):
    """An ElfFile as pyelftools reads files. Reads what lies behind the end as nothing."""

    def __init__(self, elf: ElfFile) -> None:
        self._elf = elf
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + (0, self._at, self._elf.size)[whence])
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._elf.size - self._at)
        data = self._elf.read(self._at, left if size < 0 else min(size, left)) if left else b""
        self._at += len(data)
        return data


def layout_from_debug_info(file: ElfFile, base: Layout) -> Layout | None:
    """Return `base` with the offsets that a file's DWARF has; None if it has none of Ruby's structs.

    `file` is the program's or its separate debug file; it stays open. Members that the DWARF does not have
    stay as they are in `base`. Raises DecodeError for one that cannot be read, or not in ten seconds.
    """
    from elftools.common.exceptions import DWARFError, ELFError
    from elftools.elf.elffile import ELFFile

    try:
        elf = ELFFile(cast("Any", _Stream(file)))
        if not elf.has_dwarf_info(strict=True):
            return None
        structs = _structs(elf.get_dwarf_info(relocate_dwarf_sections=False))
        if not structs.keys() >= _NEEDED:
            return None
        found: dict[str, Any] = {}
        for name, places in _MEMBERS.items():
            for struct, path in places:
                offset = _offset(structs[struct], path) if struct in structs else None
                if offset is not None:
                    found[name] = offset
                    break
        return replace(base, **found)
    except (DWARFError, ELFError, KeyError, ValueError, RecursionError) as error:
        raise DecodeError(f"its debug information cannot be read: {error}") from None


def _structs(dwarf: Any) -> dict[str, Any]:
    """Return the DIEs of the wanted structs, from the unit that has most: vm.c includes all headers."""
    found: dict[str, Any] = {}
    end = time.monotonic() + _PATIENCE

    def check_time() -> None:
        if time.monotonic() > end:
            raise DecodeError(f"its debug information was not read within {_PATIENCE:.0f} seconds")

    for unit in dwarf.iter_CUs():
        check_time()
        top = unit.get_top_DIE()
        name = top.attributes.get("DW_AT_name")
        if name is None or not name.value.endswith(b"vm.c"):
            continue
        for die in top.iter_children():
            check_time()
            attributes = die.attributes
            if die.tag != "DW_TAG_structure_type" or "DW_AT_declaration" in attributes:
                continue
            named = attributes.get("DW_AT_name")
            text = named.value.decode("utf-8", "replace") if named is not None else ""
            if text in _WANTED:
                found.setdefault(text, die)
        if found.keys() >= _NEEDED:
            break
    return found


def _offset(struct: Any, path: str) -> int | None:
    """Return the offset of a member in bytes, or the size of the struct for the path ""; None: none."""
    if not path:
        return int(struct.attributes["DW_AT_byte_size"].value)
    first, _, rest = path.partition(".")
    for member in struct.iter_children():
        name = member.attributes.get("DW_AT_name")
        if member.tag != "DW_TAG_member":
            continue
        location = member.attributes.get("DW_AT_data_member_location")
        start = int(location.value) if location is not None else 0  # of a union all begin at 0
        if name is None:
            # Members of a struct without a name count as those of the struct around it.
            inner = _offset(_struct_of(member), path)
            if inner is not None:
                return start + inner
        elif name.value.decode("utf-8", "replace") == first:
            if not rest:
                return start
            inner = _offset(_struct_of(member), rest)
            return None if inner is None else start + inner
    return None


def _struct_of(member: Any) -> Any:
    """Return the struct or union that a member is, behind typedefs and qualifiers."""
    die = member.get_DIE_from_attribute("DW_AT_type")
    while die.tag in ("DW_TAG_typedef", "DW_TAG_const_type", "DW_TAG_volatile_type"):
        die = die.get_DIE_from_attribute("DW_AT_type")
    return die
