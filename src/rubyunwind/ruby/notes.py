# SPDX-License-Identifier: Apache-2.0
"""What a user should know of a Ruby that was found: what was assumed, and what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rubyunwind.ruby.layouts import parse_version, version_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rubyunwind.abi import RubyTLSInfo
    from rubyunwind.ruby.detect import InterpreterRange
    from rubyunwind.ruby.image import RubyImage
    from rubyunwind.ruby.selfcheck import SelfCheck

__all__ = ["hidden_notes", "runtime_notes"]


def runtime_notes(
    version: str,
    layout_version: str,
    exact: bool,
    check: SelfCheck,
    reachable: bool,
    tls: RubyTLSInfo | None,
    ranges: Sequence[InterpreterRange],
    table: int,
) -> Iterator[str]:
    """Yield what was assumed of a Ruby, and what was not found. `table` is that of its symbols, or 0."""
    if not exact:
        verdict = (
            "the self-check agrees" if check.result == "good" else f"it was not checked yet: {check.reason}"
        )
        yield f"Ruby {version}: the layout of {layout_version} is assumed; {verdict}"
    if tls is None and not reachable:
        yield f"Ruby {version}: no execution context can be found (hidden symbols, stripped): no Ruby frames"
    elif tls is None and version_number(parse_version(version)) >= 0x30000:
        yield f"Ruby {version}: no thread-local context: only the thread that holds the lock has Ruby frames"
    if version_number(parse_version(version)) < 0x20600:
        yield f"Ruby {version}: the order of native and Ruby frames is a guess before 2.6"
    if not ranges:
        yield f"Ruby {version}: the interpreter loop cannot be found (hidden symbol, stripped)"
    if not table:
        yield f"Ruby {version}: the symbol table cannot be found: C functions have no names"


def hidden_notes(
    version: str, image: RubyImage, found: Sequence[str], reasons: Sequence[str]
) -> Iterator[str]:
    """Yield which hidden symbols were found all the same, and why others were not."""
    if found:
        yield f"Ruby {version}: hidden, and read off the code of exported functions: {', '.join(found)}"
    for reason in reasons:
        name = reason.partition(":")[0]
        if name not in found and image.symbol(name) is None:  # what was found after all needs no excuse
            yield f"Ruby {version}: {reason}"
