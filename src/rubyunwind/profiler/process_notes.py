# SPDX-License-Identifier: Apache-2.0
"""What a user should know about the processes that are profiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rubyunwind.profiler.process import ProfiledProcess

__all__ = ["NO_RUBY", "process_notes"]

NO_RUBY = "no Ruby was found in it; native frames only"

# Of all that run, notes on so many are enough.
_MOST_NOTES = 20


def process_notes(
    processes: Mapping[int, ProfiledProcess], *, everything: bool, ahead: Iterable[str] = ()
) -> list[str]:
    """Return the notes on processes, by pid: no Ruby in it, a layout that was assumed, ...

    What is so of a Ruby is said once, however many processes run it. Where `everything` is profiled, nobody
    expects each of them to be a Ruby. What is said `ahead` counts among them.
    """
    found = list(ahead)
    for pid, process in processes.items():
        if process.left_out:
            found.append(f"pid {pid}: {process.left_out} mappings of code are left out")
        if process.refusal is not None:
            found.append(f"pid {pid}: {process.refusal}; native frames only")
        elif process.ruby is not None:
            found += [f"{process.ruby.mapping.path}: {note}" for note in process.ruby.notes]
        elif not everything:
            found.append(f"pid {pid}: {NO_RUBY}")
    found = list(dict.fromkeys(found))
    if everything and len(found) > _MOST_NOTES:
        found[_MOST_NOTES:] = [f"and {len(found) - _MOST_NOTES} more notes on processes"]
    return found
