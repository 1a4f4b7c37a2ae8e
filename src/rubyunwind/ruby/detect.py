# SPDX-License-Identifier: Apache-2.0
"""Finding Ruby in a process: the file that holds the interpreter, its version, and what follows from it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rubyunwind.elf.file import ElfFile
from rubyunwind.errors import DecodeError, RubyUnwindError, UnsupportedRuby
from rubyunwind.process.mappings import open_mapped
from rubyunwind.process.memory import MemoryReadError
from rubyunwind.ruby.identifiers import find_identifier_table
from rubyunwind.ruby.image import VERSION_SYMBOL, RubyImage, may_define_ruby, read_image
from rubyunwind.ruby.layouts import Layout, find_layout, parse_version, version_number
from rubyunwind.ruby.procinfo import make_proc_info, running_context
from rubyunwind.ruby.selfcheck import SelfCheck, check_stack
from rubyunwind.ruby.tls import find_tls

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rubyunwind.abi import RubyProcInfo, RubyTLSInfo
    from rubyunwind.process.mappings import Mapping
    from rubyunwind.process.memory import Memory

__all__ = ["InterpreterRange", "RubyRuntime", "candidates", "describe_runtime", "find_ruby", "is_ruby_name"]

# libruby.so.3.1.2, libruby-3.3.so.3.3.10, libruby2.7.so, libruby-static..., and ruby, ruby3.1, ruby-mri.
_LIBRARY = re.compile(r"libruby(?:[-._+\w]*)\.so(?:\.\d+)*")
_PROGRAM = re.compile(r"ruby(?:[-._]?[\w.]+)?")

MAX_CANDIDATES = 512
"""Files of one process that are looked into for `ruby_version`."""

_CHECKS = 8


class InterpreterRange(NamedTuple):
    """Where the interpreter loop is in a file: ELF virtual addresses, both ends inclusive."""

    path: str
    lower: int
    upper: int


@dataclass(frozen=True, slots=True)
class RubyRuntime:
    """A Ruby interpreter in a process.

    `version` is as Ruby says it, `version_number` major << 16 | minor << 8 | patch. `layout` is that of
    `layout_version`; when that differs from `version` it was assumed and the self-check agreed, or could
    not judge yet. `proc_info` and `tls` go into the BPF maps; without `tls` (None) a thread's stack is only
    found while it holds the lock of the main ractor. `identifier_table` is the address of the symbol table,
    0 if unknown (C functions then have ids instead of names). `notes` says in sentences what is missing.
    """

    version: str
    version_number: int
    layout: Layout
    layout_version: str
    mapping: Mapping
    image: RubyImage
    proc_info: RubyProcInfo
    tls: RubyTLSInfo | None
    interpreter_ranges: tuple[InterpreterRange, ...]
    identifier_table: int
    check: SelfCheck
    notes: tuple[str, ...] = ()

    def running_context(self, memory: Memory) -> int:
        """Return the execution context of the main ractor's current thread, or 0. Raises MemoryReadError."""
        vm = self.image.address("ruby_current_vm_ptr")
        return running_context(memory, self.layout, self.proc_info.current_ctx_ptr, vm)


def is_ruby_name(path: str) -> bool:
    """Whether a file's name is one that Ruby interpreters and their libraries have."""
    name = path.rpartition("/")[2]
    return bool(_LIBRARY.fullmatch(name) or _PROGRAM.fullmatch(name))


def candidates(mappings: Iterable[Mapping]) -> list[Mapping]:
    """Return one executable mapping per file, in the order in which they are worth a look.

    Files with Ruby's names come first, libraries before programs, then the rest in address order (an
    interpreter may be part of any program and have any name). At most MAX_CANDIDATES.
    """
    files: dict[tuple[int, int, str], Mapping] = {}
    for mapping in mappings:
        if mapping.is_file and mapping.executable:
            files.setdefault(mapping.file_key, mapping)

    def rank(mapping: Mapping) -> int:
        name = mapping.path.rpartition("/")[2]
        return 0 if _LIBRARY.fullmatch(name) else 1 if _PROGRAM.fullmatch(name) else 2

    return sorted(files.values(), key=rank)[:MAX_CANDIDATES]


def find_ruby(
    pid: int,
    mappings: Sequence[Mapping],
    memory: Memory,
    *,
    assume_version: str | None = None,
) -> RubyRuntime | None:
    """Find the Ruby interpreter of `pid`, or return None when no file of the process holds one.

    `assume_version` takes that release's layout whatever the process says. Raises UnsupportedRuby when
    there is a Ruby, but no layout for its version, or the layout does not fit what is found in the process.
    """
    odd: UnsupportedRuby | None = None
    for mapping in candidates(mappings):
        image = _open_image(pid, mapping)
        if image is None or image.symbol(VERSION_SYMBOL) is None:
            continue
        version = image.version or _version_in_memory(image, memory)
        try:
            parse_version(version)
        except ValueError:
            # Some other program may have a variable of that name: look on.
            text = f"{image.path} defines ruby_version, but it says {version!r}, which is no version"
            odd = odd or UnsupportedRuby(text, found=version)
            continue
        return describe_runtime(image, version, mapping, mappings, memory, assume_version=assume_version)
    if odd is not None:
        raise odd
    return None


