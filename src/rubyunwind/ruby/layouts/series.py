# SPDX-License-Identifier: Apache-2.0
"""The layouts of Ruby 2.5 to 4.0 as data: each series is the one before plus what its release changed.

Every value was computed from the structs of the release tags v2_5_0 ... v4.0.6 (offsetof on x86_64, all 89
releases); inside a series only the members named in PATCHES ever moved.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rubyunwind.ruby.layouts.layout import Layout

__all__ = ["AARCH64_SHIFT", "LAST_PATCH", "PATCHES", "SERIES"]

# v2_5_0: the first release with rb_execution_context_struct on its own (vm_core.h).
_V2_5 = Layout(
    series=(2, 5),
    ec_vm_stack=0,
    ec_vm_stack_size=8,
    ec_cfp=16,
    ec_thread_ptr=72,
    cfp_pc=0,
    cfp_iseq=16,
    cfp_self=24,
    cfp_ep=32,
    cfp_jit_return=None,
    cfp_size=48,
    iseq_body=16,
    body_type=0,
    body_iseq_size=4,
    body_iseq_encoded=8,
    body_location=64,
    body_insns_info=112,
    body_insns_info_size=200,
    body_succ_index_table=None,
    body_parent_iseq=136,
    body_local_iseq=144,
    location_pathobj=0,
    location_base_label=8,
    location_label=16,
    insn_entry_size=12,
    insn_entry_line=4,
    insn_entry_position=0,
    string_embedded=16,
    string_embedded_len_in_object=False,
    ment_defined_class=8,
    ment_def=16,
    ment_owner=32,
    def_original_id=32,
    last_operator_id=166,
    symbols_last_id=0,
    symbols_ids=16,
    symbols_name="global_symbols",
    class_ext=24,
    classext_variables=8,
    class_classpath=None,
    class_attached_object=None,
    class_singleton_flag=1 << 12,
    vm_main_ractor=None,
    vm_main_thread=280,
    vm_objspace=1168,
    objspace_flags=None,
    thread_vm=24,
    thread_ractor=None,
    thread_pthread=72,
    thread_ec=32,
    ractor_running_ec=None,
    threads=312,
    thread_tid=None,
    thread_native=None,
    thread_name=560,
    qualified_labels=False,
    folded_rescues=False,
    context_symbol="ruby_current_execution_context_ptr",
    interpreter_symbol="ruby_exec_node",
)

# v2_6_0: rb_control_frame_struct gains bp; instruction positions move into a succinct bit vector
# (rb_iseq_constant_body.insns_info); the context loses the safe level and other members.
_V2_6 = replace(
    _V2_5,
    series=(2, 6),
    thread_name=512,
    ec_thread_ptr=56,
    cfp_size=56,
    body_insns_info=120,
    body_insns_info_size=136,
    body_succ_index_table=144,
    body_parent_iseq=168,
    body_local_iseq=176,
    insn_entry_size=8,
    insn_entry_line=0,
    insn_entry_position=None,
    last_operator_id=164,
    vm_main_thread=192,
    vm_objspace=1224,
    interpreter_symbol="rb_vm_exec",
)

# v2_7_0: the symbol table's variable is renamed.
_V2_7 = replace(
    _V2_6,
    series=(2, 7),
    thread_name=520,
    last_operator_id=168,
    symbols_name="ruby_global_symbols",
    vm_objspace=1152,
    objspace_flags=16,
)

# v3_0_0: ractors; the global context pointer is gone.
_V3_0 = replace(
    _V2_7,
    series=(3, 0),
    threads=304,
    thread_name=544,
    vm_main_ractor=32,
    vm_main_thread=40,
    vm_objspace=1088,
    thread_vm=32,
    thread_ractor=24,
    thread_pthread=None,
    thread_ec=40,
    ractor_running_ec=520,
    context_symbol="ruby_single_main_ractor",
)

# v3_1_0: rb_control_frame_struct gains jit_return, iseq_insn_info_entry a node id.
_V3_1 = replace(
    _V3_0,
    series=(3, 1),
    thread_tid=88,
    thread_name=352,
    ec_thread_ptr=48,
    cfp_jit_return=56,
    cfp_size=64,
    insn_entry_size=12,
    last_operator_id=169,
    vm_objspace=1104,
)

# v3_2_0: Variable Width Allocation for strings (RString.len); rb_iseq_location_struct.first_lineno is
# an int, which moves the rest of the body up; instance variables of classes have shapes.
_V3_2 = replace(
    _V3_1,
    series=(3, 2),
    thread_tid=16,
    thread_native=40,
    thread_name=304,
    body_insns_info=112,
    body_insns_info_size=128,
    body_succ_index_table=136,
    body_parent_iseq=160,
    body_local_iseq=168,
    string_embedded=24,
    string_embedded_len_in_object=True,
    class_ext=None,
    classext_variables=None,
    vm_objspace=1128,
    thread_ec=48,
)

# v3_3_0: bp is removed again; rb_classext_t lies behind RClass (32 bytes) in the object: classpath at
# 32 + 120, attached object at 32 + 96.
_V3_3 = replace(
    _V3_2,
    series=(3, 3),
    threads=256,
    thread_tid=24,
    thread_name=432,
    cfp_jit_return=48,
    cfp_size=56,
    class_classpath=32 + 120,
    class_attached_object=32 + 96,
    class_singleton_flag=1 << 12,
    vm_objspace=1304,
    ractor_running_ec=384,
)

# v3_4_0: labels name the class, and a rescue or ensure clause is one frame with its method; FL_SINGLETON
# becomes FL_USER1 (internal/class.h); the collector is modular (rb_vm_struct.gc.objspace).
_V3_4 = replace(
    _V3_3,
    series=(3, 4),
    thread_name=448,
    last_operator_id=170,
    class_singleton_flag=1 << 13,
    vm_objspace=1296,
    objspace_flags=20,
    qualified_labels=True,
    folded_rescues=True,
)

# v4.0.0: rb_classext_t starts at 24, with the classpath at 128 and the attached object at 112 in it.
_V4_0 = replace(
    _V3_4,
    series=(4, 0),
    threads=184,
    body_parent_iseq=168,
    body_local_iseq=176,
    last_operator_id=171,
    class_classpath=24 + 128,
    class_attached_object=24 + 112,
    vm_objspace=1248,
    objspace_flags=28,
    ractor_running_ec=312,
)

SERIES = {layout.series: layout for layout in (_V2_5, _V2_6, _V2_7, _V3_0, _V3_1, _V3_2, _V3_3, _V3_4, _V4_0)}
"""Layouts of the .0 releases on x86_64."""

LAST_PATCH = {
    (2, 5): 9,
    (2, 6): 10,
    (2, 7): 8,
    (3, 0): 7,
    (3, 1): 7,
    (3, 2): 11,
    (3, 3): 12,
    (3, 4): 11,  # that one by Debian's package, run live
    (4, 0): 6,
}
"""The newest patch release of each series whose structs were looked at, or held against the running Ruby."""

PATCHES: dict[tuple[int, int], tuple[tuple[int, dict[str, Any]], ...]] = {
    # rb_vm_struct (vm_core.h) grew before objspace.
    (2, 5): ((4, {"vm_objspace": 1176, "threads": 320}),),
    (3, 1): ((5, {"vm_objspace": 1112}),),
    (3, 2): ((3, {"vm_objspace": 1136}), (4, {"vm_objspace": 1144})),
    # v4.0.6: rb_thread_sched (thread_pthread.h) grew by eight bytes; it lies in both structs.
    (4, 0): ((6, {"ractor_running_ec": 320, "vm_objspace": 1256, "thread_name": 456}),),
}
"""Members that moved inside a series, from the patch release on that is named."""

AARCH64_SHIFT: dict[str, int] = {
    # glibc's pthread_mutex_t has 48 bytes there and 40 on x86_64: two lie before running_ec in
    # rb_ractor_struct, three before objspace in rb_vm_struct.
    "ractor_running_ec": 16,
    "vm_objspace": 24,
}
"""What aarch64 adds to members behind mutexes."""
