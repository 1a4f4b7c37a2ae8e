# SPDX-License-Identifier: Apache-2.0
"""RubySymbolizer: from the addresses in a trace to the names Ruby itself prints."""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from rubyunwind.errors import RubyUnwindError
from rubyunwind.process.memory import MemoryReadError
from rubyunwind.profiler.sample import Frame
from rubyunwind.ruby.class_paths import ClassPaths
from rubyunwind.ruby.identifiers import IdentifierTable
from rubyunwind.ruby.labels import ENSURE, RESCUE, IseqBody, is_same_iseq, read_iseq_body, readable_label
from rubyunwind.ruby.lines import BadLineTable, position_of
from rubyunwind.ruby.methods import MethodEntry, read_method_entry
from rubyunwind.ruby.strings import BadObject
from rubyunwind.ruby.vm_info import GC_PHASES

if TYPE_CHECKING:
    from collections.abc import Callable

    from rubyunwind.process.memory import Memory
    from rubyunwind.ruby.detect import RubyRuntime

__all__ = ["RubySymbolizer", "gc_frame"]

# Seconds that names are believed where code changes, and for how long after a change.
_MOMENT, _CHANGING = 0.002, 5.0
# There, seconds from a sample to the reading of code that was not known: later it may be other code's name.
_LATE = 0.008

# Seconds until a symbol table that was not found is searched again, and twice as long each time after.
_PATIENCE = 0.002

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(slots=True)
class _Code:
    """A cached iseq body and when it was last seen to be still that iseq; its names by method prefix."""

    body: IseqBody
    checked: float
    names: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Method:
    """A cached method entry. `label` is its name alone, None if unreadable; `prefix` is of ClassPaths."""

    entry: MethodEntry
    prefix: str
    label: str | None
    checked: float


