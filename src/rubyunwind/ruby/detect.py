# SPDX-License-Identifier: Apache-2.0
"""Finding Ruby in a process: the file that holds the interpreter, its version, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from rubyunwind.elf.file import EM_AARCH64, ElfFile
from rubyunwind.errors import RubyUnwindError, UnsupportedRuby
from rubyunwind.process.mapped_files import open_mapped
from rubyunwind.process.memory import MemoryReadError
from rubyunwind.ruby.filenames import candidates, is_ruby_name, series_in_path, version_in_name
from rubyunwind.ruby.identifiers import find_identifier_table
from rubyunwind.ruby.image import VERSION_SYMBOL, ImageSymbol, RubyImage, may_define_ruby, read_image
from rubyunwind.ruby.layouts import Layout, find_layout, parse_version
from rubyunwind.ruby.layouts.described import DEBUG_INFORMATION, moved_notes, with_offsets
from rubyunwind.ruby.notes import hidden_notes, runtime_notes
from rubyunwind.ruby.procinfo import make_proc_info, running_context
from rubyunwind.ruby.selfcheck import SelfCheck, check_running, find_context
from rubyunwind.ruby.tls import CONTEXT_VARIABLE, find_tls
from rubyunwind.ruby.uncover import VM_POINTER, CollectorPlace, collector_place, hidden_context, uncover
from rubyunwind.ruby.vm_info import make_vm_info, pthread_offset
from rubyunwind.ruby.vm_search import find_vm_pointer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rubyunwind.abi import RubyProcInfo, RubyTLSInfo, RubyVMInfo
    from rubyunwind.process.mappings import Mapping
    from rubyunwind.process.memory import Memory

__all__ = ["InterpreterRange", "RubyRuntime", "candidates", "describe_runtime", "find_ruby", "is_ruby_name"]


class InterpreterRange(NamedTuple):
    """Where the interpreter loop is in a file: ELF virtual addresses, both ends inclusive."""

    path: str
    lower: int
    upper: int


@dataclass(frozen=True, slots=True)
class RubyRuntime:
    """A Ruby interpreter in a process.

    `version` is as Ruby says it, `version_number` major << 16 | minor << 8 | patch. `layout` is that of
    `layout_version`; when that differs from `version` it was assumed and the self-check agreed, or could not
    judge yet. `proc_info`, `tls` and `vm_info` go into the BPF maps; without `tls` (None) a thread's stack is
    only found while it holds the lock of the main ractor. `identifier_table` is the address of the symbol
    table, 0 if unknown (C functions then have ids instead of names). `notes` says what is missing.
    `context` is the execution context that the caller named, or 0. `collector` is where the process says that
    it collects garbage, if its file tells.
    """

    version: str
    version_number: int
    layout: Layout
    layout_version: str
    mapping: Mapping
    image: RubyImage
    proc_info: RubyProcInfo
    tls: RubyTLSInfo | None
    vm_info: RubyVMInfo
    interpreter_ranges: tuple[InterpreterRange, ...]
    identifier_table: int
    check: SelfCheck
    notes: tuple[str, ...] = ()
    context: int = 0
    collector: CollectorPlace | None = None

    def running_context(self, memory: Memory) -> int:
        """Return the execution context of the main ractor's current thread, or 0. Raises MemoryReadError."""
        if self.context:
            return self.context
        vm = self.image.address(VM_POINTER)
        return running_context(memory, self.layout, self.proc_info.current_ctx_ptr, vm)

    def search_identifiers(self, memory: Memory) -> int:
        """Return the address of the symbol table now, or 0: in a Ruby that only starts it is no table yet."""
        return _identifier_table(self.image, memory, self.layout)


