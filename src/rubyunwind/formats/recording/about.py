# SPDX-License-Identifier: Apache-2.0
"""Totals and meta of a recording that is read. They are JSON with the names of the fields."""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from rubyunwind.formats.recording.chunks import Damage
from rubyunwind.formats.registry import Meta
from rubyunwind.profiler.sample import Totals

__all__ = ["About"]

_MOST_BYTES = 1 << 24
_MOST_DURATION = float(1 << 32)  # seconds
_T = TypeVar("_T")


class About:
    """What the chunks that were read say; of each kind the last one is in force."""

    def __init__(self) -> None:
        self.totals = Totals()
        self._meta = Meta()
        self._duration = 0.0

    @property
    def meta(self) -> Meta:
        """What was recorded, and for how long."""
        return replace(self._meta, duration=self._duration)

    def take_totals(self, plain: bytes) -> None:
        """Take the contents of a TOTL chunk. Raises Damage or ValueError."""
        found = _fields(plain)
        self._duration = min(_MOST_DURATION, _value(float, found.pop("duration", 0.0), "duration"))
        self.totals = _build(Totals, found)

    def take_meta(self, plain: bytes) -> None:
        """Take the contents of a META chunk. Raises Damage or ValueError."""
        self._meta = _build(Meta, _fields(plain))


def _fields(plain: bytes) -> dict[str, Any]:
    if len(plain) > _MOST_BYTES:
        raise Damage(f"there are more bytes of totals than can be read ({_MOST_BYTES})")
    found = json.loads(plain)
    if not isinstance(found, dict):
        raise Damage("the totals are no totals")
    return found


def _build(kind: type[_T], found: dict[str, Any]) -> _T:
    """Make a dataclass of the fields that are there; those that we do not know are a newer version's."""
    hints = get_type_hints(kind)
    known = {field.name for field in fields(cast("Any", kind))}
    return kind(**{key: _value(hints[key], value, key) for key, value in found.items() if key in known})


def _value(kind: Any, value: Any, key: str) -> Any:
    """Return the value if it is of the kind: a number, a text, a tuple, a dataclass, or None."""
    if kind is float and type(value) in (int, float) and math.isfinite(value) and value >= 0:
        return float(value)
    if kind is int and type(value) is int and 0 <= value < 1 << 63:
        return value
    if kind in (str, bool) and type(value) is kind:
        return value
    arguments = get_args(kind)
    if get_origin(kind) is tuple:
        if isinstance(value, list) and len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_value(arguments[0], each, key) for each in value)
        if isinstance(value, list) and len(value) == len(arguments):
            return tuple(_value(each, one, key) for each, one in zip(arguments, value, strict=True))
    elif type(None) in arguments:
        inner = next(each for each in arguments if each is not type(None))
        return None if value is None else _value(inner, value, key)
    elif is_dataclass(kind) and isinstance(value, dict):
        return _build(cast("type[Any]", kind), value)
    raise Damage(f"{key} is {value!r:.40}")
