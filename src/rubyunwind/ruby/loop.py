# SPDX-License-Identifier: Apache-2.0
"""The function that runs Ruby code, rb_vm_exec, in a file that does not name it: by who calls it.

Two functions that every Ruby exports for its extensions, rb_iseq_eval and rb_iseq_eval_main (vm.c), set up a
frame and then go to rb_vm_exec; next to nothing else is called by both. It is also where rb_yield_values2
and rb_funcallv end up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from rubyunwind.ruby.machine import Code

__all__ = ["find_loop"]

_ENTRIES = ("rb_iseq_eval", "rb_iseq_eval_main")
_CONFIRMING = ("rb_yield_values2", "rb_funcallv")
_LEVELS = 7  # one or two where the compiler puts helpers in line, five with -Os
_MOST_FUNCTIONS = 400


def find_loop(code: Code, address_of: Callable[[str], int]) -> tuple[tuple[int, int] | None, str]:
    """Return (first address, size) of rb_vm_exec, or None and why it was not found.

    `address_of` gives the address of an exported function, 0 for one that the file does not have.
    """
    entries = [address_of(name) for name in _ENTRIES]
    if not all(entries):
        return None, f"no {_ENTRIES[entries.index(0)]} is exported"
    first, second = (code.targets(entry) for entry in entries)
    # What calls nothing is a helper that the compiler did not put in line, like rb_current_ec_noinline.
    common = [target for target in first if target in second and code.targets(target)]
    roots = [root for root in map(address_of, _CONFIRMING) if root]
    common = [target for target in common if all(_reaches(code, root, target) for root in roots)]
    if len(common) != 1:
        return None, f"{' and '.join(_ENTRIES)} have {len(common)} functions in common that could be it"
    size = code.size(common[0])
    return ((common[0], size), "") if size else (None, f"the function at {common[0]:#x} has no known size")


def _reaches(code: Code, root: int, wanted: int) -> bool:
    """Whether calls lead from one function to another one within a few levels."""
    level, seen = [root], {root}
    for _ in range(_LEVELS):
        following: list[int] = []
        for function in level:
            for target in code.targets(function):
                if target == wanted:
                    return True
                if target not in seen and len(seen) < _MOST_FUNCTIONS:
                    seen.add(target)
                    following.append(target)
        level = following
    return False
