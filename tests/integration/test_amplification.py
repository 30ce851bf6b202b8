"""Small requests that are expensive to process: the event loop's CPU time per turn and the broker's
memory stay within bounds.

Each case sends a request that no normal client sends and measures the broker until it responds.
docs/decisions/0007-limits-of-decoding.md describes the limits.
"""

from __future__ import annotations

import contextlib
import gzip
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator

import cramjam
import lz4.frame
import pytest

from kavka import Consumer, Producer, TopicPartition
from tests.support import hostile, wire
from tests.support.watched_broker import MAX_GROWTH_BYTES, MAX_TURN_S, WatchedBroker
from tests.support.wire import PRODUCE, BatchFields, Wire, array, message, string

MIB = 1 << 20
MESSAGE_TOO_LARGE, INVALID_RECORD, CORRUPT_MESSAGE = 10, 87, 2
DESCRIBE_GROUPS, OFFSET_FETCH, DELETE_GROUPS, FIND_COORDINATOR = 15, 9, 42, 10

PLAIN, COMPACTED, RECOMPRESSED, UNBOUNDED, MANY_PARTITIONS = (
    "plain",
    "compacted",
    "recompressed",
    "unbounded",
    "many-partitions",
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedBroker]:
    with WatchedBroker(tmp_path_factory.mktemp("amplification")) as broker:
        assert wire.create_topic(broker.address, PLAIN) == 0
        assert wire.create_topic(broker.address, COMPACTED, cleanup_policy="compact") == 0
        assert wire.create_topic(broker.address, RECOMPRESSED, compression_type="lz4") == 0
        assert wire.create_topic(broker.address, MANY_PARTITIONS, 50, compression_type="lz4") == 0
        configs = {"compression_type": "snappy", "max_message_bytes": "2147483647"}
        assert wire.create_topic(broker.address, UNBOUNDED, **configs) == 0
        yield broker
        assert broker.process.running(), broker.process.log_tail()
        assert broker.stop() == 0


def still_serves(broker: WatchedBroker) -> bool:
    with Wire(broker.address, 30.0) as connection:
        body = wire.produce_request(PLAIN, 0, wire.batch([b"valid"]), version=7)
        return wire.produce_error(connection.call(PRODUCE, 7, body), 7)[0] == 0


