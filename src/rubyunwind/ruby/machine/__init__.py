# SPDX-License-Identifier: Apache-2.0
"""What a few exported functions of a stripped Ruby say about the variables that it hides.

A disassembler would be one more dependency on the way to the first sample, for some twenty instruction
forms: those that compilers make of `return ec->thread_ptr->self`. All others only end the knowledge of the
registers they write, or the walk. The files are those of the profiled process: every walk is bounded.
"""

from __future__ import annotations

from rubyunwind.ruby.machine.code import Code
from rubyunwind.ruby.machine.value import Kind, Value
from rubyunwind.ruby.machine.walk import Trace, trace

__all__ = ["Code", "Kind", "Trace", "Value", "trace"]
