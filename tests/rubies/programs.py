# SPDX-License-Identifier: Apache-2.0
"""The programs of tests/ruby that print their own stack, once for each thread, and spin on that line."""

from __future__ import annotations

from dataclasses import dataclass

from rubyunwind.profiler.backends import CHAIN, WALKER

# What samples: the two unwinders of the kernel side, and the reader from user space.
USER = "user"
WAYS = (WALKER, CHAIN, USER)


@dataclass(frozen=True, slots=True)
class Program:
    """`cut_by` has not the room for its stack: 128 frames, or the chain's 13 turns between Ruby and C."""

    name: str
    arguments: tuple[str, ...] = ()
    threads: int = 1
    cut_by: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join([self.name.removesuffix(".rb"), *self.arguments])


PROGRAMS = (
    Program("blocks_and_bmethods.rb", cut_by=(CHAIN,)),
    Program("names_with_odd_characters.rb"),
    Program("fiber_in_enumerator.rb"),
    Program("recursion.rb", ("100",)),
    Program("recursion_100_deep.rb", cut_by=(CHAIN, USER)),
    Program("eval_with_file_and_line.rb"),
    Program("method_of_several_hundred_lines.rb"),
    Program("rescue_and_ensure.rb"),
    Program("after_compaction.rb"),
    Program("bounces.rb", ("11",)),
    Program("two_spinning_threads.rb", threads=2),
    Program("recursion.rb", ("1000",), cut_by=(CHAIN, USER)),
    Program("bounces.rb", ("200",), cut_by=(CHAIN, USER)),
)
# What does something else than to spin on one line.
OTHERS = {"allocating.rb", "kernel_readers.rb", "oracle.rb", "reloading.rb"}
