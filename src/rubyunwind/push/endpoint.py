# SPDX-License-Identifier: Apache-2.0
"""Where profiles are pushed to, and as whose: URL, headers, attributes, and the environment's part in them.

What may be a secret (headers, the user and query of a URL) is in no message and in no repr.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from rubyunwind.errors import RubyUnwindError
from rubyunwind.formats.names import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["PUSH_FORMATS", "Endpoint", "parse_headers"]

# The path of a format's receiver, where a URL has none. Pyroscope's is the one that takes pprof.
_PATHS = {"otlp": "/v1development/profiles", "pprof": "/ingest"}
PUSH_FORMATS = tuple(_PATHS)
_PORTS = {"http": 80, "https": 443}
# Seconds a request may take; that of the OTLP exporters.
_TIMEOUT = 10.0
_SERVICE = "rubyunwind"
_UNDERSTOOD = "a URL such as http://127.0.0.1:4318 or https://HOST/PATH is understood"
# RFC 9110, 5.6.2: a header's name is a token.
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
# What we say ourselves.
_OURS = frozenset(
    {"host", "content-type", "content-length", "content-encoding", "transfer-encoding", "connection"}
)
_ENV = "OTEL_EXPORTER_OTLP_"
_PROTOCOL = "http/protobuf"


class _Address(NamedTuple):
    scheme: str
    host: str
    port: int
    path: str
    query: str
    user: str  # "user:password", "" for none


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A receiver, and what each request to it carries. `of` makes one.

    `target` is path and query of the URL, `headers` go with each request, `attributes` say whose profiles
    they are. `timeout` is the seconds one request may take, from the connection to the end of the answer.
    `certificate` is a file of authorities to trust in place of the system's, `client_certificate` and
    `client_key` are files, too.
    """

    scheme: str
    host: str
    port: int
    target: str = field(repr=False)
    format: str
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    attributes: tuple[tuple[str, str], ...]
    timeout: float
    certificate: str | None = None
    client_certificate: str | None = None
    client_key: str | None = None

    @classmethod
    def of(
        cls,
        url: str | None,
        *,
        format: str | None = None,  # noqa: A002 - as everywhere
        headers: Iterable[tuple[str, str]] = (),
        attributes: Iterable[tuple[str, str]] = (),
        timeout: float | None = None,
        certificate: str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Endpoint:
        """Make an endpoint of a URL and of what is said beside it.

        A URL without a path gets the format's own; without a format, a path that ends in /ingest is pprof and
        any other otlp. With `environ` (os.environ, say) OpenTelemetry's variables fill in what is not given:
        OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME, and for otlp OTEL_EXPORTER_OTLP_ENDPOINT, _HEADERS,
        _TIMEOUT, _CERTIFICATE, _CLIENT_CERTIFICATE and _CLIENT_KEY, each with _PROFILES_ before it as well.
        RubyUnwindError for what makes no sense.
        """
        environ = environ or {}
        if format is not None and format not in _PATHS:
            raise RubyUnwindError(f"cannot push {format!r}; the formats are {', '.join(PUSH_FORMATS)}")
        if url is None:
            if format == "pprof":
                raise RubyUnwindError("pprof is pushed to a URL, and none was given")
            url = _endpoint_of(environ)
        address = _address(url)
        if format is None:
            format = "pprof" if address.path.rstrip("/").endswith(_PATHS["pprof"]) else "otlp"  # noqa: A001
        otlp = _Variables(environ if format == "otlp" else {})
        path = quote(address.path if address.path.strip("/") else _PATHS[format], safe="/%:@!$&'()*+,;=~-._")
        all_headers = {name.lower(): (name, value) for name, value in otlp.pairs("HEADERS", lower=True)}
        if address.user:
            encoded = base64.b64encode(address.user.encode()).decode()
            all_headers["authorization"] = ("Authorization", f"Basic {encoded}")
        all_headers.update({name.lower(): (name, value) for name, value in headers})
        for name, value in all_headers.values():
            _check_header(name, value)
        return cls(
            scheme=address.scheme,
            host=address.host,
            port=address.port,
            target=path + (f"?{address.query}" if address.query else ""),
            format=format,
            headers=tuple(all_headers.values()),
            attributes=_attributes(environ, attributes),
            timeout=timeout or otlp.seconds("TIMEOUT") or _TIMEOUT,
            certificate=certificate or otlp.get("CERTIFICATE"),
            client_certificate=otlp.get("CLIENT_CERTIFICATE"),
            client_key=otlp.get("CLIENT_KEY"),
        )

    @property
    def authority(self) -> str:
        """Host and port, as in a Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target.partition('?')[0]}"

    @property
    def is_exposed(self) -> bool:
        """Whether headers of the user's go over a network unencrypted."""
        local = self.host in ("localhost", "::1") or self.host.startswith("127.")
        return self.scheme == "http" and not local and bool(self.headers)

    def without_secrets(self, text: str) -> str:
        """Return what a receiver said, in one printable line, without the values of our headers."""
        for _, value in self.headers:
            for secret in (value, *value.split()):
                if len(secret) > 3:
                    text = text.replace(secret, "***")
        return printable(" ".join(text.split()))


class _Variables:
    """OpenTelemetry's variables for exporters: those for profiles come before those for all signals."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def _name(self, what: str) -> str | None:
        names = (f"{_ENV}PROFILES_{what}", f"{_ENV}{what}")
        return next((name for name in names if self._environ.get(name)), None)

    def get(self, what: str) -> str | None:
        name = self._name(what)
        return None if name is None else self._environ[name]

    def pairs(self, what: str, *, lower: bool = False) -> list[tuple[str, str]]:
        name = self._name(what)
        return [] if name is None else _pairs(name, self._environ[name], lower=lower)

    def seconds(self, what: str) -> float | None:
        name = self._name(what)
        if name is None:
            return None
        try:
            milliseconds = float(self._environ[name])
        except ValueError:
            milliseconds = -1.0
        if not 0 < milliseconds < 1e9:
            raise RubyUnwindError(
                f"{name} is {self._environ[name]!r}; it must be milliseconds, such as 10000"
            )
        return milliseconds / 1000


def _endpoint_of(environ: Mapping[str, str]) -> str:
    """The URL that the environment names. That for all signals is what their paths are appended to."""
    protocol = _Variables(environ).get("PROTOCOL")
    if protocol not in (None, _PROTOCOL):
        raise RubyUnwindError(
            f"the environment asks for OTLP over {protocol!r}, and only {_PROTOCOL} is spoken here; "
            "name the URL of a receiver for that (port 4318, mostly)"
        )
    own = environ.get(f"{_ENV}PROFILES_ENDPOINT")
    if own:
        return own
    base = environ.get(f"{_ENV}ENDPOINT")
    if not base:
        raise RubyUnwindError(
            f"no receiver is named: give a URL, or set {_ENV}ENDPOINT or {_ENV}PROFILES_ENDPOINT"
        )
    return base.rstrip("/") + _PATHS["otlp"]


def _address(url: str) -> _Address:
    """Take a URL apart. Errors do not repeat it, since it may hold a password."""
    try:
        parts = urlsplit(url)
        port = parts.port
        host = parts.hostname or ""
        host = host.encode("idna").decode()
    except ValueError as error:  # UnicodeError is one
        raise RubyUnwindError(f"the receiver's URL cannot be read; {_UNDERSTOOD}") from error
    if parts.scheme not in _PORTS:
        found = f"its scheme is {parts.scheme!r}" if parts.scheme and "://" in url else "it has no scheme"
        raise RubyUnwindError(f"the receiver's URL cannot be used: {found}; {_UNDERSTOOD}")
    if not host or re.search(r"[\x00-\x20\x7f]", url) or parts.fragment:
        raise RubyUnwindError(f"the receiver's URL cannot be used: it names no host, or more; {_UNDERSTOOD}")
    user, _, password = (parts.username or ""), ":", (parts.password or "")
    return _Address(
        parts.scheme,
        host,
        _PORTS[parts.scheme] if port is None else port,
        parts.path,
        quote(parts.query, safe="/%:@!$&'()*+,;=~-._?"),
        f"{unquote(user)}:{unquote(password)}" if user or password else "",
    )


def _pairs(what: str, text: str, *, lower: bool = False) -> list[tuple[str, str]]:
    """Take `key=value,key=value` apart, as W3C baggage has it. Errors do not repeat it."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        key = unquote(key.strip())
        if not equals or not key:
            raise RubyUnwindError(
                f"{what} cannot be read; key=value,key=value is understood, percent-encoded"
            )
        found.append((key.lower() if lower else key, unquote(value.strip())))
    return found


def _attributes(environ: Mapping[str, str], given: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Attributes of the resource; what is given comes before the environment, and that before our own."""
    import socket

    name = "OTEL_RESOURCE_ATTRIBUTES"
    found = {"service.name": _SERVICE, "host.name": socket.gethostname()}
    found.update(_pairs(name, environ.get(name, "")))
    if environ.get("OTEL_SERVICE_NAME"):
        found["service.name"] = environ["OTEL_SERVICE_NAME"]
    found.update(given)
    return tuple((printable(key), printable(value)) for key, value in found.items() if value)


def _check_header(name: str, value: str) -> None:
    if not _TOKEN.fullmatch(name):
        raise RubyUnwindError(
            "a header to push with has a name that HTTP does not allow; 'Name: value' is understood"
        )
    if not _VALUE.fullmatch(value):
        raise RubyUnwindError(f"the header {name} has a value that HTTP does not allow (a line break, say)")
    if name.lower() in _OURS:
        raise RubyUnwindError(f"the header {name} is set by rubyunwind itself; leave it out")


def parse_headers(texts: Iterable[str]) -> list[tuple[str, str]]:
    """Take `Name: value` apart; `@FILE` is a file of such lines. RubyUnwindError, without their values."""
    found = []
    for text in texts:
        lines = _lines_of(text[1:]) if text.startswith("@") else [text]
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                where = f" in {text[1:]}" if text.startswith("@") else ""
                raise RubyUnwindError(
                    f"a header to push with{where} has no colon; 'Name: value' is understood"
                )
            found.append((name.strip(), value.strip()))
    return found


def _lines_of(path: str) -> list[str]:
    try:
        with open(path, encoding="latin-1") as file:  # noqa: PTH123 - a path of any kind
            text = file.read(1 << 16)
    except OSError as error:
        raise RubyUnwindError(
            f"cannot read the headers to push with from {path}: {error.strerror}"
        ) from error
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]
