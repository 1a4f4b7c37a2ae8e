# SPDX-License-Identifier: Apache-2.0
"""Layout: the offsets of one series of Ruby releases on one architecture."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Layout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Byte offsets and sizes inside CRuby's structs, 64 bit, little endian.

    A prefix names the struct (the file is CRuby's). None: the version has no such member, or nothing
    reads it there. Values come from the struct definitions of the release tags, see series.py.
    """

    series: tuple[int, int]
    """Major and minor version."""

    # struct rb_execution_context_struct, vm_core.h. The stack size counts VALUEs, not bytes.
    ec_vm_stack: int
    ec_vm_stack_size: int
    ec_cfp: int
    ec_thread_ptr: int

    # struct rb_control_frame_struct, vm_core.h.
    cfp_pc: int
    cfp_iseq: int
    cfp_self: int
    cfp_ep: int
    cfp_jit_return: int | None
    cfp_size: int

    # struct rb_iseq_struct, vm_core.h.
    iseq_body: int

    # struct rb_iseq_constant_body, vm_core.h; its location is a struct rb_iseq_location_struct (below),
    # insns_info a struct iseq_insn_info. In 2.5 the three are insns_info (pointer) and insns_info_size.
    body_type: int
    body_iseq_size: int
    body_iseq_encoded: int
    body_location: int
    body_insns_info: int
    body_insns_info_size: int
    body_succ_index_table: int | None
    body_parent_iseq: int
    body_local_iseq: int

    # struct rb_iseq_location_struct, vm_core.h.
    location_pathobj: int
    location_base_label: int
    location_label: int

    # struct iseq_insn_info_entry, iseq.h. Only 2.5 keeps the position in the entry.
    insn_entry_size: int
    insn_entry_line: int
    insn_entry_position: int | None

    # struct RString, include/ruby/internal/core/rstring.h. Where embedded characters start, and whether
    # their number is in the object (Variable Width Allocation) or in five bits of its flags.
    string_embedded: int
    string_embedded_len_in_object: bool

    # struct rb_method_entry_struct (= rb_callable_method_entry_struct) and rb_method_definition_struct,
    # method.h.
    ment_defined_class: int
    ment_def: int
    ment_owner: int
    def_original_id: int

    # enum ruby_method_ids, id.h: ids up to this one are serials themselves.
    last_operator_id: int

    # rb_symbols_t, symbol.c: last_id, and the array of symbols.
    symbols_last_id: int
    symbols_ids: int
    symbols_name: str
    """The (local) variable that holds the symbol table."""

    # struct RClass, internal/class.h, up to 3.1: its pointer to rb_classext_t, and there iv_tbl.
    class_ext: int | None
    classext_variables: int | None

    # struct RClass and rb_classext_t, internal/class.h, from 3.3 on: both offsets from the class itself.
    class_classpath: int | None
    class_attached_object: int | None
    class_singleton_flag: int | None

    # struct rb_vm_struct and rb_thread_struct, vm_core.h; struct rb_ractor_struct, ractor_core.h.
    vm_main_ractor: int | None
    vm_main_thread: int
    vm_objspace: int
    objspace_flags: int | None
    thread_vm: int
    thread_ractor: int | None
    thread_pthread: int | None
    """rb_thread_struct.thread_id, a pthread_t. From 3.0 on nothing needs it."""
    thread_ec: int
    ractor_running_ec: int | None
    threads: int
    """Head of the list of threads: living_threads of the VM, or from 3.0 on threads.set of a ractor. The list
    runs through the first member of rb_thread_struct (vmlt_node, lt_node)."""
    thread_tid: int | None
    """The kernel's id of the thread: in rb_thread_struct (3.1), or where `thread_native` points."""
    thread_native: int | None
    """rb_thread_struct.nt, a struct rb_native_thread (thread_pthread.h), from 3.2 on."""
    thread_name: int

    qualified_labels: bool
    """Thread::Backtrace::Location#label names the class (3.4)."""

    folded_rescues: bool
    """A backtrace leaves out the frame below one of a rescue or ensure clause: they are the same code (3.4,
    rb_ec_partial_backtrace_object in vm_backtrace.c)."""

    context_symbol: str
    """The variable through which an execution context is found without TLS."""

    interpreter_symbol: str
    """The function whose range is the interpreter loop's for the native unwinder."""

    @property
    def name(self) -> str:
        """The series as text: "3.1"."""
        return f"{self.series[0]}.{self.series[1]}"
