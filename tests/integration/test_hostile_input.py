"""Bytes that no correct client sends: the broker responds like Kafka and keeps running, and its
memory is bounded."""

from __future__ import annotations

import random
import resource
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from tests.support import hostile, wire
from tests.support.hostile import TOPIC, outcome
from tests.support.kavka_process import KavkaProcess
from tests.support.targets import KAVKA, Target, start_target
from tests.support.wire import METADATA, PRODUCE, Wire

# The behaviour of Apache Kafka 4.3: "closed" (it closes the connection), "silent" (it waits for
# more data) or an error code.
KAFKA_RESPONSES = {
    "random bytes": "closed",
    "random bytes in a valid frame": "closed",
    "a length of 2 GB": "closed",
    "a length over socket.request.max.bytes": "closed",
    "a negative length": "closed",
    "a length of zero": "closed",
    "a frame shorter than a header": "closed",
    "a truncated frame": "closed",
    "a truncated frame, held open": "silent",
    "an HTTP request": "closed",
    "a TLS hello": "closed",
    "an unknown API key": "closed",
    "a negative API key": "closed",
    "a version out of range": "closed",
    "a negative version": "closed",
    "ApiVersions of a version out of range": "35",
    "ApiVersions of a version out of range, a header without tags": "closed",
    "a client id longer than the frame": "closed",
    "bytes after the request": "0",
    "a body that ends early": "closed",
    "an array of 2 billion": "closed",
    "an array of -7": "closed",
    "a name that is not UTF-8": "17",
    "records longer than the frame": "closed",
    "Metadata of a name with a slash": "17",
    "Metadata that creates a name with a slash": "17",
    "Metadata of an empty name": "17",
    "CreateTopics of a name with a slash": "17",
    "CreateTopics of an empty name": "17",
    "CreateTopics of a name of 250": "17",
    "CreateTopics of a parent folder": "17",
    "CreateTopics with 2 billion partitions": "44",
    "CreateTopics with 10,001 partitions": "44",
    "CreateTopics with -7 partitions": "37",
    "CreatePartitions up to 2 billion": "-1",
    "CreatePartitions up to -7": "37",
    "Produce to a name with a slash": "3",
    "Produce to a parent folder": "3",
    "Produce to partition 99": "3",
    "Produce to partition -1": "3",
    "Produce with acks of 5": "21",
    "Fetch of a negative offset": "1",
    "Fetch past the end": "1",
    "Fetch of partition 99": "3",
    "Fetch with a negative size": "-1",
    "ListOffsets of an unknown special time": "35",
    "a valid batch": "0",
    "no records": "87",
    "truncated records": "87",
    "a batch of 10 bytes": "87",
    "a wrong CRC": "2",
    "an unknown format": "2",
    "a negative format": "2",
    "two batches": "87",
    "a batch length that is too short": "2",
    "a batch length that is too long": "87",
    "a negative batch length": "2",
    "a batch length of 0": "2",
    "bytes after the batch": "0",
    "a control batch": "87",
    "a transactional batch without an id": "53",
    "a base offset of 7": "87",
    "a record count too high": "87",
    "a record count too low": "87",
    "a record count that differs from the last offset": "87",
    "a record count of 0": "87",
    "a record count of -1": "87",
    "a record count of 2 billion": "87",
    "a batch without records": "87",
    "offsets out of order": "0",
    "a record length that is too long": "87",
    "a negative record length": "87",
    "a record length without end": "-1",
    "a record too large": "10",
    "a timestamp far ahead": "32",
    "a negative timestamp": "0",
    "a sequence without a producer": "0",
    "an unknown producer, sequence 5": "0",
    "a producer with a negative epoch": "47",
    "zstd in a version without zstd": "76",
    "an unknown compression": "-1",
    "invalid gzip data": "-1",
    "a record count too high, gzip": "87",
    "a record count too low, gzip": "87",
    "a record count too high, lz4": "87",
    "a record count too high, zstd": "87",
    "a record count too high, snappy": "87",
    "a record count too low, zstd": "87",
    "a bomb of 200 MB, gzip": "0",
    "a bomb of 200 MB, zstd": "0",
    "a message of format 0 in a current request": "87",
}

