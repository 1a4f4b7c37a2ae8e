# SPDX-License-Identifier: Apache-2.0
"""What a receiver's answer means: whether the request is worth another try, and what was said of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rubyunwind.push.connection import Answer
    from rubyunwind.push.endpoint import Endpoint

__all__ = ["is_retryable", "partial_success", "said"]

# OTLP's specification, "Retryable Response Codes", and no others. Pyroscope answers 408 where the body did
# not arrive, and 500 while parts of it are away.
_RETRYABLE = {"otlp": frozenset({429, 502, 503, 504}), "pprof": frozenset({408, 429, *range(500, 600)})}
_MOST_SAID = 200  # characters of what a receiver said
# RFC 9110: 300 to 399 name another place, which we do not go to.
_REDIRECTED = range(300, 400)


def is_retryable(answer: Answer, endpoint: Endpoint) -> bool:
    """Whether the same request may be taken another time."""
    return answer.status in _RETRYABLE[endpoint.format]


def said(answer: Answer, endpoint: Endpoint) -> str:
    """One line of what a receiver answered, without our secrets."""
    text = _plain(answer.body.decode("utf-8", "replace"))
    line = endpoint.without_secrets(f"{answer.status} {answer.reason}: {text}")[:_MOST_SAID].rstrip(": ")
    if answer.status in _REDIRECTED:
        return f"it answered {line}; redirections are not followed, name the URL itself"
    return f"it answered {line}"


def partial_success(answer: Answer, endpoint: Endpoint) -> tuple[int, str]:
    """How many profiles of a request that was taken were left out, and one line of why.

    Only a receiver of OTLP says so; an answer that is none of its kind says nothing.
    """
    if endpoint.format != "otlp":
        return 0, ""
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2

    try:
        part = profiles_service_pb2.ExportProfilesServiceResponse.FromString(answer.body).partial_success
    except DecodeError:
        return 0, ""
    count = part.rejected_profiles
    if count <= 0:  # a message alone is a warning, and the field has a sign
        return 0, ""
    why = endpoint.without_secrets(_plain(part.error_message))[:_MOST_SAID] or "no reason given"
    return count, f"it took a request without {count} of its profiles: {why}"


def _plain(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text if letter != "\ufffd")
