# SPDX-License-Identifier: Apache-2.0
"""Traces as the kernel side sends them: the lazy view `Trace`, its frames, and `decode_trace`."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from rubyunwind.abi.constants import MAX_DEEP_FRAMES
from rubyunwind.abi.enums import ErrorCode, FrameMarker, TraceFlag, TraceOrigin
from rubyunwind.abi.layout import Struct
from rubyunwind.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Buffer, Self

__all__ = ["ApmSpanID", "ApmTraceID", "Frame", "Step", "Trace", "decode_trace"]

_MARKERS = tuple(FrameMarker(kind) for kind in range(256))
_METHOD_ENTRY_BYTES = 6  # x86_64 and aarch64 user addresses fit into 48 bits


class ApmTraceID(Struct):
    """Trace id of an APM agent: 16 bytes, or two numbers. A union: give `raw`, or `lo` and `hi`."""

    __slots__ = ()
    lo: int = 0
    hi: int = 0
    raw: bytes = b""


class ApmSpanID(Struct):
    """Span or transaction id of an APM agent: 8 bytes or one number. A union: give one of them."""

    __slots__ = ()
    as_int: int = 0
    raw: bytes = b""


class Frame(Struct, values={"kind": _MARKERS.__getitem__, "return_address": bool}):
    """One frame of a trace: where, in the terms of the unwinder that found it.

    What `file_id` and `addr_or_line` mean depends on `kind`: a native frame has the file's id and the ELF
    virtual address, a Ruby frame the address of its iseq body and its pc, a C function its method entry, an
    error frame 0 and an ErrorCode. `return_address` says that the address is the one behind a call.
    """

    __slots__ = ()
    file_id: int
    addr_or_line: int
    kind: FrameMarker
    return_address: bool
    pad: bytes

    def __init__(
        self,
        *,
        file_id: int = 0,
        addr_or_line: int = 0,
        kind: int = FrameMarker.UNKNOWN,
        return_address: bool = False,
        pad: bytes = b"",
        method_entry: int = 0,
    ) -> None:
        fields: dict[str, Any] = {"pad": pad} if pad else {}
        if method_entry:
            fields["method_entry"] = method_entry
        super().__init__(
            file_id=file_id, addr_or_line=addr_or_line, kind=kind, return_address=return_address, **fields
        )

    @classmethod
    def _write(cls, raw: bytearray, fields: Mapping[str, Any]) -> None:
        plain = dict(fields)
        entry = plain.pop("method_entry", None)
        if entry is not None:
            if "pad" in plain:
                raise TypeError("Frame: the method entry lies in the pad, give one of them")
            if not 0 <= entry < 1 << 8 * _METHOD_ENTRY_BYTES:
                raise OverflowError(f"Frame.method_entry: {entry:#x} does not fit 48 bits")
            plain["pad"] = entry.to_bytes(_METHOD_ENTRY_BYTES, "little")
        super()._write(raw, plain)

    @property
    def method_entry(self) -> int:
        """Address of a Ruby frame's method entry; 0 if it has none, and for every other kind."""
        return int.from_bytes(self.pad, "little")

    @property
    def is_error(self) -> bool:
        """Whether this frame says why an unwinder gave up, instead of a place."""
        return self.kind.is_error

    @property
    def error(self) -> ErrorCode | None:
        """Reason of an error frame, None for an ordinary one."""
        return ErrorCode(self.addr_or_line) if self.is_error else None


class Step(NamedTuple):
    """A frame as plain numbers; see Frame for what they mean."""

    file_id: int
    addr_or_line: int
    kind: int
    return_address: int
    method_entry: int


