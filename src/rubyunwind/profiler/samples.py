# SPDX-License-Identifier: Apache-2.0
"""Many samples: a sequence that keeps each distinct stack and thread once, and the rest in columns.

A sample takes 32 bytes while it is new and some five when it is packed, so that a recording of hours fits
into memory.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, compress, pairwise
from typing import TYPE_CHECKING, NamedTuple, cast, overload

from rubyunwind.profiler.sample import Sample

if TYPE_CHECKING:
    from rubyunwind.profiler.sample import Frame

__all__ = ["SampledStack", "SampledThread", "Samples"]

# time, stack, thread, cpu, weight: see Samples.
_KINDS = ("q", "I", "I", "i", "Q")
# Samples are packed in this many at once.
_CHUNK = 1 << 16


class SampledStack(NamedTuple):
    """What samples of equal stacks share; the fields are those of Sample."""

    frames: tuple[Frame, ...]
    complete: bool = True
    reason: str | None = None
    origin: str = "sampling"
    backend: str = "bpf"
    unit: str = "samples"


class SampledThread(NamedTuple):
    """What samples of one thread share; the fields are those of Sample."""

    pid: int
    tid: int
    comm: str
    container: str | None = None


class _Packed(NamedTuple):
    """Columns that are full, compressed; times as differences. `first` is the index of the first sample."""

    first: int
    columns: tuple[bytes, ...]

    @classmethod
    def of(cls, first: int, columns: Sequence[array[int]]) -> _Packed:
        time, *others = columns
        differences = array("q", chain(time[:1], (after - before for before, after in pairwise(time))))
        return cls(first, tuple(zlib.compress(column.tobytes(), 1) for column in (differences, *others)))

    def columns_again(self) -> tuple[array[int], ...]:
        found = []
        for kind, packed in zip(_KINDS, self.columns, strict=True):
            column = array(kind)
            column.frombytes(zlib.decompress(packed))
            found.append(column)
        found[0] = array("q", accumulate(found[0]))
        return tuple(found)


class Samples(Sequence[Sample]):
    """Samples in the order in which they came. Grows by `append` and `extend`; items are made when asked for.

    Equal stacks come out as one tuple of frames, so they can be compared by identity. Not for several
    threads at once.
    """

    def __init__(self, samples: Iterable[Sample] = ()) -> None:
        self._packed: list[_Packed] = []
        self._columns = tuple(array(kind) for kind in _KINDS)
        self._stacks: list[SampledStack] = []
        self._threads: list[SampledThread] = []
        self._stack_index: dict[SampledStack, int] = {}
        self._thread_index: dict[SampledThread, int] = {}
        # By the identity of the frames, since hashing a stack hashes each of its frames. The tuple stays
        # beside the index, so that nobody else gets its id.
        self._known: dict[tuple[object, ...], tuple[int, tuple[Frame, ...]]] = {}
        self._indexed = True
        self._opened: tuple[int, tuple[array[int], ...]] | None = None
        self.extend(samples)

    @classmethod
    def of_columns(
        cls,
        stacks: Iterable[SampledStack],
        threads: Iterable[SampledThread],
        columns: tuple[array[int], array[int], array[int], array[int], array[int]],
    ) -> Samples:
        """Make samples of columns, which become ours: time (unix ns, "q"), stack and thread (indices, "I"),
        cpu ("i") and weight ("Q"), all of one length."""
        self = cls()
        self._stacks, self._threads = list(stacks), list(threads)
        self._indexed = False
        self._columns = columns
        for kind, column in zip(_KINDS, columns, strict=True):
            if column.typecode != kind or len(column) != len(columns[0]):
                raise ValueError(
                    f"a column of {len(column)} {column.typecode!r} among {len(columns[0])} {kind!r}"
                )
        return self

    def append(self, sample: Sample) -> None:
        """Add one sample."""
        stack = SampledStack(
            sample.frames, sample.complete, sample.reason, sample.origin, sample.backend, sample.unit
        )
        thread = SampledThread(sample.pid, sample.tid, sample.comm, sample.container)
        for column, value in zip(
            self._columns,
            (sample.timestamp, self._stack(stack), self._thread(thread), sample.cpu, sample.weight),
            strict=True,
        ):
            column.append(value)
        self._pack()

    def extend(self, samples: Iterable[Sample]) -> None:
        """Add samples; those that are Samples themselves are taken by the column."""
        if not isinstance(samples, Samples):
            for sample in samples:
                self.append(sample)
            return
        stacks = [self._stack(stack) for stack in samples._stacks]
        threads = [self._thread(thread) for thread in samples._threads]
        for time, stack, thread, cpu, weight in samples.columns():
            mine = self._columns
            mine[0].extend(time)
            mine[1].extend(map(stacks.__getitem__, stack))
            mine[2].extend(map(threads.__getitem__, thread))
            mine[3].extend(cpu)
            mine[4].extend(weight)
            self._pack()

    def extend_columns(
        self,
        stacks: Iterable[SampledStack],
        threads: Iterable[SampledThread],
        columns: Sequence[array[int]],
    ) -> None:
        """Add samples as columns; see `of_columns`. Their indices are into our own stacks and threads, to
        which those given are added first."""
        self._stacks.extend(stacks)
        self._threads.extend(threads)
        self._indexed = False
        for mine, more in zip(self._columns, columns, strict=True):
            mine.extend(more)
        self._pack()

    def selected(
        self,
        stacks: Sequence[SampledStack | None],
        threads: Sequence[bool],
        since: int | None = None,
        until: int | None = None,
    ) -> Samples:
        """Return the samples from `since` to before `until` (unix ns) that are wanted, with other stacks.

        `stacks` has for each of our stacks the one to be put in its place, None to leave the samples out;
        `threads` has for each of our threads whether it is wanted.
        """
        found = Samples()
        kept = [stack is not None for stack in stacks]
        for time, stack, thread, cpu, weight in self.columns():
            wanted = [kept[s] and threads[t] for s, t in zip(stack, thread, strict=True)]
            if since is not None:
                wanted = [want and at >= since for want, at in zip(wanted, time, strict=True)]
            if until is not None:
                wanted = [want and at < until for want, at in zip(wanted, time, strict=True)]
            old_stacks, old_threads = list(compress(stack, wanted)), list(compress(thread, wanted))
            new_stacks = {
                at: found._stack(cast("SampledStack", stacks[at])) for at in dict.fromkeys(old_stacks)
            }
            new_threads = {at: found._thread(self._threads[at]) for at in dict.fromkeys(old_threads)}
            ours = found._columns
            ours[0].extend(compress(time, wanted))
            ours[1].extend(map(new_stacks.__getitem__, old_stacks))
            ours[2].extend(map(new_threads.__getitem__, old_threads))
            ours[3].extend(compress(cpu, wanted))
            ours[4].extend(compress(weight, wanted))
            found._pack()
        return found

    def __iadd__(self, samples: Iterable[Sample]) -> Samples:
        self.extend(samples)
        return self

    def __add__(self, samples: Iterable[Sample]) -> Samples:
        both = Samples(self)
        both.extend(samples)
        return both

    def __radd__(self, samples: list[Sample]) -> list[Sample]:
        return [*samples, *self]

    def __len__(self) -> int:
        return self._first + len(self._columns[0])

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        if at >= self._first:
            at, columns = at - self._first, self._columns
        else:
            which = bisect_right(self._packed, at, key=lambda packed: packed.first) - 1
            if self._opened is None or self._opened[0] != which:
                self._opened = (which, self._packed[which].columns_again())
            at, columns = at - self._packed[which].first, self._opened[1]
        time, stack, thread, cpu, weight = (column[at] for column in columns)
        return self._sample(time, self._stacks[stack], self._threads[thread], cpu, weight)

    def __iter__(self) -> Iterator[Sample]:
        for columns in self.columns():
            for time, stack, thread, cpu, weight in zip(*columns, strict=True):
                yield self._sample(time, self._stacks[stack], self._threads[thread], cpu, weight)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # it grows

    def __repr__(self) -> str:
        return f"<{len(self)} samples, {len(self._stacks)} stacks>"

    @property
    def stacks(self) -> tuple[SampledStack, ...]:
        """The distinct stacks, in the order of their first appearance."""
        return tuple(self._stacks)

    @property
    def threads(self) -> tuple[SampledThread, ...]:
        """The distinct threads, in the order of their first appearance."""
        return tuple(self._threads)

    @property
    def incomplete(self) -> int:
        """How many samples have a stack that is not whole."""
        broken = [not stack.complete for stack in self._stacks]
        return sum(sum(map(broken.__getitem__, columns[1])) for columns in self.columns())

    def merged(self) -> list[Sample]:
        """Return a sample for each stack of each thread, with the sum of the weights and the first time."""
        sums: dict[tuple[int, int], list[int]] = {}
        for columns in self.columns():
            for time, stack, thread, cpu, weight in zip(*columns, strict=True):
                known = sums.get((stack, thread))
                if known is None:
                    sums[stack, thread] = [time, cpu, weight]
                else:
                    known[2] += weight
        return [
            self._sample(time, self._stacks[stack], self._threads[thread], cpu, weight)
            for (stack, thread), (time, cpu, weight) in sums.items()
        ]

    @property
    def _first(self) -> int:
        """The index of the first sample that is not packed."""
        return self._packed[-1].first + _CHUNK if self._packed else 0

    def columns(self) -> Iterator[tuple[array[int], ...]]:
        """Yield the samples as columns, many at once: time, stack, thread, cpu, weight, as `of_columns` takes
        them. Stack and thread are indices into `stacks` and `threads`. Only to be read."""
        for packed in self._packed:
            yield packed.columns_again()
        if self._columns[0]:
            yield self._columns

    def _pack(self) -> None:
        while len(self._columns[0]) >= _CHUNK:
            self._packed.append(_Packed.of(self._first, [column[:_CHUNK] for column in self._columns]))
            for column in self._columns:
                del column[:_CHUNK]

    def _stack(self, stack: SampledStack) -> int:
        key = (id(stack.frames), *stack[1:])
        known = self._known.get(key)
        if known is None:
            self._index()
            index = self._stack_index.setdefault(stack, len(self._stacks))
            if index == len(self._stacks):
                self._stacks.append(stack)
            known = self._known[key] = (index, stack.frames)
        return known[0]

    def _thread(self, thread: SampledThread) -> int:
        self._index()
        index = self._thread_index.setdefault(thread, len(self._threads))
        if index == len(self._threads):
            self._threads.append(thread)
        return index

    def _index(self) -> None:
        """Samples made of columns are mostly read and thrown away: only those that grow need an index."""
        if not self._indexed:
            self._stack_index = {stack: at for at, stack in enumerate(self._stacks)}
            self._thread_index = {thread: at for at, thread in enumerate(self._threads)}
            self._indexed = True

    @staticmethod
    def _sample(time: int, stack: SampledStack, thread: SampledThread, cpu: int, weight: int) -> Sample:
        return Sample(
            timestamp=time,
            pid=thread.pid,
            tid=thread.tid,
            comm=thread.comm,
            frames=stack.frames,
            complete=stack.complete,
            reason=stack.reason,
            weight=weight,
            unit=stack.unit,
            origin=stack.origin,
            backend=stack.backend,
            container=thread.container,
            cpu=cpu,
        )
