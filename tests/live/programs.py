# SPDX-License-Identifier: Apache-2.0
"""The programs of tests/ruby that print their own stacks and spin there, and how each is run.

A program that an older Ruby cannot run says so in one of its first lines: "# Needs Ruby 3.0."
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "ruby"
OLDEST = (2, 7)
_NEEDS = re.compile(rb"^# Needs Ruby (\d+)\.(\d+)\.$", re.MULTILINE)


@dataclass(frozen=True)
class Program:
    """A program and how it is run; `threads` is how many stacks it prints, `options` are the interpreter's.

    `share` of its samples must be exact: all where nothing but the line that was printed runs. `reason` is
    why the native walk does not reach the root, if it does not; the Ruby frames are exact all the same. What
    runs outside of the main ractor is not seen from user space.
    """

    name: str
    arguments: tuple[str, ...] = ()
    threads: int = 1
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    share: float = 1.0
    reason: str | None = None
    main_ractor: bool = True

    @property
    def path(self) -> Path:
        return FOLDER / self.name

    @property
    def needs(self) -> tuple[int, int]:
        """The oldest Ruby that runs it, as in (3, 1)."""
        found = _NEEDS.search(self.path.read_bytes()[:400])
        oldest = (int(found[1]), int(found[2])) if found else OLDEST
        return max(oldest, (3, 1)) if self.jit else oldest

    @property
    def jit(self) -> bool:
        """Whether it needs an interpreter that was built with YJIT."""
        return "--yjit" in self.options

    def __str__(self) -> str:
        words = (
            *self.environment.values(),
            *self.options[:1],
            self.name.removesuffix(".rb"),
            *self.arguments,
        )
        return " ".join(words)


YJIT = ("--yjit", "--yjit-call-threshold=1")
# Bytes: twice what Ruby takes for a thread, and a fiber's, by default on 64-bit machines.
BIG_STACKS = {"RUBY_THREAD_VM_STACK_SIZE": "2097152", "RUBY_FIBER_VM_STACK_SIZE": "524288"}
TRACED_EVENTS = (
    "call",
    "line",
    "c_call",
    "c_return",
    "return",
    "raise",
    "b_call",
    "b_return",
    "class",
    "end",
)

PROGRAMS = [
    Program("after_compaction.rb"),
    Program("allocating_in_one_line.rb"),
    Program("allocating_in_one_line.rb", ("stress",)),
    Program("at_exit_handler.rb"),
    Program("auto_compact.rb"),
    Program("basic_object.rb"),
    Program("blocked_threads.rb", threads=8),
    Program("blocks_and_bmethods.rb"),
    Program("blocks_and_bmethods.rb", options=YJIT),
    Program("bounces.rb", ("11",)),
    Program("bounces.rb", ("200",)),
    Program("callables.rb"),
    Program("calls_over_many_lines.rb"),
    Program("callables.rb", options=YJIT),
    Program("callbacks_from_c.rb"),
    Program("callbacks_from_c.rb", options=YJIT),
    Program("callbacks_from_extensions.rb"),
    Program("class_bodies.rb"),
    Program("data_objects.rb"),
    Program("default_arguments.rb"),
    Program("define_method_forms.rb"),
    Program("end_block.rb"),
    Program("endless_methods.rb"),
    Program("erb_template.rb"),
    Program("eval_with_file_and_line.rb"),
    Program("evals_of_all_kinds.rb"),
    Program("exec_of_another_ruby.rb"),
    Program("external_next_at_depth.rb"),
    Program("external_next_at_depth.rb", environment=BIG_STACKS),
    Program("fiber_in_enumerator.rb"),
    Program("fiber_scheduler.rb"),
    Program("fork_in_thread.rb"),
    Program("fork_without_exec.rb"),
    Program("hooks.rb"),
    Program("labels_of_all_lengths.rb"),
    Program("lazy_enumerator.rb"),
    Program("lines_at_the_edges_of_the_table.rb"),
    Program("loops.rb"),
    Program("loops.rb", options=YJIT),
    Program("main_program.rb"),
    Program("main_program.rb", options=YJIT),
    Program("method_missing_and_super.rb"),
    Program("method_of_several_hundred_lines.rb"),
    Program("method_of_several_hundred_lines.rb", options=YJIT),
    Program("monitor_and_timeout.rb"),
    Program("names_in_euc_jp.rb"),
    Program("names_in_windows_1252.rb"),
    Program("names_with_odd_characters.rb"),
    Program("nested_blocks.rb"),
    Program("nested_fibers.rb"),
    Program("object_finalizer.rb"),
    Program("object_finalizer.rb", ("collected",)),
    Program("odd_paths.rb"),
    Program("once_and_defined.rb"),
    Program("one_line_methods.rb"),
    Program("pattern_matching.rb"),
    Program("ractor.rb", main_ractor=False),
    Program("recursion.rb", ("100",)),
    Program("recursion.rb", ("1000",)),
    Program("recursion_100_deep.rb"),
    Program("recursion.rb", ("100",), environment=BIG_STACKS),
    Program("recursion.rb", ("100",), options=YJIT),
    Program("refinements.rb"),
    Program("required_and_loaded.rb"),
    Program("rescue_and_ensure.rb"),
    Program("retry_and_nested_ensure.rb"),
    Program("singletons_and_anonymous_classes.rb"),
    Program("structs.rb"),
    Program("threads_in_threads.rb"),
    Program("threads_on_shared_natives.rb", threads=2, environment={"RUBY_MN_THREADS": "1"}),
    *(Program("tracepoint_handler.rb", (event,)) for event in TRACED_EVENTS),
    Program("tracepoint_targeted.rb"),
    Program("trap_handler.rb"),
    Program("two_ractors.rb", threads=2, main_ractor=False),
    Program("two_spinning_threads.rb", threads=2),
]

# What does something else than to spin on one line.
OTHERS = {"allocating.rb", "collecting.rb", "kernel_readers.rb", "oracle.rb", "reloading.rb", "waiting.rb"}


def runnable(start: Sequence[str], among: Sequence[Program] = PROGRAMS) -> list[Program]:
    """Return the programs that a Ruby can run; `start` is the command that starts it."""

    def says(*arguments: str) -> str:
        return subprocess.run([*start, *arguments], capture_output=True, text=True, check=False).stdout

    version = tuple(int(part) for part in says("-e", "print RUBY_VERSION[/\\d+\\.\\d+/]").split("."))
    jit = says(*YJIT, "-e", "print RubyVM::YJIT.enabled?") == "true"
    return [program for program in among if program.needs <= version and (jit or not program.jit)]
