# SPDX-License-Identifier: Apache-2.0
"""The native unwind tables give back what a file took, in the maps of the host build."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rubyunwind.bpf.hosted import HostedCollection
from rubyunwind.elf.deltas import StackDeltas, load_stack_deltas
from rubyunwind.elf.file import ElfFile
from rubyunwind.process.mappings import read_mappings
from rubyunwind.profiler.native_tables import FlatPlace, NativeTables


def real_files() -> dict[int, StackDeltas]:
    """The rows of what this test runs on: the interpreter and its libraries."""
    paths = {mapping.path for mapping in read_mappings(os.getpid()) if mapping.executable}
    found = {}
    for number, path in enumerate(sorted(path for path in paths if path.startswith("/"))):
        if Path(path).is_file():
            with ElfFile.open(path) as elf:
                found[1000 + number] = load_stack_deltas(elf)
    return {file_id: deltas for file_id, deltas in found.items() if deltas.count}


FILES = real_files()


@pytest.fixture
def collection() -> Iterator[HostedCollection]:
    with HostedCollection() as opened:
        yield opened


def contents(collection: HostedCollection) -> dict[str, int]:
    """How many entries the maps of the chain have."""
    names = [name for name in collection.maps if name.startswith("exe_id_to_")] + ["stack_delta_page_to_info"]
    return {name: len(list(collection.maps[name])) for name in names}


def free(tables: NativeTables) -> tuple[int, int]:
    return tables._flat_rows.free, tables._flat_pages.free


def rows_of(collection: HostedCollection, tables: NativeTables, file_id: int) -> bytes:
    """The packed pages and rows that the walker sees of a file."""
    place = tables.place_of(file_id)
    first, count = tables._row_pieces[file_id]
    rows = b"".join(bytes(collection.maps["flat_rows"][at]) for at in range(first, first + min(count, 300)))
    assert place.pages_count
    return rows


def test_what_files_took_is_free_again_when_they_are_removed(collection: HostedCollection) -> None:
    assert len(FILES) >= 3, sys.executable
    tables = NativeTables(collection)
    empty, unused = contents(collection), free(tables)
    tables.add(FILES)
    assert len(tables) == len(FILES)
    assert contents(collection) != empty
    for file_id in FILES:
        tables.remove(file_id)
    assert contents(collection) == empty
    assert free(tables) == unused
    assert len(tables) == 0
    assert not tables._infos
    assert not tables._uses


def test_files_that_come_and_go_take_no_more_than_those_that_are_there(collection: HostedCollection) -> None:
    tables = NativeTables(collection)
    (stays, deltas), *others = FILES.items()
    tables.add({stays: deltas})
    before = rows_of(collection, tables, stays)
    room, rules = free(tables), len(tables._infos)
    for turn in range(30):
        number, other = others[turn % len(others)]
        tables.add({number + 5000 * turn: other})
        assert tables.place_of(number + 5000 * turn) != FlatPlace(0, 0, 0)
        tables.remove(number + 5000 * turn)
    assert free(tables) == room
    assert len(tables._infos) == rules
    assert rows_of(collection, tables, stays) == before
    assert max(tables._infos.values()) < len(tables._infos) + len(tables._free_infos)


def test_a_rule_that_another_file_has_too_stays(collection: HostedCollection) -> None:
    tables = NativeTables(collection)
    one, other = list(FILES.items())[:2]
    tables.add(dict([one, other]))
    ids = {rule: tables.rule_id(rule) for rule in other[1].infos if rule in tables._infos}
    tables.remove(one[0])
    assert {rule: tables._infos[rule] for rule in ids} == ids
    tables.add({77: one[1]})
    assert {rule: tables._infos[rule] for rule in ids} == ids
    numbers = list(tables._infos.values())
    assert len(set(numbers)) == len(numbers)


def test_a_file_that_finds_no_room_asks_for_some_and_is_counted_if_there_is_none() -> None:
    (one, deltas), (other, more), *_ = FILES.items()
    with HostedCollection() as collection:
        asked = []

        def reclaim() -> bool:
            asked.append(1)
            if one in tables:
                tables.remove(one)
                return True
            return False

        tables = NativeTables(collection, reclaim)
        tables.add({one: deltas})
        tables._flat_rows._free = []
        tables.add({other: more if more.count <= deltas.count else deltas})
        assert asked == [1]
        assert tables.without_room == 0
        assert tables.place_of(other).pages_count
        tables._flat_rows._free = []
        tables.add({5: deltas})
        assert tables.place_of(5) == FlatPlace(0, 0, 0)
        assert tables.without_room == 1


def test_removing_what_is_not_there_changes_nothing(collection: HostedCollection) -> None:
    tables = NativeTables(collection)
    unused = free(tables)
    tables.remove(4)
    assert free(tables) == unused
