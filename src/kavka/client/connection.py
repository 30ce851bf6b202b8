"""A TCP connection to a broker: negotiates versions and pipelines requests.

A broker responds to the requests of a connection in order, so the next response belongs to the
oldest request in flight; the correlation id is only verified. If a response is late, cannot be
decoded or has a wrong correlation id, the connection is closed: the late request fails with
`KafkaTimeout`, all other requests with `Disconnected`. The broker may or may not have processed
these requests.

No buffer is allocated for a large response before its correlation id is verified. The buffer grows
with the received bytes: a peer that uses another protocol causes an allocation of at most
`INITIAL_BODY_SIZE`.

All methods must run on the event loop that opened the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import sys
from collections import deque
from collections.abc import Callable
from struct import Struct
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast

from kavka import __version__
from kavka.client.addresses import Address, Addresses
from kavka.client.authentication import authenticate, connect_error, reauthentication_delay_s, tls_error
from kavka.client.errors import (
    AuthenticationFailed,
    ConnectionRefused,
    Disconnected,
    KafkaTimeout,
    UnsupportedVersion,
    error_of,
)
from kavka.client.foreign import foreign_protocol_hint
from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.api_keys import APIS, ApiKey
from kavka.protocol.headers import request_header_version, response_header_version
from kavka.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kavka.protocol.primitives import ProtocolError, TopMessage, skip_tags

if TYPE_CHECKING:
    from kavka.security.client_security import ClientSecurity

logger = logging.getLogger(__name__)

SOFTWARE_NAME = "kavka"
BUFFER_SIZE = 64 * 1024
MAX_WRITE_BUFFER_SIZE = 16 * 1024 * 1024
# On Linux without TLS, the event loop wakes for pieces of a large response of at least this size.
# Fewer wake-ups are faster, because each waits for the GIL if the application's thread holds it.
RECEIVE_PIECE_SIZE = 128 * 1024
# More bytes of a response are received in a later iteration of the event loop.
MAX_RECEIVE_SIZE = 4 * 1024 * 1024
# The maximum size of a response, with exceptions by API key. A fetch response may have any size.
MAX_RESPONSE_SIZE = 256 * 1024 * 1024
_MAX_RESPONSE_SIZE_BY_API = {int(ApiKey.API_VERSIONS): 1024 * 1024, int(ApiKey.FETCH): 0x7FFFFFFF}
# The first allocation for a large response: more than the default of fetch.max.bytes. The buffer of
# a larger response doubles whenever it is full.
INITIAL_BODY_SIZE = 64 * 1024 * 1024
# Pieces of a request of at least this size are passed to the transport unchanged; smaller pieces
# are joined first.
MIN_LARGE_PIECE_SIZE = 4096

_LINUX = sys.platform == "linux"

_pack_head = Struct(">ihhi").pack
_unpack_size = Struct(">i").unpack_from
_unpack_code = Struct(">h").unpack_from


Decode: TypeAlias = Callable[[Any, int], tuple[Any, int]]
# The decoder of the response, and whether the headers of request and response have tagged fields.
Codec: TypeAlias = tuple[Decode, bool, bool]


class ResponseHandler(Protocol):
    """Receives the response to a request. An asyncio.Future is a handler. A hot path may pass a
    custom object: the connection calls its methods directly when it has decoded the response, not
    in a later iteration of the event loop."""

    def done(self) -> bool: ...

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


class _InFlight(NamedTuple):
    correlation_id: int
    api_key: int
    decode: Decode
    tagged_header: bool
    handler: ResponseHandler
    deadline: float


class Connection(asyncio.BufferedProtocol):
    """Created by `Connection.open`, usable until `closed`. Owns the socket, the requests in flight
    and their deadlines.

    Frames that fit the receive buffer are copied out of it. A larger frame is received directly
    into a separate buffer that is not written to again, so that the records of a fetch can be views
    of it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, client_id: str, name: str) -> None:
        self.name = name
        self.versions: dict[int, tuple[int, int]] = {}
        """By API key: the lowest and the highest version that both sides support."""
        self.broker_versions: dict[int, tuple[int, int]] = {}
        """By API key: the versions that the broker supports, including APIs this client lacks."""
        self.features: dict[str, int] = {}
        """The maximum version levels of the cluster's finalized features, by name, for example
        `transaction.version`."""
        self.features_epoch = -1
        self.supported_features: dict[str, tuple[int, int]] = {}
        self.finalized_features: dict[str, tuple[int, int]] = {}
        self.closed = False
        self.authentications = 0
        """The number of successful SASL exchanges. A session with a limited lifetime is
        re-authenticated before it expires."""
        self.throttled_until = 0.0
        self.new_buffer: Callable[[int], bytearray | memoryview] = bytearray
        """Allocates the buffer of a large response. The consumer sets a function that does not zero
        the memory."""
        self.receive: Callable[[int, Any, int, int], int] | None = None
        """Receives more bytes of a large response from a file descriptor. The consumer sets a
        function that releases the GIL once for all available bytes."""
        self.writable = True
        self.last_used = monotonic()
        self.on_close: Callable[[Connection], None] | None = None
        self.bytes_out = 0
        self.bytes_in = 0
        self.requests = 0
        self._loop = loop
        encoded = client_id.encode()
        self._client_id = len(encoded).to_bytes(2, "big") + encoded
        self._transport: asyncio.Transport | None = None
        self._is_connected = False
        self._socket: Any = None
        self._fd = -1
        self._low_water_mark = 1
        self._in_flight: deque[_InFlight] = deque()
        self._correlation_id = 0
        self._codecs: dict[tuple[int, int], Codec] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._error: BaseException | None = None
        self._security: ClientSecurity | None = None
        self._session_timer: asyncio.TimerHandle | None = None
        self._session_task: asyncio.Task[None] | None = None
        self._buffer = bytearray(BUFFER_SIZE)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._body: bytearray | memoryview | None = None
        self._body_filled = 0
        self._body_size = 0

    # --- opening and closing

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        client_id: str = "",
        timeout: float = 10.0,
        send_buffer: int = -1,
        receive_buffer: int = -1,
        addresses: Addresses | None = None,
        security: ClientSecurity | None = None,
    ) -> Connection:
        """Connect, negotiate API versions, authenticate, and return the connection. Tries every
        address of the host, each for at most `timeout` seconds; `addresses` records the failed
        addresses. `security` None is PLAINTEXT. Raises KafkaTimeout if the host name was not
        resolved in time or all addresses timed out, AuthenticationFailed if the broker is not
        trusted or rejects the credentials, ConnectionRefused if an address refused it and no
        other timed out, Disconnected if the connection fails otherwise, and another KafkaError,
        for example UnsupportedVersion, if the broker rejects ApiVersions."""
        addresses = addresses or Addresses()
        loop = asyncio.get_running_loop()
        name = f"{host}:{port}"
        try:
            async with asyncio.timeout(timeout):
                candidates = await addresses.resolve(host, port)
        except TimeoutError:
            raise KafkaTimeout(
                f"no connection to {name}: the host name was not resolved within {timeout:g} s"
            ) from None
        except (OSError, UnicodeError) as error:
            # UnicodeError: an invalid host name.
            raise Disconnected(f"no connection to {name}: {error}") from None
        failures: list[KafkaTimeout | Disconnected] = []
        for address in candidates:
            connection = cls(loop, client_id, name)
            try:
                await connection._open(host, address, timeout, send_buffer, receive_buffer, security)
            except (KafkaTimeout, Disconnected) as error:
                addresses.mark_failed(host, port, address)
                failures.append(error)
            else:
                addresses.mark_reached(host, port, address)
                return connection
        if len(failures) == 1:
            raise failures[0]
        raise _common_class(failures)("; ".join(str(failure) for failure in failures))

    async def _open(
        self,
        host: str,
        address: Address,
        timeout: float,
        send_buffer: int,
        receive_buffer: int,
        security: ClientSecurity | None,
    ) -> None:
        """Connect to one address. Raises the errors of `open`."""
        location = self.name if str(address) == self.name else f"{self.name} ({address})"
        context = None if security is None else security.context
        self._security = security
        try:
            async with asyncio.timeout(timeout):
                await self._connect(host, address, send_buffer, receive_buffer, context, timeout)
                await self._negotiate(timeout)
                if security is not None and security.new_exchange is not None:
                    await self._authenticate(security, timeout)
        except BaseException as error:
            self.close()
            if isinstance(error, KafkaError):
                raise
            if isinstance(error, TimeoutError):
                raise KafkaTimeout(f"no connection to {location} within {timeout:g} s") from None
            if isinstance(error, (ssl.SSLError, ssl.CertificateError)):
                raise AuthenticationFailed(f"no connection to {location}: {tls_error(error)}") from None
            if isinstance(error, OSError):
                is_handshake = context is not None and self._transport is None and self._is_connected
                error_class = ConnectionRefused if isinstance(error, ConnectionRefusedError) else Disconnected
                raise error_class(f"no connection to {location}: {connect_error(error, is_handshake)}") from None
            raise

    async def _connect(
        self,
        host: str,
        address: Address,
        send_buffer: int,
        receive_buffer: int,
        context: ssl.SSLContext | None,
        timeout: float,
    ) -> None:
        sock = socket.socket(address.family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # Detects a lost host while no request is in flight.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                # Set before connecting, because TCP derives its window from the buffer sizes.
                if send_buffer >= 0:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
                if receive_buffer >= 0:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            await self._loop.sock_connect(sock, address.sockaddr)
            self._is_connected = True
            if context is None:
                await self._loop.create_connection(lambda: self, sock=sock)
            else:
                await self._loop.create_connection(
                    lambda: self, sock=sock, ssl=context, server_hostname=host, ssl_handshake_timeout=timeout
                )
        except BaseException:
            sock.close()
            raise
        assert self._transport is not None
        # Clients limit their requests in flight. This limit is for a broker that does not read from
        # its socket.
        self._transport.set_write_buffer_limits(high=MAX_WRITE_BUFFER_SIZE)

    async def _negotiate(self, timeout: float) -> None:
        version = ApiVersionsRequest.MAX_VERSION
        while True:
            request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=__version__)
            future: asyncio.Future[ApiVersionsResponse] = self._loop.create_future()
            self._send(request, version, future, timeout, _decode_api_versions(version))
            response = await future
            if response.error_code != ErrorCode.UNSUPPORTED_VERSION:
                break
            max_version = next((k.max_version for k in response.api_keys if k.api_key == ApiKey.API_VERSIONS), 0)
            if max_version >= version:
                raise UnsupportedVersion(f"{self.name} rejects every version of ApiVersions")
            version = max_version
        if response.error_code:
            raise error_of(response.error_code, f"{self.name} did not return its supported API versions")
        for api in response.api_keys:
            self.broker_versions[api.api_key] = api.min_version, api.max_version
            client_range = APIS.get(api.api_key)
            if client_range is not None:
                low, high = (
                    max(client_range.min_version, api.min_version),
                    min(client_range.max_version, api.max_version),
                )
                if low <= high:
                    self.versions[api.api_key] = low, high
        self.features_epoch = response.finalized_features_epoch
        for supported in response.supported_features:
            self.supported_features[supported.name] = supported.min_version, supported.max_version
        for feature in response.finalized_features:
            self.finalized_features[feature.name] = feature.min_version_level, feature.max_version_level
            self.features[feature.name] = feature.max_version_level

    async def _authenticate(self, security: ClientSecurity, timeout: float) -> None:
        """Authenticate now, and again each time before the session expires. Other requests are held
        during the exchange."""
        lifetime_ms = await authenticate(self, security, timeout)
        self.authentications += 1
        if lifetime_ms > 0 and not self.closed:
            self._schedule_reauthentication(security, timeout, reauthentication_delay_s(lifetime_ms))

    def _schedule_reauthentication(self, security: ClientSecurity, timeout: float, delay_s: float) -> None:
        async def reauthenticate() -> None:
            last_used = self.last_used
            try:
                await self._authenticate(security, timeout)
                if not self._in_flight:
                    # Re-authentication does not count as use: an idle connection stays idle.
                    self.last_used = last_used
            except KafkaError as error:
                if not self.closed:
                    logger.warning("Closing the connection to %s: re-authentication failed: %s", self.name, error)
                    self.close(Disconnected(f"the connection to {self.name} was closed: {error}"))

        def start() -> None:
            self._session_task = self._loop.create_task(reauthenticate(), name="kavka-authenticate")

        self._session_timer = self._loop.call_later(delay_s, start)

    def close(self, error: BaseException | None = None) -> None:
        """Close immediately. Requests in flight fail with `error`, or with Disconnected."""
        if self._error is None:
            self._error = error
        self._fail_all(error)
        if self._transport is not None:
            self._transport.abort()

    # --- sending

    def version_of(self, api_key: int, max_version: int | None = None) -> int:
        """Return the highest version of an API that both sides support, at most `max_version`.
        Raises UnsupportedVersion if there is no such version."""
        common_range = self.versions.get(api_key)
        if common_range is None or (max_version is not None and max_version < common_range[0]):
            broker_range = self.broker_versions.get(api_key)
            name = APIS[api_key].name if api_key in APIS else f"API key {api_key}"
            supported = (
                f"the broker supports versions {broker_range[0]} to {broker_range[1]}"
                if broker_range
                else "the broker does not support it"
            )
            raise UnsupportedVersion(f"{name} cannot be sent to {self.name}: {supported}")
        return common_range[1] if max_version is None or max_version > common_range[1] else max_version

    def supports(self, api_key: int, version: int = 0) -> bool:
        """Whether both sides support this version of the API or a later version."""
        common_range = self.versions.get(api_key)
        return common_range is not None and common_range[1] >= version

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def seconds_to_last_deadline(self) -> float:
        """The time until the last deadline of the requests in flight, in seconds."""
        return max((entry.deadline for entry in self._in_flight), default=0.0) - monotonic() if self._in_flight else 0.0

    def send(
        self, request: TopMessage, *, timeout: float, max_version: int | None = None, version: int | None = None
    ) -> asyncio.Future[Any]:
        """Send a request and return a future for the response. Record fields of the response are
        views of the received frame, and keep it alive. Raises UnsupportedVersion, or Disconnected
        if the connection is closed.

        `version` defaults to the highest version that both sides support and `max_version` allows.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        if version is None:
            assert request.API_KEY is not None
            version = self.version_of(request.API_KEY, max_version)
        self.send_with_handler(request, version, future, timeout)
        return future

    def send_with_handler(self, request: TopMessage, version: int, handler: ResponseHandler, timeout: float) -> int:
        """Like `send`, with a custom handler. Returns the number of bytes sent."""
        return self._send(request, version, handler, timeout)

    def hold_requests(self) -> None:
        """Hold the requests that are sent from now on, until `release_requests`."""
        if self._transport is not None:
            self._transport = cast(asyncio.Transport, _HeldWrites(self._transport))

    def release_requests(self) -> None:
        held = self._transport
        if isinstance(held, _HeldWrites):
            self._transport = held.transport
            if held.pieces and not self.closed:
                self._transport.writelines(held.pieces)

    def send_ahead(self, request: TopMessage, *, timeout: float) -> asyncio.Future[Any]:
        """Send a request before the requests that are held. All requests that were written earlier
        must have their responses, because responses are in the order of the requests."""
        held = self._transport
        if self.closed or not isinstance(held, _HeldWrites):
            raise self._disconnected()
        assert request.API_KEY is not None
        version = self.version_of(request.API_KEY)
        self._transport = held.transport
        try:
            self._write(request, version)
        finally:
            self._transport = cast(asyncio.Transport, held)
        future: asyncio.Future[Any] = self._loop.create_future()
        codec = self._codecs[request.API_KEY, version]
        deadline = monotonic() + timeout
        self._in_flight.appendleft(
            _InFlight(self._correlation_id, request.API_KEY, codec[0], codec[2], future, deadline)
        )
        if self._timer is None or deadline < self._timer_at:
            self._set_timer(deadline)
        return future

    def send_one_way(self, request: TopMessage, version: int) -> int:
        """Send a request that has no response: Produce with acks=0. Returns the number of bytes
        sent."""
        return self._write(request, version)

    def _make_codec(self, api_key: int, version: int) -> Codec:
        decode = APIS[api_key].response_class().decoder(version)
        codec = (decode, request_header_version(api_key, version) == 2, response_header_version(api_key, version) == 1)
        self._codecs[api_key, version] = codec
        return codec

    def _send(
        self, request: TopMessage, version: int, handler: ResponseHandler, timeout: float, decode: Decode | None = None
    ) -> int:
        size = self._write(request, version)
        api_key = request.API_KEY
        assert api_key is not None
        codec = self._codecs[api_key, version]
        deadline = self.last_used + timeout
        self._in_flight.append(
            _InFlight(self._correlation_id, api_key, decode or codec[0], codec[2], handler, deadline)
        )
        if self._timer is None or deadline < self._timer_at:
            self._set_timer(deadline)
        return size

    def _write(self, request: TopMessage, version: int) -> int:
        transport = self._transport
        if self.closed or transport is None:
            raise self._disconnected()
        api_key = request.API_KEY
        assert api_key is not None
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        codec = self._codecs.get((api_key, version)) or self._make_codec(api_key, version)
        body: list[Any] = []
        request.encode(body, version)
        client_id = self._client_id + b"\x00" if codec[1] else self._client_id
        size = 8 + len(client_id) + sum(map(len, body))
        head = _pack_head(size, api_key, version, correlation_id)
        if size < 2 * MIN_LARGE_PIECE_SIZE:
            transport.write(b"".join((head, client_id, *body)))
        else:
            transport.writelines(_join_small_pieces([head, client_id, *body]))
        self.last_used = monotonic()
        self.bytes_out += size + 4
        self.requests += 1
        return size + 4

    # --- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # With TLS, the bytes of the socket are not those of the responses.
        if transport.get_extra_info("sslcontext") is None:
            self._socket = transport.get_extra_info("socket")
            self._fd = -1 if self._socket is None else self._socket.fileno()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._body is not None:
            return memoryview(self._body)[self._body_filled :]
        return self._view[self._filled :]

    def buffer_updated(self, size: int) -> None:
        self.bytes_in += size
        try:
            if self._body is not None:
                self._body_filled += size
            else:
                self._filled += size
                self._split()
            if self._body is not None:
                self._receive_body(self._body)
        except ProtocolError as error:
            self.close(Disconnected(f"{self.name} sent an invalid response: {error}"))

    def _receive_body(self, body: bytearray | memoryview) -> None:
        """Receive more of a large response, and process it when it is complete."""
        if self.receive is not None and self._fd >= 0 and not self.closed:
            end = min(len(body), self._body_filled + MAX_RECEIVE_SIZE)
            received = self.receive(self._fd, body, self._body_filled, end)
            self._body_filled += received
            self.bytes_in += received
        remaining = self._body_size - self._body_filled
        self._wake_for(remaining)
        if not remaining:
            self._body = None
            self._complete_oldest(memoryview(body))
        elif self._body_filled == len(body):
            larger = self.new_buffer(min(2 * len(body), self._body_size))
            larger[: self._body_filled] = body
            self._body = larger

    def _split(self) -> None:
        """Process every complete frame in the buffer, and keep the start of an incomplete frame."""
        view, end, start = self._view, self._filled, 0
        while end - start >= 4:
            (size,) = _unpack_size(view, start)
            frame_end = start + 4 + size
            if frame_end > end or size < 4:
                self._check_start(view[start:end], size)
                if size + 4 > BUFFER_SIZE and end - start >= 8:
                    body = self.new_buffer(min(size, INITIAL_BODY_SIZE))
                    received = end - start - 4
                    body[:received] = view[start + 4 : end]
                    self._body, self._body_filled, self._body_size, self._filled = body, received, size, 0
                    return
                break
            self._complete_oldest(memoryview(bytes(view[start + 4 : frame_end])))
            start = frame_end
            if self.closed:
                return
        if start:
            remaining = end - start
            self._buffer[:remaining] = self._buffer[start:end]
            self._filled = remaining

    def _check_start(self, data: memoryview, size: int) -> None:
        """Check the length and, if it was received, the correlation id of an incomplete response.
        Raises ProtocolError."""
        if not self._in_flight:
            raise ProtocolError(f"a response without a request{foreign_protocol_hint(data)}")
        pending = self._in_flight[0]
        if not 4 <= size <= _MAX_RESPONSE_SIZE_BY_API.get(pending.api_key, MAX_RESPONSE_SIZE):
            raise ProtocolError(f"a response has the invalid length {size}{foreign_protocol_hint(data)}")
        if len(data) >= 8:
            _check_correlation_id(data, 4, pending)

    def _wake_for(self, remaining: int) -> None:
        """Make the kernel wake the event loop only for large pieces, while `remaining` bytes of a
        large response are missing. The kernel wakes the event loop earlier if the connection ends
        or the socket's buffer is full."""
        low_water_mark = max(1, min(remaining, RECEIVE_PIECE_SIZE))
        if low_water_mark != self._low_water_mark and self._socket is not None and _LINUX:
            self._low_water_mark = low_water_mark
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water_mark)

    def _complete_oldest(self, frame: memoryview) -> None:
        if not self._in_flight:
            raise ProtocolError("a response without a request")
        entry = self._in_flight[0]
        _check_correlation_id(frame, 0, entry)
        self._in_flight.popleft()
        handler = entry.handler
        try:
            response, _ = entry.decode(frame, skip_tags(frame, 4) if entry.tagged_header else 4)
        except ProtocolError:
            self._in_flight.appendleft(entry)
            raise
        throttle = getattr(response, "throttle_time_ms", 0)
        if throttle > 0:
            self.throttled_until = max(self.throttled_until, monotonic() + throttle / 1000)
        if not handler.done():
            handler.set_result(response)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._error is None and isinstance(exc, ssl.SSLError):
            # With TLS 1.3 the broker rejects the client's certificate after the client's handshake.
            self._error = AuthenticationFailed(f"{self.name} closed the connection: {tls_error(exc)}")
        elif self._error is None and exc is not None:
            self._error = Disconnected(f"the connection to {self.name} was lost{self._disconnect_hint()}: {exc}")
        self._fail_all(None)
        self._transport = None
        self._fd = -1

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True

    # --- failures and timeouts

    def _disconnected(self) -> BaseException:
        return self._error or Disconnected(f"{self.name} closed the connection{self._disconnect_hint()}")

    def _disconnect_hint(self) -> str:
        """Return a hint for error messages: a listener with TLS, SASL or client certificates closes
        the connection of a client without them."""
        security = self._security
        if not self.broker_versions:
            if security is None or security.context is None:
                return " before the first response (is it a TLS port? set security.protocol to SSL or SASL_SSL)"
            return " after the TLS handshake (does it require a client certificate? set ssl.keystore.location)"
        # ApiVersions, which an older broker needs twice, and the first other request.
        if self.requests <= 3 and (security is None or security.mechanism is None):
            return " at the first request (does it require SASL? set security.protocol to SASL_PLAINTEXT or SASL_SSL)"
        return ""

    def _fail_all(self, error: BaseException | None) -> None:
        is_first = not self.closed
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._session_timer is not None:
            self._session_timer.cancel()
        if self._session_task is not None:
            self._session_task.cancel()
        entries, self._in_flight = self._in_flight, deque()
        for entry in entries:
            if not entry.handler.done():
                entry.handler.set_exception(error or self._disconnected())
        if is_first and self.on_close is not None:
            self.on_close(self)

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_later(max(0.0, at - monotonic()), self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._timer = None
        if not self._in_flight:
            return
        now = monotonic()
        expired = next((entry for entry in self._in_flight if entry.deadline <= now), None)
        if expired is None:
            self._set_timer(min(entry.deadline for entry in self._in_flight))
            return
        name = APIS[expired.api_key].name
        if not expired.handler.done():
            expired.handler.set_exception(KafkaTimeout(f"{self.name} did not respond to {name} before the timeout"))
        self.close(
            Disconnected(f"the connection to {self.name} was closed: it did not respond to {name} before the timeout")
        )


class _HeldWrites:
    """Replaces the transport during a SASL exchange, and buffers the writes."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.pieces: list[Any] = []

    def write(self, data: Any) -> None:
        self.pieces.append(data)

    def writelines(self, pieces: list[Any]) -> None:
        self.pieces.extend(pieces)

    def abort(self) -> None:
        self.transport.abort()


def _common_class(failures: list[KafkaTimeout | Disconnected]) -> type[KafkaTimeout | Disconnected]:
    """The class of the error for the failures of all addresses of a host."""
    timeouts = sum(isinstance(failure, KafkaTimeout) for failure in failures)
    if timeouts == len(failures):
        return KafkaTimeout
    # An address that cannot be used at all, for example without IPv6, says nothing about the host.
    is_refused = not timeouts and any(isinstance(failure, ConnectionRefused) for failure in failures)
    return ConnectionRefused if is_refused else Disconnected


def _check_correlation_id(data: memoryview, at: int, pending: _InFlight) -> None:
    (correlation_id,) = _unpack_size(data, at)
    if correlation_id != pending.correlation_id:
        raise ProtocolError(f"a response has correlation id {correlation_id} instead of {pending.correlation_id}")


def _join_small_pieces(pieces: list[Any]) -> list[Any]:
    """Join consecutive small pieces; large pieces stay separate."""
    out: list[Any] = []
    small: list[Any] = []
    for piece in pieces:
        if len(piece) < MIN_LARGE_PIECE_SIZE:
            small.append(piece)
        else:
            if small:
                out.append(b"".join(small))
                small = []
            out.append(piece)
    if small:
        out.append(b"".join(small))
    return out


def _decode_api_versions(version: int) -> Decode:
    """Return the decoder of an ApiVersions response. A broker that does not support the version of
    the request responds with version 0."""

    def decode(frame: Any, pos: int) -> tuple[Any, int]:
        if len(frame) < pos + 2:
            raise ProtocolError("an ApiVersions response of less than two bytes")
        (code,) = _unpack_code(frame, pos)
        return ApiVersionsResponse.decode(frame, pos, 0 if code == ErrorCode.UNSUPPORTED_VERSION else version)

    return decode
