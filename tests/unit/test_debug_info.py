# SPDX-License-Identifier: Apache-2.0
"""Offsets from DWARF: what the compiler says of structs that it has laid out itself."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from rubyunwind.elf import dwarf
from rubyunwind.elf.cache import TableCache
from rubyunwind.elf.dwarf import DebugInfo
from rubyunwind.elf.file import ElfFile
from rubyunwind.errors import DecodeError
from rubyunwind.ruby.layouts import described as described_module
from rubyunwind.ruby.layouts import find_layout
from rubyunwind.ruby.layouts.debug_info import offsets_of
from rubyunwind.ruby.layouts.described import described_offsets, moved_notes, with_offsets

CLANG = shutil.which("clang") or shutil.which("clang-14")
GCC = shutil.which("gcc")
COMPILERS = [name for name in (CLANG, GCC) if name is not None]
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
__attribute__((used))
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
OTHER = r"""
#include "structs.h"
VALUE other(struct rb_execution_context_struct *ec, struct rb_iseq_struct *iseq) {
  return *ec->cfp->pc + iseq->body->location.label;
}
"""
BASE = find_layout("3.4.4").layout
FLAVOURS = [
    ("-g",),
    ("-gdwarf-5", "-O2"),
    ("-gdwarf-4", "-O2"),
    ("-gdwarf-3",),
    ("-gdwarf-2", "-gstrict-dwarf"),
    ("-gdwarf-5", "-gdwarf64"),
    ("-gdwarf-5", "-gz=zlib"),
    ("-g", "-fdebug-types-section"),
    ("-g", "-O2", "-flto"),
]


@functools.cache
def supports(compiler: str, flags: tuple[str, ...]) -> bool:
    done = subprocess.run(
        [compiler, *flags, "-x", "c", "-o", "/dev/null", "-"],
        input="int main(void) { return 0; }", text=True, capture_output=True, check=False,
    )  # fmt: skip
    return done.returncode == 0 and "unknown" not in done.stderr


def compile_in(folder: Path, compiler: str, *flags: str, name: str = "vm.c") -> Path:
    (folder / name).write_text(SOURCE, encoding="ascii")
    subprocess.run([compiler, *flags, "-o", "out", name], cwd=folder, check=True)
    return folder / "out"


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    assert CLANG is not None
    return lambda *flags, name="vm.c": compile_in(tmp_path_factory.mktemp("build"), CLANG, *flags, name=name)


def read(path: Path) -> dict[str, int] | None:
    with ElfFile.open(path) as elf:
        return offsets_of(elf)


def said_by(program: Path) -> dict[str, int]:
    lines = subprocess.check_output([str(program)], encoding="ascii").splitlines()
    return {name: int(value) for name, value in (line.split() for line in lines)}


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("flags", FLAVOURS, ids=" ".join)
def test_every_offset_is_the_compilers(compiler: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    if not supports(compiler, flags):
        pytest.skip(f"{compiler} has no {' '.join(flags)}")
    program = compile_in(tmp_path, compiler, *flags)
    said = said_by(program)
    found = read(program)
    if "-fdebug-types-section" in flags:  # what its units refer to by a signature is not followed
        assert found is None or {name: found[name] for name in said.keys() & found.keys()} == {
            name: said[name] for name in said.keys() & found.keys()
        }
        return
    assert found is not None
    assert {name: found[name] for name in said} == said
    layout = with_offsets(BASE, found)
    assert layout.cfp_size == said["cfp_size"] != BASE.cfp_size
    # What the structs do not have stays.
    assert (layout.ment_owner, layout.string_embedded) == (BASE.ment_owner, BASE.string_embedded)


@pytest.mark.skipif(shutil.which("dwz") is None or GCC is None, reason="dwz or gcc is not installed")
def test_structs_that_units_share_are_found(tmp_path: Path) -> None:
    assert GCC is not None
    structs, _, code = SOURCE.partition("__attribute__((used))")
    (tmp_path / "structs.h").write_text("#pragma once\n" + structs, encoding="ascii")
    (tmp_path / "vm.c").write_text('#include "structs.h"\n__attribute__((used))' + code, encoding="ascii")
    (tmp_path / "other.c").write_text(OTHER, encoding="ascii")
    subprocess.run([GCC, "-g", "-gdwarf-4", "-o", "out", "vm.c", "other.c"], cwd=tmp_path, check=True)
    whole = read(tmp_path / "out")
    subprocess.run(["dwz", "out"], cwd=tmp_path, check=True)
    with ElfFile.open(tmp_path / "out") as elf:
        info = DebugInfo(elf)
        assert any(info.source(unit)[1] for unit in info.units)  # some units are shared now
    assert read(tmp_path / "out") == whole
    said = said_by(tmp_path / "out")
    assert whole is not None
    assert {name: whole[name] for name in said} == said


def test_a_program_without_debug_information_or_without_rubys_structs_tells_nothing(
    build: Callable[..., Path],
) -> None:
    assert read(build()) is None
    assert read(build("-g", name="other.c")) is None


@pytest.mark.parametrize("section", [".debug_info", ".debug_abbrev", ".debug_str", ".debug_str_offsets"])
def test_damaged_debug_information_is_an_error_or_tells_what_can_be(
    build: Callable[..., Path], section: str
) -> None:
    whole = build("-g").read_bytes()
    with ElfFile(whole) as elf:
        found = elf.section(section)
    if found is None:
        pytest.skip(f"this compiler makes no {section}")
    errors = 0
    for at in range(min(found.size, 600)):
        for value in (0, 0x7F, 0x80, 0xFF):
            broken = bytearray(whole)
            broken[found.offset + at] = value
            with ElfFile(bytes(broken)) as elf:
                try:
                    offsets = offsets_of(elf)
                except DecodeError:
                    errors += 1
                    continue
            assert offsets is None or all(0 <= offset <= 0xFFFF for offset in offsets.values())
    if section in (".debug_info", ".debug_abbrev"):
        assert errors


def test_what_is_looked_at_is_bounded(build: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    program = build("-g")
    monkeypatch.setattr(dwarf, "MOST_STEPS", 20)
    with pytest.raises(DecodeError, match="more than 20 entries"):
        read(program)


def test_what_lies_where_nothing_can_is_refused(tmp_path: Path) -> None:
    assert CLANG is not None
    source = SOURCE.replace("{ VALUE added;", "{ char added[4000];")
    (tmp_path / "vm.c").write_text(source, encoding="ascii")
    subprocess.run([CLANG, "-g", "-o", "out", "vm.c"], cwd=tmp_path, check=True)
    with pytest.raises(DecodeError, match="cfp_pc is 4000, which cannot be"):
        read(tmp_path / "out")
    with ElfFile.open(tmp_path / "out") as elf:
        assert described_offsets(elf, cache=TableCache(tmp_path / "cache")) == {}


def test_it_is_read_once_for_a_file(
    build: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = build("-g", "-Wl,--build-id")
    cache = TableCache(tmp_path / "cache")
    with ElfFile.open(program) as elf:
        found = described_offsets(elf, cache=cache)
    assert found == read(program)
    reads: list[str] = []
    real = described_module._read
    monkeypatch.setattr(described_module, "_read", lambda files: reads.append("read") or real(files))
    with ElfFile.open(program) as elf:
        assert described_offsets(elf, cache=cache) == found
    assert not reads
    # A file that claims the same build id is another one.
    other = tmp_path / "other"
    shutil.copy(program, other)
    with ElfFile.open(other) as elf:
        assert described_offsets(elf, cache=cache) == found
    assert reads == ["read"]


@pytest.mark.parametrize(
    "stored", [b"cfp_size many\n", b"cfp_size\n", b"no_member 8\n", b"cfp_size 9\n", b"\xff"]
)
def test_an_entry_that_is_no_layout_is_read_again(
    build: Callable[..., Path], tmp_path: Path, stored: bytes
) -> None:
    program = build("-g")
    cache = TableCache(tmp_path / "cache")
    put: list[tuple[str, bytes]] = []

    class Odd(TableCache):
        def get(self, key: str, digest: bytes) -> bytes | None:
            return stored

        def put(self, key: str, digest: bytes, payload: bytes) -> bool:
            put.append((key, payload))
            return cache.put(key, digest, payload)

    with ElfFile.open(program) as elf:
        assert described_offsets(elf, cache=Odd()) == read(program)
    assert len(put) == 1


def test_the_separate_debug_file_tells_of_a_stripped_one(build: Callable[..., Path], tmp_path: Path) -> None:
    if shutil.which("objcopy") is None:
        pytest.skip("objcopy is not installed")
    program = build("-g", "-Wl,--build-id")
    expected = read(program)
    root = tmp_path / "debug"
    with ElfFile.open(program) as elf:
        from rubyunwind.elf.ids import build_id

        digits = (build_id(elf) or b"").hex()
    debug = root / ".build-id" / digits[:2] / f"{digits[2:]}.debug"
    debug.parent.mkdir(parents=True)
    stripped = tmp_path / "program"
    subprocess.run(["objcopy", "--only-keep-debug", program, debug], check=True)
    subprocess.run(["objcopy", "--strip-all", f"--add-gnu-debuglink={debug}", program, stripped], check=True)
    cache = TableCache(tmp_path / "cache")
    with ElfFile.open(stripped) as elf:
        assert described_offsets(elf, cache=cache, debug_root=tmp_path / "none") == {}
        # An installed debug file is seen the next time.
        assert described_offsets(elf, cache=cache, debug_root=root) == expected


def test_only_members_that_a_series_has_are_moved_and_a_note_names_them() -> None:
    base = find_layout("2.7.4").layout
    assert with_offsets(base, {"cfp_size": 56, "thread_native": 8}) == base
    moved = with_offsets(base, {"cfp_size": 64, "thread_native": 8})
    assert (moved.cfp_size, moved.thread_native) == (64, None)
    assert list(moved_notes("2.7.4", base, moved, True)) == [
        "Ruby 2.7.4: its debug information decides, which is not that release's: cfp_size 64 instead of 56"
    ]
    assert not list(moved_notes("2.7.4", base, base, True))
    assert not list(moved_notes("2.7.4", base, moved, False))
