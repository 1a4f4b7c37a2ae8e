# SPDX-License-Identifier: Apache-2.0
"""From the bytes that a terminal sends to keys."""

from __future__ import annotations

import codecs
import re

__all__ = ["KeyDecoder"]

_NAMES = {
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\b": "backspace",
    "\x15": "erase",  # Ctrl-U
    "\x0c": "redraw",  # Ctrl-L
    "\x03": "interrupt",  # Ctrl-C, should the terminal not make a signal of it
}
# Final parts of the sequences of ECMA-48 (CSI) and of application mode (SS3), as xterm sends them.
_SEQUENCES = {
    "A": "up", "B": "down", "H": "home", "F": "end",
    "1~": "home", "4~": "end", "5~": "pageup", "6~": "pagedown", "7~": "home", "8~": "end",
}  # fmt: skip
# CSI: parameters, intermediates and one final byte. What is longer than any key has is no key.
_COMPLETE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[ -~]|[^\[O\x1b])")
_LONGEST = 32


class KeyDecoder:
    """Turns bytes into keys: a printable character stands for itself, others have names.

    Names: up, down, pageup, pagedown, home, end, enter, backspace, escape, erase, redraw, interrupt.
    Sequences that mean nothing here are swallowed whole. A sequence may come in parts: while `waiting`, more
    is to be fed; if nothing comes within a moment, `flush` says what it was.
    """

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""

    @property
    def waiting(self) -> bool:
        """Whether an escape came whose meaning depends on what follows."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[str]:
        """Return the keys that are whole."""
        text, self._rest = self._rest + self._decode(data), ""
        keys, at = [], 0
        while at < len(text):
            if text[at] != "\x1b":
                keys += _plain(text[at])
                at += 1
                continue
            if text.startswith("\x1b\x1b", at):
                keys.append("escape")
                at += 1
                continue
            match = _COMPLETE.match(text, at)
            if match is not None:
                keys += _sequence(match[0])
                at = match.end()
            elif len(text) - at < _LONGEST and re.fullmatch(r"\x1b(?:\[[0-?]*[ -/]*|O)?", text[at:]):
                self._rest = text[at:]
                break
            else:  # no sequence after all: what broke it off counts by itself
                broken = re.compile(r"\x1b[\[O][ -?]*").match(text, at)
                at = broken.end() if broken is not None else at + 1
        return keys

    def flush(self) -> list[str]:
        """Return what is left when nothing more comes: a lone escape is the key."""
        rest, self._rest = self._rest, ""
        return ["escape"] if rest == "\x1b" else []


def _plain(character: str) -> list[str]:
    name = _NAMES.get(character)
    if name is not None:
        return [name]
    return [character] if character.isprintable() else []


def _sequence(text: str) -> list[str]:
    if text[1] not in "[O":  # Alt and a key
        return []
    match = re.fullmatch(r"(\d*)(?:;\d+)?([A-Z~])", text[2:])  # the second number are modifiers
    if match is None:
        return []
    name = _SEQUENCES.get(match[1] + "~" if match[2] == "~" else match[2])
    return [name] if name is not None else []
