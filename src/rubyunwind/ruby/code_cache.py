# SPDX-License-Identifier: Apache-2.0
"""The code and methods of a process that were read, and from when to when each was seen to be there.

Ruby frees and uses again the memory behind an address. What stands there is read after the sample, so it is
the sample's own only if it was there before it, too, and still is: first read before it, and found to be the
same after it. Where nothing changes a process is believed for a while after it was looked at; once something
did, only what is proven is taken, or what was read within a moment of the sample.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from rubyunwind.errors import RubyUnwindError
from rubyunwind.process.memory import MemoryReadError
from rubyunwind.ruby.labels import IseqBody, is_same_iseq, read_iseq_body
from rubyunwind.ruby.methods import MethodEntry, read_method_entry
from rubyunwind.ruby.strings import BadObject

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rubyunwind.process.memory import Memory
    from rubyunwind.ruby.layouts import Layout

__all__ = ["TOO_LATE", "CodeCache", "Known", "KnownCode", "KnownMethod", "Seen", "store"]

Seen = tuple[float, float]
"""When a frame was seen first and last, in seconds by the clock."""

Describe = Callable[[MethodEntry], tuple[str, str | None, bool]]
"""Gives the prefix of a method entry, its label, and whether both are final."""

# For so many seconds after a change there is more to come, as when an application reloads its code.
_CHANGING = 5.0
# There, seconds between a sample and a look at its code: with more of them other code may have run meanwhile.
_LATE = 0.008
TOO_LATE = "code comes and goes, and this was read too long after the sample"

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(slots=True, eq=False)
class KnownCode:
    """An iseq body that was there from `since` to `checked`; its names by method prefix.

    `gone`: something else was found in its place, or it is to be read again.
    """

    body: IseqBody
    since: float
    checked: float
    names: dict[str, str] = field(default_factory=dict)
    gone: bool = False

    @property
    def final(self) -> bool:
        """As in KnownMethod."""
        return True


@dataclass(slots=True, eq=False)
class KnownMethod:
    """A method entry that was there from `since` to `checked`, and `gone` as in KnownCode.

    `label` is its name alone, None if unreadable; `prefix` is of ClassPaths. Not `final`: a class that has
    no name (a constant) may be given one.
    """

    entry: MethodEntry
    at: int
    prefix: str
    label: str | None
    final: bool
    since: float
    checked: float
    gone: bool = False


Known = KnownCode | KnownMethod


class CodeCache:
    """Reads what is at the addresses of a stack, `size` of each sort at most."""

    def __init__(
        self,
        memory: Memory,
        layout: Layout,
        *,
        size: int,
        recheck_after: float,
        clock: Callable[[], float],
    ) -> None:
        self._memory = memory
        self._layout = layout
        self._size = size
        self._recheck_after = recheck_after
        self._clock = clock
        self._changing_until = 0.0
        self._codes: dict[int, KnownCode] = {}
        self._methods: dict[int, KnownMethod] = {}
        self.replaced = 0  # times that something else was found where code or a method was known
        self.read = 0  # times that something was read that was not known

    def clear(self) -> None:
        """Forget everything."""
        gone: list[Known] = [*self._codes.values(), *self._methods.values()]
        for known in gone:
            known.gone = True
        self._codes.clear()
        self._methods.clear()

    def changing(self, when: float) -> bool:
        """Whether something was replaced some seconds before that time or since."""
        return when < self._changing_until

    def trusted_since(self, last: float) -> float:
        """Return since when a check is good enough for what was seen last at `last`."""
        return last if last < self._changing_until else last - self._recheck_after

    def late(self, known: Known, seen: Seen) -> bool:
        """Whether it was read so long after a frame that it may be the successor of what ran."""
        return seen[1] < self._changing_until and known.since - seen[0] > _LATE

    def proven(self, grounds: Iterable[Known], seen: Seen) -> float | None:
        """Return until when all of that was there, None if it may have been other code at that time."""
        trusted = self.trusted_since(seen[1])
        until = self._clock()
        try:
            for known in grounds:
                if known.gone or (known.checked < trusted and not self.check(known, seen[1])):
                    return None
                until = min(until, known.checked)
        except RubyUnwindError:
            return None
        if self.changing(seen[1]) and any(self.late(known, seen) for known in grounds):
            return None
        return until

    def code(self, address: int, seen: Seen) -> KnownCode:
        """Return the code at an address. Raises BadObject, BadLineTable or MemoryReadError."""
        known = self._codes.get(address)
        if known is None or not (known.checked >= self.trusted_since(seen[1]) or self.check(known, seen[1])):
            known = self._read_code(address)
        if self.late(known, seen):
            raise BadObject(TOO_LATE)
        return known

    def method(self, address: int, seen: Seen, describe: Describe) -> KnownMethod | None:
        """Return the method at ep[-2], None when there is none. An unreadable one is none, too.

        It may be `late`. `describe` is asked about one that is read.
        """
        known = self._methods.get(address)
        try:
            if known is not None and known.checked >= self.trusted_since(seen[1]):
                return known
            if known is not None and self.check(known, seen[1]) and known.final:
                return known
            return self._read_method(address, known, describe)
        except MemoryReadError:
            return known if known is not None and not (known.gone or self.changing(seen[1])) else None
        except RubyUnwindError:
            return None

    def check(self, known: Known, last: float) -> bool:
        """Look whether it is still there, and note it. What was seen of it was seen at `last` at the latest.

        Raises MemoryReadError where nothing can be read any more and what was there then cannot be told.
        """
        now = self._clock()
        try:
            if isinstance(known, KnownCode):
                same = is_same_iseq(self._memory, self._layout, known.body)
            else:
                same = read_method_entry(self._memory, self._layout, known.at) == known.entry
        except MemoryReadError:
            # Nothing else is there: what it was is what was sampled.
            if not self.changing(last):
                known.checked = now
            elif last - known.checked > _LATE:
                raise
            return True
        except BadObject:
            same = False
        if same:
            known.checked = now
            return True
        self.replaced += 1
        self._changing_until = now + _CHANGING
        known.gone = True
        if isinstance(known, KnownCode):
            self._codes.pop(known.body.address, None)
        else:
            self._methods.pop(known.at, None)
        return False

    # What is read in several pieces is looked at once more: if it is the same, it was all there in between.

    def _read_code(self, address: int) -> KnownCode:
        self.read += 1
        body = read_iseq_body(self._memory, self._layout, address)
        since = self._clock()
        if not is_same_iseq(self._memory, self._layout, body):
            raise BadObject("it changed while it was read")
        code = KnownCode(body, since, since)
        store(self._codes, address, code, self._size)
        return code

    def _read_method(self, address: int, known: KnownMethod | None, describe: Describe) -> KnownMethod:
        entry = read_method_entry(self._memory, self._layout, address)
        prefix, label, final = describe(entry)
        checked = since = self._clock()
        if read_method_entry(self._memory, self._layout, address) != entry:
            raise BadObject("it changed while it was read")
        if known is not None and not known.gone:  # the same, which may have a better name
            since = known.since
            if (known.prefix, known.label) == (prefix, label):
                known.final = final
                return known
            known.gone = True
        else:
            self.read += 1
        method = KnownMethod(entry, address, prefix, label, final, since, checked)
        store(self._methods, address, method, self._size)
        return method


def store(cache: dict[_Key, _Value], key: _Key, value: _Value, size: int) -> None:
    """Add to a cache; when it is full, the oldest entry goes."""
    if len(cache) >= size and key not in cache:
        del cache[next(iter(cache))]
    cache[key] = value
