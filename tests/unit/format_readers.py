# SPDX-License-Identifier: Apache-2.0
"""Readers of the output formats that share nothing with the writers, and follow every reference.

Each gives the samples back as stacks of frames, root first, with their weights, by thread and unit.
"""

from __future__ import annotations

import gzip
import io
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from rubyunwind.formats import Meta, write
from rubyunwind.profiler.sample import Frame, Sample, Totals


class Shown(NamedTuple):
    """A frame as a format shows it; None is what the format does not hold or the frame does not have."""

    name: str
    kind: str | None = None
    path: str | None = None
    line: int | None = None
    module: str | None = None
    address: int | None = None


class Key(NamedTuple):
    """A stack of a thread; pid is 0 where the format cannot be asked for it."""

    pid: int
    tid: int
    unit: str
    stack: tuple[Shown, ...]


def written(
    format_: str, samples: Iterable[Sample], totals: Totals | None = None, meta: Meta | None = None
) -> bytes:
    file = io.BytesIO()
    write(file, format_, samples, totals, meta)
    return file.getvalue()


def unescape(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        short = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"}.get(match[1])
        if short:
            return short
        code = int(match[1][1:], 16)
        return chr(0xDC00 + code) if match[1][0] == "x" and code >= 0x80 else chr(code)

    return re.sub(r"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|.)", character, text)


def one_line(text: str) -> str:
    """The text, which must be what escaped names are: one line without controls, valid UTF-8."""
    assert text.encode("utf-8").decode("utf-8") == text
    assert not re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029]", text)
    return unescape(text)


def marker_of(sample: Sample) -> str | None:
    if not sample.complete:
        word = "truncated" if sample.reason in ("limit", "tail calls") else "incomplete"
        return f"[{word}: {sample.reason or 'unknown reason'}]"
    return None if sample.frames else "[no frames]"


def path_of(sample: Sample) -> list[Frame]:
    """The frames root first, the marker among them as a frame of the kind "incomplete"."""
    marker = marker_of(sample)
    root = [] if marker is None else [Frame("incomplete", marker)]  # type: ignore[arg-type]
    return [*root, *reversed(sample.frames)]


# ---- protocol buffers: https://protobuf.dev/programming-guides/encoding/ ----------------------------------


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        assert shift <= 70
        if byte < 0x80:
            return value, at


def fields_of(data: bytes) -> dict[int, list[Any]]:
    """The fields of a message; a payload that may be a message, a string or packed numbers stays bytes."""
    fields: dict[int, list[Any]] = defaultdict(list)
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        if tag & 7 == 0:
            value: int | bytes
            value, at = read_varint(data, at)
        else:
            assert tag & 7 == 2
            size, at = read_varint(data, at)
            assert at + size <= len(data)
            value = data[at : at + size]
            at += size
        fields[tag >> 3].append(value)
    return fields


def packed(fields: dict[int, list[Any]], number: int) -> list[int]:
    values: list[int] = []
    for payload in fields.get(number, []):
        at = 0
        while at < len(payload):
            value, at = read_varint(payload, at)
            values.append(value - 2**64 if value >= 2**63 else value)
    return values


def one(fields: dict[int, list[Any]], number: int) -> int:
    values = fields.get(number, [0])
    assert len(values) == 1
    return values[0]  # type: ignore[no-any-return]


class Pprof(NamedTuple):
    stacks: Counter[Key]
    types: list[tuple[str, str]]
    values: dict[str, int]  # sum of each column
    labels: list[dict[str, str | int]]
    comments: list[str]
    time: int
    duration: int
    period: tuple[tuple[str, str], int] | None
    default: str