def _open_image(pid: int, mapping: Mapping) -> RubyImage | None:
    """Read a mapped file; None when it cannot be opened or is no ELF file that defines ruby_version."""
    try:
        fd = open_mapped(pid, mapping)
    except RubyUnwindError:
        return None
    try:
        # The reader owns the descriptor from here on.
        with ElfFile.from_fd(fd, mapping.path) as elf:
            return read_image(elf, mapping) if may_define_ruby(elf) else None
    except (DecodeError, OSError):
        return None


def describe_runtime(
    image: RubyImage,
    version: str,
    mapping: Mapping,
    mappings: Sequence[Mapping],
    memory: Memory,
    *,
    assume_version: str | None = None,
) -> RubyRuntime:
    """Make a RubyRuntime of the file that holds Ruby `version`. Raises UnsupportedRuby, see find_ruby."""
    match = find_layout(assume_version or version, aarch64=image.aarch64)
    layout = match.layout
    exact = match.exact and assume_version is None
    info = make_proc_info(layout, version, image.address(layout.context_symbol))
    tls = find_tls(image, memory, mappings)
    vm = image.address("ruby_current_vm_ptr")
    check = _self_check(memory, layout, info.current_ctx_ptr, vm)
    if check.result == "bad":
        raise UnsupportedRuby(
            f"Ruby {version} in {image.path} does not have the layout of {match.version}: {check.reason}",
            found=version,
            nearest=match.version,
        )
    ranges = tuple(
        InterpreterRange(mapping.path, lower, upper)
        for lower, upper in image.interpreter_ranges(layout.interpreter_symbol)
    )
    table = _identifier_table(image, memory, layout)
    return RubyRuntime(
        version=version,
        version_number=info.version,
        layout=layout,
        layout_version=match.version,
        mapping=mapping,
        image=image,
        proc_info=info,
        tls=tls,
        interpreter_ranges=ranges,
        identifier_table=table,
        check=check,
        notes=tuple(_notes(version, match.version, exact, check, info, tls, ranges, table)),
    )


def _version_in_memory(image: RubyImage, memory: Memory) -> str:
    try:
        raw = memory.read(image.address(VERSION_SYMBOL), 16)
    except MemoryReadError:
        return ""
    return raw.partition(b"\0")[0].decode("ascii", "replace")


def _self_check(memory: Memory, layout: Layout, context_address: int, vm_address: int) -> SelfCheck:
    """Check the stack of the thread that runs, again while it is bad: the process is not stopped."""
    if not context_address and not vm_address:
        return SelfCheck("early", "the binary does not tell where its execution context is")
    check = SelfCheck("early")
    for _ in range(_CHECKS):
        try:
            memory.u64(context_address or vm_address)
        except MemoryReadError:
            # The variable itself is not mapped: the dynamic linker is still at work.
            return SelfCheck("early", "the interpreter's data is not mapped yet")
        try:
            context = running_context(memory, layout, context_address, vm_address)
        except MemoryReadError as error:
            check = SelfCheck("bad", str(error))
            continue
        check = check_stack(memory, layout, context)
        if check.result != "bad":
            break
    return check


def _identifier_table(image: RubyImage, memory: Memory, layout: Layout) -> int:
    known = image.address(layout.symbols_name)
    if known:
        return known
    for address, size in image.data:
        found = find_identifier_table(memory, layout, image.bias + address, size)
        if found is not None:
            return found
    return 0


def _notes(
    version: str,
    layout_version: str,
    exact: bool,
    check: SelfCheck,
    info: RubyProcInfo,
    tls: RubyTLSInfo | None,
    ranges: Sequence[InterpreterRange],
    table: int,
) -> Iterable[str]:
    if not exact:
        verdict = (
            "the self-check agrees" if check.result == "good" else f"it was not checked yet: {check.reason}"
        )
        yield f"Ruby {version}: the layout of {layout_version} is assumed; {verdict}"
    if tls is None and not info.current_ctx_ptr:
        yield f"Ruby {version}: no execution context can be found (hidden symbols, stripped): no Ruby frames"
    elif tls is None and version_number(parse_version(version)) >= 0x30000:
        yield f"Ruby {version}: no thread-local context: only the thread that holds the lock has Ruby frames"
    if not ranges:
        yield f"Ruby {version}: the interpreter loop cannot be found (hidden symbol, stripped)"
    if not table:
        yield f"Ruby {version}: the symbol table cannot be found: C functions have no names"