class RubySymbolizer:
    """Names the frames of one process. A bad address never raises: its frame is "unknown" and says why.

    Results are cached, at most `cache_size` of each sort. Ruby frees and reuses the memory behind an
    address, so a cached name is believed for `recheck_after` seconds and then held against the process
    again (some short reads for the whole method). Where other code was found at an address there is more to
    come, as when an application reloads its code: for some seconds names are believed for a moment only. A
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
        self._recheck_after = recheck_after
        self._changing_until = 0.0
        self.replaced = 0  # times that other code was found where some was known
        self._clock = clock
        self._origin = weakref.ref(forked_from) if forked_from is not None else None
        self._runtime = runtime
        self._look_again, self._patience = 0.0, _PATIENCE
        self._know_identifiers(runtime.identifier_table)
        self._frames: dict[tuple[int, int, int], tuple[Frame, _Code, _Method | None]] = {}
        self._codes: dict[int, _Code] = {}
        self._methods: dict[int, _Method | None] = {}

    def _know_identifiers(self, table: int) -> None:
        self._identifiers = IdentifierTable(self._memory, self._layout, table) if table else None
        self._classes = ClassPaths(self._memory, self._layout, self._identifiers)
        self._qualifies = self._classes.readable

    def clear(self) -> None:
        """Forget everything."""
        self._frames.clear()
        self._codes.clear()
        self._methods.clear()

    def believed_for(self, now: float) -> float:
        """Return for how many seconds a name that was read is to be believed, at a time by the clock."""
        return _MOMENT if now < self._changing_until else self._recheck_after

    def _note_replaced(self, now: float) -> None:
        self.replaced += 1
        self._changing_until = now + _CHANGING

    def ruby_frame(
        self, iseq_body: int, pc: int, method_entry: int = 0, sampled: float | None = None
    ) -> Frame:
        """Return the frame that runs `iseq_body` at `pc`.

        `method_entry` is ep[-2] of its method's environment (a method entry, svar, cref, or 0). Only
        versions whose class paths can be read look at it. `sampled` is when the frame was seen, by the
        clock; None: just now. Where code changes, what was read long after that is no name for it.
        """
        if not self._qualifies and self._identifiers is None:
            self._find_identifiers()
        if not self._qualifies:
            method_entry = 0
        key = (iseq_body, pc, method_entry)
        now = self._clock()
        known = self._frames.get(key)
        try:
            code = self._code(iseq_body, now, now if sampled is None else sampled)
            method = self._method(method_entry, now) if method_entry else None
            if known is not None and known[1] is code and known[2] is method:
                return known[0]
            frame = self._ruby_frame(code, pc, method)
        except RubyUnwindError as error:
            origin = self._origin_of(error)
            named = origin.ruby_frame(iseq_body, pc, method_entry) if origin is not None else None
            # Where the pc has a line it is of that code: other code has come there otherwise, since the fork.
            if named is not None and named.kind == "ruby" and named.line:
                return named
            return _unknown("Ruby code", iseq_body, error)
        _store(self._frames, key, (frame, code, method), self._cache_size)
        return frame

    def folds(self, iseq_body: int) -> bool:
        """Whether Ruby leaves the next frame towards the root out: this one is of a clause of that code."""
        if not self._layout.folded_rescues:
            return False
        try:
            now = self._clock()
            return self._code(iseq_body, now, now).body.kind in (RESCUE, ENSURE)
        except RubyUnwindError:
            return False

    def cfunc_frame(self, method_entry: int, caller: Frame | None = None) -> Frame:
        """Return the frame of a C function, placed at `caller`, the next Ruby frame towards the root."""
        path = caller.path if caller is not None else None
        line = caller.line if caller is not None else None
        method = self._method(method_entry, self._clock())
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
        if method.label is None:
            return Frame("cfunc", f"[C function, id {method.entry.original_id:#x}]", None, path, line)
        name = method.prefix + method.label
        return Frame("cfunc", name, name if self._layout.qualified_labels else method.label, path, line)

    def _origin_of(self, error: RubyUnwindError) -> RubySymbolizer | None:
        """Return who may know better, if it was not what was read but that nothing could be."""
        return self._origin() if self._origin is not None and isinstance(error, MemoryReadError) else None

    def _ruby_frame(self, code: _Code, pc: int, method: _Method | None) -> Frame:
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

    def _code(self, address: int, now: float, sampled: float) -> _Code:
        known = self._codes.get(address)
        if known is not None:
            if now - known.checked < self.believed_for(now):
                return known
            try:
                same = is_same_iseq(self._memory, self._layout, known.body)
            except MemoryReadError:  # nothing else is there: what it was is what was sampled
                same = True
            if same:
                known.checked = now
                return known
            self._note_replaced(now)
            del self._codes[address]
        code = _Code(read_iseq_body(self._memory, self._layout, address), now)
        _store(self._codes, address, code, self._cache_size)
        if now < self._changing_until and now - sampled > _LATE:
            raise BadObject("code comes and goes, and this was read too long after the sample")
        return code

    def _method(self, address: int, now: float) -> _Method | None:
        """Return the method at ep[-2], None when there is none. An unreadable one is none, too."""
        known = self._methods.get(address)
        if known is not None and now - known.checked < self.believed_for(now):
            return known
        try:
            entry = read_method_entry(self._memory, self._layout, address)
        except RubyUnwindError as error:
            if known is not None and isinstance(error, MemoryReadError):
                known.checked = now
                return known
            self._methods.pop(address, None)
            return None
        # A class may have been given its name (a constant) since: look again where there was none.
        named = known is not None and (known.prefix or not self._qualifies)
        if known is not None and named and known.label is not None and known.entry == entry:
            known.checked = now
            return known
        if known is not None and known.entry != entry:
            self._note_replaced(now)
        method = _Method(
            entry=entry,
            prefix=self._classes.prefix(entry.owner),
            label=self._identifier(entry.original_id),
            checked=now,
        )
        _store(self._methods, address, method, self._cache_size)
        return method

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


def _store(cache: dict[_Key, _Value], key: _Key, value: _Value, size: int) -> None:
    """Add to a cache; when it is full, the oldest entry goes."""
    if len(cache) >= size and key not in cache:
        del cache[next(iter(cache))]
    cache[key] = value


def _unknown(what: str, address: int, error: Exception) -> Frame:
    """Make a frame whose name is the kind of failure, so that equal ones merge; its label has the details."""
    kind = "that cannot be read" if isinstance(error, MemoryReadError) else "that was freed"
    return Frame("unknown", f"[{what} {kind}]", f"{what} at {address:#x}: {error}")
