# SPDX-License-Identifier: Apache-2.0
"""The frame of a recording file: a header, then chunks with checksums. All numbers are little-endian.

header   magic (8 bytes), version (u16), 0 (u16), CRC-32 of these twelve bytes (u32)
chunk    kind (4 letters), stored length, plain length, number of the chunk from 0, CRC-32 of these
         sixteen bytes and what follows (u32 each); then the stored bytes, a zlib stream
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from rubyunwind.errors import DecodeError

__all__ = ["MAGIC", "MAX_PLAIN", "VERSION", "Chunk", "Damage", "chunk_bytes", "header_bytes", "read_chunks"]

# The first byte is no ASCII and no UTF-8, the last one is changed by whoever takes the file for text.
MAGIC = b"\x8dRUBYUW\n"
VERSION = 1

MAX_PLAIN = 64 << 20
"""Bytes that the contents of one chunk may have at most; what claims more is damaged."""

_HEADER = struct.Struct("<8sHHI")
_HEAD = struct.Struct("<4sIII")
_CRC = struct.Struct("<I")
# A zlib stream of data that cannot be compressed is longer by five bytes in each 16 KiB, and eleven.
_MAX_STORED = MAX_PLAIN + (MAX_PLAIN >> 10)
# A larger chunk is read piece by piece, so that a length that lies makes us ask for no more than there is.
_PIECE = 1 << 20


class Damage(Exception):
    """What is in the file from here on cannot be used; the text says why."""


class Chunk(NamedTuple):
    """One chunk that is whole. `end` is where the next one begins in the file."""

    kind: bytes
    plain: bytes
    end: int


def header_bytes() -> bytes:
    """Return what a file begins with."""
    head = _HEADER.pack(MAGIC, VERSION, 0, 0)[: -_CRC.size]
    return head + _CRC.pack(zlib.crc32(head))


def chunk_bytes(kind: bytes, number: int, plain: bytes) -> bytes:
    """Return a chunk as it stands in the file."""
    if len(plain) > MAX_PLAIN:
        raise ValueError(f"a chunk of {len(plain)} bytes: at most {MAX_PLAIN} can be read again")
    stored = zlib.compress(plain, 6)
    head = _HEAD.pack(kind, len(stored), len(plain), number)
    return head + _CRC.pack(zlib.crc32(stored, zlib.crc32(head))) + stored


def read_chunks(file: BinaryIO, name: str) -> Iterator[Chunk]:
    """Read the header, then yield one chunk after the other. `file` need not be seekable.

    Raises DecodeError if the file is none of ours or of a newer version, Damage where it cannot be read
    on; at the end of a file that is whole it just ends.
    """
    _check_header(_read(file, _HEADER.size), name)
    at = _HEADER.size
    number = 0
    while head := _read(file, _HEAD.size + _CRC.size):
        if len(head) < _HEAD.size + _CRC.size:
            raise Damage(f"the file ends inside the head of a chunk, at byte {at + len(head)}")
        if head.startswith(MAGIC):
            raise Damage(f"another recording begins at byte {at}: give it as a file of its own")
        kind, length, size, found = _HEAD.unpack_from(head)
        if length > _MAX_STORED or size > MAX_PLAIN or not (kind.isalpha() and kind.isascii()):
            raise Damage(f"what stands at byte {at} is no chunk")
        stored = _read(file, length)
        at += len(head)
        if len(stored) < length:
            raise Damage(
                f"the last chunk is half-written ({len(stored)} of {length} bytes from byte {at} on)"
            )
        if zlib.crc32(stored, zlib.crc32(head[: _HEAD.size])) != _CRC.unpack_from(head, _HEAD.size)[0]:
            raise Damage(f"the checksum of the chunk at byte {at - len(head)} is wrong")
        if found != number:
            raise Damage(f"chunk {number} is missing; chunk {found} stands at byte {at - len(head)}")
        at += length
        number += 1
        yield Chunk(kind, _unpacked(stored, size, at), at)


def _read(file: BinaryIO, length: int) -> bytes:
    """Read `length` bytes, or fewer at the end of the file only."""
    pieces = []
    while length:
        piece = file.read(min(length, _PIECE))
        if not piece:
            break
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)


def _unpacked(stored: bytes, size: int, end: int) -> bytes:
    decoder = zlib.decompressobj()
    try:
        plain = decoder.decompress(stored, size + 1)
    except zlib.error as error:
        raise Damage(f"the chunk that ends at byte {end} cannot be decompressed: {error}") from None
    if len(plain) != size or not decoder.eof or decoder.unused_data:
        raise Damage(f"the chunk that ends at byte {end} does not have the {size} bytes it claims")
    return plain


def _check_header(head: bytes, name: str) -> None:
    if not head.startswith(MAGIC) and not MAGIC.startswith(head):
        raise DecodeError(f"{name} is no recording: it begins with {head[:8]!r}")
    if len(head) < _HEADER.size:
        raise DecodeError(
            f"{name} ends inside its header, after {len(head)} of {_HEADER.size} bytes: nothing was recorded"
        )
    _, version, _, crc = _HEADER.unpack(head)
    if crc != zlib.crc32(head[: -_CRC.size]):
        raise DecodeError(
            f"{name} is damaged: the checksum of its header is wrong; nothing of it can be used"
        )
    if version > VERSION:
        raise DecodeError(
            f"{name} has format version {version}, and this rubyunwind reads up to {VERSION}: update "
            "rubyunwind, or have the one that recorded it write jsonl (`report -f jsonl`)"
        )
    if version < VERSION:
        raise DecodeError(f"{name} has format version {version}, which no released rubyunwind wrote")
