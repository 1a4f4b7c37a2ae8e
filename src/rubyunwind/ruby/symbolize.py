# SPDX-License-Identifier: Apache-2.0
"""RubySymbolizer: from the addresses in a trace to the names Ruby itself prints."""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING

from rubyunwind.errors import RubyUnwindError
from rubyunwind.process.memory import MemoryReadError
from rubyunwind.profiler.sample import Frame
from rubyunwind.ruby.class_paths import ClassPaths
from rubyunwind.ruby.code_cache import TOO_LATE, CodeCache, KnownCode, KnownMethod, store
from rubyunwind.ruby.identifiers import IdentifierTable
from rubyunwind.ruby.labels import ENSURE, RESCUE, readable_label
from rubyunwind.ruby.lines import BadLineTable, position_of
from rubyunwind.ruby.methods import read_method_entry
from rubyunwind.ruby.strings import BadObject
from rubyunwind.ruby.vm_info import GC_PHASES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rubyunwind.process.memory import Memory
    from rubyunwind.ruby.code_cache import Known, Seen
    from rubyunwind.ruby.detect import RubyRuntime
    from rubyunwind.ruby.methods import MethodEntry

__all__ = ["RubySymbolizer", "gc_frame"]

# Seconds that names are believed where code changes, of frames that are seen right now.
_MOMENT = 0.002

# Seconds until a symbol table that was not found is searched again, and twice as long each time after.
_PATIENCE = 0.002


