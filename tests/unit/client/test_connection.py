"""A connection with an in-memory transport."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from kavka import Admin, Consumer, Producer
from kavka.client.connection import BUFFER_SIZE, INITIAL_BODY_SIZE, RECEIVE_PIECE_SIZE, Connection
from kavka.client.errors import Disconnected, KafkaTimeout, UnsupportedVersion
from kavka.common.errors import ErrorCode
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.headers import RequestHeader, encode_response_header
from kavka.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from kavka.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from kavka.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse


class Transport:
    def __init__(self) -> None:
        self.written = bytearray()
        self.aborted = False

    def write(self, data: Any) -> None:
        self.written += data

    def writelines(self, pieces: list[Any]) -> None:
        for piece in pieces:
            self.written += piece

    def abort(self) -> None:
        self.aborted = True

    def get_extra_info(self, name: str) -> None:
        return None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def requests(self) -> list[tuple[RequestHeader, bytes]]:
        requests, pos, data = [], 0, bytes(self.written)
        while pos < len(data):
            (size,) = struct.unpack_from(">i", data, pos)
            frame = data[pos + 4 : pos + 4 + size]
            header, body = RequestHeader.decode(frame, 0)
            requests.append((header, frame[body:]))
            pos += 4 + size
        return requests


def connected() -> tuple[Connection, Transport]:
    connection = Connection(asyncio.get_running_loop(), "me", "fake:1")
    transport = Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    connection.versions = {int(ApiKey.FIND_COORDINATOR): (0, 2), int(ApiKey.FETCH): (4, 11)}
    return connection, transport


def frame(api_key: int, version: int, correlation_id: int, response: Any) -> bytes:
    body = encode_response_header(api_key, version, correlation_id) + response.to_bytes(version)
    return struct.pack(">i", len(body)) + body


def feed(connection: Connection, data: bytes, chunk: int = 1 << 30) -> None:
    while data:
        room = connection.get_buffer(-1)
        size = min(len(room), chunk, len(data))
        room[:size] = data[:size]
        connection.buffer_updated(size)
        data = data[size:]


def coordinator(correlation_id: int, node_id: int) -> bytes:
    response = FindCoordinatorResponse(node_id=node_id, host="h", port=1)
    return frame(ApiKey.FIND_COORDINATOR, 2, correlation_id, response)


@pytest.mark.parametrize("chunk", [1, 3, 7, 1000])
def test_responses_complete_their_requests_for_any_split_of_the_bytes(chunk: int) -> None:
    async def work() -> None:
        connection, transport = connected()
        futures = [connection.send(FindCoordinatorRequest(key=f"k{i}"), timeout=5) for i in range(3)]
        headers = [header for header, _ in transport.requests()]
        assert [h.correlation_id for h in headers] == [1, 2, 3]
        assert {(h.api_version, h.client_id) for h in headers} == {(2, "me")}
        assert connection.in_flight == 3
        feed(connection, b"".join(coordinator(i + 1, i * 10) for i in range(3)), chunk)
        assert [(await future).node_id for future in futures] == [0, 10, 20]
        assert connection.in_flight == 0

    asyncio.run(work())


@pytest.mark.parametrize("size", [BUFFER_SIZE - 200, BUFFER_SIZE, BUFFER_SIZE + 1, 5 * BUFFER_SIZE])
@pytest.mark.parametrize("chunk", [777, 1 << 30])
def test_large_response_is_received_into_a_separate_buffer(size: int, chunk: int) -> None:
    async def work() -> None:
        connection, _ = connected()
        first = connection.send(FetchRequest(), timeout=5)
        second = connection.send(FindCoordinatorRequest(), timeout=5)
        records = bytes(i % 251 for i in range(size))
        topic = FetchableTopicResponse(topic="t", partitions=[PartitionData(partition_index=0, records=records)])
        feed(connection, frame(ApiKey.FETCH, 11, 1, FetchResponse(responses=[topic])) + coordinator(2, 7), chunk)
        received = (await first).responses[0].partitions[0].records
        assert (await second).node_id == 7
        third = connection.send(FindCoordinatorRequest(), timeout=5)
        feed(connection, coordinator(3, 8))
        assert (await third).node_id == 8
        assert bytes(received) == records

    asyncio.run(work())


class Socket:
    """Records the values of SO_RCVLOWAT."""

    def __init__(self) -> None:
        self.wake_at = [1]

    def setsockopt(self, level: int, option: int, value: int) -> None:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_RCVLOWAT)
        self.wake_at.append(value)


@pytest.mark.skipif(sys.platform != "linux", reason="SO_RCVLOWAT is set on Linux only")
def test_loop_wakes_for_pieces_of_a_large_response() -> None:
    async def work() -> None:
        connection, _ = connected()
        connection._socket = sock = Socket()
        records = bytes(5 * RECEIVE_PIECE_SIZE // 2)
        topic = FetchableTopicResponse(topic="t", partitions=[PartitionData(partition_index=0, records=records)])
        data = frame(ApiKey.FETCH, 11, 1, FetchResponse(responses=[topic])) + coordinator(2, 7)
        first = connection.send(FetchRequest(), timeout=5)
        second = connection.send(FindCoordinatorRequest(), timeout=5)
        while data:
            assert sock.wake_at[-1] <= min(RECEIVE_PIECE_SIZE, len(data))
            size = max(sock.wake_at[-1], 20_000)
            feed(connection, data[:size])
            data = data[size:]
        assert len((await first).responses[0].partitions[0].records) == len(records)
        assert (await second).node_id == 7
        assert RECEIVE_PIECE_SIZE in sock.wake_at
        assert sock.wake_at[-1] == 1

    asyncio.run(work())


@pytest.mark.parametrize("response_size", [300_000, 70_000])
def test_rest_of_a_large_response_is_received_by_the_function_of_the_consumer(response_size: int) -> None:
    async def work() -> None:
        connection, _ = connected()
        records = bytes(range(256)) * (response_size // 256)
        topic = FetchableTopicResponse(topic="t", partitions=[PartitionData(partition_index=0, records=records)])
        data = frame(ApiKey.FETCH, 11, 1, FetchResponse(responses=[topic]))
        available = bytearray()

        def receive(fd: int, buffer: bytearray, start: int, end: int) -> int:
            assert fd == 7 and start < end == len(data) - 4
            piece = available[: end - start]
            buffer[start : start + len(piece)] = piece
            del available[: len(piece)]
            return len(piece)

        connection.receive, connection._fd = receive, 7
        first = connection.send(FetchRequest(), timeout=5)
        second = connection.send(FindCoordinatorRequest(), timeout=5)
        available += data[BUFFER_SIZE:68_000]
        feed(connection, data[:BUFFER_SIZE])
        assert not first.done() and not available
        available += data[68_100:] + b"next"
        feed(connection, data[68_000:68_100])
        assert bytes((await first).responses[0].partitions[0].records) == records
        # The bytes of the next response are left to the event loop.
        assert available == b"next"
        assert connection.bytes_in == len(data)
        feed(connection, coordinator(2, 7))
        assert (await second).node_id == 7

    asyncio.run(work())


def test_large_request_is_written_completely() -> None:
    async def work() -> None:
        connection, transport = connected()
        request = FindCoordinatorRequest(key="x" * 30_000)
        connection.send(request, timeout=5).cancel()
        (header, body), *_ = transport.requests()
        assert FindCoordinatorRequest.decode(body, 0, header.api_version)[0] == request

    asyncio.run(work())


def test_late_response_closes_the_connection() -> None:
    async def work() -> None:
        connection, transport = connected()
        expired = connection.send(FindCoordinatorRequest(), timeout=0.02)
        other = connection.send(FindCoordinatorRequest(), timeout=5)
        with pytest.raises(KafkaTimeout, match="FindCoordinator"):
            await expired
        with pytest.raises(Disconnected):
            await other
        assert transport.aborted
        assert connection.closed

    asyncio.run(work())


def test_short_timeout_behind_a_long_one_expires() -> None:
    async def work() -> None:
        connection, _ = connected()
        long = connection.send(FindCoordinatorRequest(), timeout=60)
        with pytest.raises(KafkaTimeout):
            await connection.send(FindCoordinatorRequest(), timeout=0.02)
        with pytest.raises(Disconnected):
            await long

    asyncio.run(work())


def test_lost_connection_fails_pending_and_later_requests() -> None:
    async def work() -> None:
        connection, _ = connected()
        closed: list[Connection] = []
        connection.on_close = closed.append
        future = connection.send(FindCoordinatorRequest(), timeout=5)
        feed(connection, coordinator(1, 1)[:-3])
        connection.connection_lost(ConnectionResetError("reset by peer"))
        with pytest.raises(Disconnected, match="reset by peer"):
            await future
        with pytest.raises(Disconnected):
            connection.send(FindCoordinatorRequest(), timeout=5)
        assert closed == [connection]

    asyncio.run(work())


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 3) + b"abc",
        coordinator(99, 1),
        struct.pack(">ii", 6, 1) + b"\x00\x00",
        b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10,
    ],
)
def test_invalid_response_closes_the_connection(data: bytes) -> None:
    async def work() -> None:
        connection, transport = connected()
        future = connection.send(FindCoordinatorRequest(), timeout=0.2)
        feed(connection, data)
        with pytest.raises((Disconnected, KafkaTimeout)):
            await future
        assert transport.aborted

    asyncio.run(work())


def test_response_without_a_request_closes_the_connection() -> None:
    async def work() -> None:
        connection, transport = connected()
        feed(connection, coordinator(1, 1))
        assert transport.aborted

    asyncio.run(work())


def test_cancelled_request_does_not_affect_the_next() -> None:
    async def work() -> None:
        connection, _ = connected()
        connection.send(FindCoordinatorRequest(), timeout=5).cancel()
        second = connection.send(FindCoordinatorRequest(), timeout=5)
        feed(connection, coordinator(1, 1) + coordinator(2, 2))
        assert (await second).node_id == 2

    asyncio.run(work())


def test_throttle_time_of_a_response_is_stored() -> None:
    async def work() -> None:
        connection, _ = connected()
        future = connection.send(FindCoordinatorRequest(), timeout=5)
        response = FindCoordinatorResponse(throttle_time_ms=50_000)
        feed(connection, frame(ApiKey.FIND_COORDINATOR, 2, 1, response))
        await future
        assert 10 < connection.throttled_until - time.monotonic() <= 50

    asyncio.run(work())


def test_version_is_the_highest_that_both_sides_support() -> None:
    async def work() -> None:
        connection, _ = connected()
        connection.broker_versions = {int(ApiKey.METADATA): (90, 99)}
        assert connection.version_of(ApiKey.FETCH) == 11
        assert connection.version_of(ApiKey.FETCH, 7) == 7
        assert connection.supports(ApiKey.FETCH, 11)
        assert not connection.supports(ApiKey.FETCH, 12)
        with pytest.raises(UnsupportedVersion, match="Fetch"):
            connection.version_of(ApiKey.FETCH, 3)
        with pytest.raises(UnsupportedVersion, match="versions 90 to 99"):
            connection.version_of(ApiKey.METADATA)
        with pytest.raises(UnsupportedVersion, match="does not support it"):
            connection.version_of(ApiKey.DELETE_TOPICS)

    asyncio.run(work())


def test_api_versions_is_retried_with_the_version_of_an_older_broker() -> None:
    async def work() -> None:
        connection, transport = connected()
        connection.versions = {}
        negotiation = asyncio.ensure_future(connection._negotiate(5))
        await asyncio.sleep(0)
        keys = [ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=0, max_version=1)]
        rejection = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=keys)
        feed(connection, frame(ApiKey.API_VERSIONS, 0, 1, rejection))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        keys.append(ApiVersion(api_key=ApiKey.FETCH, min_version=2, max_version=99))
        feed(connection, frame(ApiKey.API_VERSIONS, 1, 2, ApiVersionsResponse(api_keys=keys)))
        await negotiation
        assert [h.api_version for h, _ in transport.requests()] == [ApiVersionsRequest.MAX_VERSION, 1]
        assert connection.versions[ApiKey.FETCH] == (2, 18)

    asyncio.run(work())


@pytest.mark.parametrize("host", ["a..b", "x" * 70])
def test_invalid_host_name_raises_disconnected(host: str) -> None:
    async def work() -> None:
        with pytest.raises(Disconnected, match="no connection to"):
            await Connection.open(host, 9092, timeout=30)

    asyncio.run(work())


def peak_of(work: Callable[[], None]) -> int:
    """The peak of allocated memory in bytes."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n\r\n", "this looks like an HTTP port"),
        (b"<!DOCTYPE HTML>\n<html>", "this looks like an HTTP port"),
        (bytes.fromhex("15030300020246"), "this looks like a TLS port"),
        (bytes.fromhex("160303004a0200"), "this looks like a TLS port"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "this looks like an SSH port"),
        (b"220 mail ESMTP\r\n", "it begins with the text '220 '"),
        # The SETTINGS frame of HTTP/2.
        (bytes.fromhex("000012040000000000"), "a response has correlation id 0 instead of 1"),
        (struct.pack(">i", -5), "a response has the invalid length -5"),
        (struct.pack(">i", 3), "a response has the invalid length 3"),
        (struct.pack(">i", 2_000_000), "a response has the invalid length 2000000"),
        (struct.pack(">ii", 900_000, 2), "a response has correlation id 2 instead of 1"),
    ],
)
def test_peer_of_another_protocol_is_recognized_by_its_first_bytes(data: bytes, message: str) -> None:
    async def work() -> None:
        connection, transport = connected()
        connection.versions = {}
        negotiation = asyncio.ensure_future(connection._negotiate(60))
        await asyncio.sleep(0)
        assert peak_of(lambda: feed(connection, data)) < 100_000
        with pytest.raises(Disconnected) as caught:
            await negotiation
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
        assert transport.aborted

    asyncio.run(work())