# Responses of Kavka that may differ from Kafka's, with the reason.
KAVKA_RESPONSES = {
    # Kafka's request handler fails and sends no response.
    "null records": {"87"},
    # Kafka responds -1 because of an unexpected exception.
    "a record length without end": {"87", "-1"},
    "an unknown compression": {"87", "76", "-1"},
    "Fetch with a negative size": {"0", "-1"},
    "CreatePartitions up to 2 billion": {"44", "37", "-1"},
    # Kavka sends the supported versions even if the header has no tags.
    "ApiVersions of a version out of range, a header without tags": {"response", "closed"},
    # For Kavka a string that is not UTF-8 is a malformed request. Kafka replaces the bytes with
    # question marks and rejects the name.
    "a name that is not UTF-8": {"17", "closed"},
    # Kavka stores compressed batches without opening them. Consumers detect invalid records.
    "invalid gzip data": {"0", "87", "2", "-1"},
    "a record count too high, gzip": {"0", "87"},
    "a record count too low, gzip": {"0", "87"},
    "a record count too high, lz4": {"0", "87"},
    "a record count too high, zstd": {"0", "87"},
    "a record count too high, snappy": {"0", "87"},
    "a record count too low, zstd": {"0", "87"},
}

MIB = 1 << 20


def memory_growth(broker: Target, initial_bytes: int) -> int:
    """Return the growth of the broker's memory since it was `initial_bytes`, or 0 for Apache Kafka,
    whose heap has no such bound."""
    return broker.process.rss_bytes() - initial_bytes if isinstance(broker, KavkaProcess) else 0


