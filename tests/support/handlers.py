"""A request's handler, called as a connection calls it."""

from __future__ import annotations

from typing import Any

from kavka.api import registry
from kavka.api.context import RequestContext
from kavka.common.errors import KafkaError


def ask_handler(broker: Any, request: Any, version: int) -> Any:
    """The response, or a future of it. The request is encoded and decoded, and an error becomes
    an error response."""
    api = registry.load()[request.API_KEY]
    pieces: list[Any] = []
    request.encode(pieces, version)
    decoded, _ = api.request_class.decode(memoryview(bytearray(b"".join(pieces))), 0, version)
    ctx = RequestContext(broker, version, 1, "test", "PLAINTEXT", "127.0.0.1", "User:ANONYMOUS")
    try:
        return api.handle(ctx, decoded)
    except KafkaError as error:
        return api.on_error(decoded, version, error)
