"""The registry of the APIs that this broker serves. ApiVersions is derived from it.

A handler module registers its function with `@handles(ApiKey.X, versions=(low, high))`. The
function takes `(ctx, request)` and returns one of these:

- The response.
- A future of the response, if the request waits for data or replicas. Later requests of the
  connection are handled meanwhile; their responses are sent after this response.
- A coroutine, if the request has several steps. The connection's next request waits until the
  coroutine completes, so that a client that pipelines requests sees its own changes. The result is
  the response, a future of the response, or None.
- None, if there is no response (Produce with acks=0).

`needs` are operations that the client must be permitted to perform, otherwise the handler is not
called and the response is that of the error.

`on_error` builds the response for a `KafkaError`. By default the response has the top-level fields
`error_code` and, if the message defines it, `error_message`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import kavka.api
from kavka.api.authorization import RequiredOperation, require_all
from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.api_keys import APIS, ApiKey

# APIs between brokers. A single node does not serve them.
INTER_BROKER_APIS = frozenset(
    {
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.CONTROLLED_SHUTDOWN,
        ApiKey.ALTER_PARTITION,
        ApiKey.ALLOCATE_PRODUCER_IDS,
    }
)

NEVER = 1 << 15  # higher than any version

Handler = Callable[[Any, Any], Any]
ErrorResponse = Callable[[Any, int, KafkaError], Any]


class Api:
    """One served API: its request class, its handler, and its error response."""

    __slots__ = ("flexible_from", "handle", "key", "max_version", "min_version", "name", "on_error", "request_class")

    def __init__(self, key: ApiKey, versions: tuple[int, int], handle: Handler, on_error: ErrorResponse | None) -> None:
        info = APIS[key]
        self.key = int(key)
        self.name = info.name
        self.min_version, self.max_version = versions
        self.handle = handle
        self.request_class = info.request_class()
        self.flexible_from = NEVER if info.flexible_from is None else info.flexible_from
        response_class = info.response_class()
        self.on_error = on_error or _top_level_error(response_class)


def _top_level_error(response_class: Any) -> ErrorResponse:
    has_message = "error_message" in response_class.__slots__

    def respond(request: Any, version: int, error: KafkaError) -> Any:
        response = response_class(error_code=int(error.code))
        if has_message:
            response.error_message = error.message
        return response

    return respond


_apis: dict[int, Api] = {}


def handles(
    key: ApiKey,
    versions: tuple[int, int],
    on_error: ErrorResponse | None = None,
    needs: RequiredOperation | Sequence[RequiredOperation] = (),
) -> Callable[[Handler], Handler]:
    """Register the decorated function as the handler of an API."""
    all_needs = (needs,) if isinstance(needs, RequiredOperation) else tuple(needs)

    def register(function: Handler) -> Handler:
        _apis[int(key)] = Api(key, versions, _authorized(function, all_needs) if all_needs else function, on_error)
        return function

    return register


def _authorized(function: Handler, needs: tuple[RequiredOperation, ...]) -> Handler:
    def handle(ctx: Any, request: Any) -> Any:
        if ctx.authorizer is not None:
            require_all(ctx, request, needs)
        return function(ctx, request)

    return handle


@cache
def load() -> dict[int, Api]:
    """Return all APIs by key. The first call imports all modules of this package."""
    for module in iter_modules(kavka.api.__path__):
        import_module(f"kavka.api.{module.name}")
    return _apis


def served_apis(in_cluster: bool) -> dict[int, Api]:
    """Return the APIs of a broker in a cluster, or of a single node, by key."""
    return {key: api for key, api in load().items() if in_cluster or key not in INTER_BROKER_APIS}


def as_kafka_error(error: BaseException) -> KafkaError:
    """Return the error to send to the client. An exception that is not a KafkaError becomes
    UNKNOWN_SERVER_ERROR without details."""
    if isinstance(error, KafkaError):
        return error
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "The server failed to handle the request; see the server's log.")
