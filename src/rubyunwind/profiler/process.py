# SPDX-License-Identifier: Apache-2.0
"""One process that is profiled: its mappings in the kernel's tables, its Ruby, its memory."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from rubyunwind.abi import (
    JIT_FILE_ID,
    PROG_UNWIND_NATIVE,
    PROG_UNWIND_RUBY,
    OffsetRange,
    encode_bias_and_unwind_program,
)
from rubyunwind.errors import AttachError, BpfError, DecodeError, RubyUnwindError, UnsupportedRuby
from rubyunwind.process.container import container_of
from rubyunwind.process.identity import ProcessIdentity
from rubyunwind.process.image import LiveProcess
from rubyunwind.process.memory import MemoryReadError
from rubyunwind.profiler.files import is_code
from rubyunwind.profiler.interpreter import InterpreterLoop
from rubyunwind.profiler.jit_code import find_jit_code, is_jit_code
from rubyunwind.profiler.process_pages import ProcessPages
from rubyunwind.ruby.detect import find_ruby
from rubyunwind.ruby.symbolize import RubySymbolizer

if TYPE_CHECKING:
    from rubyunwind.elf.deltas import StackDeltas
    from rubyunwind.process.image import ProcessImage
    from rubyunwind.process.mappings import Mapping
    from rubyunwind.profiler.files import FileCache, FileKey, MappedFile
    from rubyunwind.profiler.native_tables import NativeTables, TracerMaps
    from rubyunwind.profiler.process_pages import PageEntry
    from rubyunwind.ruby.detect import RubyRuntime
    from rubyunwind.ruby.image import RubyImage

__all__ = ["LOOPS", "InterpreterLoop", "ProfiledProcess"]

# Where the interpreter's loop is in its file, and the part of it that the compiler has moved away.
LOOPS = ("interpreter_offsets", "interpreter_cold_offsets")

# Mappings of code that a process has at most: a Ruby with all its extensions has a few hundred.
_MOST_CODE = 4096

# Seconds between looks for the container that a process is in; one that has just executed a program was
# moved there just before.
_PLACED = 1.0

_log = logging.getLogger(__name__)


class ProfiledProcess:
    """Keeps what the kernel side knows of a process equal to what the process has mapped.

    `ruby` is None until an interpreter was found; `refusal` says why one that is there cannot be unwound.
    `image` is the process as it is read; by default the one that runs under `pid`, which may execute another
    program meanwhile. Owns it. `context` and `search` are as in find_ruby; `force_version` is its
    assume_version. In monotonic seconds: `since` is when it was registered, `sampled` when a trace of it was
    last seen, `ended` when it was dropped. `container` is the id of the one it is in; `left_out` counts
    mappings of code that were too many.
    """

    def __init__(
        self,
        pid: int,
        collection: TracerMaps,
        files: FileCache,
        tables: NativeTables,
        image: ProcessImage | None = None,
        *,
        context: int = 0,
        search: bool = False,
        force_version: str | None = None,
    ) -> None:
        self.pid = pid
        self._context = context
        self._search = search
        self._force_version = force_version
        self.identity = ProcessIdentity.of(pid) if image is None else None
        self.ruby: RubyRuntime | None = None
        self.symbolizer: RubySymbolizer | None = None
        self.former: tuple[RubySymbolizer, float] | None = None  # of the program before, and until when
        self.refusal: UnsupportedRuby | None = None
        self.interpreter: InterpreterLoop | None = None
        self._maps = collection.maps
        self._files = files
        self._tables = tables
        self._pages = ProcessPages(pid, self._maps, tables)
        self._held: set[FileKey] = set()
        self._seen: list[Mapping] = []
        self.since = self.sampled = time.monotonic()
        self.ended = 0.0
        self.container: str | None = None
        self._placed = 0.0  # when that was looked up
        self.left_out = 0
        self._key = pid.to_bytes(4, "little")
        self._probe = 0
        self._image = image or self._restarted()

    def announce(self) -> None:
        """Let the kernel side know the process, before anything of it is registered.

        Page 0 of a pid is that sign: samples are unwound and exec is reported from then on.
        """
        self._pages.announce()

    def sync(self) -> bool:
        """Register what was mapped since the last call, and Ruby once it is there; True if anything changed.

        Raises RubyUnwindError when the process has ended.
        """
        if self.executed():
            self._restart()
        if self.identity is not None:
            now = time.monotonic()
            if now - self._placed > _PLACED or not self._seen:
                self.container, self._placed = container_of(self.pid), now
            if self._seen and not self._ruby_is_early() and not self._image.changed():
                return False
        mappings = self._image.code()
        code = [mapping for mapping in mappings if is_code(mapping)]
        self.left_out = max(0, len(code) - _MOST_CODE)
        del code[_MOST_CODE:]
        changed = code != self._seen
        if changed:
            self._register(code)
            self._seen = code
        if self.refusal is None and (changed or self._ruby_is_early()):
            changed = self._find_ruby(mappings) or changed
        return self._register_jit_code(mappings) or changed

    def inherit(self, parent: ProfiledProcess) -> None:
        """Take over what is known of the process that forked this one, as long as both map the same code.

        Finding Ruby takes longer than many a child lives.
        """
        code = [mapping for mapping in self._image.code(again=False) if is_code(mapping)]
        if not code or code != parent._seen:
            return
        self.container = parent.container
        self._hold(set(parent._held))
        self._pages.replace(set(parent._pages.entries))
        self._seen = code
        self.refusal = parent.refusal
        if parent.ruby is not None:
            self._register_ruby(parent.ruby)
            self.interpreter = parent.interpreter
            self.ruby = parent.ruby
            self.symbolizer = RubySymbolizer(self._image.memory, parent.ruby, forked_from=parent.symbolizer)

    def forget(self) -> None:
        """Remove everything the kernel side knows of the process."""
        self._pages.forget()
        self._hold(set())
        self._forget_ruby()

    def close(self) -> None:
        """Close the image. Names found so far stay. Twice is harmless."""
        self._image.close()

    def runs(self) -> bool:
        """Whether it is still the process that was registered, and has not ended."""
        return not self.executed() or (self.identity is not None and self.identity.is_alive())

    def executed(self) -> bool:
        """Whether exec has replaced the program (or it has ended): the memory that was opened is gone."""
        if self.identity is None:  # an image that was given stays what it is
            return False
        try:
            self._image.memory.read(self._probe, 1)
        except MemoryReadError:
            return True
        return False

    def _restart(self) -> None:
        self.forget()
        self.announce()
        self._image.close()
        self._image = self._restarted()
        self._seen = []
        if self.symbolizer is not None:
            self.former = (self.symbolizer, time.monotonic())
        self.ruby, self.symbolizer, self.refusal = None, None, None
        self.interpreter = None

    def _register(self, code: list[Mapping]) -> None:
        wanted: set[PageEntry] = set()
        fresh: dict[int, StackDeltas] = {}
        files = [(mapping, self._files.open(self._image, mapping)) for mapping in code]
        # Before anything is registered: no file may be taken out of the tables between the two.
        self._hold(self._held | {mapping.file_key for mapping in code})
        for mapping, file in files:
            if file is None:
                continue
            try:
                if file.file_id not in self._tables and file.file_id not in fresh:
                    fresh[file.file_id] = file.deltas()
                bias = file.elf.load_bias(mapping.start, mapping.offset if mapping.is_file else 0)
                packed = encode_bias_and_unwind_program(bias, PROG_UNWIND_NATIVE)
            except (DecodeError, ValueError) as error:
                _log.warning("no unwinding through %s: %s", mapping.path, error)
                continue
            wanted.add((mapping.start, mapping.end, file.file_id, packed))
        try:
            self._tables.add(fresh)
        except BpfError as error:
            _log.warning("not all unwind rows fit the kernel's tables: %s", error)
        wanted |= {entry for entry in self._pages.entries if is_jit_code(entry[2])}
        self._pages.replace(wanted)
        self._hold({mapping.file_key for mapping in code})
        self.announce()

    def _hold(self, keys: set[FileKey]) -> None:
        """Keep these files in the tables, and let go of the others."""
        self._files.hold(keys - self._held)
        self._files.release(self._held - keys)
        self._held = keys

    def _register_jit_code(self, mappings: list[Mapping]) -> bool:
        """Tell the kernel side of code that Ruby has compiled; True if that is news."""
        if self.ruby is None:
            return False
        code = find_jit_code(mappings, self.ruby.version_number, aarch64=self.ruby.image.aarch64)
        wanted = {entry for entry in self._pages.entries if not is_jit_code(entry[2])}
        if code is not None:
            packed = encode_bias_and_unwind_program(0, PROG_UNWIND_NATIVE)
            wanted.add((code.start, code.end, JIT_FILE_ID | self._tables.rule_id(code.rule), packed))
        if wanted == self._pages.entries:
            return False
        self._pages.replace(wanted)
        return True

    def _ruby_is_early(self) -> bool:
        """Whether Ruby was found so early in its start that not everything could be read yet."""
        return self.ruby is not None and (self.ruby.check.result == "early" or self.ruby.tls is None)

    def _may_be_ruby(self) -> bool:
        """Whether any file is worth a closer look; what most processes map was looked at for another one."""
        files = (self._files.open(self._image, mapping) for mapping in self._seen)
        return bool(self._context) or any(file is None or file.may_define_ruby for file in files)

    def _find_ruby(self, mappings: list[Mapping]) -> bool:
        if self.ruby is None and not self._may_be_ruby():
            return False
        try:
            ruby = find_ruby(
                self.pid,
                mappings,
                self._image.memory,
                open_elf=self._image.open,
                read=self._ruby_image if self.identity is not None else None,
                assume_version=self._force_version,
                context=self._context,
                search=self._search,
            )
        except UnsupportedRuby as error:
            self.refusal = error
            self._forget_ruby()
            _log.warning("pid %d: %s; native frames only", self.pid, error)
            return True
        except RubyUnwindError as error:  # it is being torn down, or is not set up yet
            _log.debug("pid %d: looking for Ruby: %s", self.pid, error)
            return False
        if ruby is None or ruby == self.ruby:
            return False
        file = self._file_of(ruby.mapping)
        if self.executed():  # or it ended: what was read on the way is not to be believed
            return False
        self._register_ruby(ruby)
        # A core may hold the interpreter's memory and nothing of its file: no native frame leads there then.
        if file is not None and ruby.interpreter_ranges:
            self.interpreter = self._register_loop(file.file_id, ruby)
            file.name_function(self.interpreter.lower, self.interpreter.upper, ruby.layout.interpreter_symbol)
        known = self.ruby.identifier_table if self.ruby is not None else None
        if self.symbolizer is None or known != ruby.identifier_table:
            self.symbolizer = RubySymbolizer(self._image.memory, ruby)
        self.ruby = ruby
        return True

    def _register_ruby(self, ruby: RubyRuntime) -> None:
        self._maps["ruby_procs"][self._key] = bytes(ruby.proc_info)
        self._maps["ruby_vms"][self._key] = bytes(ruby.vm_info)
        if ruby.tls is not None:
            self._maps["ruby_tls"][self._key] = bytes(ruby.tls)

    def _register_loop(self, file_id: int, ruby: RubyRuntime) -> InterpreterLoop:
        """Tell the kernel side where the interpreter's loop is; a compiler cuts it into two parts at most."""
        parts = [(entry.lower, entry.upper) for entry in ruby.interpreter_ranges[:2]]
        key = file_id.to_bytes(8, "little")
        for name, (lower, upper) in zip(LOOPS, parts, strict=False):
            value = OffsetRange(lower_offset=lower, upper_offset=upper, program_index=PROG_UNWIND_RUBY)
            self._maps[name][key] = bytes(value)
        return InterpreterLoop(file_id, *parts[0], cold=parts[1] if len(parts) > 1 else None)

    def _ruby_image(self, mapping: Mapping) -> RubyImage | None:
        """Return what is needed of a file with Ruby in it: read once, and placed where it is mapped here."""
        file = self._file_of(mapping)
        return file.ruby_image(mapping) if file is not None and file.may_define_ruby else None

    def _file_of(self, mapping: Mapping) -> MappedFile | None:
        return self._files.open(self._image, mapping)

    def _forget_ruby(self) -> None:
        for name in ("ruby_procs", "ruby_vms", "ruby_tls"):
            self._maps[name].discard(self._key)

    def _restarted(self) -> LiveProcess:
        """Open the process as it is now, and note where its program's memory begins."""
        image = LiveProcess(self.pid)
        try:
            self._probe = image.first_address()
            if not self._probe:
                raise AttachError(f"process {self.pid} has no memory: it has ended, or is a kernel thread")
        except BaseException:
            image.close()
            raise
        return image