class Trace(Struct, values={"flags": TraceFlag}):
    """One trace, frames leaf first: header fields as attributes, `frames` decoded when first asked for.

    The bytes are the wire form: the C struct cut after the used frames, 80 + 24 * stack_len. A trace built by
    keyword has no kernel stack (-1) unless told, and takes stack_len from its frames.
    `ktime` is CLOCK_MONOTONIC in ns, `offtime` a duration in ns, `kernel_stack_id` a key of kernel_stackmap;
    negative, there is none.
    """

    __slots__ = ("_frames",)
    pid: int
    tid: int
    ktime: int
    comm: str
    apm_transaction_id: ApmSpanID
    apm_trace_id: ApmTraceID
    kernel_stack_id: int
    stack_len: int
    origin: TraceOrigin
    flags: TraceFlag
    offtime: int

    def __init__(
        self,
        *,
        pid: int = 0,
        tid: int = 0,
        ktime: int = 0,
        comm: str | bytes = "",
        apm_transaction_id: ApmSpanID | None = None,
        apm_trace_id: ApmTraceID | None = None,
        kernel_stack_id: int = -1,
        origin: int = TraceOrigin.UNKNOWN,
        flags: int = 0,
        offtime: int = 0,
        frames: Iterable[Frame] = (),
    ) -> None:
        raw = bytearray(self.size)
        fields: dict[str, Any] = {
            "pid": pid, "tid": tid, "ktime": ktime, "comm": comm, "kernel_stack_id": kernel_stack_id,
            "origin": origin, "flags": flags, "offtime": offtime, "frames": frames,
        }  # fmt: skip
        if apm_transaction_id is not None:
            fields["apm_transaction_id"] = apm_transaction_id
        if apm_trace_id is not None:
            fields["apm_trace_id"] = apm_trace_id
        self._write(raw, fields)
        self._raw = bytes(raw[: _HEADER + Frame.size * _STACK_LEN.unpack_from(raw, _STACK_LEN_AT)[0]])
        self._frames: tuple[Frame, ...] | None = None

    @classmethod
    def _write(cls, raw: bytearray, fields: Mapping[str, Any]) -> None:
        plain = dict(fields)
        if "stack_len" in plain:
            raise TypeError("Trace.stack_len follows from frames, it is not given")
        if "frames" in plain:
            frames = plain["frames"] = tuple(plain["frames"])
            raw[_HEADER:] = bytes(cls.size - _HEADER)
            plain["stack_len"] = len(frames)
        super()._write(raw, plain)

    @classmethod
    def from_bytes(cls, data: Buffer) -> Self:
        """Decode a record after copying it. See decode_trace for what is accepted."""
        return cls._view(memoryview(bytes(data)))

    @classmethod
    def _view(cls, view: memoryview) -> Self:
        size = view.nbytes
        if size < _HEADER:
            raise DecodeError(f"a trace begins with {_HEADER} bytes of header, this record ends after {size}")
        (count,) = _STACK_LEN.unpack_from(view, _STACK_LEN_AT)
        if count > MAX_DEEP_FRAMES:
            raise DecodeError(f"a trace has at most {MAX_DEEP_FRAMES} frames, this record says {count}")
        need = _HEADER + _FRAME_SIZE * count
        if size < need:
            raise DecodeError(f"{count} frames make a trace of {need} bytes, this record was cut at {size}")
        if size - need >= 8 and not 0 <= size - _TRACE_SIZE < 8:
            raise DecodeError(
                f"{count} frames make a trace of {need} bytes, or {_TRACE_SIZE} uncut; this record has {size}"
            )
        self = cls.__new__(cls)
        self._raw = view[:need]
        self._frames = None
        return self

    def replace(self, **fields: Any) -> Self:
        """Return a copy with these fields changed; see Struct.replace."""
        raw = bytearray(self._raw).ljust(self.size, b"\0")
        self._write(raw, fields)
        return type(self).from_bytes(raw)

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The frames, leaf first: at most 128 from the chain, 2600 from the walker."""
        frames = self._frames
        if frames is None:
            raw, new, made = bytes(self._raw), Frame.__new__, []
            for offset in range(_HEADER, len(raw), _FRAME_SIZE):
                frame = new(Frame)
                frame._raw = raw[offset : offset + _FRAME_SIZE]
                made.append(frame)
            frames = self._frames = tuple(made)
        return frames

    def steps(self) -> list[Step]:
        """Return the frames as plain tuples, leaf first: what a reader of many deep stacks has time for."""
        return [
            Step(file_id, place, word & 0xFF, word >> 8 & 0xFF, word >> 16)
            for file_id, place, word in _STEP.iter_unpack(self._raw[_HEADER:])
        ]

    def leaf(self) -> Step | None:
        """Return the innermost frame as `steps` does, None if there are no frames."""
        if len(self._raw) == _HEADER:
            return None
        file_id, place, word = _STEP.unpack_from(self._raw, _HEADER)
        return Step(file_id, place, word & 0xFF, word >> 8 & 0xFF, word >> 16)

    def first_error(self) -> ErrorCode | None:
        """Return the error of the innermost error frame, None if no frame is one."""
        kinds = bytes(self._raw[_HEADER + _KIND_AT :: _FRAME_SIZE])
        if not kinds or max(kinds) < _ERROR_BIT:
            return None
        index = next(i for i, kind in enumerate(kinds) if kind >= _ERROR_BIT)
        return self.frames[index].error

    @property
    def error(self) -> ErrorCode | None:
        """Why the walk was given up, from the abort frame at the end; None if there is none."""
        if len(self._raw) == _HEADER:
            return None
        last = Frame.from_bytes(self._raw[-_FRAME_SIZE:])
        return last.error if last.kind == FrameMarker.ABORT else None


_HEADER = Trace.members["frames"].offset
_STACK_LEN = struct.Struct("<I")
_STACK_LEN_AT = Trace.members["stack_len"].offset
_FRAME_SIZE = Frame.size
_KIND_AT = Frame.members["kind"].offset
_ERROR_BIT = 0x80
# file_id, addr_or_line, and kind, return_address and method entry in one word, as the kernel side writes it
_STEP = struct.Struct("<QQQ")
_TRACE_SIZE = Trace.size


def decode_trace(buffer: Buffer) -> Trace:
    """Check the bytes of one record and return a view of them; nothing is copied.

    A record is the header (80 bytes) and stack_len frames of 24. Up to 7 bytes of perf padding behind it are
    accepted, and the whole struct (3152 bytes) whatever its stack_len. The view goes on reading `buffer`:
    where that memory is reused, as in a ring buffer, pass `bytes(...)` of it.

    Raises DecodeError for a record that is cut short, says more than 2600 frames, or has another size than
    its stack_len asks for; TypeError if `buffer` is no bytes-like object.
    """
    view = memoryview(buffer)
    if view.format != "B" or view.ndim != 1 or not view.c_contiguous:
        view = memoryview(bytes(view))
    return Trace._view(view)
