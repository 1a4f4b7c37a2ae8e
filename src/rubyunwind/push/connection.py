# SPDX-License-Identifier: Apache-2.0
"""One HTTP request after another to a receiver, each ended at its deadline, whatever the receiver does.

http.client speaks; sockets are set to what is left of the time before each of their calls, so that neither a
receiver that sends a byte a second nor one that does not read can hold us for longer.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from rubyunwind import __version__
from rubyunwind.errors import RubyUnwindError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from rubyunwind.push.endpoint import Endpoint

__all__ = ["Answer", "Connection", "Unreachable"]

# Of an answer no more is read.
_MOST_ANSWER = 1 << 16
_PIECE = 1 << 16
# Seconds for one address of a host to take the connection; then the next is tried.
_CONNECT = 5.0


class Unreachable(RubyUnwindError):
    """No answer came: not connected, not trusted, cut off, or not in time. It may be another time."""


class Answer(NamedTuple):
    """What a receiver answered; `retry_after` is the seconds that it asks to wait, None if it does not."""

    status: int
    reason: str
    retry_after: float | None
    body: bytes


class _Reader(io.RawIOBase):
    def __init__(self, line: _Line) -> None:
        self._line = line

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._line.receive(buffer)


class _Line:
    """A socket with a deadline, for http.client. `close` leaves it open, for the rest of an answer."""

    def __init__(self, plain: socket.socket) -> None:
        self.socket = plain
        self.deadline = 0.0

    def arm(self) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self.socket.settimeout(left)

    def receive(self, buffer: Any) -> int:
        self.arm()
        return self.socket.recv_into(buffer)

    def sendall(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            self.arm()
            rest = rest[self.socket.send(rest[:_PIECE]) :]

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self))

    def close(self) -> None:
        pass


class Connection:
    """A connection to an endpoint, made when it is needed. `close` may be followed by another `post`."""

    def __init__(self, endpoint: Endpoint) -> None:
        """RubyUnwindError for files of certificates that cannot be used."""
        self._endpoint = endpoint
        self._context = _context_of(endpoint) if endpoint.scheme == "https" else None
        self._line: _Line | None = None
        self._aborted = False
        self._http: http.client.HTTPConnection | None = None

    def post(self, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Send one request and return the answer. Unreachable if none came within the endpoint's timeout.

        Looking up the host's name is the C library's, which has a time limit of its own.
        """
        deadline = time.monotonic() + self._endpoint.timeout
        self._aborted = False
        try:
            if self._line is None or self._http is None:
                self._connect(deadline)
            assert self._line is not None
            assert self._http is not None
            self._line.deadline = deadline
            return self._exchange(self._http, target, headers, body)
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            self.close()
            why = "it was cut off" if self._aborted else _why(error, self._endpoint.timeout)
            raise Unreachable(why) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close it. Twice is harmless."""
        line, self._line, self._http = self._line, None, None
        if line is not None:
            with suppress(OSError):
                line.socket.close()

    def abort(self) -> None:
        """Have a `post` in another thread fail at once. One that still looks a name up is not reached."""
        line = self._line
        if line is not None:
            self._aborted = True
            with suppress(OSError):
                line.socket.shutdown(socket.SHUT_RDWR)

    def _connect(self, deadline: float) -> None:
        host, port = self._endpoint.host, self._endpoint.port
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        refusal: OSError = TimeoutError("timed out")
        for family, kind, protocol, _, address in found:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            plain = socket.socket(family, kind, protocol)
            self._line = _Line(plain)
            try:
                plain.settimeout(min(_CONNECT, left))
                plain.connect(address)
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:
                self.close()
                refusal = error
                continue
            if self._context is not None:
                plain.settimeout(max(0.001, deadline - time.monotonic()))
                # An owner of the descriptor at any time: wrap_socket closes the plain one if it fails.
                self._line.socket = self._context.wrap_socket(plain, server_hostname=host)
            self._http = http.client.HTTPConnection(host, port)
            self._http.sock = cast("socket.socket", self._line)
            return
        raise refusal

    def _exchange(
        self, speaker: http.client.HTTPConnection, target: str, headers: Mapping[str, str], body: bytes
    ) -> Answer:
        speaker.putrequest("POST", target, skip_host=True, skip_accept_encoding=True)
        speaker.putheader("Host", self._endpoint.authority)
        speaker.putheader("User-Agent", f"rubyunwind/{__version__}")
        for name, value in (*headers.items(), *self._endpoint.headers):
            speaker.putheader(name, value)
        speaker.putheader("Content-Length", str(len(body)))
        refusal: OSError | None = None
        try:
            speaker.endheaders(body)
        except (BrokenPipeError, ConnectionResetError) as error:
            refusal = error  # it may have answered before it closed: too large, say
        try:
            response = speaker.getresponse()
        except (OSError, http.client.HTTPException):
            if refusal is not None:
                raise refusal from None
            raise
        said = b""
        # The status says what became of the request, even if the rest is cut off.
        with suppress(OSError, http.client.HTTPException):
            said = response.read(_MOST_ANSWER)
        if response.will_close or not response.isclosed() or refusal is not None:
            self.close()
        wait = _retry_after(response.getheader("Retry-After"), response.getheader("Date"))
        return Answer(response.status, response.reason, wait, said)


def _context_of(endpoint: Endpoint) -> ssl.SSLContext:
    import ssl

    try:
        context = ssl.create_default_context(cafile=endpoint.certificate)
    except (OSError, ssl.SSLError) as error:
        raise RubyUnwindError(f"cannot use the certificates in {endpoint.certificate}: {error}") from error
    if endpoint.client_certificate:
        try:
            # Without a password, so that nobody is asked for one.
            context.load_cert_chain(endpoint.client_certificate, endpoint.client_key, password="")
        except (OSError, ssl.SSLError, ValueError) as error:
            raise RubyUnwindError(
                f"cannot use the client certificate in {endpoint.client_certificate}: {error}"
            ) from error
    return context


def _why(error: Exception, timeout: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout:g} s"
    if isinstance(error, http.client.RemoteDisconnected):
        return "it closed the connection without an answer"
    if isinstance(error, http.client.HTTPException):
        return f"its answer is no HTTP ({type(error).__name__})"
    message = getattr(error, "verify_message", "")  # of ssl.SSLCertVerificationError
    if message:
        return f"its certificate is not trusted: {message}"
    return str(getattr(error, "strerror", None) or error) or type(error).__name__


def _retry_after(text: str | None, date: str | None) -> float | None:
    """Seconds to wait. A moment is held against the receiver's own clock, if it tells that."""
    if not text:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        until = parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    now = time.time()
    if date:
        with suppress(ValueError, TypeError, OverflowError):
            now = parsedate_to_datetime(date).timestamp()
    return max(0.0, until - now)