class RubySymbolizer:
    """Names the frames of one process. A bad address never raises: its frame is "unknown" and says why.

    Results are cached, at most `cache_size` of each sort. Ruby frees and reuses the memory behind an
    address, so a cached name is believed for `recheck_after` seconds and then held against the process
    again (some short reads for the whole method). Where something else was found at an address there is more
    to come: for some seconds only names are believed that are proven, see code_cache.py. A
    name whose memory cannot be read any more, as after the end of the process, stays. Call clear() when the
    process has called exec.

    `forked_from` names what the process no longer can: a child that ended before its samples were read has
    the same code at the same place. It is not kept alive.
    """

    def __init__(
        self,
        memory: Memory,
        runtime: RubyRuntime,
        *,
        cache_size: int = 32768,
        recheck_after: float = 0.25,
        clock: Callable[[], float] = time.monotonic,
        forked_from: RubySymbolizer | None = None,
    ) -> None:
        self._memory = memory
        self._layout = runtime.layout
        self._cache_size = max(cache_size, 1)
        self._clock = clock
        self._origin = weakref.ref(forked_from) if forked_from is not None else None
        self._runtime = runtime
        self._look_again, self._patience = 0.0, _PATIENCE
        self._known = CodeCache(
            memory,
            runtime.layout,
            size=self._cache_size,
            recheck_after=recheck_after,
            clock=clock,
        )
        self._know_identifiers(runtime.identifier_table)
        self._frames: dict[tuple[int, int, int], tuple[Frame, KnownCode, KnownMethod | None]] = {}

    def _know_identifiers(self, table: int) -> None:
        self._identifiers = IdentifierTable(self._memory, self._layout, table) if table else None
        self._classes = ClassPaths(self._memory, self._layout, self._identifiers)
        self._qualifies = self._classes.readable

    def clear(self) -> None:
        """Forget everything."""
        self._frames.clear()
        self._known.clear()

    @property
    def replaced(self) -> int:
        """How many times other code was found where some was known."""
        return self._known.replaced

    @property
    def read(self) -> int:
        """How many times code or a method was read that was not known."""
        return self._known.read

    def believed_for(self, now: float) -> float:
        """Return for how many seconds a name that was read is to be believed, at a time by the clock.

        0: for no longer than it can be proven, see `proven`.
        """
        return now - self._known.trusted_since(now)

    def proven(self, grounds: Iterable[Known], seen: Seen) -> float | None:
        """Return until when all that names rest on was there; None if they may be others for what was seen.

        `grounds` and `seen` are as for `ruby_frame`.
        """
        return self._known.proven(grounds, seen)

    def _seen_now(self) -> Seen:
        now = self._clock()
        return now, now - _MOMENT

    def ruby_frame(
        self,
        iseq_body: int,
        pc: int,
        method_entry: int = 0,
        seen: Seen | None = None,
        grounds: set[Known] | None = None,
    ) -> Frame:
        """Return the frame that runs `iseq_body` at `pc`.

        `method_entry` is ep[-2] of its method's environment (a method entry, svar, cref, or 0). Only
        versions whose class paths can be read look at it. `seen` is when the frame was seen first and last,
        by the clock; None: just now. Where code changes, what was read long after that is no name for it.
        What the name rests on is added to `grounds`.
        """
        if not self._qualifies and self._identifiers is None:
            self._find_identifiers()
        if not self._qualifies:
            method_entry = 0
        key = (iseq_body, pc, method_entry)
        known = self._frames.get(key)
        when = seen or self._seen_now()
        try:
            code = self._known.code(iseq_body, when)
            method = self._known.method(method_entry, when, self._describe) if method_entry else None
            if grounds is not None:
                grounds.add(code)
                if method is not None:
                    grounds.add(method)
            if known is not None and known[1] is code and known[2] is method:
                return known[0]
            frame = self._ruby_frame(code, pc, method)
            # Its line and its class were read behind it.
            if self._known.changing(when[1]) and not self._known.check(code, when[1]):
                raise BadObject("it changed while it was read")
        except RubyUnwindError as error:
            origin = self._origin_of(error)
            named = origin.ruby_frame(iseq_body, pc, method_entry) if origin is not None else None
            # Where the pc has a line it is of that code: other code has come there otherwise, since the fork.
            if named is not None and named.kind == "ruby" and named.line:
                return named
            return _unknown("Ruby code", iseq_body, error)
        store(self._frames, key, (frame, code, method), self._cache_size)
        return frame

    @property
    def hides_frames(self) -> bool:
        """Whether Ruby of that version leaves some frames out, see `folds`."""
        return self._layout.folded_rescues

    def folds(self, iseq_body: int, seen: Seen | None = None, grounds: set[Known] | None = None) -> bool:
        """Whether Ruby leaves the next frame towards the root out: this one is of a clause of that code."""
        if not self._layout.folded_rescues:
            return False
        try:
            code = self._known.code(iseq_body, seen or self._seen_now())
        except RubyUnwindError:
            return False
        if grounds is not None:
            grounds.add(code)
        return code.body.kind in (RESCUE, ENSURE)

    def cfunc_frame(
        self,
        method_entry: int,
        caller: Frame | None = None,
        seen: Seen | None = None,
        grounds: set[Known] | None = None,
    ) -> Frame:
        """Return the frame of a C function, placed at `caller`, the next Ruby frame towards the root.

        `seen` and `grounds` are as for `ruby_frame`.
        """
        path = caller.path if caller is not None else None
        line = caller.line if caller is not None else None
        when = seen or self._seen_now()
        method = self._known.method(method_entry, when, self._describe)
        if method is None:
            try:
                # Read again for the message: why it is unreadable, or what is there instead.
                read_method_entry(self._memory, self._layout, method_entry)
            except RubyUnwindError as error:
                origin = self._origin_of(error)
                named = origin.cfunc_frame(method_entry, caller) if origin is not None else None
                if named is not None and named.kind == "cfunc" and named.label:
                    return named
                return _unknown("C function", method_entry, error)
            return _unknown("C function", method_entry, BadObject("it changed while it was read"))
        if self._known.late(method, when):
            return _unknown("C function", method_entry, BadObject(TOO_LATE))
        if grounds is not None:
            grounds.add(method)
        if method.label is None:
            return Frame("cfunc", f"[C function, id {method.entry.original_id:#x}]", None, path, line)
        name = method.prefix + method.label
        return Frame("cfunc", name, name if self._layout.qualified_labels else method.label, path, line)

    def _origin_of(self, error: RubyUnwindError) -> RubySymbolizer | None:
        """Return who may know better, if it was not what was read but that nothing could be."""
        return self._origin() if self._origin is not None and isinstance(error, MemoryReadError) else None

    def _ruby_frame(self, code: KnownCode, pc: int, method: KnownMethod | None) -> Frame:
        body = code.body
        try:
            line = body.lines.line(position_of(pc, body.iseq_encoded, body.iseq_size))
        except (BadLineTable, MemoryReadError):
            # Compiled code (YJIT) leaves a new frame's pc unset until its first call, and the table of a
            # process that has ended is gone: the line is unknown.
            line = 0
        if not self._qualifies:
            return Frame("ruby", body.label, body.label, body.path, line)
        prefix = method.prefix if method is not None else ""
        name = code.names.get(prefix)
        if name is None:
            name = code.names[prefix] = readable_label(self._memory, self._layout, body, prefix)
        return Frame("ruby", name, name if self._layout.qualified_labels else body.label, body.path, line)

    def _describe(self, entry: MethodEntry) -> tuple[str, str | None, bool]:
        """Return what CodeCache asks for. A class may be given its name (a constant) later."""
        prefix, label = self._classes.prefix(entry.owner), self._identifier(entry.original_id)
        return prefix, label, label is not None and bool(prefix or not self._qualifies)

    def _identifier(self, identifier: int) -> str | None:
        if self._identifiers is None:
            self._find_identifiers()
        try:
            return self._identifiers.name(identifier) if self._identifiers is not None else None
        except RubyUnwindError:
            return None

    def _find_identifiers(self) -> None:
        """Search the symbol table of a stripped Ruby that had only started when the others were found."""
        now = self._clock()
        if now >= self._look_again:
            self._look_again = now + self._patience
            self._patience *= 2
            table = self._runtime.search_identifiers(self._memory)
            if table:
                self._know_identifiers(table)
                self.clear()  # all of it has better names now


def gc_frame(phase: int) -> Frame:
    """Return the frame of a garbage collection; `phase` is addr_or_line of a RUBY_GC frame: enum gc_mode."""
    name = GC_PHASES[phase] if phase < len(GC_PHASES) else f"phase {phase}"
    return Frame("gc", f"(garbage collection: {name})", name)


def _unknown(what: str, address: int, error: Exception) -> Frame:
    """Make a frame whose name is the kind of failure, so that equal ones merge; its label has the details."""
    kind = "that cannot be read" if isinstance(error, MemoryReadError) else "that was freed"
    return Frame("unknown", f"[{what} {kind}]", f"{what} at {address:#x}: {error}")
