# SPDX-License-Identifier: Apache-2.0
"""Samples as the bodies of requests: none larger than receivers take, each whole in itself."""

from __future__ import annotations

import gzip
import io
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from rubyunwind.formats.names import printable
from rubyunwind.profiler.sample import Totals
from rubyunwind.profiler.samples import Samples

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rubyunwind.formats.registry import Meta

__all__ = ["Request", "difference", "headers_of", "requests_of"]

# Bytes before compression. A Collector takes 20 MiB (max_request_body_size), Pyroscope profiles of 4 MiB
# (validation.max-profile-size-bytes), unless told otherwise.
_MOST_BYTES = {"otlp": 16 << 20, "pprof": 4 << 20}
_HEADERS = {
    "otlp": {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"},
    # gzip is part of the format.
    "pprof": {"Content-Type": "application/octet-stream"},
}
# Pyroscope, api/model/labelset: what names of applications and of labels may consist of; how labels end.
_NO_APPLICATION = re.compile(r"[^A-Za-z0-9_./-]")
_NO_LABEL = re.compile(r"[^A-Za-z0-9_.]")
_NO_VALUE = re.compile(r"[,{}=]")


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent at once. `samples` are in it; `query` goes into the URL; `body` is compressed."""

    samples: int
    query: str
    body: bytes


def headers_of(format_: str) -> Mapping[str, str]:
    """What a request says of its body."""
    return _HEADERS[format_]


def requests_of(
    format_: str, samples: Samples, totals: Totals, meta: Meta, attributes: Mapping[str, str]
) -> tuple[list[Request], int]:
    """Encode samples: into one request, or into several where that would be too large.

    Totals go with the first. Also returns how many samples are each too large for a request of its own.
    """
    whole, body = _encoded(format_, samples, totals, meta, attributes)
    if whole <= _MOST_BYTES[format_]:
        return [Request(len(samples), _query(format_, samples, meta, attributes), body)], 0
    if len(samples) == 1:
        return [], 1
    half = len(samples) // 2
    first, lost = requests_of(format_, Samples(samples[:half]), totals, meta, attributes)
    rest, more = requests_of(format_, Samples(samples[half:]), Totals(), meta, attributes)
    return first + rest, lost + more


def _encoded(
    format_: str, samples: Samples, totals: Totals, meta: Meta, attributes: Mapping[str, str]
) -> tuple[int, bytes]:
    """Return the size before compression, and the compressed body."""
    # The first sample says when it began: another clock may have been set meanwhile.
    meta = replace(meta, started=0)
    if format_ == "otlp":
        from rubyunwind.formats.otlp import encode

        raw = encode(samples, totals, meta, resource=attributes, identified=True)
        return len(raw), gzip.compress(raw, compresslevel=6, mtime=0)
    from rubyunwind.formats.pprof import write

    file = io.BytesIO()
    write(file, samples, totals, meta)
    body = file.getvalue()
    # RFC 1952, ISIZE: the last four bytes.
    return int.from_bytes(body[-4:], "little"), body


def _query(format_: str, samples: Samples, meta: Meta, attributes: Mapping[str, str]) -> str:
    """What Pyroscope's /ingest is told beside the profile; receivers of OTLP have all of it in the body."""
    if format_ != "pprof":
        return ""
    times = [(min(columns[0]), max(columns[0])) for columns in samples.columns()]
    since = min(low for low, _ in times) // 1_000_000_000
    until = max(high for _, high in times) // 1_000_000_000 + 1
    labels = dict(attributes)
    name = _NO_APPLICATION.sub("_", labels.pop("service.name", "")) or "rubyunwind"
    pairs = ",".join(
        f"{_NO_LABEL.sub('_', key)}={_NO_VALUE.sub('_', printable(value))}" for key, value in labels.items()
    )
    query: dict[str, str | int] = {
        "name": f"{name}{{{pairs}}}",
        "from": since,
        "until": until,
        "format": "pprof",
        "spyName": "rubyunwind",
    }
    if meta.rate:
        query["sampleRate"] = round(meta.rate)
    return urlencode(query)


def difference(before: Totals, now: Totals) -> Totals:
    """What has been counted since `before`, as far as requests tell it."""
    old = dict(before.failed)
    failed = ((reason, count - old.get(reason, 0)) for reason, count in now.failed)
    return Totals(
        read=max(0, now.read - before.read),
        lost=max(0, now.lost - before.lost),
        truncated=max(0, now.truncated - before.truncated),
        failed=tuple((reason, count) for reason, count in failed if count > 0),
    )
