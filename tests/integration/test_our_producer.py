"""The producer against a real broker: Kavka by default, Apache Kafka with --target."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import kavka.aio
from kavka import Admin, ErrorCode, KafkaError, NewTopic, Producer, ProducerRecord, TopicPartition
from kavka.client.errors import (
    ClientClosed,
    IllegalState,
    KafkaTimeout,
    SerializationError,
)
from tests.support.reading import read_all, read_values
from tests.support.targets import Target


@pytest.fixture
def producer(target: Target) -> Iterator[Producer]:
    with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
        yield producer


def create_topic(target: Target, name: str, partitions: int = 1, **configs: str) -> None:
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        admin.create_topics([NewTopic(name, partitions, 1, configs=settings)])


def test_the_example_of_the_documentation_works(target: Target, topic: str) -> None:
    outcomes: list[Any] = []
    with Producer({"bootstrap.servers": target.bootstrap_servers, "acks": "all"}) as producer:
        future = producer.send(topic, key="k1", value="v1")
        metadata = future.get(timeout=30)
        assert (metadata.topic, metadata.partition, metadata.offset) == (topic, 0, 0)
        assert (metadata.serialized_key_size, metadata.serialized_value_size) == (2, 2)
        producer.send(topic, value=b"x", callback=lambda metadata, error: outcomes.append((metadata.offset, error)))
    assert outcomes == [(1, None)]
    records = read_all(target.bootstrap_servers, topic)
    assert [(r.key, r.value) for r in records] == [(b"k1", b"v1"), (None, b"x")]
    assert abs(records[0].timestamp - time.time() * 1000) < 60_000


def test_headers_timestamps_and_tombstones_are_delivered_unchanged(
    producer: Producer, target: Target, topic: str
) -> None:
    producer.send(topic, None, key=b"k", timestamp=123_456, headers=[("a", b"1"), ("b", None)])
    producer.send(ProducerRecord(topic, b"v", headers={"c": b"2"}))
    producer.flush(30)
    first, second = read_all(target.bootstrap_servers, topic)
    assert (first.key, first.value, first.timestamp) == (b"k", None, 123_456)
    assert list(first.headers) == [("a", b"1"), ("b", None)]
    assert list(second.headers) == [("c", b"2")]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_of_every_compression_type_are_read(target: Target, topic: str, codec: str) -> None:
    values = [b"value %d " % i * 20 for i in range(3000)]
    with Producer(bootstrap_servers=target.bootstrap_servers, compression_type=codec) as producer:
        for value in values:
            producer.send(topic, value)
    assert read_values(target.bootstrap_servers, topic) == values


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_records_are_delivered_with_every_acks_setting(target: Target, topic: str, acks: str) -> None:
    create_topic(target, topic)
    with Producer(bootstrap_servers=target.bootstrap_servers, acks=acks) as producer:
        future = [producer.send(topic, b"%d" % i) for i in range(500)][-1]
        assert future.get(30).offset == (-1 if acks == "0" else 499)
    assert len(read_values(target.bootstrap_servers, topic, at_least=500)) == 500


def test_keys_are_assigned_to_the_same_partitions_as_by_kafkas_producer(
    producer: Producer, target: Target, topic: str
) -> None:
    create_topic(target, topic, 10)
    # Utils.toPositive(Utils.murmur2(key)) % 10, of kafka-clients.
    for key, hash_ in {"21": -973932308, "foobar": -790332482, "abc": 479470107}.items():
        assert producer.send(topic, b"", key=key).get(30).partition == (hash_ & 0x7FFFFFFF) % 10


def test_records_without_a_key_are_spread_over_all_partitions(target: Target, topic: str) -> None:
    create_topic(target, topic, 3)
    with Producer(bootstrap_servers=target.bootstrap_servers, batch_size=1000) as producer:
        futures = [producer.send(topic, b"x" * 100) for _ in range(600)]
        producer.flush(30)
    count = Counter(future.get(0).partition for future in futures)
    assert set(count) == {0, 1, 2}
    assert min(count.values()) > 80


def test_a_custom_partitioner_chooses_the_partition(target: Target, topic: str) -> None:
    class Last:
        def configure(self, configs: Any) -> None:
            self.offset = int(configs["my.offset"])

        def partition(self, topic: str, key: Any, key_bytes: Any, value: Any, value_bytes: Any, metadata: Any) -> int:
            assert (key, key_bytes, value_bytes) == (17, b"\0" * 7 + b"\x11", b"v")
            return len(metadata.partitions) - self.offset

        def close(self) -> None:
            closed.append(True)

    closed: list[bool] = []
    create_topic(target, topic, 4)
    with Producer(bootstrap_servers=target.bootstrap_servers, partitioner_class=Last, my_offset=1) as producer:
        assert producer.send(topic, "v", key=17).get(30).partition == 3
    assert closed == [True]


def test_many_threads_may_share_a_producer(producer: Producer, target: Target, topic: str) -> None:
    create_topic(target, topic, 2)

    def work(number: int) -> None:
        for i in range(2000):
            producer.send(topic, b"%d-%d" % (number, i), partition=number % 2)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.flush(60)
    for partition in range(2):
        values = read_values(target.bootstrap_servers, topic, partition)
        for number in (partition, partition + 2):
            values_of_thread = [value for value in values if value.startswith(b"%d-" % number)]
            assert values_of_thread == [b"%d-%d" % (number, i) for i in range(2000)]


# --- settings


def test_batches_above_the_topics_limit_are_split(target: Target, topic: str) -> None:
    create_topic(target, topic, max_message_bytes="3000")
    settings = {"batch_size": 20_000, "linger_ms": 50}
    with Producer(bootstrap_servers=target.bootstrap_servers, **settings) as producer:
        futures = [producer.send(topic, b"%0500d" % i) for i in range(100)]
        producer.flush(30)
        assert [future.get(0).offset for future in futures] == list(range(100))
        assert producer.metrics()["batch-split-total"] > 0
        with pytest.raises(KafkaError) as raised_error:
            producer.send(topic, b"x" * 4000).get(30)
        assert raised_error.value.code == ErrorCode.MESSAGE_TOO_LARGE
        assert producer.send(topic, b"after").get(30).offset == 100
    assert read_values(target.bootstrap_servers, topic)[:100] == [b"%0500d" % i for i in range(100)]


def test_a_record_above_max_request_size_fails_its_future(producer: Producer, topic: str) -> None:
    called: list[Any] = []
    future = producer.send(topic, b"x" * 2_000_000, callback=lambda metadata, error: called.append(error))
    with pytest.raises(KafkaError, match=r"max\.request\.size"):
        future.get(0)
    assert called == [future.exception(0)]


def test_deprecated_names_of_settings_work(target: Target, topic: str) -> None:
    deprecated = {
        "metadata.broker.list": target.bootstrap_servers,
        "request.required.acks": "-1",
        "batch.num.messages": "10",
        "queue.buffering.max.ms": "20",
        "message.send.max.retries": "5",
        "compression.codec": "gzip",
        "producer.type": "sync",
        "serializer.class": "kafka.serializer.StringEncoder",
    }
    with Producer(deprecated) as producer:
        future = producer.send(topic, "text")
        assert future.done()
    assert read_values(target.bootstrap_servers, topic) == [b"text"]


def test_an_invalid_topic_name_fails_the_record(producer: Producer) -> None:
    with pytest.raises(KafkaError) as raised_error:
        producer.send("not/a/topic", b"x").get(10)
    assert raised_error.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_send_waits_for_a_missing_partition_and_then_fails(target: Target, topic: str) -> None:
    create_topic(target, topic, 2)
    with Producer(bootstrap_servers=target.bootstrap_servers, max_block_ms=500) as producer:
        with pytest.raises(KafkaTimeout, match="no partition 7"):
            producer.send(topic, b"x", partition=7).get(10)
        with pytest.raises(ValueError, match="partition"):
            producer.send(topic, b"x", partition=-1)
        timer = threading.Timer(
            0.2, lambda: Admin(bootstrap_servers=target.bootstrap_servers).create_partitions({topic: 3})
        )
        timer.start()
        producer._core._max_block = 30
        assert producer.send(topic, b"x", partition=2).get(30).partition == 2
        timer.join()


def test_send_fails_after_max_block_without_a_broker() -> None:
    with Producer(bootstrap_servers="127.0.0.1:1", max_block_ms=300) as producer:
        start_time = time.monotonic()
        with pytest.raises(KafkaTimeout, match="no metadata of topic t"):
            producer.send("t", b"x").get(10)
        assert 0.2 < time.monotonic() - start_time < 5


def test_partitions_and_metrics_are_available(producer: Producer, target: Target, topic: str) -> None:
    create_topic(target, topic, 3)
    assert [p.partition for p in producer.partitions_for(topic)] == [0, 1, 2]
    producer.send(topic, b"x").get(30)
    metrics = producer.metrics()
    assert metrics["record-send-total"] == 1
    assert metrics["buffer-available-bytes"] == metrics["buffer-total-bytes"] == 33554432
    assert metrics["request-latency-avg"] > 0


# --- interceptors, callbacks and serializers


class Recorder:
    """An interceptor that changes records and stores outcomes."""

    def __init__(self) -> None:
        self.outcomes: list[Any] = []
        self.closed = False

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        record.value = f"<{record.value}>"
        return record

    def on_acknowledgement(self, metadata: Any, error: Any) -> None:
        self.outcomes.append((metadata, error))

    def close(self) -> None:
        self.closed = True


class Broken:
    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        raise RuntimeError("broken on_send")

    def on_acknowledgement(self, metadata: Any, error: Any) -> None:
        raise RuntimeError("broken on_acknowledgement")


def test_interceptors_receive_all_records_and_outcomes_and_failing_ones_are_ignored(
    target: Target, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder()
    called: list[Any] = []
    with Producer(bootstrap_servers=target.bootstrap_servers, interceptor_classes=[Broken, recorder]) as producer:
        producer.send(topic, "a", callback=lambda metadata, error: called.append(metadata.offset)).get(30)
        with pytest.raises(SerializationError):
            producer.send(topic, "b", headers=[("bad", "text")])  # type: ignore[list-item]
    assert read_values(target.bootstrap_servers, topic) == [b"<a>"]
    assert called == [0]
    assert [(metadata and metadata.offset, type(error)) for metadata, error in recorder.outcomes] == [
        (0, type(None)),
        (None, SerializationError),
    ]
    assert recorder.closed
    assert "broken on_send" in caplog.text
    assert "broken on_acknowledgement" in caplog.text


def test_an_error_of_a_callback_is_logged_and_ignored(
    producer: Producer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(metadata: Any, error: Any) -> None:
        raise RuntimeError("failed callback")

    producer.send(topic, b"a", callback=fail).get(30)
    assert producer.send(topic, b"b").get(30).offset == 1
    producer.flush(10)
    assert "failed callback" in caplog.text


def test_a_callback_may_send_more(producer: Producer, target: Target, topic: str) -> None:
    done = threading.Event()

    def send_next(metadata: Any, error: Any) -> None:
        if metadata.offset < 5:
            producer.send(topic, b"%d" % (metadata.offset + 1), callback=send_next)
        else:
            done.set()

    producer.send(topic, b"0", callback=send_next)
    assert done.wait(30)
    assert read_values(target.bootstrap_servers, topic) == [b"%d" % i for i in range(6)]


def test_waiting_inside_a_callback_raises_an_error(producer: Producer, topic: str) -> None:
    raised: list[Any] = []

    def flush(metadata: Any, error: Any) -> None:
        try:
            producer.flush()
        except KafkaTimeout as error:
            raised.append(error)

    producer.send(topic, b"x", callback=flush).get(30)
    producer.flush(10)
    assert len(raised) == 1


def test_send_raises_the_error_of_a_serializer_and_later_records_are_sent(target: Target, topic: str) -> None:
    def serialize(value: str) -> bytes:
        if value == "bad":
            raise RuntimeError("invalid value")
        return value.encode()

    with Producer(bootstrap_servers=target.bootstrap_servers, value_serializer=serialize) as producer:
        producer.send(topic, "good")
        with pytest.raises(SerializationError, match="invalid value"):
            producer.send(topic, "bad")
        producer.send(topic, "better")
    assert read_values(target.bootstrap_servers, topic) == [b"good", b"better"]


# --- flush and close


def test_close_sends_buffered_records_and_later_sends_fail(target: Target, topic: str) -> None:
    producer = Producer(bootstrap_servers=target.bootstrap_servers, linger_ms=60_000, batch_size=1 << 20)
    create_topic(target, topic)
    futures = [producer.send(topic, b"%d" % i) for i in range(100)]
    assert not futures[-1].done()
    producer.close(30)
    assert futures[-1].get(0).offset == 99
    with pytest.raises(ClientClosed):
        producer.send(topic, b"x")
    producer.close()
    producer.flush()


def test_flush_does_not_wait_for_linger(target: Target, topic: str) -> None:
    with Producer(bootstrap_servers=target.bootstrap_servers, linger_ms=60_000) as producer:
        future = producer.send(topic, b"x")
        producer.flush(30)
        assert future.get(0).offset == 0


# --- transactions


def test_a_transaction_is_atomic(target: Target, topic: str) -> None:
    create_topic(target, topic, 2)
    name = f"tx-{uuid.uuid4().hex[:8]}"
    with Producer(bootstrap_servers=target.bootstrap_servers, transactional_id=name) as producer:
        with pytest.raises(IllegalState, match="init_transactions"):
            producer.send(topic, b"too early")
        producer.init_transactions(60)
        with pytest.raises(IllegalState, match="begin_transaction"):
            producer.send(topic, b"too early")
        producer.begin_transaction()
        for i in range(10):
            producer.send(topic, b"committed %d" % i, partition=i % 2)
        producer.commit_transaction(60)
        producer.begin_transaction()
        future = producer.send(topic, b"aborted", partition=0)
        producer.flush(30)
        assert future.succeeded()
        producer.abort_transaction(60)
        producer.begin_transaction()
        unsent = producer.send(topic, b"never sent", partition=0)
        producer.abort_transaction(60)
        assert unsent.done()
        producer.begin_transaction()
        producer.send(topic, b"last", partition=0)
        producer.commit_transaction(60)
        with pytest.raises(IllegalState):
            producer.commit_transaction()
    committed = [b"committed %d" % i for i in range(0, 10, 2)]
    assert read_values(target.bootstrap_servers, topic, read_committed=True) == [*committed, b"last"]
    assert b"aborted" in read_values(target.bootstrap_servers, topic)


def test_offsets_are_committed_only_with_the_transaction(target: Target, topic: str) -> None:
    create_topic(target, topic)
    group, tp = f"g-{topic}", TopicPartition(topic, 0)
    with (
        Producer(bootstrap_servers=target.bootstrap_servers, transactional_id=f"tx-{topic}") as producer,
        Admin(bootstrap_servers=target.bootstrap_servers) as admin,
    ):
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.send(topic, b"x")
        producer.send_offsets_to_transaction({tp: 5}, group)
        producer.abort_transaction(60)
        assert admin.list_consumer_group_offsets(group, [tp], require_stable=True) == {tp: None}
        producer.begin_transaction()
        producer.send_offsets_to_transaction({tp: 7}, group)
        producer.commit_transaction(60)
        assert admin.list_consumer_group_offsets(group, [tp], require_stable=True)[tp].offset == 7  # type: ignore[union-attr]


def test_a_second_producer_with_the_same_transactional_id_fences_the_first(target: Target, topic: str) -> None:
    settings = {"bootstrap_servers": target.bootstrap_servers, "transactional_id": f"tx-{topic}"}
    with Producer(**settings) as first, Producer(**settings) as second:
        first.init_transactions(60)
        first.begin_transaction()
        first.send(topic, b"first").get(30)
        second.init_transactions(60)
        with pytest.raises(KafkaError) as raised_error:
            first.send(topic, b"first again")
            first.commit_transaction(60)
        assert raised_error.value.code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
        second.begin_transaction()
        second.send(topic, b"second")
        second.commit_transaction(60)
    assert read_values(target.bootstrap_servers, topic, read_committed=True) == [b"second"]


def test_a_failed_record_fails_the_transaction_until_it_is_aborted(target: Target, topic: str) -> None:
    create_topic(target, topic, max_message_bytes="2000")
    with Producer(bootstrap_servers=target.bootstrap_servers, transactional_id=f"tx-{topic}") as producer:
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.send(topic, b"fine")
        producer.send(topic, b"x" * 5000)
        with pytest.raises(KafkaError, match="must be aborted"):
            producer.commit_transaction(60)
        with pytest.raises(KafkaError, match="must be aborted"):
            producer.send(topic, b"more").get(0)
        producer.abort_transaction(60)
        producer.begin_transaction()
        producer.send(topic, b"after")
        producer.commit_transaction(60)
    assert read_values(target.bootstrap_servers, topic, read_committed=True) == [b"after"]


def test_closing_in_a_transaction_aborts_it(target: Target, topic: str) -> None:
    producer = Producer(bootstrap_servers=target.bootstrap_servers, transactional_id=f"tx-{topic}")
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.send(topic, b"x").get(30)
    producer.close(30)
    assert read_values(target.bootstrap_servers, topic, read_committed=True) == []


def test_transactions_require_a_transactional_id(producer: Producer) -> None:
    with pytest.raises(IllegalState, match=r"transactional\.id"):
        producer.begin_transaction()


# --- asyncio


def test_the_asyncio_producer_behaves_like_the_blocking_one(target: Target, topic: str) -> None:
    async def work() -> None:
        async with kavka.aio.Producer(bootstrap_servers=target.bootstrap_servers) as producer:
            assert (await producer.send_and_wait(topic, "first", key="k")).offset == 0
            futures = [await producer.send(topic, b"%d" % i) for i in range(1000)]
            assert (await futures[-1]).offset == 1000
            await producer.flush()
            assert all(future.done() for future in futures)
            assert len(await producer.partitions_for(topic)) == 1
            assert producer.metrics()["record-send-total"] == 1001
            with pytest.raises(KafkaError):
                await (await producer.send(topic, b"x" * 2_000_000))
        with pytest.raises(ClientClosed):
            await producer.send(topic, b"x")

    asyncio.run(work())
    assert len(read_values(target.bootstrap_servers, topic)) == 1001


def test_the_asyncio_producer_waits_for_buffer_memory_without_blocking_the_loop(target: Target, topic: str) -> None:
    async def work() -> int:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticking = asyncio.create_task(tick())
        async with kavka.aio.Producer(bootstrap_servers=target.bootstrap_servers, buffer_memory=50_000) as producer:
            for i in range(2000):
                await producer.send(topic, b"%0500d" % i)
        ticking.cancel()
        return ticks

    assert asyncio.run(work()) > 10
    assert read_values(target.bootstrap_servers, topic) == [b"%0500d" % i for i in range(2000)]


def test_the_asyncio_producer_commits_and_aborts_transactions(target: Target, topic: str) -> None:
    async def work() -> None:
        settings = {"bootstrap_servers": target.bootstrap_servers, "transactional_id": f"tx-{topic}"}
        async with kavka.aio.Producer(**settings) as producer:
            await producer.init_transactions(60)
            await producer.begin_transaction()
            await producer.send(topic, b"yes")
            await producer.commit_transaction(60)
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"no")
            await producer.abort_transaction(60)

    asyncio.run(work())
    assert read_values(target.bootstrap_servers, topic, read_committed=True) == [b"yes"]
