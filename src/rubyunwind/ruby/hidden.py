# SPDX-License-Identifier: Apache-2.0
"""Where a file keeps what it does not name: read off the functions that it exports.

From 3.3 on Ruby exports neither its VM's variable nor ruby_current_ec nor rb_vm_exec, and a stripped file has
no other names. But extensions need rb_thread_current, rb_during_gc and their like, which use them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from rubyunwind.errors import DecodeError
from rubyunwind.ruby.loop import find_loop
from rubyunwind.ruby.machine import Code, Kind, trace

if TYPE_CHECKING:
    from rubyunwind.elf.file import ElfFile
    from rubyunwind.elf.symbols import SymbolTable
    from rubyunwind.ruby.machine import Value

__all__ = ["NOTHING_HIDDEN", "Collector", "HiddenPlaces", "Pointer", "ThreadVariable", "find_hidden"]

_CURRENT = "rb_thread_current"
# They read ruby_current_ec, too. vm.c, where the last two are, may use another way to it than other files.
_WITNESSES = ("rb_errinfo", "rb_thread_check_ints", "rb_block_given_p", "rb_frame_callee", "rb_lastline_get")

# rb_thread_struct.self (vm_core.h): behind the list node, in every version with thread-local contexts.
_THREAD_SELF = 16


@dataclass(frozen=True, slots=True)
class ThreadVariable:
    """How code gets at a thread-local variable (psABI, "Thread-Local Storage"); `slot` is an ELF address.

    module: the words at `slot` are {module id, offset}; descriptor: a TLS descriptor is there; slot: the
    offset from the thread pointer is there. To that offset `offset` is added; with "offset" it is all.
    """

    model: Literal["module", "descriptor", "slot", "offset"]
    offset: int = 0
    slot: int = 0


@dataclass(frozen=True, slots=True)
class Pointer:
    """A variable at the ELF address `address`, or, if `indirect`, where the word at that address says."""

    address: int
    indirect: bool = False


@dataclass(frozen=True, slots=True)
class Collector:
    """Where rb_during_gc looks: bit `bit` of the u32 at `flags` of the object space that the VM has at
    `objspace`.
    """

    objspace: int
    flags: int
    bit: int


@dataclass(frozen=True, slots=True)
class HiddenPlaces:
    """What was found in a file; None (or nothing in `context`) for what was not, and `reasons` says why.

    `context` are the ways to ruby_current_ec that several functions take: they have to lead to one place.
    `thread_ptr` is the offset of ec->thread_ptr in the first of them, `running_thread` that of the running
    thread behind `main_ractor`. `loop` is (ELF address, size) of rb_vm_exec.
    """

    context: tuple[ThreadVariable, ...] = ()
    thread_ptr: int = 0
    vm: Pointer | None = None
    collector: Collector | None = None
    main_ractor: Pointer | None = None
    running_thread: int = 0
    loop: tuple[int, int] | None = None
    reasons: tuple[str, ...] = ()


NOTHING_HIDDEN = HiddenPlaces()

_known: dict[object, HiddenPlaces] = {}
_MOST_KNOWN = 64  # files; what is known of one is a few hundred bytes


def find_hidden(elf: ElfFile, symbols: SymbolTable, *, context: bool, loop: bool) -> HiddenPlaces:
    """Look through the exported functions of a file that holds Ruby.

    `context` and `loop`: whether these are wanted, too. What cannot be decoded is not found. The same file is
    looked through once: many processes run it.
    """
    key = (elf.stamp, context, loop)
    if key in _known:
        return _known[key]
    try:
        found = _find(Code(elf), symbols, context, loop)
    except DecodeError as error:  # the file was cut off meanwhile
        return HiddenPlaces(reasons=(f"{elf.name}: {error}",))
    if elf.stamp is not None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[key] = found
    return found


def _find(code: Code, symbols: SymbolTable, context: bool, loop: bool) -> HiddenPlaces:
    def address_of(name: str) -> int:
        symbol = symbols.find(name)
        return symbol.value if symbol is not None else 0

    current = address_of(_CURRENT)
    if current and code.decode(current) is None:
        wanted = ("ruby_current_vm_ptr", *(["ruby_current_ec"] * context), *(["rb_vm_exec"] * loop))
        return HiddenPlaces(reasons=tuple(f"{name}: the file's code is not there" for name in wanted))
    places = _collector(code, address_of("rb_during_gc"))
    places = _main_ractor(places, code, address_of("rb_thread_main"))
    if context:
        places = _context(places, code, [current, *map(address_of, _WITNESSES)])
    if loop:
        found, reason = find_loop(code, address_of)
        more = (f"rb_vm_exec: {reason}",) if reason else ()
        places = replace(places, loop=found, reasons=(*places.reasons, *more))
    return places


def _context(places: HiddenPlaces, code: Code, functions: list[int]) -> HiddenPlaces:
    current = trace(code, functions[0]).result if functions[0] else None
    path = current.path if current is not None else None
    # *(*(*variable + thread_ptr) + self)
    if path is None or len(path[1]) != 3 or path[1][1:] != (_THREAD_SELF, 0):
        return _without(places, f"{_CURRENT} does not return the running thread in a way that is known")
    first = _thread_variable(path[0])
    if first is None:
        return _without(places, f"{_CURRENT} does not read a thread-local variable")
    ways = [first]
    confirmed = False
    for function in filter(None, functions[1:]):
        for read, _ in trace(code, function).reads:
            way, steps = _thread_variable(read.path[0]), read.path[1]
            if way is None or not steps:  # it may be only a canary that nothing follows from
                continue
            confirmed = True
            if way not in ways:
                ways.append(way)
            break
    if not confirmed:
        return _without(places, f"no other function reads what {_CURRENT} reads")
    return replace(places, context=tuple(ways), thread_ptr=path[1][0])


def _without(places: HiddenPlaces, reason: str) -> HiddenPlaces:
    return replace(places, reasons=(*places.reasons, f"ruby_current_ec: {reason}"))


def _thread_variable(address: Value) -> ThreadVariable | None:
    """Return how an address that was read is reached, None when it is no thread-local one."""
    if address.kind is Kind.MODULE:
        return ThreadVariable("module", address.offset, address.slot)
    if address.kind is not Kind.THREAD:
        return None
    inner = address.inner
    if inner is None:
        return ThreadVariable("offset", address.offset)
    if inner.kind is Kind.DESCRIPTOR:
        return ThreadVariable("descriptor", address.offset, inner.slot)
    if inner.inner is not None and inner.inner.kind is Kind.CONSTANT:
        return ThreadVariable("slot", address.offset, inner.inner.offset)
    return None


def _collector(code: Code, function: int) -> HiddenPlaces:
    """Read rb_during_gc: `vm ? vm->objspace->flags.during_gc : 0`."""
    found = trace(code, function) if function else None
    # The longest chain of loads is the flag's; where it is tested in memory nothing is returned.
    chains = [(read, bit) for read, bit in found.reads] if found is not None else []
    if not chains:
        return HiddenPlaces(reasons=("ruby_current_vm_ptr: rb_during_gc is not exported or cannot be read",))
    read, bit = max(chains, key=lambda chain: chain[0].depth)
    if found is not None and found.result is not None and found.result.inner == read:
        bit = found.result.shift
    start, steps = read.path
    if start.kind is not Kind.CONSTANT or len(steps) not in (2, 3) or (len(steps) == 3 and steps[0]):
        return HiddenPlaces(
            reasons=("ruby_current_vm_ptr: rb_during_gc reads it in a way that is not known",)
        )
    objspace, flags = steps[-2:]
    at = 8 * flags + bit
    return HiddenPlaces(
        vm=Pointer(start.offset, indirect=len(steps) == 3),
        collector=Collector(objspace, at // 32 * 4, at % 32),
    )


def _main_ractor(places: HiddenPlaces, code: Code, function: int) -> HiddenPlaces:
    """Read rb_thread_main: `ruby_single_main_ractor->threads.main->self`, while there is but one ractor."""
    found = trace(code, function).result if function else None
    if found is None:
        return places
    start, steps = found.path
    if start.kind is not Kind.CONSTANT or len(steps) not in (3, 4) or steps[-2:] != (_THREAD_SELF, 0):
        return places
    if len(steps) == 4 and steps[0]:
        return places
    pointer = Pointer(start.offset, indirect=len(steps) == 4)
    return replace(places, main_ractor=pointer, running_thread=steps[-3] - 8)