def read_pprof(data: bytes) -> Pprof:
    profile = fields_of(gzip.decompress(data))
    strings = [text.decode("utf-8") for text in profile[6]]
    assert strings[0] == ""
    assert len(set(strings)) == len(strings)

    def value_type(payload: bytes) -> tuple[str, str]:
        fields = fields_of(payload)
        return strings[one(fields, 1)], strings[one(fields, 2)]

    def by_id(number: int) -> dict[int, dict[int, list[Any]]]:
        rows = [fields_of(payload) for payload in profile[number]]
        found = {one(row, 1): row for row in rows}
        assert len(found) == len(rows)
        assert 0 not in found
        return found

    mappings, locations, functions = by_id(3), by_id(4), by_id(5)
    for mapping in mappings.values():
        assert [one(mapping, has) for has in (7, 8, 9, 10)] == [1, 1, 1, 1]

    def shown(number: int) -> Shown:
        location = locations[number]
        [line] = [fields_of(payload) for payload in location[4]]
        function = functions[one(line, 1)]
        mapping = mappings[one(location, 2)]
        origin = one_line(strings[one(mapping, 5)])
        address = one(location, 3)
        assert address < one(mapping, 3) or address in (0, 2**64 - 1)
        assert one(function, 2) == one(function, 3)
        return Shown(
            one_line(strings[one(function, 2)]),
            path=one_line(strings[one(function, 4)]) or None,
            line=one(line, 2) or None,
            module=origin,
            address=address or None,
        )

    types = [value_type(payload) for payload in profile[1]]
    columns = [type_ for type_, _ in types]
    stacks: Counter[Key] = Counter()
    sums = dict.fromkeys(columns, 0)
    all_labels = []
    for payload in profile[2]:
        sample = fields_of(payload)
        labels: dict[str, str | int] = {}
        for label in map(fields_of, sample[3]):
            key = strings[one(label, 1)]
            assert key not in labels
            labels[key] = one(label, 3) or one_line(strings[one(label, 2)])
        values = packed(sample, 2)
        assert len(values) == len(types)
        for column, value in zip(columns, values, strict=True):
            sums[column] += value
        unit = "ns" if columns[0] == "off_cpu" and len(columns) == 1 else "samples"
        if "off_cpu" in columns and values[columns.index("off_cpu")]:
            unit = "ns"
        weight = values[columns.index({"samples": "samples", "ns": "off_cpu"}[unit])]
        assert not (unit == "ns" and any(v for c, v in zip(columns, values, strict=True) if c != "off_cpu"))
        stack = tuple(shown(number) for number in reversed(packed(sample, 1)))
        stacks[Key(int(labels["pid"]), int(labels["tid"]), unit, stack)] += weight
        all_labels.append(labels)
    used = {number for payload in profile[2] for number in packed(fields_of(payload), 1)}
    assert used == set(locations)
    period = (value_type(profile[11][0]), one(profile, 12)) if 11 in profile else None
    comments = [one_line(strings[number]) for number in packed(profile, 13)]
    time, duration = one(profile, 9), one(profile, 10)
    return Pprof(stacks, types, sums, all_labels, comments, time, duration, period, strings[one(profile, 14)])


def read_speedscope(data: bytes) -> tuple[Counter[Key], dict[str, Any]]:
    file = json.loads(data.decode("ascii"))
    frames = file["shared"]["frames"]
    assert 0 <= file["activeProfileIndex"] < len(file["profiles"])
    shown = [
        Shown(one_line(frame["name"]), line=frame.get("line"), module=one_line(frame["file"]))
        for frame in frames
    ]
    stacks: Counter[Key] = Counter()
    for profile in file["profiles"]:
        assert profile["type"] == "sampled"
        assert len(profile["samples"]) == len(profile["weights"])
        assert profile["startValue"] == 0
        assert profile["endValue"] == sum(profile["weights"])
        unit = {"none": "samples", "nanoseconds": "ns"}[profile["unit"]]
        found = re.search(r"\((\d+)\)(, ns)?$", profile["name"])
        assert found is not None or not profile["samples"]
        for stack, weight in zip(profile["samples"], profile["weights"], strict=True):
            assert all(0 <= index < len(frames) for index in stack)
            assert found is not None
            assert bool(found[2]) == (unit == "ns")
            stacks[Key(0, int(found[1]), unit, tuple(shown[index] for index in stack))] += weight
    return stacks, file


