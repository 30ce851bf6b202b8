"""One client connection. Responses are sent in the order of the requests.

    readable -> one recv into the buffer that all connections share -> every complete request in it
    is decoded and handled -> staged appends are written (one writev per log) -> one send of all
    responses

If several producers are ready, all are read before the appends are written (`read_turns.py`).

A request is a view of the receive buffer and is valid until the call returns. A handler that waits
keeps only decoded values. An incomplete request is carried over to the next read. A large request
gets a separate buffer, which grows as its bytes arrive, so a length field alone never allocates
memory.

Waiting: a future stays in the response queue while later requests are handled. The connection is
not read while a coroutine runs, while too many responses are pending or unsent, while a large
request waits for `queued.max.request.bytes`, or for the throttle time of its last response.

Fairness: a connection handles requests for `MAX_TURN_S` in a turn of the loop. Its other requests
wait for the next turn.

Closing: after the end of the input, or after a request that cannot be served, the pending responses
are sent before the connection closes. A socket error, a response that cannot be encoded, or the
stop of the server closes the connection at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import InitVar, dataclass, field
from functools import partial
from struct import Struct
from time import perf_counter
from typing import TYPE_CHECKING, Any

from kavka.api import api_versions, registry
from kavka.api.context import RequestContext
from kavka.api.produce import ConnectionMustClose
from kavka.api.produce_lane import HEAD_BYTES, LaneResponse, ProduceLane, new_lane
from kavka.common.errors import ErrorCode, KafkaError
from kavka.network import large_request
from kavka.network.authentication import Authenticator
from kavka.network.large_request import MAX_ELEMENTS_ON_LOOP, EncodingFailed
from kavka.network.listener_security import ListenerSecurity
from kavka.network.throttling import Charge, TimedCoroutine, charge_for
from kavka.network.transport import Readers, Transport
from kavka.network.zero_copy import FileShrank, Outbox
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.headers import RequestHeader
from kavka.protocol.primitives import ProtocolError, TooManyElementsError, decode_bounded
from kavka.security.principal import ANONYMOUS, Principal
from kavka.security.quotas import ClientQuota, ClientQuotas, ConnectionQuota

if TYPE_CHECKING:
    from kavka.network.server import Server
    from kavka.security.authorizer import ClientAuthorizer

logger = logging.getLogger(__name__)

_SIZE = Struct(">i")
_HEAD = Struct(">hhi")
_RESPONSE_HEAD = Struct(">ii")
_RESPONSE_HEAD_FLEXIBLE = Struct(">iiB")
_API_VERSIONS = int(ApiKey.API_VERSIONS)
_PRODUCE = int(ApiKey.PRODUCE)
# The start of a TLS handshake.
_TLS_HANDSHAKE = b"\x16\x03"

# A request up to this size is carried over in the shared buffer. A larger request gets a separate
# buffer.
MAX_CARRIED_BYTES = 128 * 1024
# Decoding turns every few bytes into an object, except for the records of a Produce. A larger
# request other than Produce would block the loop for seconds and take gigabytes.
MAX_DECODED_BYTES = 16 * 1024 * 1024
# These limits are checked after each read. The requests of one read may exceed them.
MAX_PENDING_RESPONSES = 256
MAX_UNSENT_BYTES = 4 * 1024 * 1024
MAX_UNSENT_PIECES = 1024
# How long a connection handles requests in one turn of the loop. One request may take longer.
MAX_TURN_S = 0.002
# The minimum growth of a large request's buffer.
MIN_GROWTH_BYTES = 64 * 1024
# How long the connection waits for pending responses after the end of the input.
MAX_LINGER_S = 30.0
# A client sends the same header with every request. A header up to this size is decoded only once.
MAX_CACHED_HEADER_BYTES = 256
# A partition of a Produce has at least six bytes, so a Produce of this size has few elements.
MAX_UNCOUNTED_PRODUCE_BYTES = 4 * MAX_ELEMENTS_ON_LOOP
# A connection has lanes for this many partitions, with prefixes of a few lengths.
MAX_LANES = 256
MAX_LANE_LENGTHS = 4
# Groups store the client ids of their members, so longer client ids are truncated.
MAX_CLIENT_ID_LENGTH = 1024


@dataclass(slots=True, eq=False, repr=False)
class Exchange:
    """One entry of the response queue: a request and, when `is_complete`, its response."""

    api: registry.Api
    api_version: int
    correlation_id: int
    started_at: float
    charge: Charge | None = None
    is_complete: bool = field(init=False, default=False)
    response: Any = field(init=False, default=None)


@dataclass(slots=True, eq=False, repr=False)
class Connection:
    """Owns one transport, its unread requests and its response queue. The server creates it; only
    the loop thread uses it. `security` is set on a listener with SASL."""

    _server: Server
    _transport: Transport
    address: str
    listener: str
    principal: Principal = ANONYMOUS
    security: InitVar[ListenerSecurity | None] = None
    # Whether the client authenticated with a delegation token.
    is_token: bool = field(init=False, default=False)
    loop: asyncio.AbstractEventLoop = field(init=False)
    _authenticator: Authenticator | None = field(init=False, default=None)
    # The text of `principal`, for the context of each request.
    _principal: str = field(init=False)
    # The decisions for `principal`. None without an authorizer.
    _authorizer: ClientAuthorizer | None = field(init=False)
    _on_frame: Callable[[memoryview], None] = field(init=False)
    _max_request_bytes: int = field(init=False)
    _recv_into: Callable[[memoryview], int] = field(init=False)
    _outbox: Outbox = field(init=False)
    _carry: bytes = field(init=False, default=b"")
    _cached_header: bytes | None = field(init=False, default=None)
    _client_id: str | None = field(init=False, default=None)
    _frame: bytearray | None = field(init=False, default=None)
    _frame_size: int = field(init=False, default=0)
    _filled_bytes: int = field(init=False, default=0)
    _response_queue: deque[Exchange | LaneResponse] = field(init=False, default_factory=deque)
    _tasks: set[asyncio.Future[Any]] = field(init=False, default_factory=set)
    _is_muted: bool = field(init=False, default=False)
    # Reserved by a complete large request, until its handler is done.
    _reserved_bytes: int = field(init=False, default=0)
    _waits_for_bytes: bool = field(init=False, default=False)
    _is_paused: bool = field(init=False, default=False)
    _is_ending: bool = field(init=False, default=False)
    _linger_timer: asyncio.TimerHandle | None = field(init=False, default=None)
    # The lanes of this connection by the prefixes of their requests, and the ends of the prefixes.
    _lanes: dict[bytes, ProduceLane] = field(init=False, default_factory=dict)
    _lane_ends: tuple[int, ...] = field(init=False, default=())
    _quota: ConnectionQuota = field(init=False, default_factory=ConnectionQuota)
    _throttle_timer: asyncio.TimerHandle | None = field(init=False, default=None)
    _throttled_until: float = field(init=False, default=0.0)
    _is_reading: bool = field(init=False, default=False)
    _readers: Readers = field(init=False)
    _is_producer: bool = field(init=False, default=False)
    last_active: float = field(init=False)
    closed: bool = field(init=False, default=False)

    def __post_init__(self, security: ListenerSecurity | None) -> None:
        self.loop = self._server.loop
        self._readers = self.loop
        self._use_principal()
        self._on_frame = self.handle
        self._max_request_bytes = self._server.max_request_bytes
        if security is not None:
            self._authenticator = Authenticator(self, security)
            self._on_frame = self._authenticator.on_frame
            self._max_request_bytes = min(self._max_request_bytes, security.max_receive_bytes)
        self._recv_into = self._transport.recv_into
        self._outbox = self._transport.outbox(self._on_writable)
        self.last_active = self.loop.time()
        self._start_reading()

    # ---- authentication

    def on_authenticated(self, principal: Principal, is_token: bool) -> None:
        """Set the principal of all later requests."""
        self.principal = principal
        self._use_principal()
        self.is_token = is_token
        self._max_request_bytes = self._server.max_request_bytes
        self._server.on_authenticated(self)

    def _use_principal(self) -> None:
        self._principal = str(self.principal)
        self._lanes.clear()
        authorizer = self._server.services.authorizer
        self._authorizer = None if authorizer is None else authorizer.client(self._principal, self.address)

    def now_ms(self) -> int:
        return self._server.services.clock.now_ms()

    # ---- reading

    def _start_reading(self) -> None:
        if not self._is_reading and not self.closed:
            self._is_reading = True
            self._transport.start_reading(self._readers, self._on_readable)

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._transport.stop_reading(self._readers)

    def read_with(self, readers: Readers) -> None:
        """Let `readers` watch the connection, instead of the event loop."""
        was_reading = self._is_reading
        self._stop_reading()
        self._readers = readers
        if was_reading:
            self._start_reading()

    def _on_readable(self) -> None:
        try:
            if self._frame is not None:
                self._read_into_frame()
            else:
                self._read_shared()
        except Exception as error:
            self._on_failure(error)

    def _read_shared(self) -> None:
        reads = self._server.reads
        buffer = reads.free_buffer() if reads.is_common else reads.buffer
        carried_size = len(self._carry)
        if carried_size:
            buffer[:carried_size] = self._carry
        try:
            received = self._recv_into(buffer[carried_size:] if carried_size else buffer)
        except BlockingIOError:
            return
        if not received:
            self.end_input()
            return
        self.last_active = self.loop.time()
        self._handle_all(buffer[: carried_size + received])

    def _read_into_frame(self) -> None:
        frame = self._frame
        assert frame is not None
        if self._filled_bytes == len(frame):
            frame.extend(bytes(min(max(len(frame), MIN_GROWTH_BYTES), self._frame_size - len(frame))))
        with memoryview(frame) as view, view[self._filled_bytes :] as unfilled:
            try:
                received = self._recv_into(unfilled)
            except BlockingIOError:
                return
        if not received:
            self.end_input()
            return
        self.last_active = self.loop.time()
        self._filled_bytes += received
        if self._filled_bytes == self._frame_size:
            self._frame = None
            self._reserved_bytes = self._frame_size
            try:
                self._handle_all(memoryview(frame))
            finally:
                # A coroutine uses the bytes after this call.
                if not self._is_muted:
                    self._release_reserved()

    def _release_reserved(self) -> None:
        reserved, self._reserved_bytes = self._reserved_bytes, 0
        if reserved:
            self._server.release_bytes(reserved)

    def _handle_all(self, data: memoryview) -> None:
        """Handle every complete request in `data`, and carry the remaining bytes over."""
        position = 0
        end = len(data)
        self._carry = b""
        deadline = perf_counter() + MAX_TURN_S
        reads = self._server.reads
        has_failed = True
        try:
            while end - position >= 4:
                (size,) = _SIZE.unpack_from(data, position)
                if size < 0 or size > self._max_request_bytes:
                    raise ProtocolError(_invalid_size(data, position, size, self._max_request_bytes))
                if end - position - 4 < size:
                    if size + 4 > MAX_CARRIED_BYTES:
                        if self._server.reserve_bytes(self, size + 4):
                            self._start_frame(size + 4, data[position:])
                            position = end
                        else:
                            self._waits_for_bytes = True
                    break
                position += 4
                self._on_frame(data[position : position + size])
                position += size
                if len(self._response_queue) >= MAX_PENDING_RESPONSES:
                    # One read may contain thousands of small requests: send their responses first.
                    self._finish_turn()
                    if self._is_congested():
                        break
                if self._is_muted or self.closed or self._throttle_timer is not None:
                    break
                if position < end and perf_counter() > deadline:
                    self._is_paused = True
                    self.loop.call_soon(self._resume)
                    break
            if position < end:
                self._carry = bytes(data[position:])
            has_failed = False
        finally:
            if reads.is_common and not has_failed:
                reads.finish_later(self, end)
            else:
                # Also after an invalid request, write the appends of earlier requests, so that no
                # view of the shared buffer remains.
                self._finish_turn()

    def _start_frame(self, size: int, received: memoryview) -> None:
        self._frame = bytearray(received)
        self._filled_bytes = len(received)
        self._frame_size = size

    # ---- handling

    def handle(self, data: memoryview) -> None:
        """Handle one request.

        The function is long, because every request runs it, and calls would add to each latency.
        """
        started_at = perf_counter()
        if len(data) < 8:
            raise ProtocolError("the request is shorter than its header")
        key, api_version, correlation_id = _HEAD.unpack_from(data, 0)
        if key == _PRODUCE:
            for end in self._lane_ends:
                lane = self._lanes.get(bytes(data[HEAD_BYTES:end]))
                if lane is None:
                    continue
                if lane.version == api_version and (response := lane.append(data, correlation_id, started_at)):
                    self._response_queue.append(response)
                    quotas = self._server.quotas
                    if quotas is not None:
                        self._charge(quotas, lane, response, len(data))
                    return
                if lane.is_obsolete:
                    del self._lanes[lane.prefix]
                break
        api = self._server.apis.get(key)
        if api is None or not api.min_version <= api_version <= api.max_version:
            if key == _API_VERSIONS and api is not None:
                self._respond_unsupported_version(api, correlation_id, started_at)
                return
            self._server.warn_of_version(self.address, key, api_version)
            raise ProtocolError(f"API key {key} version {api_version} is not supported")
        if key != _PRODUCE:
            if len(data) > MAX_DECODED_BYTES:
                raise ProtocolError(f"{api.name} of {len(data)} bytes; the limit is {MAX_DECODED_BYTES}")
            self._server.write_staged()
        cached_header = self._cached_header
        if (
            cached_header is not None
            and api_version >= api.flexible_from
            and data[8 : 8 + len(cached_header)] == cached_header
        ):
            client_id = self._client_id
            position = 8 + len(cached_header)
        else:
            if len(data) <= MAX_ELEMENTS_ON_LOOP:
                header, position = RequestHeader.decode(data, 0)
            else:
                header, position = decode_bounded(MAX_ELEMENTS_ON_LOOP, RequestHeader.decode, data, 0)
            client_id = header.client_id
            if client_id is not None and len(client_id) > MAX_CLIENT_ID_LENGTH:
                client_id = client_id[:MAX_CLIENT_ID_LENGTH]
            if api_version >= api.flexible_from and position <= MAX_CACHED_HEADER_BYTES:
                self._cached_header, self._client_id = bytes(data[8:position]), client_id
        context = RequestContext(
            self._server.services,
            api_version,
            correlation_id,
            client_id,
            self.listener,
            self.address,
            self._principal,
            self._quota,
            self._authorizer,
            api.name,
        )
        quotas = self._server.quotas
        quota = None
        if quotas is not None:
            quota = self._quota.resolve(quotas, self._principal, client_id, self._server.services.now_ms)
        try:
            if len(data) <= MAX_ELEMENTS_ON_LOOP or (key == _PRODUCE and len(data) <= MAX_UNCOUNTED_PRODUCE_BYTES):
                request, _ = api.request_class.decode(data, position, api_version)
            else:
                request, _ = decode_bounded(MAX_ELEMENTS_ON_LOOP, api.request_class.decode, data, position, api_version)
        except TooManyElementsError:
            if data.obj is self._server.reads.buffer.obj:
                data = memoryview(bytearray(data))
            throttle = partial(self._throttle_large, api, quota, api_version, len(data))
            result = large_request.serve(
                self._server, api, context, data, position, self._error_response, self._await, throttle
            )
            self._add_exchange(Exchange(api, api_version, correlation_id, started_at), None, result)
            return
        charge = None if quota is None else charge_for(quota, api, request, api_version, len(data))
        if key == _PRODUCE and len(self._lanes) < MAX_LANES:
            self._add_lane(context, request, data)
        try:
            result = api.handle(context, request)
        except ConnectionMustClose:
            raise
        except Exception as error:
            result = self._error_response(api, request, api_version, error)
        if charge is not None:
            charge.seconds = perf_counter() - started_at
        if result is None:
            self._server.count(api, perf_counter() - started_at)
            if charge is not None:
                self._throttle(api, charge, None)
        else:
            self._add_exchange(Exchange(api, api_version, correlation_id, started_at, charge), request, result)

    def _charge(self, quotas: ClientQuotas, lane: ProduceLane, response: LaneResponse, size: int) -> None:
        """Charge the quota of the client for a request that a lane has handled."""
        now_ms = self._server.services.now_ms
        if lane.quota_version != quotas.version:
            lane.quota = self._quota.resolve(quotas, self._principal, lane.client_id, now_ms)
            lane.quota_version = quotas.version
        quota = lane.quota
        if quota is None or (
            quota.request is None and (quota.produce is None or quota.produce.record_free(size, now_ms()))
        ):
            return
        self._throttle(lane.api, Charge(quota, size, perf_counter() - response.started_at), response)

    def _add_lane(self, context: RequestContext, request: Any, data: memoryview) -> None:
        lane = new_lane(context, self._server.apis[_PRODUCE], request, data)
        if lane is None:
            return
        if not self._is_producer:
            self._is_producer = True
            self._server.reads.add_producer(self)
        end = HEAD_BYTES + len(lane.prefix)
        if end not in self._lane_ends:
            if len(self._lane_ends) == MAX_LANE_LENGTHS:
                return
            self._lane_ends += (end,)
        self._lanes[lane.prefix] = lane

    def handle_with(self, data: memoryview, handle: Callable[[int, Any], Any]) -> None:
        """Handle a request of the authentication by `handle(version, request)`, which has the
        results of a handler."""
        started_at = perf_counter()
        key, api_version, correlation_id = _HEAD.unpack_from(data, 0)
        api = self._server.apis[key]
        if not api.min_version <= api_version <= api.max_version:
            self._server.warn_of_version(self.address, key, api_version)
            raise ProtocolError(f"API key {key} version {api_version} is not supported")
        _, position = decode_bounded(MAX_ELEMENTS_ON_LOOP, RequestHeader.decode, data, 0)
        request, _ = decode_bounded(MAX_ELEMENTS_ON_LOOP, api.request_class.decode, data, position, api_version)
        self._add_exchange(
            Exchange(api, api_version, correlation_id, started_at), request, handle(api_version, request)
        )

    def send_raw(self, token: bytes) -> None:
        """Send a frame that is no response, after the responses to earlier requests."""
        self._finish_turn()
        if not self.closed:
            self._outbox.send([_SIZE.pack(len(token)), token])

    def end_after(self, delay: Coroutine[Any, Any, None]) -> None:
        """Read nothing more, and close when `delay` is done."""
        api = self._server.apis[int(ApiKey.SASL_AUTHENTICATE)]
        self._add_exchange(Exchange(api, 0, 0, perf_counter()), None, delay)
        self.end_input()

    def _add_exchange(self, exchange: Exchange, request: Any, result: Any) -> None:
        """Append the response, or a future or coroutine of it, to the response queue."""
        self._response_queue.append(exchange)
        if isinstance(result, asyncio.Future):
            self._wait_for(exchange, request, result, mutes=False)
        elif asyncio.iscoroutine(result):
            self._is_muted = True
            coroutine = result if exchange.charge is None else TimedCoroutine(result, exchange.charge)
            self._wait_for(exchange, request, self.loop.create_task(coroutine), mutes=True)
        else:
            exchange.response = result
            exchange.is_complete = True
            if exchange.charge is not None:
                self._throttle(exchange.api, exchange.charge, result)

    def _error_response(self, api: registry.Api, request: Any, api_version: int, error: BaseException) -> Any:
        if not isinstance(error, KafkaError):
            logger.error("%s v%d from %s failed", api.name, api_version, self.address, exc_info=error)
        return api.on_error(request, api_version, registry.as_kafka_error(error))

    def _respond_unsupported_version(self, api: registry.Api, correlation_id: int, started_at: float) -> None:
        exchange = Exchange(api, 0, correlation_id, started_at)
        exchange.response = api_versions.supported_apis(self._server.services.in_cluster)
        exchange.response.error_code = int(ErrorCode.UNSUPPORTED_VERSION)
        exchange.is_complete = True
        self._response_queue.append(exchange)

    def _wait_for(self, exchange: Exchange, request: Any, future: asyncio.Future[Any], mutes: bool) -> None:
        self._tasks.add(future)
        future.add_done_callback(partial(self._on_completed, exchange, request, mutes))

    async def _await(self, future: asyncio.Future[Any]) -> Any:
        """Await the response of a coroutine that has nothing else to do. Closing the connection
        cancels the future, like a handler's future."""
        self._release_reserved()
        if self.closed:
            future.cancel()
        self._tasks.add(future)
        try:
            return await future
        finally:
            self._tasks.discard(future)

    def _on_completed(self, exchange: Exchange, request: Any, mutes: bool, future: asyncio.Future[Any]) -> None:
        self._tasks.discard(future)
        if mutes:
            self._release_reserved()
        try:
            if future.cancelled():
                # Without this response, no later response can be sent.
                self.close()
                return
            if mutes:
                self._is_muted = False
            error = future.exception()
            must_close = isinstance(error, (ProtocolError, ConnectionMustClose, EncodingFailed))
            if error is None:
                result = future.result()
                if isinstance(result, asyncio.Future):
                    self._wait_for_future(exchange, request, result)
                    return
                exchange.response = result
            elif not must_close:
                exchange.response = self._error_response(exchange.api, request, exchange.api_version, error)
            if self.closed:
                # Appends that a coroutine has staged must be written.
                self._server.write_staged()
                return
            if mutes or exchange.charge is not None:
                self._throttle(exchange.api, exchange.charge, exchange.response)
            if exchange.response is None:
                self._response_queue.remove(exchange)
                self._server.count(exchange.api, perf_counter() - exchange.started_at)
            if error is not None and must_close:
                raise error
            exchange.is_complete = True
            self.last_active = self.loop.time()
            self._finish_turn()
            self._handle_carried()
        except Exception as failure:
            self._on_failure(failure)

    def _wait_for_future(self, exchange: Exchange, request: Any, future: asyncio.Future[Any]) -> None:
        """A coroutine is done, but its response waits for replicas. Later requests are handled
        now."""
        if self.closed:
            future.cancel()
            self._server.write_staged()
            return
        self._wait_for(exchange, request, future, mutes=False)
        self._finish_turn()
        self._handle_carried()

    # ---- throttling

    def _throttle(self, api: registry.Api, charge: Charge | None, response: Any) -> None:
        """Record the charge of a request, set the throttle time in its response, and stop reading
        for that long."""
        throttle_ms = self._server.throttling.throttle_ms(api, charge, response, self._server.services.now_ms())
        if throttle_ms:
            self._throttled_until = max(self._throttled_until, self.loop.time() + throttle_ms / 1000)
            if self._throttle_timer is None:
                self._throttle_timer = self.loop.call_at(self._throttled_until, self._end_throttle)

    def _throttle_large(
        self, api: registry.Api, quota: ClientQuota | None, api_version: int, size: int, request: Any, response: Any
    ) -> None:
        """Like `_throttle`, before the response to a large request is encoded."""
        charge = None if quota is None else charge_for(quota, api, request, api_version, size)
        self._throttle(api, charge, response)

    def _end_throttle(self) -> None:
        self._throttle_timer = None
        if self.loop.time() < self._throttled_until:
            self._throttle_timer = self.loop.call_at(self._throttled_until, self._end_throttle)
            return
        try:
            self._handle_carried()
        except Exception as error:
            self._on_failure(error)

    # ---- responses

    def finish_common_turn(self) -> None:
        """Finish a turn in which other connections were read, too."""
        try:
            self._finish_turn()
        except Exception as error:
            self._on_failure(error)

    def _finish_turn(self) -> None:
        """Write the staged appends of this turn, then send the responses at the head of the
        queue."""
        self._server.write_staged()
        queue = self._response_queue
        if queue and queue[0].is_complete and not self.closed:
            pieces: list[Any] = []
            now = perf_counter()
            while queue and queue[0].is_complete:
                exchange = queue.popleft()
                self._encode(exchange, pieces)
                self._server.count(exchange.api, now - exchange.started_at)
            self._outbox.send(pieces)
        if self._is_ending:
            self._close_if_drained()
        elif self._is_congested():
            self._stop_reading()

    def _encode(self, exchange: Exchange | LaneResponse, out: list[Any]) -> None:
        if type(exchange) is LaneResponse:
            out.append(exchange.encode_frame())
            return
        assert type(exchange) is Exchange
        api = exchange.api
        body: list[Any] = []
        try:
            exchange.response.encode(body, exchange.api_version)
        except Exception as error:
            raise EncodingFailed(f"the response to {api.name} v{exchange.api_version} cannot be encoded") from error
        size = sum(map(len, body))
        # The header of a flexible response has tagged fields (none), except for ApiVersions.
        if exchange.api_version >= api.flexible_from and api.key != _API_VERSIONS:
            out.append(_RESPONSE_HEAD_FLEXIBLE.pack(size + 5, exchange.correlation_id, 0))
        else:
            out.append(_RESPONSE_HEAD.pack(size + 4, exchange.correlation_id))
        out.extend(body)

    def _is_congested(self) -> bool:
        """Whether the connection must not read or handle further requests now."""
        outbox = self._outbox
        return (
            self._is_muted
            or self._throttle_timer is not None
            or self._waits_for_bytes
            or self._is_paused
            or self._is_ending
            or len(self._response_queue) >= MAX_PENDING_RESPONSES
            or outbox.queued_bytes > MAX_UNSENT_BYTES
            or outbox.queued_pieces > MAX_UNSENT_PIECES
        )

    def on_bytes_released(self) -> None:
        """Handle the carried requests, because bytes of `queued.max.request.bytes` are free."""
        self._waits_for_bytes = False
        try:
            self._handle_carried()
        except Exception as error:
            self._on_failure(error)

    def _resume(self) -> None:
        """Handle the carried requests in the next turn of the loop."""
        self._is_paused = False
        try:
            self._handle_carried()
        except Exception as error:
            self._on_failure(error)

    def _handle_carried(self) -> None:
        """Handle the carried requests, and read again, unless the connection is congested."""
        if self._is_reading or self.closed or self._is_congested():
            return
        if self._carry:
            self._handle_all(memoryview(bytearray(self._carry)))
        if not self._is_congested():
            self._start_reading()

    def _on_writable(self) -> None:
        try:
            self._outbox.on_writable()
            self.last_active = self.loop.time()
            if self._is_ending:
                self._close_if_drained()
            else:
                self._handle_carried()
        except Exception as error:
            self._on_failure(error)

    # ---- closing

    def _on_failure(self, error: Exception) -> None:
        if isinstance(error, (ProtocolError, ConnectionMustClose)):
            if isinstance(error, ProtocolError):
                logger.info("Closing the connection from %s: invalid request (%s)", self.address, error)
            self.end_input()
            return
        if not isinstance(error, (OSError, FileShrank)):
            logger.error("Closing the connection from %s after an unexpected error", self.address, exc_info=error)
        self.close()

    def end_input(self) -> None:
        """Stop reading, send the pending responses, then close."""
        if self.closed:
            return
        self._is_ending = True
        self._stop_reading()
        self._carry = b""
        self._drop_frame()
        self._close_if_drained()
        if not self.closed and self._linger_timer is None:
            self._linger_timer = self.loop.call_later(MAX_LINGER_S, self.close)

    def _close_if_drained(self) -> None:
        if not self._response_queue and self._outbox.is_empty:
            self.close()

    def _drop_frame(self) -> None:
        if self._frame is not None:
            self._frame = None
            self._server.release_bytes(self._frame_size)

    def close(self) -> None:
        """Close at once. Futures are cancelled. Coroutines run to their end: their changes must not
        stay incomplete."""
        if self.closed:
            return
        self.closed = True
        self._stop_reading()
        self._outbox.close()
        for timer in (self._linger_timer, self._throttle_timer):
            if timer is not None:
                timer.cancel()
        for task in list(self._tasks):
            if not isinstance(task, asyncio.Task):
                task.cancel()
        self._drop_frame()
        self._response_queue.clear()
        if self._authenticator is not None:
            self._authenticator.close()
        self._transport.close()
        self._server.forget(self)

    def tasks(self) -> list[asyncio.Future[Any]]:
        """The pending futures and tasks of this connection."""
        return list(self._tasks)

    def is_idle_since(self, time: float) -> bool:
        """Whether nothing was received or sent since `time`, and no response is pending."""
        return self.last_active < time and not self._response_queue


def _invalid_size(data: memoryview, position: int, size: int, limit: int) -> str:
    if bytes(data[position : position + 2]) == _TLS_HANDSHAKE:
        return "the peer uses TLS on a listener without TLS; does its security.protocol match the listener?"
    return f"a size of {size} bytes; the limit is {limit}"
