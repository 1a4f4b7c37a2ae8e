# SPDX-License-Identifier: Apache-2.0
"""A receiver for what is pushed: a real HTTP server in a thread, that behaves as each test wants."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

PATIENCE = 30  # seconds


class Received(NamedTuple):
    target: str
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def plain(self) -> bytes:
        return gzip.decompress(self.body) if self.headers.get("content-encoding") == "gzip" else self.body


# What a request is answered with: gets the handler, once the body is there, and answers or does not.
Behaviour = Callable[[BaseHTTPRequestHandler], None]


def answer(status: int, body: bytes = b"", **headers: str) -> Behaviour:
    def respond(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return respond


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    """Close without an answer."""
    handler.close_connection = True


def cut_off(handler: BaseHTTPRequestHandler) -> None:
    """Take the request, and close in the middle of the answer's body."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"some")
    handler.close_connection = True


def drip(handler: BaseHTTPRequestHandler) -> None:
    """Send a byte now and then, for half an hour, and say nothing with them but to wait."""
    with suppress(OSError):
        for byte in b"HTTP/1.1 100 Continue\r\n\r\n" * 4000:
            handler.wfile.write(bytes([byte]))
            handler.wfile.flush()
            time.sleep(0.02)
    handler.close_connection = True


OK = answer(200)


class Receiver:
    """`taken` are the requests that it has said to have; `seen` all whose body arrived.

    `behaviours` are for the next requests, then all get `usually`.
    """

    def __init__(self, port: int = 0, tls: Any = None) -> None:
        self.seen: list[Received] = []
        self.taken: list[Received] = []
        self.behaviours: list[Behaviour] = []
        self.usually: Behaviour = OK
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = PATIENCE

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                received = Received(self.path, headers, body)
                receiver.seen.append(received)
                behaviour = receiver.behaviours.pop(0) if receiver.behaviours else receiver.usually
                behaviour(self)

            def send_response(self, code: int, message: str | None = None) -> None:
                if 200 <= code < 300:
                    receiver.taken.append(receiver.seen[-1])
                super().send_response(code, message)

            def log_message(self, *arguments: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *arguments: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", port), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE)


@contextmanager
def receiving(
    behaviours: Sequence[Behaviour] = (), usually: Behaviour = OK, **options: Any
) -> Iterator[Receiver]:
    receiver = Receiver(**options)
    receiver.behaviours, receiver.usually = list(behaviours), usually
    try:
        yield receiver
    finally:
        receiver.stop()


def free_port() -> int:
    """A port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])
