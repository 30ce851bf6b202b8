"""One client connection: requests in, answers out in the order of the requests.

    readable -> one recv into the buffer that all connections share -> every whole request in it is decoded and
    handled -> what they staged is written (one writev a log) -> their answers leave in one send

A request is a view into the receive buffer and is gone when the call returns: a handler that waits keeps only what it
decoded. Part of a request that was received is carried over to the next read; a large one gets a buffer of its own,
which grows as its bytes come, so that a length alone never makes us allocate.

Who waits: a future holds its place in the line of answers while later requests are handled; a coroutine makes the
connection stop reading until it is done. Too many unanswered requests, answers that the peer does not take, and a large
request while too many bytes of others' are on their way, do so too. Whatever ends such a wait calls `go_on`.

Fairness: a connection handles requests for `TURN_S` in a turn of the loop. The rest of what it received waits for the
next turn, in which every other connection has its own.

How it ends: a peer that sends no more, or sends what cannot be served, still gets the answers to what it asked before;
an error of the socket, of an answer, or the stop of the server closes at once.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from functools import partial
from struct import Struct
from time import perf_counter
from typing import TYPE_CHECKING, Any

from kavka.api import api_versions, registry
from kavka.api.context import RequestContext
from kavka.api.produce import ConnectionMustClose
from kavka.common.errors import ErrorCode, KafkaError
from kavka.network import large_request
from kavka.network.large_request import ELEMENTS_ON_LOOP, AnswerFailed
from kavka.network.zero_copy import FileShrank, Outbox
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.headers import RequestHeader
from kavka.protocol.primitives import ProtocolError, TooManyElements, decode_bounded

if TYPE_CHECKING:
    from kavka.network.server import Server

log = logging.getLogger(__name__)

_SIZE = Struct(">i")
_HEAD = Struct(">hhi")
_ANSWER_HEAD = Struct(">ii")
_ANSWER_HEAD_FLEXIBLE = Struct(">iiB")
_API_VERSIONS = int(ApiKey.API_VERSIONS)
_PRODUCE = int(ApiKey.PRODUCE)

# A request up to this size is carried over in the shared buffer; a larger one gets its own.
CARRY_LIMIT = 128 * 1024
# Decoding turns every few bytes into an object; only the records of a Produce stay as they are. A request
# other than Produce that is larger than this would hold the loop for seconds and take gigabytes.
MAX_DECODED_BYTES = 16 * 1024 * 1024
# Looked at after each read, so that what one read brought may exceed them.
MAX_UNANSWERED = 256
MAX_UNSENT_BYTES = 4 * 1024 * 1024
MAX_UNSENT_PIECES = 1024
# How long a connection handles requests before others have their turn. One request may take longer.
TURN_S = 0.002
# The least that a large request's own buffer grows by.
MIN_GROWTH = 64 * 1024
# A peer that sends no more is given its answers for this long.
LINGER_S = 30.0
# A client sends the same header again and again: it is decoded once, unless it is longer than this.
REMEMBERED_HEADER = 256
# A partition of a Produce takes six bytes and more: a request of this size has few elements, and is not counted.
UNCOUNTED_PRODUCE = 4 * ELEMENTS_ON_LOOP
# Groups keep the client ids of their members and show them to others: the rest of a longer one is dropped.
MAX_CLIENT_ID = 1024
ANONYMOUS = "User:ANONYMOUS"


class Exchange:
    """A request and, when it is there, its answer: one place in the line of answers."""

    __slots__ = ("api", "correlation_id", "done", "response", "started", "version")

    def __init__(self, api: registry.Api, version: int, correlation_id: int, started: float) -> None:
        self.api = api
        self.version = version
        self.correlation_id = correlation_id
        self.started = started
        self.done = False
        self.response: Any = None


class Connection:
    __slots__ = (
        "_carry",
        "_client",
        "_client_id",
        "_ending",
        "_fd",
        "_filled",
        "_frame",
        "_frame_size",
        "_held",
        "_linger",
        "_loop",
        "_muted",
        "_outbox",
        "_paused",
        "_reading",
        "_server",
        "_sock",
        "_starved",
        "_tasks",
        "_unanswered",
        "address",
        "closed",
        "last_active",
        "listener",
    )

    def __init__(self, server: Server, sock: socket.socket, address: str, listener: str) -> None:
        self._server = server
        self._sock = sock
        self._fd = sock.fileno()
        self._loop = server.loop
        self._outbox = Outbox(self._loop, sock, self._on_room)
        self._carry: bytes = b""
        self._client: bytes | None = None
        self._client_id: str | None = None
        self._frame: bytearray | None = None
        self._frame_size = 0
        self._filled = 0
        self._unanswered: deque[Exchange] = deque()
        self._tasks: set[asyncio.Future[Any]] = set()
        self._muted = False
        # The bytes of a large request that a coroutine handles, as reserved from the server.
        self._held = 0
        self._starved = False
        self._paused = False
        self._ending = False
        self._linger: asyncio.TimerHandle | None = None
        self._reading = False
        self.address = address
        self.listener = listener
        self.last_active = self._loop.time()
        self.closed = False
        self._read_again()

    # ---- reading

    def _read_again(self) -> None:
        if not self._reading and not self.closed:
            self._reading = True
            self._loop.add_reader(self._fd, self._on_readable)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def _on_readable(self) -> None:
        try:
            if self._frame is not None:
                self._read_into_frame()
            else:
                self._read_shared()
        except Exception as error:
            self._failed(error)

    def _read_shared(self) -> None:
        buffer = self._server.receive_buffer
        carried = len(self._carry)
        if carried:
            buffer[:carried] = self._carry
        try:
            received = self._sock.recv_into(buffer[carried:] if carried else buffer)
        except BlockingIOError:
            return
        if not received:
            self._end()
            return
        self.last_active = self._loop.time()
        self._take(buffer[: carried + received])

    def _read_into_frame(self) -> None:
        frame = self._frame
        assert frame is not None
        if self._filled == len(frame):
            frame.extend(bytes(min(max(len(frame), MIN_GROWTH), self._frame_size - len(frame))))
        with memoryview(frame) as view, view[self._filled :] as room:
            try:
                received = self._sock.recv_into(room)
            except BlockingIOError:
                return
        if not received:
            self._end()
            return
        self.last_active = self._loop.time()
        self._filled += received
        if self._filled == self._frame_size:
            self._frame = None
            self._held = self._frame_size
            try:
                self._take(memoryview(frame))
            finally:
                # A coroutine may need the bytes for longer.
                if not self._muted:
                    self._release_held()

    def _release_held(self) -> None:
        held, self._held = self._held, 0
        if held:
            self._server.release_bytes(held)

    def _take(self, data: memoryview) -> None:
        """Handle every whole request in `data`; keep the rest for later."""
        position = 0
        end = len(data)
        self._carry = b""
        deadline = perf_counter() + TURN_S
        try:
            while end - position >= 4:
                (size,) = _SIZE.unpack_from(data, position)
                if size < 0 or size > self._server.max_request_bytes:
                    raise ProtocolError(f"a request of {size} bytes")
                if end - position - 4 < size:
                    if size + 4 > CARRY_LIMIT:
                        if self._server.reserve_bytes(self, size + 4):
                            self._start_frame(size + 4, data[position:])
                            position = end
                        else:
                            self._starved = True
                    break
                position += 4
                self._handle(data[position : position + size])
                position += size
                if len(self._unanswered) >= MAX_UNANSWERED:
                    # Small requests, thousands in one read: their answers leave before more of them are made.
                    self._finish_turn()
                    if self._congested():
                        break
                if self._muted or self.closed:
                    break
                if position < end and perf_counter() > deadline:
                    self._paused = True
                    self._loop.call_soon(self._resume)
                    break
            if position < end:
                self._carry = bytes(data[position:])
        finally:
            # Also when a request was bad: those before it are written and answered, and no view into
            # the shared buffer is left behind.
            self._finish_turn()

    def _start_frame(self, size: int, begun: memoryview) -> None:
        self._frame = bytearray(begun)
        self._filled = len(begun)
        self._frame_size = size

    # ---- handling

    def _handle(self, data: memoryview) -> None:
        started = perf_counter()
        if len(data) < 8:
            raise ProtocolError("a request shorter than its header")
        key, version, correlation_id = _HEAD.unpack_from(data, 0)
        api = self._server.apis.get(key)
        if api is None or not api.min_version <= version <= api.max_version:
            if key == _API_VERSIONS and api is not None:
                self._answer_unsupported_api_versions(api, correlation_id, started)
                return
            raise ProtocolError(f"API key {key} version {version} is not served here")
        if key != _PRODUCE:
            if len(data) > MAX_DECODED_BYTES:
                raise ProtocolError(f"{api.name} of {len(data)} bytes; more than {MAX_DECODED_BYTES} are not taken")
            self._server.write_staged()
        known = self._client
        if known is not None and version >= api.flexible_from and data[8 : 8 + len(known)] == known:
            client_id = self._client_id
            position = 8 + len(known)
        else:
            if len(data) <= ELEMENTS_ON_LOOP:
                header, position = RequestHeader.decode(data, 0)
            else:
                header, position = decode_bounded(ELEMENTS_ON_LOOP, RequestHeader.decode, data, 0)
            client_id = header.client_id
            if client_id is not None and len(client_id) > MAX_CLIENT_ID:
                client_id = client_id[:MAX_CLIENT_ID]
            if version >= api.flexible_from and position <= REMEMBERED_HEADER:
                self._client, self._client_id = bytes(data[8:position]), client_id
        context = RequestContext(
            self._server.services, version, correlation_id, client_id, self.listener, self.address, ANONYMOUS
        )
        try:
            if len(data) <= ELEMENTS_ON_LOOP or (key == _PRODUCE and len(data) <= UNCOUNTED_PRODUCE):
                request, _ = api.request_class.decode(data, position, version)
            else:
                request, _ = decode_bounded(ELEMENTS_ON_LOOP, api.request_class.decode, data, position, version)
        except TooManyElements:
            if data.obj is self._server.receive_buffer.obj:
                data = memoryview(bytearray(data))
            result = large_request.serve(self._server, api, context, data, position, self._error_answer, self._await)
            self._add_exchange(Exchange(api, version, correlation_id, started), None, result)
            return
        try:
            result = api.handle(context, request)
        except ConnectionMustClose:
            raise
        except Exception as error:
            result = self._error_answer(api, request, version, error)
        if result is None:
            self._server.count(api, perf_counter() - started)
        else:
            self._add_exchange(Exchange(api, version, correlation_id, started), request, result)

    def _add_exchange(self, exchange: Exchange, request: Any, result: Any) -> None:
        """Give the response, or the future or coroutine of it, its place behind the responses before it."""
        self._unanswered.append(exchange)
        if isinstance(result, asyncio.Future):
            self._wait_for(exchange, request, result, mutes=False)
        elif asyncio.iscoroutine(result):
            self._muted = True
            self._wait_for(exchange, request, self._loop.create_task(result), mutes=True)
        else:
            exchange.response = result
            exchange.done = True

    def _error_answer(self, api: registry.Api, request: Any, version: int, error: BaseException) -> Any:
        if not isinstance(error, KafkaError):
            log.error("%s v%d from %s failed", api.name, version, self.address, exc_info=error)
        return api.on_error(request, version, registry.as_kafka_error(error))

    def _answer_unsupported_api_versions(self, api: registry.Api, correlation_id: int, started: float) -> None:
        exchange = Exchange(api, 0, correlation_id, started)
        exchange.response = api_versions.supported(self._server.services.in_cluster)
        exchange.response.error_code = int(ErrorCode.UNSUPPORTED_VERSION)
        exchange.done = True
        self._unanswered.append(exchange)

    def _wait_for(self, exchange: Exchange, request: Any, future: asyncio.Future[Any], mutes: bool) -> None:
        self._tasks.add(future)
        future.add_done_callback(partial(self._completed, exchange, request, mutes))

    async def _await(self, future: asyncio.Future[Any]) -> Any:
        """For a coroutine that has only this left to wait for: as a handler's future, it ends with the connection."""
        self._release_held()
        if self.closed:
            future.cancel()
        self._tasks.add(future)
        try:
            return await future
        finally:
            self._tasks.discard(future)

    def _completed(self, exchange: Exchange, request: Any, mutes: bool, done: asyncio.Future[Any]) -> None:
        self._tasks.discard(done)
        if mutes:
            self._release_held()
        try:
            if done.cancelled():
                # Nobody will answer it any more, and so nothing after it either.
                self.close()
                return
            if mutes:
                self._muted = False
            error = done.exception()
            ends = isinstance(error, (ProtocolError, ConnectionMustClose, AnswerFailed))
            if error is None:
                result = done.result()
                if isinstance(result, asyncio.Future):
                    self._wait_on(exchange, request, result)
                    return
                exchange.response = result
            elif not ends:
                exchange.response = self._error_answer(exchange.api, request, exchange.version, error)
            if self.closed:
                # What a coroutine staged at last has to be written all the same.
                self._server.write_staged()
                return
            if exchange.response is None:
                self._unanswered.remove(exchange)
                self._server.count(exchange.api, perf_counter() - exchange.started)
            if error is not None and ends:
                raise error
            exchange.done = True
            self.last_active = self._loop.time()
            self._finish_turn()
            self._take_carried()
        except Exception as failure:
            self._failed(failure)

    def _wait_on(self, exchange: Exchange, request: Any, future: asyncio.Future[Any]) -> None:
        """A coroutine has changed what it had to; its response waits for replicas. Later requests are handled now."""
        if self.closed:
            future.cancel()
            self._server.write_staged()
            return
        self._wait_for(exchange, request, future, mutes=False)
        self._finish_turn()
        self._take_carried()

    # ---- answering

    def _finish_turn(self) -> None:
        """Write what the requests of this turn staged, then send the answers that are next in the line."""
        self._server.write_staged()
        line = self._unanswered
        if line and line[0].done and not self.closed:
            pieces: list[Any] = []
            now = perf_counter()
            while line and line[0].done:
                exchange = line.popleft()
                self._encode(exchange, pieces)
                self._server.count(exchange.api, now - exchange.started)
            self._outbox.send(pieces)
        if self._ending:
            self._close_when_answered()
        elif self._congested():
            self._stop_reading()

    def _encode(self, exchange: Exchange, out: list[Any]) -> None:
        api = exchange.api
        body: list[Any] = []
        try:
            exchange.response.encode(body, exchange.version)
        except Exception as error:
            raise AnswerFailed(f"{api.name} v{exchange.version} cannot be answered") from error
        size = sum(map(len, body))
        # Responses of flexible versions have a header with (empty) tagged fields, except ApiVersions'.
        if exchange.version >= api.flexible_from and api.key != _API_VERSIONS:
            out.append(_ANSWER_HEAD_FLEXIBLE.pack(size + 5, exchange.correlation_id, 0))
        else:
            out.append(_ANSWER_HEAD.pack(size + 4, exchange.correlation_id))
        out.extend(body)

    def _congested(self) -> bool:
        outbox = self._outbox
        return (
            self._muted
            or self._starved
            or self._paused
            or self._ending
            or len(self._unanswered) >= MAX_UNANSWERED
            or outbox.queued_bytes > MAX_UNSENT_BYTES
            or outbox.queued_pieces > MAX_UNSENT_PIECES
        )

    def go_on(self) -> None:
        """The bytes that a large request waits for may be there."""
        self._starved = False
        try:
            self._take_carried()
        except Exception as error:
            self._failed(error)

    def _resume(self) -> None:
        """The next turn, after one that was used up."""
        self._paused = False
        try:
            self._take_carried()
        except Exception as error:
            self._failed(error)

    def _take_carried(self) -> None:
        """What held the connection back may be over: take what was carried, then read again."""
        if self._reading or self.closed or self._congested():
            return
        if self._carry:
            self._take(memoryview(bytearray(self._carry)))
        if not self._congested():
            self._read_again()

    def _on_room(self) -> None:
        try:
            self._outbox.on_room()
            self.last_active = self._loop.time()
            if self._ending:
                self._close_when_answered()
            else:
                self._take_carried()
        except Exception as error:
            self._failed(error)

    # ---- the end

    def _failed(self, error: Exception) -> None:
        if isinstance(error, (ProtocolError, ConnectionMustClose)):
            if isinstance(error, ProtocolError):
                log.info("Closing the connection from %s: bad request (%s)", self.address, error)
            self._end()
            return
        if not isinstance(error, (OSError, FileShrank)):
            log.error("Closing the connection from %s after an unexpected failure", self.address, exc_info=error)
        self.close()

    def _end(self) -> None:
        """Nothing more is read: answer what was asked, then close."""
        if self.closed:
            return
        self._ending = True
        self._stop_reading()
        self._carry = b""
        self._drop_frame()
        self._close_when_answered()
        if not self.closed and self._linger is None:
            self._linger = self._loop.call_later(LINGER_S, self.close)

    def _close_when_answered(self) -> None:
        if not self._unanswered and self._outbox.empty:
            self.close()

    def _drop_frame(self) -> None:
        if self._frame is not None:
            self._frame = None
            self._server.release_bytes(self._frame_size)

    def close(self) -> None:
        """At once. Futures are given up; coroutines go on, as half of what they do must not be left undone."""
        if self.closed:
            return
        self.closed = True
        self._stop_reading()
        self._outbox.close()
        if self._linger is not None:
            self._linger.cancel()
        for task in list(self._tasks):
            if not isinstance(task, asyncio.Task):
                task.cancel()
        self._drop_frame()
        self._unanswered.clear()
        self._sock.close()
        self._server.forget(self)

    def tasks(self) -> list[asyncio.Future[Any]]:
        """What is under way for this connection."""
        return list(self._tasks)

    def silent_since(self, time: float) -> bool:
        """Whether nothing was received or sent since then, and nothing waits for an answer of ours."""
        return self.last_active < time and not self._unanswered