def zstd_repeated(unit: bytes, count: int) -> bytes:
    """Return one zstd frame of `count` copies of `unit`."""
    compressor = cramjam.zstd.Compressor(level=19)
    chunk = unit * 10_000
    for _ in range(count // 10_000):
        compressor.compress(chunk)
    compressor.compress(unit * (count % 10_000))
    return bytes(compressor.finish())


def gzip_repeated(unit: bytes, count: int) -> bytes:
    """Return one gzip member of `count` copies of `unit`."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, 31)
    chunk = unit * 10_000
    compressed_chunks = [compressor.compress(chunk) for _ in range(count // 10_000)]
    return b"".join([*compressed_chunks, compressor.compress(unit * (count % 10_000)), compressor.flush()])


TINY_RECORD = wire.record(None)


def tiny_records_zstd() -> bytes:
    count = 9_000_000
    return BatchFields(zstd_repeated(TINY_RECORD, count), count, attributes=4).encode()


def records_without_keys_zstd() -> bytes:
    """As many records as a batch may have. The broker rejects each of them."""
    count = 99_999
    return BatchFields(zstd_repeated(TINY_RECORD, count), count, attributes=4).encode()


def tiny_messages_gzip() -> bytes:
    return message(gzip_repeated(message(None), 1_600_000), attributes=1)


def zeros_zstd() -> bytes:
    return BatchFields(zstd_repeated(bytes(1024), 900_000), 1, attributes=4).encode()


def empty_members_gzip() -> bytes:
    return BatchFields(gzip.compress(b"", mtime=0) * 45_000, 1, attributes=1).encode()


def empty_blocks_snappy() -> bytes:
    block = struct.pack(">i", 1) + b"\0"
    return BatchFields(b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + block * 200_000, 1, attributes=2).encode()


def empty_streams_snappy() -> bytes:
    return BatchFields((b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)) * 60_000, 1, attributes=2).encode()


def tiny_blocks_lz4() -> bytes:
    header = lz4.frame.compress(b"", block_linked=False)[:7]
    return BatchFields(header + b"\x01\0\0\0\0" * 200_000 + b"\0\0\0\0", 1, attributes=3).encode()


def empty_frames_zstd() -> bytes:
    return BatchFields(bytes(cramjam.zstd.compress(b"")) * 80_000, 1, attributes=4).encode()


def skippable_frames_zstd() -> bytes:
    return BatchFields(struct.pack("<II", 0x184D2A50, 0) * 120_000, 1, attributes=4).encode()


BATCHES: dict[str, tuple[str, int, Callable[[], bytes]]] = {
    "6 KB of zstd with 9,000,000 records": (COMPACTED, 7, tiny_records_zstd),
    "100 bytes of zstd with 99,999 records without keys": (COMPACTED, 7, records_without_keys_zstd),
    "41 KB of gzip with 1,600,000 messages of format 0": (PLAIN, 1, tiny_messages_gzip),
    "41 KB of gzip with 1,600,000 messages of format 0, v0": (PLAIN, 0, tiny_messages_gzip),
    "30 KB of zstd with 900 MB in a topic without a limit": (UNBOUNDED, 7, zeros_zstd),
    "gzip of 45,000 empty members": (RECOMPRESSED, 7, empty_members_gzip),
    "snappy of 200,000 empty blocks": (RECOMPRESSED, 7, empty_blocks_snappy),
    "snappy of 60,000 empty streams": (RECOMPRESSED, 7, empty_streams_snappy),
    "lz4 of 200,000 empty blocks": (COMPACTED, 7, tiny_blocks_lz4),
    "zstd of 80,000 empty frames": (RECOMPRESSED, 7, empty_frames_zstd),
    "zstd of 120,000 skippable frames": (RECOMPRESSED, 7, skippable_frames_zstd),
    "a gzip bomb": (RECOMPRESSED, 7, lambda: hostile.bomb(1, 900 * MIB)),
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_that_expands_is_rejected_within_bounds(broker: WatchedBroker, name: str) -> None:
    topic, version, encode_batch = BATCHES[name]
    body = wire.produce_request(topic, 0, encode_batch(), version=version)
    with broker.measured() as cost, Wire(broker.address, 60.0) as connection:
        code, _ = wire.produce_error(connection.call(PRODUCE, version, body), version)
    assert code in (MESSAGE_TOO_LARGE, INVALID_RECORD, CORRUPT_MESSAGE)
    assert cost.turn_s <= MAX_TURN_S, cost
    assert cost.memory_bytes <= MAX_GROWTH_BYTES, cost
    assert cost.process_s <= 5, cost
    assert still_serves(broker)


def test_many_small_batches_in_one_request_do_not_block_the_loop(broker: WatchedBroker) -> None:
    """Each batch is small enough to be opened on the loop. All of them together are not."""
    records = BatchFields(zstd_repeated(bytes(1024), 60), 1, attributes=4).encode()
    partitions = array([struct.pack(">ii", number % 50, len(records)) + records for number in range(4000)])
    body = string(None) + struct.pack(">hi", 1, 30_000) + array([string(MANY_PARTITIONS) + partitions])
    with broker.measured() as cost, Wire(broker.address, 60.0) as connection:
        connection.call(PRODUCE, 7, body)
    assert cost.turn_s <= 2 * MAX_TURN_S, cost
    assert cost.memory_bytes <= MAX_GROWTH_BYTES, cost
    assert still_serves(broker)


def test_the_largest_batch_that_is_rewritten_stays_within_bounds(broker: WatchedBroker) -> None:
    body = wire.produce_request(PLAIN, 0, message(gzip_repeated(message(None), 99_000), attributes=1), version=1)
    with broker.measured() as cost, Wire(broker.address, 60.0) as connection:
        assert wire.produce_error(connection.call(PRODUCE, 1, body), 1)[0] == 0
    assert cost.turn_s <= MAX_TURN_S, cost
    assert cost.memory_bytes <= MAX_GROWTH_BYTES, cost


STORED = "stored"


def store(broker: WatchedBroker, records: bytes) -> None:
    """Produce a batch to a topic whose settings do not require the broker to open batches. The
    batch is stored unchanged."""
    wire.create_topic(broker.address, STORED)
    with Wire(broker.address, 30.0) as connection:
        body = wire.produce_request(STORED, 0, records, version=7)
        assert wire.produce_error(connection.call(PRODUCE, 7, body), 7)[0] == 0


@pytest.mark.parametrize("timestamp", [1_700_000_000_000, -3])
def test_a_stored_batch_that_expands_is_searched_by_time_within_bounds(broker: WatchedBroker, timestamp: int) -> None:
    store(broker, tiny_records_zstd())
    partition = struct.pack(">iiq", 0, -1, timestamp) + b"\0"
    topic = b"\x07" + STORED.encode() + b"\x02" + partition + b"\0"
    body = b"\0" + struct.pack(">ib", -1, 0) + b"\x02" + topic + b"\0"
    with broker.measured() as cost, Wire(broker.address, 60.0) as connection:
        response = connection.call(wire.LIST_OFFSETS, 7, body)
    # The error code, timestamp and offset follow the tags of the header, the throttle time, the
    # number of topics, the topic's name, the number of partitions and the partition's index.
    code, _, offset = struct.unpack_from(">hqq", response.data, 4 + 1 + 4 + 1 + 7 + 1 + 4)
    assert (code, offset % 9_000_000) == (0, 0), "not the start of the batch"
    assert cost.turn_s <= MAX_TURN_S, cost
    assert cost.memory_bytes <= MAX_GROWTH_BYTES, cost


def test_a_stored_batch_that_expands_is_converted_for_old_clients_within_bounds(broker: WatchedBroker) -> None:
    count = 5_000_000
    store(broker, BatchFields(gzip_repeated(TINY_RECORD, count), count, attributes=1).encode())
    with Wire(broker.address, 60.0) as connection:
        end = wire.end_offset(connection, STORED, 0)[1]
        with broker.measured() as cost:
            body = wire.fetch_request(STORED, 0, end - count, version=0)
            code = wire.fetched(connection.call(wire.FETCH, 0, body), 0)[0]
    assert code == MESSAGE_TOO_LARGE
    assert cost.turn_s <= MAX_TURN_S, cost
    assert cost.memory_bytes <= MAX_GROWTH_BYTES, cost


def test_batches_opened_in_a_worker_keep_their_order(broker: WatchedBroker) -> None:
    """One connection pipelines small and large batches. Offsets and responses have the order of the
    requests."""
    sizes = [1, 3000, 1, 2, 5000, 1, 1, 4000, 2]
    with Wire(broker.address, 60.0) as connection:
        start_offset = wire.end_offset(connection, RECOMPRESSED, 0)[1]
        for size in sizes:
            records = wire.batch([b"value of a record"] * size)
            connection.send_request(PRODUCE, 7, wire.produce_request(RECOMPRESSED, 0, records, version=7))
        offsets = []
        for correlation_id in range(2, len(sizes) + 2):
            connection.expect_correlation(correlation_id)
            code, offset = wire.produce_error(connection.receive(), 7)
            assert code == 0
            offsets.append(offset - start_offset)
    assert offsets == [sum(sizes[:n]) for n in range(len(sizes))]


@pytest.mark.parametrize("kind", ["valid", "rejected"])
def test_a_batch_with_acks_0_opened_in_a_worker_is_appended_or_closes_the_connection(
    broker: WatchedBroker, kind: str
) -> None:
    records = tiny_records_zstd() if kind == "rejected" else wire.batch([b"x" * 20] * 3000)
    topic = COMPACTED if kind == "rejected" else RECOMPRESSED
    with Wire(broker.address, 60.0) as connection:
        end_offset = wire.end_offset(connection, topic, 0)[1]
        connection.send(wire.request(PRODUCE, 7, wire.produce_request(topic, 0, records, version=7, acks=0), 99))
        if kind == "rejected":
            assert connection.closed_within(30)
        else:
            assert wire.end_offset(connection, topic, 0)[1] == end_offset + 3000


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def describe_groups() -> bytes:
    return wire.request(DESCRIBE_GROUPS, 0, array([b"\0\0"] * 2_000_000))


def produce_topics() -> bytes:
    topics = array([string("") + array([])] * 600_000)
    return wire.request(PRODUCE, 7, string(None) + struct.pack(">hi", 1, 1000) + topics)


def produce_partitions() -> bytes:
    """Many topics with one partition each, so that no array of partitions is long."""
    topic = string("") + array([struct.pack(">ii", 0, -1)])
    return wire.request(PRODUCE, 7, string(None) + struct.pack(">hi", 1, 1000) + array([topic] * 250_000))


def tagged_fields() -> bytes:
    """ApiVersions v3 whose header has two million tagged fields."""
    return wire.frame(struct.pack(">hhi", 18, 3, 1) + string("wire") + _varint(2_000_000) + b"\0\0" * 2_000_000)


def offset_fetch() -> bytes:
    return wire.request(OFFSET_FETCH, 1, string("group") + array([string("t") + array([bytes(4)] * 1_000_000)]))


def metadata_names() -> bytes:
    return wire.request(wire.METADATA, 4, array([b"\0\1a"] * 1_400_000) + b"\0")


REQUESTS: dict[str, Callable[[], bytes]] = {
    "DescribeGroups of 2,000,000 groups": describe_groups,
    "Produce of 600,000 topics": produce_topics,
    "Produce of 250,000 topics with a partition each": produce_partitions,
    "a header of 2,000,000 tagged fields": tagged_fields,
    "OffsetFetch of 1,000,000 partitions": offset_fetch,
    "Metadata of 1,400,000 topics": metadata_names,
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_with_too_many_elements_is_rejected_within_bounds(broker: WatchedBroker, name: str) -> None:
    data = REQUESTS[name]()
    with broker.measured() as cost, Wire(broker.address, 60.0) as connection:
        with contextlib.suppress(OSError):
            connection.send(data)
        assert connection.closed_within(60)
    assert cost.turn_s <= MAX_TURN_S, cost
    assert cost.memory_bytes <= MAX_GROWTH_BYTES, cost
    assert still_serves(broker)


LARGE_VALID_REQUESTS: dict[str, tuple[int, int, Callable[[], bytes]]] = {
    "Metadata of 50,000 topics": (
        wire.METADATA,
        4,
        lambda: array([string(f"a-topic-of-some-length-{n}") for n in range(50_000)]) + b"\0",
    ),
    "Fetch of 10,000 partitions": (
        wire.FETCH,
        4,
        lambda: (
            struct.pack(">iiiib", -1, 0, 0, 1 << 20, 0)
            + array(
                [
                    string(f"topic-{n}") + array([struct.pack(">iqi", p, 0, 1000) for p in range(10)])
                    for n in range(1000)
                ]
            )
        ),
    ),
    "OffsetFetch of 50,000 partitions": (
        OFFSET_FETCH,
        1,
        lambda: string("group") + array([string(f"topic-{n}") + array([bytes(4)] * 50) for n in range(1000)]),
    ),
    "DescribeGroups of 99,000 groups": (DESCRIBE_GROUPS, 0, lambda: array([string(f"g-{n}") for n in range(99_000)])),
    "ListOffsets of 99,000 partitions": (
        wire.LIST_OFFSETS,
        1,
        lambda: (
            struct.pack(">i", -1) + array([string(PLAIN) + array([struct.pack(">iq", n, -1) for n in range(99_000)])])
        ),
    ),
}


@pytest.mark.parametrize("name", LARGE_VALID_REQUESTS)
def test_a_large_valid_request_is_served(broker: WatchedBroker, name: str) -> None:
    api_key, version, encode_body = LARGE_VALID_REQUESTS[name]
    body = encode_body()
    with broker.measured() as cost, Wire(broker.address, 60.0) as connection:
        assert connection.call(api_key, version, body).data
        assert connection.call(wire.METADATA, 4, wire.metadata_request([PLAIN])).data
    assert cost.memory_bytes <= MAX_GROWTH_BYTES, cost
    assert cost.turn_s <= MAX_TURN_S, cost


def test_a_pipelining_connection_does_not_starve_other_connections(broker: WatchedBroker) -> None:
    for n in range(50):
        assert wire.create_topic(broker.address, f"topic-{n}") == 0
    count = 8000
    body = struct.pack(">i", -1) + b"\0"
    requests = b"".join(wire.request(wire.METADATA, 4, body, n, "") for n in range(count))
    with broker.measured() as cost, Wire(broker.address, 60.0) as pipelining, Wire(broker.address, 60.0) as other:
        reader = threading.Thread(target=_read_in_order, args=(pipelining, count))
        reader.start()
        pipelining.send(requests)
        for _ in range(5):
            other.call(wire.METADATA, 4, wire.metadata_request([PLAIN]))
        reader.join(60)
        assert not reader.is_alive()
    assert cost.turn_s <= MAX_TURN_S, cost


def _read_in_order(connection: Wire, count: int) -> None:
    for n in range(count):
        connection.expect_correlation(n)
        connection.receive()


def test_transactional_batches_opened_in_a_worker_are_committed_and_aborted(broker: WatchedBroker) -> None:
    settings = {"bootstrap_servers": broker.bootstrap_servers}
    values = [b"%d " % n * 20_000 for n in range(6)]
    with Producer(**settings, transactional_id="opened", batch_size=200_000, linger_ms=50) as producer:
        producer.init_transactions()
        for should_commit in (True, False, True):
            producer.begin_transaction()
            for value in values:
                producer.send(COMPACTED, value if should_commit else b"aborted" + value, key=value[:1], partition=0)
            if should_commit:
                producer.commit_transaction()
            else:
                producer.flush()
                producer.abort_transaction()
    with Consumer(**settings, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(COMPACTED, 0)])
        received: list[bytes] = []
        deadline = time.monotonic() + 60
        while len(received) < 2 * len(values) and time.monotonic() < deadline:
            received += [record.value for record in consumer.poll(1.0)]
    assert received == values * 2
