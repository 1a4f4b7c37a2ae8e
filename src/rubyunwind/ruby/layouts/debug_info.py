# SPDX-License-Identifier: Apache-2.0
"""Where the members of Ruby's structs lie by a file's own debug information, which decides where it is there.

A release has the structs of its tag, unless it was patched or configured in another way (VM_DEBUG_BP_CHECK
adds to each control frame, say); only the compiler's own word tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rubyunwind.elf.dwarf import DebugInfo, Struct
from rubyunwind.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rubyunwind.elf.file import ElfFile

__all__ = ["check_offsets", "offsets_of"]

_EC, _CFP, _THREAD = "rb_execution_context_struct", "rb_control_frame_struct", "rb_thread_struct"
_BODY, _LOCATION, _ENTRY = "rb_iseq_constant_body", "rb_iseq_location_struct", "iseq_insn_info_entry"
_VM, _RACTOR, _NATIVE = "rb_vm_struct", "rb_ractor_struct", "rb_native_thread"
_CLASS = "RClass_and_rb_classext_t"

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
    "cfp_jit_return": ((_CFP, "jit_return"),),
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
    "string_embedded": (("RString", "as.embed.ary"),),
    "ment_defined_class": (("rb_callable_method_entry_struct", "defined_class"),),
    "ment_def": (("rb_callable_method_entry_struct", "def"),),
    "ment_owner": (("rb_callable_method_entry_struct", "owner"),),
    "def_original_id": (("rb_method_definition_struct", "original_id"),),
    "class_classpath": ((_CLASS, "classext.classpath"),),
    "class_attached_object": ((_CLASS, "classext.as.singleton_class.attached_object"),),
    "vm_main_ractor": ((_VM, "ractor.main_ractor"),),
    "vm_main_thread": ((_VM, "ractor.main_thread"), (_VM, "main_thread")),
    "vm_objspace": ((_VM, "gc.objspace"), (_VM, "objspace")),
    "thread_vm": ((_THREAD, "vm"),),
    "thread_ec": ((_THREAD, "ec"),),
    "thread_ractor": ((_THREAD, "ractor"),),
    "thread_name": ((_THREAD, "name"),),
    "thread_native": ((_THREAD, "nt"),),
    "thread_tid": ((_NATIVE, "tid"), (_THREAD, "tid")),
    "ractor_running_ec": ((_RACTOR, "threads.running_ec"),),
    "threads": ((_RACTOR, "threads.set"), (_VM, "living_threads")),
}
_WANTED = {struct.encode(): struct for places in _MEMBERS.values() for struct, _ in places}
# Without these nothing is read right.
_NEEDED = {_EC, _CFP, _BODY}
# vm.c includes all headers that have them.
_SOURCE = b"vm.c"

# No struct of Ruby's is larger; and the members that RubyProcInfo (support/ebpf/types.h) has a byte for.
_MOST = 0xFFFF
_MOST_IN_A_BYTE = 0xFF
_BYTES = {
    "ec_vm_stack", "ec_vm_stack_size", "ec_cfp", "cfp_pc", "cfp_iseq", "cfp_ep", "cfp_size", "iseq_body",
    "body_type", "body_iseq_encoded", "body_iseq_size",
}  # fmt: skip


def offsets_of(file: ElfFile) -> dict[str, int] | None:
    """Return the members of Layout that a file's DWARF tells; None if it has none of Ruby's structs.

    `file` is the program's or its separate debug file; it stays open. Raises DecodeError for one that cannot
    be read, that is too large to look through, or in which members lie where none can be.
    """
    if file.section(".debug_info") is None:
        return None
    info = DebugInfo(file)
    structs = _structs(info)
    if not structs.keys() >= _NEEDED:
        return None
    found: dict[str, int] = {}
    for name, places in _MEMBERS.items():
        for struct, path in places:
            if struct not in structs:
                continue
            offset = info.offset(structs[struct], path) if path else info.size(structs[struct])
            if offset is not None:
                found[name] = offset
                break
    check_offsets(found)
    return found


def check_offsets(offsets: Mapping[str, int]) -> None:
    """Raise DecodeError for what cannot be a layout of Ruby's."""
    for name, offset in offsets.items():
        if name not in _MEMBERS or not 0 <= offset <= (_MOST_IN_A_BYTE if name in _BYTES else _MOST):
            raise DecodeError(f"its debug information says that {name} is {offset}, which cannot be")
    if offsets.get("cfp_size", 8) % 8 or not offsets.get("cfp_size", 8):
        raise DecodeError(f"its debug information says that a control frame has {offsets['cfp_size']} bytes")


def _structs(info: DebugInfo) -> dict[str, Struct]:
    """Return the wanted structs of vm.c's unit, and of those that it shares with others (which dwz makes)."""
    found: dict[str, Struct] = {}
    shared = []
    for unit in info.units:
        source, is_shared = info.source(unit)
        if is_shared:
            shared.append(unit)
        elif source.rpartition(b"/")[2] == _SOURCE:
            found = _named(info.structs(unit, _WANTED))
            break
    for unit in shared:
        if found.keys() >= set(_WANTED.values()):
            break
        found = _named(info.structs(unit, _WANTED)) | found
    return found


def _named(structs: Mapping[bytes, Struct]) -> dict[str, Struct]:
    return {_WANTED[name]: struct for name, struct in structs.items()}
