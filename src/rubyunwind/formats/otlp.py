# SPDX-License-Identifier: Apache-2.0
"""OTLP profiles: one ProfilesData message, as OpenTelemetry's profiles signal defines it.

That signal is not stable yet: this is opentelemetry.proto.profiles.v1development as it has been since OTLP
1.9, which opentelemetry-proto (the extra `[otlp]`) has from 1.40 on. Nothing else of rubyunwind needs it, and
it is imported when this format is asked for.

One ResourceProfiles for each container and one for what is in none; in it a profile for each unit: samples
are counted (samples/count), "ns" is time off the CPU (off_cpu/nanoseconds). Each observation keeps its time.
A sample's attributes are process.pid, process.executable.name, thread.id and thread.name (the ids of the
kernel). A location has the attribute rubyunwind.frame.kind, and profile.frame.type where the conventions
have a value for it. Totals are attributes of the profile, rubyunwind.summary one of the scope. Names are
escaped as names.py says.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

from rubyunwind.errors import RubyUnwindError
from rubyunwind.formats.names import printable
from rubyunwind.formats.summary import circumstances, losses
from rubyunwind.formats.tables import Tables, period_of, start_of, tables_of

if TYPE_CHECKING:
    from rubyunwind.formats.registry import Meta
    from rubyunwind.formats.tables import ThreadSamples
    from rubyunwind.profiler.sample import Sample, Totals

__all__ = ["check", "encode", "write"]

_INSTALL = "pip install 'rubyunwind[otlp]' (opentelemetry-proto 1.40 or newer)"
_UINT64_MAX = (1 << 64) - 1
_PROFILE_ID = 16  # bytes of Profile.profile_id
# What a unit is called: the type and the unit of a value.
_UNITS = {"samples": ("samples", "count"), "ns": ("off_cpu", "nanoseconds")}
_CPU = ("cpu", "nanoseconds")
# Values of profile.frame.type in the semantic conventions; kinds that are none of them have only our own.
_FRAME_TYPES = {
    "ruby": "ruby",
    "cfunc": "ruby",
    "gc": "ruby",
    "jit": "ruby",
    "native": "native",
    "kernel": "kernel",
}


def _messages() -> tuple[Any, Any]:
    """Import the generated messages: profiles_pb2 and common_pb2."""
    try:
        from opentelemetry.proto.common.v1 import common_pb2
        from opentelemetry.proto.profiles.v1development import profiles_pb2
    except ImportError as error:
        raise RubyUnwindError(
            f"the otlp format needs the package opentelemetry-proto, which cannot be imported ({error}); "
            f"{_INSTALL}, or choose another format"
        ) from error
    # Fields that came last of those we fill; before, profiles had another shape.
    if not hasattr(profiles_pb2, "KeyValueAndUnit") or "samples" not in (
        field.name for field in profiles_pb2.Profile.DESCRIPTOR.fields
    ):
        raise RubyUnwindError(
            "the otlp format needs the profiles of OTLP 1.9, and the installed opentelemetry-proto has older "
            f"ones; {_INSTALL}, or choose another format"
        )
    return profiles_pb2, common_pb2


def check() -> None:
    """Raise RubyUnwindError if this format cannot be written here."""
    _messages()


class _Table:
    """Distinct items of one table of the dictionary, by what makes them equal. Item 0 is the zero value."""

    def __init__(self, items: Any, zero: Any) -> None:
        self._items = items
        self._ids: dict[Hashable, int] = {}
        items.append(zero)

    def index(self, key: Hashable, make: Any) -> int:
        known = self._ids.get(key)
        if known is None:
            item = make()
            known = self._ids[key] = len(self._items)
            self._items.append(item)
        return known


class _Dictionary:
    """The tables that samples refer to, while they grow."""

    def __init__(self, tables: Tables, dictionary: Any) -> None:
        self._pb, self._common = _messages()
        self._tables = tables
        self._dictionary = dictionary
        self._strings = _Table(dictionary.string_table, "")
        self._attributes = _Table(dictionary.attribute_table, self._pb.KeyValueAndUnit())
        # The conventions ask for ids of the right length there.
        dictionary.link_table.add(trace_id=bytes(16), span_id=bytes(8))
        self.stacks: list[int] = []  # index into the dictionary's stacks for each of ours
        self._add_code()

    def string(self, text: str) -> int:
        text = printable(text)
        return self._strings.index(text, lambda: text) if text else 0

    def attribute(self, key: str, value: str | int) -> int:
        def make() -> Any:
            typed = {"int_value": value} if isinstance(value, int) else {"string_value": printable(value)}
            return self._pb.KeyValueAndUnit(
                key_strindex=self.string(key), value=self._common.AnyValue(**typed)
            )

        return self._attributes.index((key, value), make)

    def value_type(self, type_and_unit: tuple[str, str]) -> Any:
        type_, unit = type_and_unit
        return self._pb.ValueType(type_strindex=self.string(type_), unit_strindex=self.string(unit))

    def _add_code(self) -> None:
        """Mappings, functions, locations and stacks, each once: what we tell apart may be equal there."""
        dictionary, tables, pb = self._dictionary, self._tables, self._pb
        mappings = _Table(dictionary.mapping_table, pb.Mapping())
        functions = _Table(dictionary.function_table, pb.Function())
        locations = _Table(dictionary.location_table, pb.Location())
        stacks = _Table(dictionary.stack_table, pb.Stack())

        def mapping(module: str | None) -> int:
            if not module:
                return 0
            return mappings.index(module, lambda: pb.Mapping(filename_strindex=self.string(module)))

        def function(name: int, path: int) -> int:
            return functions.index(
                (name, path), lambda: pb.Function(name_strindex=name, filename_strindex=path)
            )

        def location(whose: int, line: int, where: int, address: int, kind: str) -> int:
            return locations.index(
                (whose, line, where, address, kind),
                lambda: pb.Location(
                    mapping_index=where,
                    address=address,
                    lines=[pb.Line(function_index=whose, line=line)],
                    attribute_indices=self._kind_attributes(kind),
                ),
            )

        found = []
        for index, line, offset in tables.locations:
            place = tables.functions[index]
            where, address = mapping(place.module), offset or 0
            if where:
                row = dictionary.mapping_table[where]
                row.memory_limit = max(row.memory_limit, min(address + 1, _UINT64_MAX))
            # A function has to have one of its names.
            whose = function(self.string(place.name or "???"), self.string(place.path or ""))
            found.append(location(whose, line, where, address, place.kind))
        for stack in tables.stacks:
            path = tuple(found[index] for index in reversed(stack))
            self.stacks.append(stacks.index(path, lambda path=path: pb.Stack(location_indices=path)))

    def _kind_attributes(self, kind: str) -> list[int]:
        found = [self.attribute("rubyunwind.frame.kind", kind)]
        if kind in _FRAME_TYPES:
            found.append(self.attribute("profile.frame.type", _FRAME_TYPES[kind]))
        return found

    def thread(self, thread: ThreadSamples) -> list[int]:
        """Return the attributes of a thread's samples."""
        return [
            self.attribute("process.pid", thread.pid),
            self.attribute("process.executable.name", thread.process),
            self.attribute("thread.id", thread.tid),
            self.attribute("thread.name", thread.name),
        ]