FIREFOX_KINDS = {
    "Other": "unknown", "Ruby": "ruby", "C function": "cfunc", "Native": "native", "Kernel": "kernel",
    "Garbage collection": "gc", "JIT": "jit", "Incomplete": "incomplete", "Error": "error",
}  # fmt: skip


def read_firefox(data: bytes) -> tuple[Counter[Key], dict[str, Any]]:
    file = json.loads(data.decode("ascii"))
    shared, libraries, categories = file["shared"], file["libs"], file["meta"]["categories"]
    strings = shared["stringArray"]
    frames, functions, rows = shared["frameTable"], shared["funcTable"], shared["stackTable"]
    for table in (*shared.values(), *(thread["markers"] for thread in file["threads"])):
        if isinstance(table, dict):
            columns = [column for name, column in table.items() if name != "length"]
            assert {len(column) for column in columns} == {table["length"]}

    def shown(frame: int) -> Shown:
        function = frames["func"][frame]
        category = categories[frames["category"][frame]]
        assert 0 <= frames["subcategory"][frame] < len(category["subcategories"])
        library, resource = frames["lib"][frame], functions["resource"][function]
        module = None
        assert (library == -1) == (resource == -1)
        if library != -1:
            module = libraries[library]["path"]
            assert strings[shared["resourceTable"]["name"][resource]] == module
        source = functions["source"][function]
        path = None if source is None else strings[shared["sources"]["filename"][source]]
        kind = FIREFOX_KINDS[category["name"]]
        assert functions["relevantForJS"][function] == (kind in ("ruby", "cfunc"))
        address = frames["address"][frame]
        return Shown(
            one_line(strings[functions["name"][function]]),
            kind,
            None if path is None else one_line(path),
            frames["line"][frame],
            None if module is None else one_line(module),
            None if address == -1 else address,
        )

    def stack(row: int) -> tuple[Shown, ...]:
        path = []
        while True:
            path.append(shown(rows["frame"][row]))
            offset = rows["prefixOffset"][row]
            if offset == 0:
                return tuple(reversed(path))
            assert 0 < offset <= row
            row -= offset

    stacks: Counter[Key] = Counter()
    for thread in file["threads"]:
        samples = thread["samples"]
        times = samples["time"]
        assert {len(samples["stack"]), len(times), len(samples["weight"])} == {samples["length"]}
        assert times == sorted(times)
        unit = {"samples": "samples", "tracing-ms": "ns"}[samples["weightType"]]
        scale = 1 if unit == "samples" else 1_000_000
        tid = int(re.match(r"\d+", str(thread["tid"]))[0])  # type: ignore[index]
        for row, weight in zip(samples["stack"], samples["weight"], strict=True):
            stacks[Key(int(thread["pid"]), tid, unit, stack(row))] += round(weight * scale)
    return stacks, file


class Otlp(NamedTuple):
    stacks: Counter[Key]
    observations: list[tuple[Key, int, int]]  # with time and weight
    containers: dict[str | None, int]  # weight
    data: Any


