"""Requests of many elements. A worker thread decodes them and encodes their responses.

Every array element and tagged field of a request takes a microsecond or more to decode, and a few
hundred bytes of memory. Up to `MAX_ELEMENTS_ON_LOOP` elements are decoded on the loop. A request
with more elements is decoded again in a worker, up to `MAX_ELEMENTS`. A larger request is refused
as malformed, which closes its connection. The handler itself runs on the loop, like every handler,
and handles `PART_SIZE` elements at a time if the API permits it. The connection reads no further
request before the response is encoded.

docs/decisions/0007-limits-of-decoding.md has the measurements.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kavka.api import registry
from kavka.api.context import RequestContext
from kavka.api.produce import ConnectionMustClose
from kavka.network.zero_copy import join_bytes
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.primitives import decode_bounded

if TYPE_CHECKING:
    from kavka.network.server import Server

MAX_ELEMENTS_ON_LOOP = 8192
MAX_ELEMENTS = 100_000
# Limits of requests that cannot be handled in parts. No client sends larger requests.
MAX_ELEMENTS_BY_API = {
    int(ApiKey.PRODUCE): 20_000,
    int(ApiKey.FETCH): 50_000,
    int(ApiKey.CREATE_TOPICS): 50_000,
    int(ApiKey.ADD_PARTITIONS_TO_TXN): 20_000,
    int(ApiKey.OFFSET_COMMIT): 40_000,
    int(ApiKey.TXN_OFFSET_COMMIT): 40_000,
    int(ApiKey.LEAVE_GROUP): 20_000,
    int(ApiKey.CONSUMER_GROUP_HEARTBEAT): 20_000,
}
# A controller sends all partitions of a broker in one request.
MAX_ELEMENTS_BETWEEN_BROKERS = 2_000_000

# Requests with independent elements: (field of the elements, field of the results). They are
# handled in parts, so that the loop serves other connections in between.
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
NESTED_FIELDS = ("partitions", "partition_indexes")
NESTED_RESULTS_FIELD = "partitions"
PART_SIZE = 1000

ErrorResponse = Callable[[registry.Api, Any, int, BaseException], Any]
# Awaits the future of a response. Closing the connection cancels the future.
Wait = Callable[[asyncio.Future[Any]], Awaitable[Any]]
# Called with the request and its response, before the response is encoded.
Throttle = Callable[[Any, Any], None]


class EncodingFailed(Exception):
    """The response cannot be encoded, because of a bug in the broker. The connection is closed."""


@dataclass(slots=True, eq=False)
class EncodedResponse:
    """A response that is already encoded."""

    _pieces: list[Any]

    def encode(self, out: list[Any], version: int) -> None:
        out.extend(self._pieces)


async def serve(
    server: Server,
    api: registry.Api,
    context: RequestContext,
    data: memoryview,
    position: int,
    error_response: ErrorResponse,
    wait: Wait,
    throttle: Throttle,
) -> EncodedResponse | None:
    """Return the response to the request whose body starts at `position`, or None for a Produce
    with acks=0.

    No other request may use `data`. Raises ProtocolError, ConnectionMustClose or EncodingFailed if
    the connection must be closed.
    """
    version = context.version
    run_in_worker = server.services.run_in_worker
    limit = (
        MAX_ELEMENTS_BETWEEN_BROKERS
        if api.key in registry.INTER_BROKER_APIS
        else MAX_ELEMENTS_BY_API.get(api.key, MAX_ELEMENTS)
    )
    async with server.large_request_lock:
        request, _ = await run_in_worker(decode_bounded, limit, api.request_class.decode, data, position, version)
    for elements_field, results_field in DIVISIBLE.get(api.key, ()):
        if getattr(request, elements_field, None):
            response = await _handle_in_parts(
                server, api, context, request, error_response, wait, elements_field, results_field
            )
            break
    else:
        response = await _handle(server, api, context, request, error_response, wait)
    throttle(request, response)
    if response is None:
        return None
    # The worker gets the last references, because it also takes long to free so many objects.
    messages = [response, request]
    del response, request
    async with server.large_request_lock:
        try:
            pieces = await run_in_worker(_encode, messages, version)
        except Exception as error:
            raise EncodingFailed(f"the response to {api.name} v{version} cannot be encoded") from error
    return EncodedResponse(pieces)


def _encode(messages: list[Any], version: int) -> list[Any]:
    """Return the first message, encoded, with adjacent bytes joined. Drops all messages."""
    pieces: list[Any] = []
    messages[0].encode(pieces, version)
    messages.clear()
    return join_bytes(pieces)


async def _handle(
    server: Server, api: registry.Api, context: RequestContext, request: Any, error_response: ErrorResponse, wait: Wait
) -> Any:
    server.write_staged()
    try:
        result = api.handle(context, request)
        # The appends must be written before the response that acknowledges them is encoded.
        server.write_staged()
        while isinstance(result, asyncio.Future) or asyncio.iscoroutine(result):
            result = await (wait(result) if isinstance(result, asyncio.Future) else result)
            server.write_staged()
        return result
    except ConnectionMustClose:
        raise
    except Exception as error:
        return error_response(api, request, context.version, error)


async def _handle_in_parts(
    server: Server,
    api: registry.Api,
    context: RequestContext,
    request: Any,
    error_response: ErrorResponse,
    wait: Wait,
    elements_field: str,
    results_field: str,
) -> Any:
    """Like `_handle`, but handles about `PART_SIZE` elements of the request in each turn of the
    loop. Returns one response with all results."""
    response: Any = None
    for part, continues_element in _parts(getattr(request, elements_field)):
        setattr(request, elements_field, part)
        partial_response = await _handle(server, api, context, request, error_response, wait)
        if response is None:
            response = partial_response
        else:
            if getattr(partial_response, "error_code", 0):
                # This part may have no results: the client must not take the results of the other
                # parts for a complete response.
                response.error_code = partial_response.error_code
            merged_results, partial_results = getattr(response, results_field), getattr(partial_response, results_field)
            if continues_element and merged_results and partial_results:
                getattr(merged_results[-1], NESTED_RESULTS_FIELD).extend(
                    getattr(partial_results.pop(0), NESTED_RESULTS_FIELD)
                )
            merged_results.extend(partial_results)
        await asyncio.sleep(0)
    return response


def _parts(elements: list[Any]) -> Iterator[tuple[list[Any], bool]]:
    """Divide the elements into lists of about `PART_SIZE` elements, nested elements included. The
    flag of a list says whether its first element continues the last element of the previous
    list."""
    part: list[Any] = []
    weight = 0
    for element in elements:
        nested_field = next((field for field in NESTED_FIELDS if getattr(element, field, None)), None)
        nested = [] if nested_field is None else getattr(element, nested_field)
        if weight and weight + len(nested) >= PART_SIZE:
            yield part, False
            part, weight = [], 0
        if nested_field is None or len(nested) <= PART_SIZE:
            part.append(element)
            weight += 1 + len(nested)
            continue
        for start in range(0, len(nested), PART_SIZE):
            piece = copy(element)
            setattr(piece, nested_field, nested[start : start + PART_SIZE])
            yield [piece], start > 0
    if part:
        yield part, False