def _put_samples(profile: Any, dictionary: _Dictionary, threads: list[ThreadSamples]) -> None:
    for thread in threads:
        attributes = dictionary.thread(thread)
        observed: dict[int, tuple[list[int], list[int]]] = {}
        for stack, time, weight in zip(thread.stacks, thread.times, thread.weights, strict=True):
            index = dictionary.stacks[stack]
            known = observed.get(index)
            if known is None:
                known = observed[index] = ([], [])
            known[0].append(weight)
            known[1].append(time)
        for stack, (weights, times) in observed.items():
            profile.samples.add(
                stack_index=stack,
                attribute_indices=attributes,
                values=weights,
                timestamps_unix_nano=times,
            )


def _put_profile(profile: Any, dictionary: _Dictionary, unit: str, start: int, meta: Meta) -> None:
    profile.sample_type.CopyFrom(dictionary.value_type(_UNITS.get(unit, (unit, unit))))
    profile.time_unix_nano = start
    profile.duration_nano = round(meta.duration * 1e9)
    if unit == "samples" and period_of(meta):
        profile.period_type.CopyFrom(dictionary.value_type(_CPU))
        profile.period = period_of(meta)


def _totals(dictionary: _Dictionary, totals: Totals) -> list[int]:
    counts = [("read", totals.read), ("lost", totals.lost), ("truncated", totals.truncated)]
    counts += [(f"failed.{reason}", count) for reason, count in dict(totals.failed).items()]
    return [dictionary.attribute(f"rubyunwind.samples.{name}", count) for name, count in counts]


def encode(
    samples: Iterable[Sample],
    totals: Totals,
    meta: Meta,
    *,
    resource: Mapping[str, str] | None = None,
    identified: bool = False,
) -> bytes:
    """Return the message. Without samples it has one empty profile, and its summary says so.

    `resource` are attributes of every resource. Profiles that are `identified` have random ids, by which a
    receiver can tell one that it has got twice. RubyUnwindError when opentelemetry-proto is missing or too
    old.
    """
    messages, _ = _messages()
    tables = tables_of(samples)
    data = messages.ProfilesData()
    dictionary = _Dictionary(tables, data.dictionary)
    start = start_of(tables, meta)
    containers = dict.fromkeys(thread.container for thread in tables.threads) or {None: None}
    for container in containers:
        found = data.resource_profiles.add()
        for key, value in {**(resource or {}), "container.id": container}.items():
            if value:
                found.resource.attributes.add(key=key).value.string_value = printable(value)
        scope = found.scope_profiles.add()
        scope.scope.name = "rubyunwind"
        said = circumstances(meta) + losses(totals, empty=not tables.threads)
        summary = scope.scope.attributes.add(key="rubyunwind.summary").value
        summary.string_value = printable("; ".join(said))
        mine = [thread for thread in tables.threads if thread.container == container]
        for unit in dict.fromkeys(thread.unit for thread in mine) or {"samples": None}:
            profile = scope.profiles.add()
            if identified:
                profile.profile_id = os.urandom(_PROFILE_ID)
            _put_profile(profile, dictionary, unit, start, meta)
            profile.attribute_indices.extend(_totals(dictionary, totals))
            _put_samples(profile, dictionary, [thread for thread in mine if thread.unit == unit])
    return bytes(data.SerializeToString())


def write(file: BinaryIO, samples: Iterable[Sample], totals: Totals, meta: Meta, /) -> None:
    """Write the message. RubyUnwindError when opentelemetry-proto is missing or too old."""
    file.write(encode(samples, totals, meta))