def read_otlp(data: bytes) -> Otlp:
    from opentelemetry.proto.profiles.v1development import profiles_pb2

    message = profiles_pb2.ProfilesData.FromString(data)
    tables = message.dictionary
    strings = list(tables.string_table)
    for table in (
        tables.mapping_table, tables.location_table, tables.function_table, tables.attribute_table,
        tables.stack_table,
    ):  # fmt: skip
        assert table[0] == type(table[0])()
        encoded = [row.SerializeToString() for row in table]
        assert len(set(encoded)) == len(encoded)
    assert strings[0] == ""
    assert len(set(strings)) == len(strings)
    assert tables.link_table[0].trace_id == bytes(16)

    def attributes(indices: Iterable[int]) -> dict[str, str | int]:
        found: dict[str, str | int] = {}
        for index in indices:
            assert index > 0
            row = tables.attribute_table[index]
            key = strings[row.key_strindex]
            assert key not in found
            chosen = row.value.WhichOneof("value")
            value = getattr(row.value, chosen)
            found[key] = one_line(value) if isinstance(value, str) else value
        return found

    def shown(index: int) -> Shown:
        location = tables.location_table[index]
        [line] = location.lines
        function = tables.function_table[line.function_index]
        mapping = tables.mapping_table[location.mapping_index]
        kind = attributes(location.attribute_indices)["rubyunwind.frame.kind"]
        assert index > 0
        assert line.function_index > 0
        module = one_line(strings[mapping.filename_strindex])
        assert not module or location.address < mapping.memory_limit or location.address in (0, 2**64 - 1)
        return Shown(
            one_line(strings[function.name_strindex]),
            str(kind),
            one_line(strings[function.filename_strindex]) or None,
            line.line or None,
            module or None,
            location.address or None,
        )

    stacks: Counter[Key] = Counter()
    containers: Counter[str | None] = Counter()
    observations = []
    identities = set()
    for resource in message.resource_profiles:
        pairs_of = {each.key: each.value.string_value for each in resource.resource.attributes}
        container = pairs_of.get("container.id")
        for scope in resource.scope_profiles:
            for at, profile in enumerate(scope.profiles):
                unit = {"samples": "samples", "off_cpu": "ns"}[strings[profile.sample_type.type_strindex]]
                for sample in profile.samples:
                    identity = (container, at, sample.stack_index, tuple(sorted(sample.attribute_indices)))
                    assert identity not in identities
                    identities.add(identity)
                    whose = attributes(sample.attribute_indices)
                    indices = tables.stack_table[sample.stack_index].location_indices
                    stack = tuple(shown(index) for index in reversed(indices))
                    key = Key(int(whose["process.pid"]), int(whose["thread.id"]), unit, stack)
                    pairs = zip(sample.timestamps_unix_nano, sample.values, strict=True)
                    for time, weight in pairs:
                        observations.append((key, time, weight))
                        stacks[key] += weight
                        containers[container] += weight
    return Otlp(stacks, observations, dict(containers), message)


class Callgrind(NamedTuple):
    header: dict[str, list[str]]
    own: Counter[tuple[str, tuple[str, str, str], int]]  # event, (object, file, function), line
    calls: Counter[tuple[str, tuple[str, str, str], int, tuple[str, str, str]]]
    totals: dict[str, int]


def read_callgrind(data: bytes) -> Callgrind:
    header: dict[str, list[str]] = defaultdict(list)
    names: dict[tuple[str, str], str] = {}
    here, there = {}, {}
    own: Counter[Any] = Counter()
    calls: Counter[Any] = Counter()
    calling = False
    text = data.decode("utf-8")
    assert text.endswith("\n")
    for row in text[:-1].split("\n"):
        named = re.fullmatch(r"(c?)(ob|fl|fi|fn)=\((\d+)\)(?: (.*))?", row)
        costs = re.fullmatch(r"(\d+)((?: \d+)+)", row)
        entry = re.fullmatch(r"(\w+): (.*)", row)
        if named:
            kind = {"fi": "fl"}.get(named[2], named[2])
            if named[4] is not None:
                assert (kind, named[3]) not in names
                assert named[4]
                assert not named[4].startswith(" ")
                names[kind, named[3]] = one_line(named[4])
            (there if named[1] else here)[kind] = names[kind, named[3]]
        elif row == "calls=1 0":
            calling = True
        elif costs:
            numbers = list(map(int, costs[2].split()))
            place = (here["ob"], here["fl"], here["fn"])
            for event, number in zip(header["events"][0].split(), numbers, strict=True):
                if calling:
                    callee = (there["ob"], there["fl"], there["fn"])
                    calls[event, place, int(costs[1]), callee] += number
                else:
                    own[event, place, int(costs[1])] += number
            calling = False
        elif entry:
            header[entry[1]].append(one_line(entry[2]))
        else:
            assert row in ("", "# callgrind format")
    events = header["events"][0].split()
    assert header["totals"] == header["summary"]
    totals = dict(zip(events, map(int, header["totals"][0].split()), strict=True))
    return Callgrind(header, own, calls, totals)