def find_ruby(
    pid: int,
    mappings: Sequence[Mapping],
    memory: Memory,
    *,
    assume_version: str | None = None,
    open_elf: Callable[[Mapping], ElfFile] | None = None,
    read: Callable[[Mapping], RubyImage | None] | None = None,
    context: int = 0,
    search: bool = False,
) -> RubyRuntime | None:
    """Find the Ruby interpreter of `pid`, or return None when no file of the process holds one.

    `assume_version` takes that release's layout whatever the process says. `open_elf` opens the file behind
    a mapping (the caller's own is closed here); without it, that of the live process `pid`. `read` gives
    what read_image says of a file, for a caller that keeps it (None: no Ruby). `context` is the address of an
    execution context, or of the variable that points to it, for a Ruby whose files tell nothing. `search`
    looks through the data of a Ruby that hides its symbols for its VM (some 20 ms).
    Raises UnsupportedRuby when there is a Ruby, but no layout for its version, or the layout does not fit
    what is found in the process.
    """
    odd: UnsupportedRuby | None = None
    opener = open_elf or (lambda mapping: ElfFile.from_fd(open_mapped(pid, mapping), mapping.path))
    for mapping in candidates(mappings):
        image = read(mapping) if read is not None else _open_image(mapping, opener)
        if image is None or image.symbol(VERSION_SYMBOL) is None:
            continue
        version = image.version or _version_in_memory(image, memory) or version_in_name(mapping.path)
        try:
            parse_version(version)
        except ValueError:
            if assume_version is None:
                # Some other program may have a variable of that name: look on.
                text = f"{image.path} defines ruby_version, but it says {version!r}, which is no version"
                odd = odd or UnsupportedRuby(text, found=version)
                continue
            version = assume_version
        return describe_runtime(
            image,
            version,
            mapping,
            mappings,
            memory,
            assume_version=assume_version,
            context=context,
            search=search,
            open_elf=opener,
        )
    if context:
        return _describe_by_name(mappings, memory, opener, assume_version, context)
    if odd is not None:
        raise odd
    return None


def _open_image(mapping: Mapping, open_elf: Callable[[Mapping], ElfFile]) -> RubyImage | None:
    """Read a mapped file; None when it cannot be opened or is no ELF file that defines ruby_version."""
    try:
        with open_elf(mapping) as elf:
            return read_image(elf, mapping) if may_define_ruby(elf) else None
    except (RubyUnwindError, OSError):
        return None


def _machine(mappings: Iterable[Mapping], open_elf: Callable[[Mapping], ElfFile]) -> int:
    """Return the ELF machine of the first file that can be read, 0 if there is none."""
    for mapping in mappings:
        try:
            if mapping.is_file:
                with open_elf(mapping) as elf:
                    return elf.machine
        except (RubyUnwindError, OSError):
            continue
    return 0


def _describe_by_name(
    mappings: Sequence[Mapping],
    memory: Memory,
    open_elf: Callable[[Mapping], ElfFile],
    assume_version: str | None,
    context: int,
) -> RubyRuntime:
    """Describe a Ruby none of whose files can be read, from its context and what its files are called."""
    named = [mapping for mapping in mappings if mapping.is_file and is_ruby_name(mapping.path)]
    versions = [assume_version or "", *(version_in_name(mapping.path) for mapping in named)]
    version = next(filter(None, versions), "")
    if not version:
        # Only the series is certain then, so the rest is an assumption.
        version = assume_version = next(filter(None, (series_in_path(one.path) for one in mappings)), "")
    if not named or not version:
        raise UnsupportedRuby(
            f"no file of the process can be read as Ruby's, and their names tell "
            f"{'no version' if named else 'of no Ruby'}: say which version it is",
            found="",
        )
    mapping = named[0]
    # No symbols: all that is known of its data is where it lies.
    data = tuple((one.start, one.end - one.start) for one in named if one.writable)
    image = RubyImage(
        path=mapping.path,
        bias=0,
        aarch64=_machine(mappings, open_elf) == EM_AARCH64,
        is_program=True,
        data=data,
        writable=data,
    )
    return describe_runtime(
        image,
        version,
        mapping,
        mappings,
        memory,
        assume_version=assume_version,
        context=context,
        open_elf=open_elf,
    )


