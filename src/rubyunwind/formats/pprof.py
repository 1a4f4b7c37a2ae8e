# SPDX-License-Identifier: Apache-2.0
"""pprof: a gzip-compressed protocol buffer, for `go tool pprof` and what else reads it.

Values of a sample are one column for each unit. "samples" are counted (samples/count), and where the rate is
known also given as CPU time (cpu/nanoseconds: weight times period); "ns" is time off the CPU
(off_cpu/nanoseconds). Labels say whose it is: pid, tid, thread, process, and container if there is one.

Each function belongs to a mapping: a native one to its file, another to a mapping named by its kind, as in
`[ruby]`. Addresses are ELF virtual addresses, as if the file were loaded at 0. Names are escaped as names.py
says. Totals and circumstances are comments (`pprof -comments`). The format has no time for a single sample.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from typing import TYPE_CHECKING, BinaryIO

from rubyunwind.formats.names import printable
from rubyunwind.formats.protobuf import Message, varint
from rubyunwind.formats.summary import circumstances, losses
from rubyunwind.formats.tables import Tables, origin_of, period_of, start_of, tables_of

if TYPE_CHECKING:
    from rubyunwind.formats.registry import Meta
    from rubyunwind.formats.tables import ThreadSamples
    from rubyunwind.formats.tree import Place
    from rubyunwind.profiler.sample import Sample, Totals

__all__ = ["write"]

# Field numbers: proto/profile.proto of github.com/google/pprof.
_PROFILE_SAMPLE_TYPE, _PROFILE_SAMPLE, _PROFILE_MAPPING, _PROFILE_LOCATION = 1, 2, 3, 4
_PROFILE_FUNCTION, _PROFILE_STRING_TABLE, _PROFILE_TIME_NANOS, _PROFILE_DURATION_NANOS = 5, 6, 9, 10
_PROFILE_PERIOD_TYPE, _PROFILE_PERIOD, _PROFILE_COMMENT, _PROFILE_DEFAULT_SAMPLE_TYPE = 11, 12, 13, 14
_VALUE_TYPE, _VALUE_UNIT = 1, 2
_SAMPLE_LOCATION_ID, _SAMPLE_VALUE, _SAMPLE_LABEL = 1, 2, 3
_LABEL_KEY, _LABEL_STR, _LABEL_NUM = 1, 2, 3
_MAPPING_ID, _MAPPING_MEMORY_LIMIT, _MAPPING_FILENAME = 1, 3, 5
# What is there already, so that pprof does not look for it in files of the machine it runs on.
_MAPPING_HAS = (7, 8, 9, 10)  # has_functions, has_filenames, has_line_numbers, has_inline_frames
_LOCATION_ID, _LOCATION_MAPPING_ID, _LOCATION_ADDRESS, _LOCATION_LINE = 1, 2, 3, 4
_LINE_FUNCTION_ID, _LINE_LINE = 1, 2
_FUNCTION_ID, _FUNCTION_NAME, _FUNCTION_SYSTEM_NAME, _FUNCTION_FILENAME = 1, 2, 3, 4

_INT64_MAX = (1 << 63) - 1
_UINT64_MAX = (1 << 64) - 1
# What a unit is called: the type and the unit of a value.
_UNITS = {"samples": ("samples", "count"), "ns": ("off_cpu", "nanoseconds")}
_CPU = ("cpu", "nanoseconds")


class _Strings:
    def __init__(self) -> None:
        self._ids = {"": 0}

    def __call__(self, text: str) -> int:
        text = printable(text)
        return self._ids.setdefault(text, len(self._ids))

    def table(self) -> list[str]:
        return list(self._ids)


class _Columns:
    """Which value of a sample is which. Others are 0: a count is never added to a time."""

    def __init__(self, units: tuple[str, ...], period: int) -> None:
        self._at: dict[str, int] = {}
        self._period = period
        self.types: list[tuple[str, str]] = []
        for unit in units or ("samples",):
            self._at[unit] = len(self.types)
            self.types.append(_UNITS.get(unit, (unit, unit)))
            if unit == "samples" and period:
                self.types.append(_CPU)

    def values(self, unit: str, weight: int) -> list[int]:
        row = [0] * len(self.types)
        at = self._at[unit]
        row[at] = weight
        if unit == "samples" and self._period:
            row[at + 1] = min(weight * self._period, _INT64_MAX)
        return row


def _value_type(strings: _Strings, type_and_unit: tuple[str, str]) -> Message:
    type_, unit = map(strings, type_and_unit)
    return Message().integer(_VALUE_TYPE, type_).integer(_VALUE_UNIT, unit)


def _labels(strings: _Strings, thread: ThreadSamples) -> list[Message]:
    labels = [
        Message().integer(_LABEL_KEY, strings(key)).integer(_LABEL_NUM, number)
        for key, number in (("pid", thread.pid), ("tid", thread.tid))
    ]
    texts = (("thread", thread.name), ("process", thread.process), ("container", thread.container))
    for key, text in texts:
        if text:
            labels.append(Message().integer(_LABEL_KEY, strings(key)).integer(_LABEL_STR, strings(text)))
    return labels


def _put_samples(profile: Message, tables: Tables, columns: _Columns, strings: _Strings) -> None:
    ids = [varint(number) for number in range(1, len(tables.locations) + 1)]
    leaf_first = [b"".join([ids[location] for location in reversed(stack)]) for stack in tables.stacks]
    locations = [bytes(Message().chunk(_SAMPLE_LOCATION_ID, packed)) for packed in leaf_first]
    for thread in tables.threads:
        labels = Message()
        for label in _labels(strings, thread):
            labels.message(_SAMPLE_LABEL, label)
        for stack, weight in thread.sums().items():
            values = Message().integers(_SAMPLE_VALUE, columns.values(thread.unit, weight))
            profile.chunk(_PROFILE_SAMPLE, locations[stack] + bytes(values) + bytes(labels))


def _rank(origin: tuple[str, Place]) -> tuple[bool, bool]:
    """Programs first, then libraries: readers name a profile by its first mapping."""
    name, place = origin
    return not place.module, ".so" in name


def _put_code(profile: Message, tables: Tables, strings: _Strings) -> None:
    """Mappings, locations and functions; an id is an index and one."""
    origins = sorted({origin_of(place): place for place in tables.functions}.items(), key=_rank)
    mappings = {origin: number for number, (origin, _) in enumerate(origins, 1)}
    mapping_of = [mappings[origin_of(place)] for place in tables.functions]
    limits: dict[int, int] = {}
    for number, (function, line, address) in enumerate(tables.locations, 1):
        mapping = mapping_of[function]
        message = Message().integer(_LOCATION_ID, number).integer(_LOCATION_MAPPING_ID, mapping)
        if address is not None:
            message.integer(_LOCATION_ADDRESS, address)
            limits[mapping] = max(limits.get(mapping, 0), min(address + 1, _UINT64_MAX))
        where = Message().integer(_LINE_FUNCTION_ID, function + 1).integer(_LINE_LINE, line)
        profile.message(_PROFILE_LOCATION, message.message(_LOCATION_LINE, where))
    for number, place in enumerate(tables.functions, 1):
        name = strings(place.name)
        message = Message().integer(_FUNCTION_ID, number).integer(_FUNCTION_NAME, name)
        message.integer(_FUNCTION_SYSTEM_NAME, name).integer(_FUNCTION_FILENAME, strings(place.path or ""))
        profile.message(_PROFILE_FUNCTION, message)
    for origin, number in mappings.items():
        message = Message().integer(_MAPPING_ID, number)
        message.integer(_MAPPING_MEMORY_LIMIT, limits.get(number, 0))
        message.integer(_MAPPING_FILENAME, strings(origin))
        for field in _MAPPING_HAS:
            message.integer(field, 1)
        profile.message(_PROFILE_MAPPING, message)


def write(file: BinaryIO, samples: Iterable[Sample], totals: Totals, meta: Meta, /) -> None:
    """Write the profile. One without samples is whole, and a comment says so."""
    tables = tables_of(samples)
    period = period_of(meta)
    columns = _Columns(tables.units, period)
    strings = _Strings()
    profile = Message()
    for type_and_unit in columns.types:
        profile.message(_PROFILE_SAMPLE_TYPE, _value_type(strings, type_and_unit))
    _put_samples(profile, tables, columns, strings)
    _put_code(profile, tables, strings)
    profile.integer(_PROFILE_TIME_NANOS, start_of(tables, meta))
    profile.integer(_PROFILE_DURATION_NANOS, round(meta.duration * 1e9))
    if period:
        profile.message(_PROFILE_PERIOD_TYPE, _value_type(strings, _CPU)).integer(_PROFILE_PERIOD, period)
    said = circumstances(meta) + losses(totals, empty=not tables.threads)
    profile.integers(_PROFILE_COMMENT, map(strings, said))
    first = columns.types[1] if columns.types[1:2] == [_CPU] else columns.types[0]
    profile.integer(_PROFILE_DEFAULT_SAMPLE_TYPE, strings(first[0]))
    for text in strings.table():
        profile.chunk(_PROFILE_STRING_TABLE, text.encode())
    # No time in the header: the same profile gives the same bytes.
    file.write(gzip.compress(bytes(profile), compresslevel=6, mtime=0))
