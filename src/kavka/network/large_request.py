"""Requests of many elements: decoded, and their responses encoded, in a worker thread.

Every array element and tagged field of a request costs a microsecond or more to decode, and some
hundred bytes. Up to `ELEMENTS_ON_LOOP` of them are decoded on the loop. A request with more is
decoded again in a worker, up to `MAX_ELEMENTS`; with more than that it is refused as malformed,
which closes its connection. The handler itself runs on the loop, as every handler does, where
possible for a part of the elements at a time. The connection reads no further request before the
response is encoded.

The figures are in docs/decisions/0007-limits-of-decoding.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from copy import copy
from itertools import groupby
from typing import TYPE_CHECKING, Any

from kavka.api import registry
from kavka.api.context import RequestContext
from kavka.api.produce import ConnectionMustClose
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.primitives import decode_bounded

if TYPE_CHECKING:
    from kavka.network.server import Server

ELEMENTS_ON_LOOP = 8192
MAX_ELEMENTS = 100_000
# Requests that cannot be handled in parts, and of which no client sends so large ones.
MAX_ELEMENTS_OF = {
    int(ApiKey.PRODUCE): 20_000,
    int(ApiKey.FETCH): 50_000,
    int(ApiKey.CREATE_TOPICS): 50_000,
    int(ApiKey.ADD_PARTITIONS_TO_TXN): 20_000,
}
# A controller names all partitions of a broker in one request.
MAX_ELEMENTS_BETWEEN_BROKERS = 2_000_000

# Requests whose elements are independent of each other, with the fields of their elements and of
# the results. They are handled in parts, so that the loop serves others in between.
DIVISIBLE: dict[int, tuple[tuple[str, str], ...]] = {
    int(ApiKey.LIST_OFFSETS): (("topics", "topics"),),
    int(ApiKey.METADATA): (("topics", "topics"),),
    int(ApiKey.OFFSET_FETCH): (("groups", "groups"), ("topics", "topics")),
    int(ApiKey.FIND_COORDINATOR): (("coordinator_keys", "coordinators"),),
    int(ApiKey.DESCRIBE_GROUPS): (("groups", "groups"),),
    int(ApiKey.DELETE_RECORDS): (("topics", "topics"),),
    int(ApiKey.OFFSET_FOR_LEADER_EPOCH): (("topics", "topics"),),
    int(ApiKey.DESCRIBE_CONFIGS): (("resources", "results"),),
    int(ApiKey.DELETE_GROUPS): (("groups_names", "results"),),
    int(ApiKey.DESCRIBE_PRODUCERS): (("topics", "topics"),),
    int(ApiKey.DESCRIBE_TRANSACTIONS): (("transactional_ids", "transaction_states"),),
    int(ApiKey.CONSUMER_GROUP_DESCRIBE): (("group_ids", "groups"),),
}
# The arrays inside an element of a request, and of a result, that are divided as well.
NESTED = ("partitions", "partition_indexes")
NESTED_RESULTS = "partitions"
PART = 1000

ErrorResponse = Callable[[registry.Api, Any, int, BaseException], Any]
# Awaits the future of a response. The end of the connection cancels it.
Wait = Callable[[asyncio.Future[Any]], Awaitable[Any]]


class EncodingFailed(Exception):
    """The response cannot be encoded, which is a bug of the broker. The connection is closed."""


class EncodedResponse:
    """A response that is encoded already."""

    __slots__ = ("_pieces",)

    def __init__(self, pieces: list[Any]) -> None:
        self._pieces = pieces

    def encode(self, out: list[Any], version: int) -> None:
        out.extend(self._pieces)


async def serve(
    server: Server,
    api: registry.Api,
    context: RequestContext,
    data: memoryview,
    position: int,
    failed: ErrorResponse,
    wait: Wait,
) -> EncodedResponse | None:
    """The response to the request whose body starts at `position`; None where it gets none (Produce
    with acks=0).

    `data` belongs to this request alone. ProtocolError, ConnectionMustClose and EncodingFailed end
    the connection.
    """
    version = context.version
    run = server.services.run_in_worker
    limit = (
        MAX_ELEMENTS_BETWEEN_BROKERS
        if api.key in registry.BETWEEN_BROKERS
        else MAX_ELEMENTS_OF.get(api.key, MAX_ELEMENTS)
    )
    async with server.large_requests:
        request, _ = await run(decode_bounded, limit, api.request_class.decode, data, position, version)
    for elements, results in DIVISIBLE.get(api.key, ()):
        if getattr(request, elements, None):
            response = await _handle_in_parts(server, api, context, request, failed, wait, elements, results)
            break
    else:
        response = await _handle(server, api, context, request, failed, wait)
    if response is None:
        return None
    # The worker gets the last references: freeing so many objects takes time as well.
    messages = [response, request]
    del response, request
    async with server.large_requests:
        try:
            pieces = await run(_encode, messages, version)
        except Exception as error:
            raise EncodingFailed(f"the response to {api.name} v{version} cannot be encoded") from error
    return EncodedResponse(pieces)


def _encode(messages: list[Any], version: int) -> list[Any]:
    """The first of the messages, encoded to few pieces: bytes that follow one another are
    joined."""
    pieces: list[Any] = []
    messages[0].encode(pieces, version)
    messages.clear()
    joined: list[Any] = []
    for is_bytes, group in groupby(pieces, lambda piece: isinstance(piece, bytes)):
        following = list(group)
        joined += [b"".join(following)] if is_bytes else following
    return joined


async def _handle(
    server: Server, api: registry.Api, context: RequestContext, request: Any, failed: ErrorResponse, wait: Wait
) -> Any:
    server.write_staged()
    try:
        result = api.handle(context, request)
        # A response is encoded when the appends that it acknowledges are written.
        server.write_staged()
        while isinstance(result, asyncio.Future) or asyncio.iscoroutine(result):
            result = await (wait(result) if isinstance(result, asyncio.Future) else result)
            server.write_staged()
        return result
    except ConnectionMustClose:
        raise
    except Exception as error:
        return failed(api, request, context.version, error)


async def _handle_in_parts(
    server: Server,
    api: registry.Api,
    context: RequestContext,
    request: Any,
    failed: ErrorResponse,
    wait: Wait,
    elements: str,
    results: str,
) -> Any:
    """As `_handle`, for `PART` elements of the request in each turn of the loop. All results go
    into one response."""
    response: Any = None
    for part, continues in _parts(getattr(request, elements)):
        setattr(request, elements, part)
        partial = await _handle(server, api, context, request, failed, wait)
        if response is None:
            response = partial
        else:
            if getattr(partial, "error_code", 0):
                # The results of this part may be missing: a client must not take them for those of
                # the whole request.
                response.error_code = partial.error_code
            merged, more = getattr(response, results), getattr(partial, results)
            if continues and merged and more:
                getattr(merged[-1], NESTED_RESULTS).extend(getattr(more.pop(0), NESTED_RESULTS))
            merged.extend(more)
        await asyncio.sleep(0)
    return response


def _parts(elements: list[Any]) -> Iterator[tuple[list[Any], bool]]:
    """Lists of elements of about `PART` elements and nested ones, each with whether its first
    element continues the last element of the list before."""
    part: list[Any] = []
    weight = 0
    for element in elements:
        name = next((name for name in NESTED if getattr(element, name, None)), None)
        nested = [] if name is None else getattr(element, name)
        if weight and weight + len(nested) >= PART:
            yield part, False
            part, weight = [], 0
        if name is None or len(nested) <= PART:
            part.append(element)
            weight += 1 + len(nested)
            continue
        for start in range(0, len(nested), PART):
            piece = copy(element)
            setattr(piece, name, nested[start : start + PART])
            yield [piece], start > 0
    if part:
        yield part, False
