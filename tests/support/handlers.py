"""Calls to request handlers as a connection makes them."""

from __future__ import annotations

from typing import Any

from kavka.api import registry
from kavka.api.context import RequestContext
from kavka.common.errors import KafkaError
from kavka.security.quotas import ConnectionQuota


def call_handler(broker: Any, request: Any, version: int, quota: ConnectionQuota | None = None) -> Any:
    """Return the response, or a future of it. The request is encoded and decoded first. An error is
    converted to an error response."""
    api = registry.load()[request.API_KEY]
    pieces: list[Any] = []
    request.encode(pieces, version)
    decoded, _ = api.request_class.decode(memoryview(bytearray(b"".join(pieces))), 0, version)
    ctx = RequestContext(broker, version, 1, "test", "PLAINTEXT", "127.0.0.1", "User:ANONYMOUS", quota)
    try:
        return api.handle(ctx, decoded)
    except KafkaError as error:
        return api.on_error(decoded, version, error)
