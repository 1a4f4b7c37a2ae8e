# SPDX-License-Identifier: Apache-2.0
"""What a receiver's URL, headers and the environment mean."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from rubyunwind import Endpoint
from rubyunwind.errors import RubyUnwindError
from rubyunwind.push.endpoint import parse_headers

ENV = "OTEL_EXPORTER_OTLP_"


@pytest.mark.parametrize(
    ("url", "format_", "target", "found"),
    [
        ("http://h:4318", None, "/v1development/profiles", "otlp"),
        ("http://h:4318/", None, "/v1development/profiles", "otlp"),
        ("http://h/otlp/profiles", None, "/otlp/profiles", "otlp"),
        ("https://h/ingest", None, "/ingest", "pprof"),
        ("https://h/prefix/ingest/", None, "/prefix/ingest/", "pprof"),
        ("http://h:4040", "pprof", "/ingest", "pprof"),
        ("http://h/ingest", "otlp", "/ingest", "otlp"),
        ("http://h/a b?q=1", None, "", ""),
        ("http://h/\u00e9?q=\u00e9", None, "/%C3%A9?q=%C3%A9", "otlp"),
    ],
)
def test_a_url_without_a_path_gets_the_formats_own(
    url: str, format_: str | None, target: str, found: str
) -> None:
    if not found:
        with pytest.raises(RubyUnwindError, match="the receiver's URL cannot be used"):
            Endpoint.of(url, format=format_)
        return
    endpoint = Endpoint.of(url, format=format_)
    assert (endpoint.target, endpoint.format) == (target, found)


@pytest.mark.parametrize(
    ("url", "shown", "host", "port"),
    [
        ("http://me:secret@host:4318", "http://host:4318/v1development/profiles", "host", 4318),
        ("https://host/p?key=secret", "https://host/p", "host", 443),
        ("http://[::1]:4318/p", "http://[::1]:4318/p", "::1", 4318),
        ("http://host:80/p", "http://host/p", "host", 80),
        ("http://b\u00fccher.example/p", "http://xn--bcher-kva.example/p", "xn--bcher-kva.example", 80),
        ("http://my_host/p", "http://my_host/p", "my_host", 80),
    ],
)
def test_it_is_shown_without_secrets(url: str, shown: str, host: str, port: int) -> None:
    endpoint = Endpoint.of(url)
    assert str(endpoint) == shown
    assert (endpoint.host, endpoint.port) == (host, port)
    assert "secret" not in repr(endpoint)


@pytest.mark.parametrize(
    "url",
    ["", "host", "host:4318", "ftp://host", "http://", "http:///path", "http://ho st", "http://h:99999999",
     "http://h:x", "http://h/#part", "http://h\r\nX: y", "unix:/secret", "http://" + "a" * 300],
)  # fmt: skip
def test_a_url_that_cannot_be_used_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(RubyUnwindError, match=r"the receiver's URL cannot be .*such as http://127") as raised:
        Endpoint.of(url)
    assert "secret" not in str(raised.value)


def test_the_environment_names_the_receiver() -> None:
    general = {f"{ENV}ENDPOINT": "http://c:4318/base/", f"{ENV}HEADERS": "X-One=1,Authorization=Bearer%20abc"}
    endpoint = Endpoint.of(None, environ=general)
    assert str(endpoint) == "http://c:4318/base/v1development/profiles"
    assert endpoint.headers == (("x-one", "1"), ("authorization", "Bearer abc"))
    assert endpoint.timeout == 10
    own = {
        **general,
        f"{ENV}PROFILES_ENDPOINT": "https://p/as/it/is",
        f"{ENV}PROFILES_HEADERS": "x-two=2",
        f"{ENV}PROFILES_TIMEOUT": "2500",
        f"{ENV}TIMEOUT": "9000",
        f"{ENV}CERTIFICATE": "/ca.pem",
        f"{ENV}PROFILES_CLIENT_CERTIFICATE": "/c.pem",
        f"{ENV}CLIENT_KEY": "/k.pem",
    }
    endpoint = Endpoint.of(None, environ=own)
    assert str(endpoint) == "https://p/as/it/is"
    assert endpoint.headers == (("x-two", "2"),)
    assert endpoint.timeout == 2.5
    assert (endpoint.certificate, endpoint.client_certificate, endpoint.client_key) == (
        "/ca.pem",
        "/c.pem",
        "/k.pem",
    )


def test_what_is_given_comes_before_the_environment() -> None:
    environ = {
        f"{ENV}ENDPOINT": "http://c:4318",
        f"{ENV}HEADERS": "x-token=theirs",
        f"{ENV}TIMEOUT": "9000",
        "OTEL_RESOURCE_ATTRIBUTES": "service.name=one,team=a%2Cb,host.name=h",
        "OTEL_SERVICE_NAME": "two",
    }
    endpoint = Endpoint.of("http://mine:1", environ=environ, headers=[("X-Token", "mine")], timeout=1)
    assert endpoint.host == "mine"
    assert endpoint.headers == (("X-Token", "mine"),)
    assert endpoint.timeout == 1
    assert dict(endpoint.attributes) == {"service.name": "two", "team": "a,b", "host.name": "h"}
    given = Endpoint.of(
        "http://mine:1", environ=environ, attributes=[("service.name", "three"), ("team", "")]
    )
    assert dict(given.attributes) == {"service.name": "three", "host.name": "h"}


def test_headers_for_opentelemetry_do_not_go_to_pyroscope() -> None:
    environ = {f"{ENV}HEADERS": "authorization=Bearer%20abc", "OTEL_SERVICE_NAME": "shop"}
    endpoint = Endpoint.of("http://h/ingest", environ=environ)
    assert endpoint.headers == ()
    assert dict(endpoint.attributes)["service.name"] == "shop"


def test_without_an_environment_none_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
    monkeypatch.setenv(f"{ENV}ENDPOINT", "http://c")
    attributes = dict(Endpoint.of("http://h").attributes)
    assert attributes == {"service.name": "rubyunwind", "host.name": socket.gethostname()}
    with pytest.raises(RubyUnwindError, match=f"no receiver is named: give a URL, or set {ENV}ENDPOINT"):
        Endpoint.of(None)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({f"{ENV}ENDPOINT": "http://c:4317", f"{ENV}PROTOCOL": "grpc"}, "only http/protobuf is spoken"),
        ({f"{ENV}ENDPOINT": "http://c", f"{ENV}TIMEOUT": "soon"}, f"{ENV}TIMEOUT is 'soon'"),
        ({f"{ENV}ENDPOINT": "http://c", f"{ENV}TIMEOUT": "-1"}, "must be milliseconds"),
        ({f"{ENV}ENDPOINT": "http://c", f"{ENV}HEADERS": "secret"}, f"{ENV}HEADERS cannot be read"),
        (
            {f"{ENV}ENDPOINT": "http://c", f"{ENV}HEADERS": "a=secret%0d%0ab"},
            "a value that HTTP does not allow",
        ),
        (
            {f"{ENV}ENDPOINT": "http://c", "OTEL_RESOURCE_ATTRIBUTES": "secret"},
            "OTEL_RESOURCE_ATTRIBUTES cannot",
        ),
    ],
)
def test_an_environment_that_makes_no_sense_is_refused(environ: dict[str, str], message: str) -> None:
    with pytest.raises(RubyUnwindError, match=message) as raised:
        Endpoint.of(None, environ=environ)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (("X Y", "secret"), "a name that HTTP does not allow"),
        (("", "secret"), "a name that HTTP does not allow"),
        (("X", "secret\nY: z"), "a value that HTTP does not allow"),
        (("X", "secret\u20ac"), "a value that HTTP does not allow"),
        (("content-LENGTH", "secret"), "is set by rubyunwind itself"),
        (("Host", "secret"), "is set by rubyunwind itself"),
    ],
)
def test_headers_are_checked(header: tuple[str, str], message: str) -> None:
    with pytest.raises(RubyUnwindError, match=message) as raised:
        Endpoint.of("http://h", headers=[header])
    assert "secret" not in str(raised.value)


def test_headers_come_from_files_too(tmp_path: Path) -> None:
    path = tmp_path / "headers"
    path.write_text("# ours\n\nAuthorization: Bearer a:b\n  X-Scope-OrgID :  7 \n")
    assert parse_headers(["X: y", f"@{path}"]) == [
        ("X", "y"),
        ("Authorization", "Bearer a:b"),
        ("X-Scope-OrgID", "7"),
    ]
    path.write_text("secret\n")
    with pytest.raises(RubyUnwindError, match=r"in .*headers has no colon") as raised:
        parse_headers([f"@{path}"])
    assert "secret" not in str(raised.value)
    with pytest.raises(
        RubyUnwindError, match="cannot read the headers to push with from /nowhere: No such file"
    ):
        parse_headers(["@/nowhere"])


@pytest.mark.parametrize(
    ("url", "exposed"),
    [
        ("http://far:1", True),
        ("https://far:1", False),
        ("http://localhost:1", False),
        ("http://127.0.0.9", False),
    ],
)
def test_headers_that_go_unencrypted_are_told(url: str, exposed: bool) -> None:
    assert Endpoint.of(url, headers=[("X", "y")]).is_exposed == exposed
    assert not Endpoint.of(url).is_exposed


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(RubyUnwindError, match="cannot push 'folded'; the formats are otlp, pprof"):
        Endpoint.of("http://h", format="folded")
