# SPDX-License-Identifier: Apache-2.0
"""What stands before a method's name: from the class's member (3.3 on) or hidden variables (up to 3.1)."""

from __future__ import annotations

import pytest
from ruby_memory import RubyMemory

from rubyunwind.ruby.class_paths import ClassPaths
from rubyunwind.ruby.identifiers import IdentifierTable
from rubyunwind.ruby.layouts import find_layout

OLD = ["2.5.0", "2.7.4", "3.0.0", "3.1.2"]
NEW = ["3.3.8", "3.4.4", "4.0.0"]
NAMES = ["__classpath__", "__attached__", "@count", "__tmp_classpath__"]


class World:
    """Classes of one version, with whatever way that has to keep their path."""

    def __init__(self, version: str) -> None:
        self.memory = RubyMemory(find_layout(version).layout)
        table, self.ids = self.memory.identifiers(NAMES)
        self.paths = ClassPaths(
            self.memory, self.memory.layout, IdentifierTable(self.memory, self.memory.layout, table)
        )

    def variables(self, *pairs: tuple[str, int], deleted: int = 0) -> int:
        """A class with instance variables in a st_table; `deleted` entries lie between them."""
        memory, layout = self.memory, self.memory.layout
        assert layout.class_ext is not None
        assert layout.classext_variables is not None
        entries: list[int] = []
        for name, value in pairs:
            entries += [(1 << 64) - 1, self.ids[name], 8] * deleted + [1, self.ids[name], value]
        table = memory.words(0, 0, len(pairs), 0, 0, len(entries) // 3, memory.words(*entries))
        ext = memory.place(bytes(layout.classext_variables) + table.to_bytes(8, "little"))
        address = memory.words(2, *[0] * 8)
        memory.poke(address + layout.class_ext, ext)
        return address

    def klass(self, path: str | None, attached: int | None = None) -> int:
        memory, layout = self.memory, self.memory.layout
        if layout.class_classpath is not None:
            return memory.klass(path, attached=attached)
        pairs = [("@count", 3)]
        if path is not None:
            pairs.append(("__classpath__", memory.string(path)))
        if attached is not None:
            pairs.append(("__attached__", attached))
        address = self.variables(*pairs, deleted=1)
        if attached is not None:
            assert layout.class_singleton_flag is not None
            memory.poke(address, 2 | layout.class_singleton_flag)
        return address


@pytest.mark.parametrize("version", OLD + NEW)
def test_methods_and_singleton_methods_have_their_class(version: str) -> None:
    world = World(version)
    klass = world.klass("Foo::Bar")
    assert world.paths.readable
    assert world.paths.prefix(klass) == "Foo::Bar#"
    assert world.paths.prefix(world.klass(None, attached=klass)) == "Foo::Bar."


@pytest.mark.parametrize("version", OLD + NEW)
def test_what_has_no_name_of_its_own_has_no_prefix(version: str) -> None:
    world = World(version)
    assert world.paths.prefix(world.klass(None)) == ""
    assert world.paths.prefix(world.klass("#<Class:0x0000>::Inner")) == ""
    thing = world.memory.words(1, 0, 0)  # an object that is no class
    assert world.paths.prefix(world.klass(None, attached=thing)) == ""
    assert world.paths.prefix(8) == ""
    assert world.paths.prefix(0x10) == ""


@pytest.mark.parametrize("version", OLD)
def test_a_table_that_makes_no_sense_gives_no_prefix(version: str) -> None:
    world = World(version)
    memory, layout = world.memory, world.memory.layout
    assert layout.class_ext is not None
    assert layout.classext_variables is not None
    klass = world.klass("Foo")
    table = memory.u64(memory.u64(klass + layout.class_ext) + layout.classext_variables)
    for start, bound in ((0, 1 << 40), (5, 2), (0, 1025)):
        memory.poke(table + 32, start)
        memory.poke(table + 40, bound)
        assert world.paths.prefix(klass) == ""
    memory.poke(memory.u64(klass + layout.class_ext) + layout.classext_variables, 0)
    assert world.paths.prefix(klass) == ""


@pytest.mark.parametrize("version", OLD)
def test_without_symbols_the_variables_have_no_names(version: str) -> None:
    world = World(version)
    paths = ClassPaths(world.memory, world.memory.layout, None)
    assert not paths.readable
    assert paths.prefix(world.klass("Foo")) == ""


def test_in_3_2_paths_are_not_readable() -> None:
    world = World("3.2.3")
    assert not world.paths.readable
    assert world.paths.prefix(world.memory.words(2, *[0] * 8)) == ""
