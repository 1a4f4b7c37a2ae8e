# SPDX-License-Identifier: Apache-2.0
"""A layout from DWARF: what the compiler says of structs that it has laid out itself."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from rubyunwind.elf.file import ElfFile
from rubyunwind.errors import DecodeError
from rubyunwind.ruby.layouts import Layout, find_layout
from rubyunwind.ruby.layouts.debug_info import layout_from_debug_info

CLANG = shutil.which("clang") or shutil.which("clang-14")
pytestmark = pytest.mark.skipif(CLANG is None, reason="no C compiler to make debug information")

# Structs with CRuby's names, and members at places where no release has them.
SOURCE = r"""
#include <stddef.h>
#include <stdio.h>
typedef unsigned long VALUE;
typedef struct rb_control_frame_struct { VALUE added; const VALUE *pc; VALUE *sp; const void *iseq;
  VALUE self; const VALUE *ep; VALUE more[3]; } rb_control_frame_t;
struct rb_execution_context_struct { int odd; VALUE *vm_stack; size_t vm_stack_size; rb_control_frame_t *cfp;
  void *fill[4]; struct rb_thread_struct *thread_ptr; };
typedef struct rb_iseq_location_struct { VALUE first; VALUE pathobj, base_label, label; } rb_iseq_location_t;
struct iseq_insn_info_entry { int node; int line_no; char fill[9]; };
struct rb_iseq_constant_body { int type; unsigned iseq_size; VALUE fill; VALUE *iseq_encoded;
  rb_iseq_location_t location;
  struct iseq_insn_info { const struct iseq_insn_info_entry *body; unsigned *positions; unsigned size;
    struct succ_index_table *succ_index_table; } insns_info;
  const void *parent_iseq; struct rb_iseq_struct *local_iseq; };
struct rb_iseq_struct { VALUE flags; VALUE wrapper; VALUE fill; struct rb_iseq_constant_body *body; };
struct rb_thread_struct { void *list[2]; VALUE fill[2]; void *ractor, *vm, *nt; void *ec; VALUE name; };
struct rb_ractor_struct { char head[72]; struct { void *set[2]; unsigned count;
  struct rb_execution_context_struct *running_ec; } threads; };
struct rb_vm_struct { VALUE self; struct { void *set[2]; struct rb_ractor_struct *main_ractor;
  struct rb_thread_struct *main_thread; } ractor; struct { VALUE on; void *objspace; } gc; };
VALUE use(struct rb_execution_context_struct *ec, struct rb_vm_struct *vm, struct rb_iseq_struct *iseq) {
  return (VALUE)ec->thread_ptr->ec + (VALUE)vm->ractor.main_ractor->threads.running_ec +
    iseq->body->location.label + iseq->body->insns_info.body->line_no + *ec->cfp->pc;
}
#define SHOW(name, type, member) printf(name " %zu\n", offsetof(struct type, member))
int main(void) {
  SHOW("ec_vm_stack", rb_execution_context_struct, vm_stack);
  SHOW("ec_cfp", rb_execution_context_struct, cfp);
  SHOW("ec_thread_ptr", rb_execution_context_struct, thread_ptr);
  SHOW("cfp_pc", rb_control_frame_struct, pc);
  SHOW("cfp_ep", rb_control_frame_struct, ep);
  printf("cfp_size %zu\n", sizeof(rb_control_frame_t));
  SHOW("iseq_body", rb_iseq_struct, body);
  SHOW("body_iseq_encoded", rb_iseq_constant_body, iseq_encoded);
  SHOW("body_location", rb_iseq_constant_body, location);
  SHOW("body_insns_info", rb_iseq_constant_body, insns_info.body);
  SHOW("body_insns_info_size", rb_iseq_constant_body, insns_info.size);
  SHOW("body_succ_index_table", rb_iseq_constant_body, insns_info.succ_index_table);
  SHOW("body_local_iseq", rb_iseq_constant_body, local_iseq);
  SHOW("location_label", rb_iseq_location_struct, label);
  SHOW("insn_entry_line", iseq_insn_info_entry, line_no);
  printf("insn_entry_size %zu\n", sizeof(struct iseq_insn_info_entry));
  SHOW("thread_ec", rb_thread_struct, ec);
  SHOW("thread_name", rb_thread_struct, name);
  SHOW("ractor_running_ec", rb_ractor_struct, threads.running_ec);
  SHOW("vm_main_ractor", rb_vm_struct, ractor.main_ractor);
  SHOW("vm_objspace", rb_vm_struct, gc.objspace);
  return 0;
}
"""
BASE = find_layout("3.4.4").layout
Read = Callable[..., "Layout | None"]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    def compiled(*flags: str, name: str = "vm.c") -> Path:
        folder = tmp_path_factory.mktemp("build")
        (folder / name).write_text(SOURCE, encoding="ascii")
        assert CLANG is not None
        subprocess.run([CLANG, *flags, "-o", "out", name], cwd=folder, check=True)
        return folder / "out"

    return compiled


def read(path: Path) -> Layout | None:
    with ElfFile.open(path) as elf:
        return layout_from_debug_info(elf, BASE)


@pytest.mark.parametrize("flags", [("-g",), ("-gdwarf-4", "-O2")], ids=" ".join)
def test_every_offset_is_the_compilers(build: Callable[..., Path], flags: tuple[str, ...]) -> None:
    program = build(*flags)
    said = dict(
        line.split() for line in subprocess.check_output([str(program)], encoding="ascii").splitlines()
    )
    found = read(program)
    assert found is not None
    assert {name: getattr(found, name) for name in said} == {name: int(value) for name, value in said.items()}
    assert found.cfp_size != BASE.cfp_size
    # What the structs do not have stays.
    assert (found.ment_owner, found.string_embedded) == (BASE.ment_owner, BASE.string_embedded)


def test_a_program_without_debug_information_or_without_rubys_structs_has_no_layout(
    build: Callable[..., Path],
) -> None:
    assert read(build()) is None
    assert read(build("-g", name="other.c")) is None


def test_damaged_debug_information_is_an_error_or_no_layout(
    build: Callable[..., Path], tmp_path: Path
) -> None:
    whole = bytearray(build("-g").read_bytes())
    with ElfFile(bytes(whole)) as elf:
        sections = {section.name: section for section in elf.sections if section.name.startswith(".debug_")}
    for name in (".debug_info", ".debug_abbrev"):
        broken = bytearray(whole)
        at = sections[name].offset
        broken[at + 11 : at + 200] = bytes(range(189))
        (tmp_path / "broken").write_bytes(broken)
        try:
            found = read(tmp_path / "broken")
        except DecodeError:
            continue
        assert found is None or isinstance(found, Layout)