@pytest.fixture(scope="module")
def broker(target_name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A broker for this module only, so that other tests do not change its memory."""
    target = start_target(target_name, tmp_path_factory.mktemp(f"hostile-{target_name}"))
    try:
        assert wire.create_topic(target.address, TOPIC) == 0
        yield target
        assert target.process.running(), target.process.log_tail()
    finally:
        target.close()


def still_serves(broker: Target) -> bool:
    """Return whether a valid Produce request on a new connection succeeds."""
    with Wire(broker.address, 10.0) as connection:
        body = wire.produce_request(TOPIC, 0, wire.batch([b"valid"]), version=7)
        return wire.produce_error(connection.call(PRODUCE, 7, body), 7)[0] == 0


def test_every_hostile_case_has_an_expectation() -> None:
    assert set(hostile.CASES) == set(KAFKA_RESPONSES) | {"null records"}


@pytest.mark.parametrize("name", hostile.CASES)
def test_hostile_bytes_get_kafkas_response_and_the_broker_keeps_running(
    broker: Target, target_name: str, name: str
) -> None:
    if name == "null records" and target_name != KAVKA:
        pytest.skip("Apache Kafka sends no response")
    allowed = {KAFKA_RESPONSES[name]} if name in KAFKA_RESPONSES else set()
    if target_name == KAVKA:
        allowed = KAVKA_RESPONSES.get(name, allowed)
    assert outcome(broker.address, hostile.CASES[name]) in allowed
    assert still_serves(broker)


def test_the_broker_serves_after_a_thousand_connections_with_random_bytes(broker: Target) -> None:
    rng = random.Random(7)
    initial_bytes = broker.process.rss_bytes()
    for _ in range(1000):
        with Wire(broker.address, 5.0) as connection:
            data = rng.randbytes(rng.randrange(1, 400))
            if rng.random() < 0.7:
                data = wire.frame(struct.pack(">hh", rng.randrange(70), rng.randrange(18)) + data)
            connection.send(data)
    assert still_serves(broker)
    assert memory_growth(broker, initial_bytes) < 64 * MIB


def test_the_broker_serves_after_requests_with_changed_bytes(broker: Target) -> None:
    rng = random.Random(8)
    requests = [case.data for case in hostile.CASES.values() if 20 < len(case.data) < 2000]
    for _ in range(1500):
        data = bytearray(rng.choice(requests))
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(4, len(data))] = rng.randrange(256)
        with Wire(broker.address, 5.0) as connection:
            connection.send(bytes(data))
    assert still_serves(broker)


@pytest.mark.timeout(180)
def test_decompressing_a_bomb_is_bounded(broker: Target, target_name: str) -> None:
    """The topic sets a compression type, so the broker has to decompress the batch."""
    topic = "opened"
    if target_name != KAVKA:
        pytest.skip("Apache Kafka decompresses as much as fits into its heap")
    assert wire.create_topic(broker.address, topic, compression_type="lz4") == 0
    initial_peak_bytes = broker.process.peak_rss_bytes()
    for codec in (1, 4):
        with Wire(broker.address, 60.0) as connection:
            body = wire.produce_request(topic, 0, hostile.bomb(codec, 900 * MIB), version=7)
            code = wire.produce_error(connection.call(PRODUCE, 7, body), 7)[0]
            assert code in (10, 87)
    assert still_serves(broker)
    assert broker.process.peak_rss_bytes() - initial_peak_bytes < 300 * MIB


def test_a_frame_length_allocates_no_memory_before_the_data_arrives(broker: Target, target_name: str) -> None:
    if target_name != KAVKA:
        pytest.skip("Apache Kafka allocates the announced length")
    initial_bytes = broker.process.rss_bytes()
    connections = [socket.create_connection(broker.address) for _ in range(200)]
    try:
        for connection in connections:
            connection.sendall(struct.pack(">i", 100 * MIB) + b"\0\0\0\7\0\0\0\1")
        time.sleep(0.5)
        assert still_serves(broker)
        assert memory_growth(broker, initial_bytes) < 64 * MIB
    finally:
        for connection in connections:
            connection.close()


def test_clients_are_served_while_thousands_of_connections_are_open(broker: Target) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(3000, hard - 500)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 400), hard))
    initial_bytes = broker.process.rss_bytes()
    connections: list[socket.socket] = []
    try:
        for _ in range(count):
            connections.append(socket.create_connection(broker.address, 10.0))
        start = time.monotonic()
        for _ in range(50):
            assert still_serves(broker)
        assert time.monotonic() - start < 10
        assert memory_growth(broker, initial_bytes) < 256 * MIB
    finally:
        for connection in connections:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert still_serves(broker)


def test_clients_that_send_byte_by_byte_delay_no_other_client(broker: Target) -> None:
    request = wire.request(METADATA, 4, wire.metadata_request([TOPIC]))
    connections = [Wire(broker.address, 10.0) for _ in range(100)]
    try:
        for position in range(len(request) - 1):
            for connection in connections:
                connection.send(request[position : position + 1])
            if position % 10 == 0:
                start = time.monotonic()
                assert still_serves(broker)
                assert time.monotonic() - start < 10
        for connection in connections:
            connection.expect_correlation(1)
            connection.send(request[-1:])
            assert wire.brokers_of(connection.receive())
    finally:
        for connection in connections:
            connection.close()


def test_requests_of_a_client_that_reads_no_responses_are_not_read(broker: Target) -> None:
    """The client fetches megabytes repeatedly. The broker stops reading its requests instead of
    queueing responses."""
    with Wire(broker.address, 30.0) as connection:
        payload = wire.batch([b"x" * 500_000])
        for _ in range(10):
            body = wire.produce_request(TOPIC, 0, payload, version=7)
            assert wire.produce_error(connection.call(PRODUCE, 7, body), 7)[0] == 0
    initial_bytes = broker.process.rss_bytes()
    with Wire(broker.address, 2.0) as fetching_connection:
        fetch = wire.request(wire.FETCH, 4, wire.fetch_request(TOPIC, 0, 0, version=4, max_bytes=5 * MIB))
        try:
            for _ in range(2000):
                fetching_connection.send(fetch)
        except TimeoutError:
            pass
        assert still_serves(broker)
        assert memory_growth(broker, initial_bytes) < 128 * MIB


def test_responses_to_pipelined_requests_are_in_order(broker: Target) -> None:
    with Wire(broker.address, 10.0) as connection:
        long_poll = wire.request(wire.FETCH, 4, wire.fetch_request(TOPIC, 0, _end_offset(broker), version=4), 1)
        metadata = wire.request(METADATA, 4, wire.metadata_request([TOPIC]), 2)
        connection.send(long_poll + metadata)
        for correlation_id in (1, 2):
            connection.expect_correlation(correlation_id)
            connection.receive()


def _end_offset(broker: Target) -> int:
    with Wire(broker.address) as connection:
        return wire.end_offset(connection, TOPIC, 0)[1]