def describe_runtime(
    image: RubyImage,
    version: str,
    mapping: Mapping,
    mappings: Sequence[Mapping],
    memory: Memory,
    *,
    assume_version: str | None = None,
    context: int = 0,
    search: bool = False,
    open_elf: Callable[[Mapping], ElfFile] | None = None,
) -> RubyRuntime:
    """Make a RubyRuntime of the file that holds Ruby `version`. Raises UnsupportedRuby, see find_ruby."""
    match = find_layout(assume_version or version, aarch64=image.aarch64)
    layout = match.layout
    exact = match.exact and assume_version is None
    layout_version = match.version
    as_read, given = image, context
    if image.described and assume_version is None:
        layout = with_offsets(match.layout, image.described)
        if layout != match.layout or not exact:
            layout_version = DEBUG_INFORMATION
    uncovered = uncover(image, memory, layout)
    image, found, reasons = uncovered.image, list(uncovered.found), list(uncovered.reasons)
    info = make_proc_info(layout, version, image.address(layout.context_symbol))
    tls = find_tls(image, memory, mappings)
    if tls is None and layout.ractor_running_ec is not None:
        tls, reason = hidden_context(image, memory, mappings, layout)
        found += [CONTEXT_VARIABLE] if tls is not None else []
        reasons += [f"{CONTEXT_VARIABLE}: {reason}"] if reason else []
    # Where the code of a stripped file told of its contexts but not of its VM, the search has to.
    if (search or CONTEXT_VARIABLE in found) and not info.current_ctx_ptr and not image.address(VM_POINTER):
        image = _with_vm_pointer(image, memory, layout)
    vm = image.address(VM_POINTER)
    if context:
        context, check = find_context(memory, layout, context)
    else:
        # What one process has shown of a file holds for the next that maps it. Only of a release whose layout
        # is known, though: one that was assumed has to be right in each process by itself.
        proven = exact and layout in image.proven
        check = check_running(memory, layout, info.current_ctx_ptr, vm, proven=proven)
        if check.result == "good" and exact:
            image.proven.add(layout)
    if check.result == "bad" and layout != match.layout:  # what a file says of itself may be wrong
        note = f"Ruby {version}: the layout of {layout_version} does not fit: {check.reason}"
        image = replace(as_read, described={})
        runtime = describe_runtime(
            image, version, mapping, mappings, memory, context=given, search=search, open_elf=open_elf
        )
        return replace(runtime, notes=(*runtime.notes, note))
    if check.result == "bad":
        raise UnsupportedRuby(
            f"Ruby {version} in {image.path} does not have the layout of {layout_version}: {check.reason}",
            found=version,
            nearest=layout_version,
        )
    ranges = tuple(
        InterpreterRange(mapping.path, lower, upper)
        for lower, upper in image.interpreter_ranges(layout.interpreter_symbol)
    )
    table = _identifier_table(image, memory, layout)
    from_thread_pointer = None
    if layout.thread_pthread is not None and open_elf is not None:
        from_thread_pointer = pthread_offset(image.aarch64, mappings, open_elf)
    collector = collector_place(image)
    reachable = bool(context or info.current_ctx_ptr or vm)
    return RubyRuntime(
        version=version,
        version_number=info.version,
        layout=layout,
        layout_version=layout_version,
        mapping=mapping,
        image=image,
        proc_info=info,
        tls=tls,
        vm_info=make_vm_info(memory, layout, vm, info.current_ctx_ptr, from_thread_pointer, collector),
        interpreter_ranges=ranges,
        identifier_table=table,
        check=check,
        notes=(
            *runtime_notes(version, layout_version, exact, check, reachable, tls, ranges, table),
            *moved_notes(version, match.layout, layout, match.exact),
            *hidden_notes(version, image, found, reasons),
        ),
        context=context,
        collector=collector,
    )


def _with_vm_pointer(image: RubyImage, memory: Memory, layout: Layout) -> RubyImage:
    for address, size in image.writable:
        found = find_vm_pointer(memory, layout, image.bias + address, size)
        if found:
            symbol = ImageSymbol(found - image.bias, 8)
            return replace(image, symbols={**image.symbols, VM_POINTER: symbol})
    return image


def _version_in_memory(image: RubyImage, memory: Memory) -> str:
    try:
        raw = memory.read(image.address(VERSION_SYMBOL), 16)
    except MemoryReadError:
        return ""
    return raw.partition(b"\0")[0].decode("ascii", "replace")


def _identifier_table(image: RubyImage, memory: Memory, layout: Layout) -> int:
    known = image.address(layout.symbols_name)
    if known:
        return known
    for address, size in image.data:
        found = find_identifier_table(memory, layout, image.bias + address, size)
        if found is not None:
            return found
    return 0
