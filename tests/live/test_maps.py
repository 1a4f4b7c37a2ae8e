# SPDX-License-Identifier: Apache-2.0
"""Maps as dicts, against a real kernel."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubyunwind.bpf.collection import Collection
from rubyunwind.bpf.compound_maps import MapOfMaps, PerCPUMap, StackTraceMap
from rubyunwind.bpf.kinds import MapFlag, MapType
from rubyunwind.bpf.map_factory import create_array, create_map
from rubyunwind.bpf.maps import Map
from rubyunwind.bpf.perf_event import perf_event_open
from rubyunwind.bpf.prefixes import pid_page_keys
from rubyunwind.bpf.spec import load_collection_spec
from rubyunwind.errors import BpfError

from .loader_program import PAGE_FOUND, RAN_RUBY, ROW_FOUND, configure, metric, spin_until

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("bpf")]


@pytest.fixture
def collection(loader_object: Path) -> Iterator[Collection]:
    with load_collection_spec(path=loader_object).load() as loaded:
        yield loaded


@pytest.fixture
def table() -> Iterator[Map]:
    with create_map(MapType.HASH, key_size=4, value_size=8, max_entries=100, name="table") as made:
        yield made


@dataclass(frozen=True, slots=True)
class Pair:
    low: int
    high: int

    def __bytes__(self) -> bytes:
        return struct.pack("<II", self.low, self.high)

    @classmethod
    def from_bytes(cls, data: bytes) -> Pair:
        return cls(*struct.unpack("<II", data))


def test_a_hash_behaves_like_a_dict(table: Map) -> None:
    table[b"aaaa"] = b"11111111"
    table[bytearray(b"bbbb")] = memoryview(b"22222222")
    table[7] = 9
    assert table[b"aaaa"] == b"11111111"
    assert table[7] == (9).to_bytes(8, "little")
    assert (b"bbbb" in table, b"cccc" in table) == (True, False)
    assert len(table) == 3
    assert set(table) == set(table.keys()) == {b"aaaa", b"bbbb", b"\7\0\0\0"}
    assert dict(table.items())[b"bbbb"] == b"22222222"
    assert b"11111111" in list(table.values())
    assert table.get(b"cccc", b"?") == b"?"
    assert table.pop(7) == (9).to_bytes(8, "little")
    assert table.pop(7, None) is None
    del table[b"aaaa"]
    assert len(table) == 1
    table.clear()
    assert list(table.items()) == []


def test_a_missing_key_is_a_key_error(table: Map) -> None:
    with pytest.raises(KeyError):
        table[1]
    with pytest.raises(KeyError):
        del table[1]
    with pytest.raises(KeyError):
        table.pop(1)


def test_a_wrong_size_is_refused_before_the_kernel_reads_past_it(table: Map) -> None:
    with pytest.raises(ValueError, match="key has 3 bytes, the map's have 4"):
        table[b"abc"] = bytes(8)
    with pytest.raises(ValueError, match="value has 9 bytes"):
        table[b"abcd"] = bytes(9)
    with pytest.raises(ValueError, match="does not fit into 4 bytes"):
        table[1 << 32] = 0


def test_a_full_map_says_its_name_and_size(collection: Collection) -> None:
    small = collection.maps["small_hash"]
    small.update({number: number for number in range(4)})
    with pytest.raises(BpfError, match=r"update map small_hash.*the map is full: max_entries is 4"):
        small[4] = 4
    with pytest.raises(BpfError, match="the map is full"):
        small.update_batch(dict.fromkeys(range(10, 20), 1))


def test_mirrors_go_in_and_come_out(table: Map) -> None:
    table.typed(value=Pair)
    table[1] = Pair(3, 4)
    assert table[1] == Pair(3, 4)
    assert list(table.items()) == [(b"\1\0\0\0", Pair(3, 4))]


@given(items=st.dictionaries(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), max_size=100))
def test_a_batch_equals_single_updates(items: dict[int, int]) -> None:
    with create_map(MapType.HASH, key_size=4, value_size=8, max_entries=100) as table:
        table.update_batch(items)
        got = {int.from_bytes(k, "little"): int.from_bytes(v, "little") for k, v in table.items()}
    assert got == items


def test_a_batch_falls_back_to_single_updates(table: Map, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoBatches:
        """A kernel before 5.6."""

        def __init__(self, lib: object) -> None:
            self._lib = lib

        def __getattr__(self, name: str) -> object:
            return (lambda *a: -524) if name == "bpf_map_update_batch" else getattr(self._lib, name)

    monkeypatch.setattr(table, "_lib", NoBatches(table._lib))
    table.update_batch({number: number * 2 for number in range(100)})
    assert len(table) == 100
    assert int.from_bytes(table[99], "little") == 198


def test_packed_pairs_must_match(table: Map) -> None:
    with pytest.raises(ValueError, match="no pairs of 4 and 8 bytes"):
        table.update_packed(bytes(8), bytes(8))
    table.update_packed(b"", b"")


def test_an_array_index_out_of_range_is_told(collection: Collection) -> None:
    settings = collection.maps["settings"]
    with pytest.raises(BpfError, match="index 1 is outside max_entries 1"):
        settings[1] = bytes(24)
    with pytest.raises(KeyError):
        settings[1]


@pytest.mark.parametrize("value_size", [4, 8, 12, 24])
@pytest.mark.parametrize("flags", [MapFlag(0), MapFlag.MMAPABLE, MapFlag.INNER_MAP])
def test_fill_writes_rows_in_order(value_size: int, flags: MapFlag) -> None:
    rows = [bytes([row % 251, row % 7]) * (value_size // 2) for row in range(3000)]
    with create_array(4000, value_size, flags) as table:
        table.fill(b"".join(rows))
        assert [table[index] for index in (0, 1, 2, 1500, 2999)] == [rows[i] for i in (0, 1, 2, 1500, 2999)]
        assert table[3000] == bytes(value_size)
        with pytest.raises(ValueError, match="cannot be filled"):
            table.fill(bytes(value_size * 4001))
        table.fill(b"")


def test_clear_zeroes_an_array(collection: Collection) -> None:
    settings = collection.maps["settings"]
    settings[0] = b"\xff" * 24
    settings.clear()
    assert settings[0] == bytes(24)


def test_per_cpu_values_are_lists_in_cpu_order(collection: Collection) -> None:
    metrics = collection.maps["metrics"]
    assert isinstance(metrics, PerCPUMap)
    metrics[3] = list(range(10, 10 + metrics.cpus))
    assert [int.from_bytes(part, "little") for part in metrics[3]] == list(range(10, 10 + metrics.cpus))
    assert metrics.total(3) == sum(range(10, 10 + metrics.cpus))
    metrics[4] = 5
    assert metrics.total(4) == 5 * metrics.cpus
    with pytest.raises(ValueError, match="possible CPUs"):
        metrics[5] = [1] * (metrics.cpus + 1)


def test_per_cpu_values_of_odd_sizes_are_cut_out_of_their_padding() -> None:
    with create_map(MapType.PERCPU_HASH, key_size=4, value_size=5, max_entries=4) as table:
        table[1] = b"abcde"
        assert set(table[1]) == {b"abcde"}


def test_a_program_finds_a_prefix_and_a_row_of_an_inner_map(collection: Collection) -> None:
    """LPM keys, inner maps of another size than the template, and a lookup from the kernel side."""
    import os

    file_id = 0x1122334455667788
    pages = collection.maps["pid_page_to_mapping_info"]
    value = file_id.to_bytes(8, "little") + bytes(8)
    pages.update_batch(dict.fromkeys(pid_page_keys(os.getpid(), 139637976731648, 139637976748032), value))
    rows = b"".join(struct.pack("<HH", 0x111 * index, 0) for index in range(10))
    with create_array(10, 4, name="rows") as table:
        table.fill(rows)
        collection.maps["tables"][file_id] = table
    configure(collection, slot=1)
    with perf_event_open(pid=0, frequency=999, disabled=True) as event:
        event.attach(collection.programs["native_tracer_entry"])
        event.enable()
        spin_until(collection, ROW_FOUND)
    assert metric(collection, PAGE_FOUND) >= 1


def test_an_inner_map_can_be_opened_again(collection: Collection) -> None:
    tables = collection.maps["tables"]
    assert isinstance(tables, MapOfMaps)
    with create_array(300, 4, name="rows") as made:
        made[299] = 17
        tables[5] = made
    # Ours is closed; the kernel's reference keeps the map.
    with tables[5] as inner:
        assert (inner.name, inner.max_entries, inner.type) == ("rows", 300, MapType.ARRAY)
        assert int.from_bytes(inner[299], "little") == 17
    assert tables.id_of(5) > 0
    del tables[5]
    with pytest.raises(KeyError):
        tables[5]


def test_kernel_stacks_come_out_as_addresses(collection: Collection) -> None:
    configure(collection, slot=6)
    stacks = collection.maps["kernel_stackmap"]
    assert isinstance(stacks, StackTraceMap)
    with perf_event_open(pid=0, frequency=4999, disabled=True) as event:
        event.attach(collection.programs["native_tracer_entry"])
        event.enable()
        spin_until(collection, RAN_RUBY, 20)
    for addresses in stacks.values():
        assert addresses
        assert all(address >> 56 == 0xFF for address in addresses), [hex(a) for a in addresses]


def test_a_map_that_cannot_be_made_says_what_was_asked() -> None:
    with pytest.raises(BpfError, match=r"create map bad.*key 0"):
        create_map(MapType.HASH, key_size=0, value_size=4, max_entries=1, name="bad")
