"""Requests, responses and the messages stored in internal topics, in every version.

The first byte of an input chooses the message (the API key of a request or response), the second
its version.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from kavka.protocol.primitives import ProtocolError
from tests.fuzz.engine import Target
from tests.unit.protocol.cases import CASES, Case, golden_of


@cache
def _messages(kind: str) -> dict[int, Case]:
    """Return requests or responses by API key, and stored messages by their position in the sorted
    list of names."""
    if kind == "Stored":
        stored = [case for case in CASES if not case.schema.name.endswith(("Request", "Response"))]
        return dict(enumerate(sorted(stored, key=str)))
    return {int(case.cls.API_KEY): case for case in CASES if case.schema.name.endswith(kind)}


def _seeds(kind: str) -> Sequence[bytes]:
    return [
        bytes((key, frame.version)) + frame.data for key, case in _messages(kind).items() for frame in golden_of(case)
    ]


def _run(kind: str, data: bytes) -> None:
    """Decoding raises ProtocolError, or returns a message whose encoding is stable."""
    if len(data) < 2:
        return
    messages = _messages(kind)
    case = messages.get(data[0]) or list(messages.values())[data[0] % len(messages)]
    versions = list(case.schema.versions)
    version = data[1] if data[1] in versions else versions[data[1] % len(versions)]
    try:
        message, end = case.cls.decode(memoryview(data), 2, version)
    except ProtocolError:
        return
    assert end <= len(data)
    encoded = message.to_bytes(version)
    decoded, _end = case.cls.decode(encoded, 0, version)
    assert decoded.to_bytes(version) == encoded


TARGETS = [
    Target("requests", lambda data: _run("Request", data), lambda: _seeds("Request"), 25_000),
    Target("responses", lambda data: _run("Response", data), lambda: _seeds("Response"), 15_000),
    Target("stored-messages", lambda data: _run("Stored", data), lambda: _seeds("Stored"), 5_000),
]