@pytest.mark.parametrize("api", [FindCoordinatorRequest, FetchRequest])
def test_length_without_data_allocates_little_memory(api: Any) -> None:
    async def work() -> None:
        connection, _ = connected()
        future = connection.send(api(), timeout=60)
        peak = peak_of(lambda: feed(connection, struct.pack(">ii", 0x7FFFFFFF, 1) + bytes(1000)))
        assert peak < INITIAL_BODY_SIZE + 1_000_000
        if api is FetchRequest:
            assert not connection.closed
            connection.close()
        with pytest.raises(Disconnected):
            await future

    asyncio.run(work())


@pytest.mark.parametrize("chunk", [5, 100_000, 1 << 30])
def test_response_larger_than_the_first_allocation_is_received(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kavka.client.connection.INITIAL_BODY_SIZE", 70_000)

    async def work() -> None:
        connection, _ = connected()
        future = connection.send(FetchRequest(), timeout=60)
        records = bytes(i % 251 for i in range(300_000))
        topic = FetchableTopicResponse(topic="t", partitions=[PartitionData(partition_index=0, records=records)])
        feed(connection, frame(ApiKey.FETCH, 11, 1, FetchResponse(responses=[topic])), chunk)
        assert bytes((await future).responses[0].partitions[0].records) == records

    asyncio.run(work())


@pytest.mark.parametrize("error", [None, ConnectionResetError(104, "Connection reset by peer")])
def test_early_close_hints_at_a_tls_port(error: Exception | None) -> None:
    async def work() -> None:
        connection, _ = connected()
        negotiation = asyncio.ensure_future(connection._negotiate(60))
        await asyncio.sleep(0)
        connection.connection_lost(error)
        with pytest.raises(Disconnected, match="is it a TLS port"):
            await negotiation

    asyncio.run(work())


class HttpServer:
    """Responds to the first bytes of every connection like an HTTP server."""

    def __init__(self) -> None:
        self.accepted = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> HttpServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.accepted += 1
            with connection, contextlib.suppress(OSError):
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


def test_blocking_call_reports_an_http_port() -> None:
    with HttpServer() as server:
        settings = {"bootstrap.servers": server.address, "reconnect.backoff.ms": 100}
        with Admin(settings) as admin, pytest.raises(KafkaTimeout, match="looks like an HTTP port") as caught:
            admin.list_topics(timeout=1.5)
        assert "\n" not in str(caught.value)
        # 100 ms, 200 ms, 400 ms, ... with 20 % of jitter.
        assert 2 <= server.accepted < 10
        with Consumer(settings) as consumer, pytest.raises(KafkaTimeout, match="looks like an HTTP port"):
            consumer.partitions_for("t", timeout=1.0)
        with Consumer(settings, group_id="g") as consumer, pytest.raises(KafkaTimeout, match="looks like an HTTP port"):
            consumer.committed([("t", 0)], timeout=1.0)
        with Producer(settings) as producer, pytest.raises(KafkaTimeout, match="looks like an HTTP port"):
            producer.partitions_for("t", timeout=1.0)
