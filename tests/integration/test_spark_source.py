"""The source: `spark.read` and `spark.readStream` with `format("kavka")`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kavka import Admin, NewTopic, Producer, TopicPartition
from kavka.pipeline.spark.offsets import from_checkpoint
from kavka.pipeline.spark.options import source_options
from kavka.pipeline.spark.source import KavkaStreamReader
from tests.support.processes import wait_until
from tests.support.spark import start as start_query
from tests.support.targets import Target

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]

# The records have old timestamps: retention must not delete them.
NO_RETENTION = {"retention.ms": "-1"}


@pytest.fixture
def admin(target: Target) -> Any:
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        yield admin


@pytest.fixture
def fill(target: Target) -> Any:
    """A function that produces records to one partition of a topic."""
    with Producer(bootstrap_servers=target.bootstrap_servers) as producer:

        def fill(topic: str, values: Any, partition: int = 0, **fields: Any) -> None:
            for value in values:
                producer.send(topic, value=str(value).encode(), partition=partition, **fields)
            producer.flush(30)

        yield fill


@pytest.fixture
def table(spark: Any) -> Any:
    """A function that starts a query which writes to a table in memory. `rows()` of the query
    returns the rows of the table."""
    queries: list[Any] = []

    def start(source: Any, **options: str) -> Any:
        name = f"t{len(queries)}"
        writer = source.writeStream.format("memory").queryName(name)
        for key, value in options.items():
            writer = writer.option(key, value)
        query = start_query(writer)
        queries.append(query)
        query.rows = lambda: spark.table(name).collect()
        return query

    yield start
    for query in queries:
        query.stop()


def stream(spark: Any, target: Target, **options: object) -> Any:
    reader = spark.readStream.format("kavka").option("kafka.bootstrap.servers", target.bootstrap_servers)
    return reader.options(**options).load()


def batch(spark: Any, target: Target, **options: object) -> Any:
    reader = spark.read.format("kavka").option("kafka.bootstrap.servers", target.bootstrap_servers)
    return reader.options(**options).load()


def test_a_stream_reads_every_record_with_all_columns(
    spark: Any, target: Target, admin: Admin, fill: Callable[..., None], table: Any, topic: str
) -> None:
    admin.create_topics([NewTopic(topic, 2, configs=NO_RETENTION)])
    fill(topic, range(10), key=b"k", headers=[("h", b"x"), ("null", None)], timestamp=1_700_000_000_123)
    fill(topic, range(10, 15), partition=1)
    query = table(stream(spark, target, subscribe=topic, startingOffsets="earliest", includeHeaders="true"))
    query.processAllAvailable()
    rows = sorted(query.rows(), key=lambda row: (row.partition, row.offset))
    assert [int(row.value) for row in rows] == list(range(15))
    first = rows[0]
    assert (bytes(first.key), first.topic, first.partition, first.offset) == (b"k", topic, 0, 0)
    assert (first.timestamp.timestamp(), first.timestampType) == (1_700_000_000.123, 0)
    assert [(h.key, h.value) for h in first.headers] == [("h", bytearray(b"x")), ("null", None)]
    assert (rows[10].key, rows[10].headers) == (None, None)
    fill(topic, [15])
    query.processAllAvailable()
    assert sorted(int(row.value) for row in query.rows()) == list(range(16))


def test_a_batch_reads_between_offsets_in_the_configured_number_of_tasks(
    spark: Any, target: Target, admin: Admin, fill: Callable[..., None], topic: str
) -> None:
    admin.create_topics([NewTopic(topic, 2, configs=NO_RETENTION)])
    fill(topic, range(100), timestamp=1000)
    fill(topic, range(100, 200), timestamp=2000)
    fill(topic, range(1000, 1010), partition=1, timestamp=2500)
    all_records = batch(spark, target, subscribe=topic, minPartitions="4")
    assert all_records.rdd.getNumPartitions() == 4
    assert sorted(int(row.value) for row in all_records.collect()) == [*range(200), *range(1000, 1010)]
    range_of_offsets = batch(
        spark,
        target,
        assign=f'{{"{topic}":[0]}}',
        startingOffsets=f'{{"{topic}":{{"0":10}}}}',
        endingOffsets=f'{{"{topic}":{{"0":30}}}}',
        maxRecordsPerPartition="5",
    )
    assert range_of_offsets.rdd.getNumPartitions() == 4
    assert sorted(int(row.value) for row in range_of_offsets.collect()) == list(range(10, 30))
    range_of_times = batch(
        spark,
        target,
        subscribe=topic,
        startingOffsetsByTimestamp=f'{{"{topic}":{{"0":1500,"1":0}}}}',
        endingTimestamp="2400",
    )
    assert sorted(int(row.value) for row in range_of_times.collect()) == list(range(100, 200))


def test_a_stream_continues_after_its_checkpoint_in_batches_of_the_configured_size(
    spark: Any, target: Target, admin: Admin, fill: Callable[..., None], topic: str, tmp_path: Path
) -> None:
    admin.create_topics([NewTopic(topic, 2)])
    fill(topic, range(90))
    fill(topic, range(90, 100), partition=1)
    source = stream(
        spark,
        target,
        subscribe=topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger="40",
        groupIdCommit=f"g-{topic}",
    )
    batches: list[tuple[int, list[int]]] = []

    def store(frame: Any, batch_id: int) -> None:
        batches.append((batch_id, sorted(int(row.value) for row in frame.collect())))

    def run() -> None:
        writer = source.writeStream.foreachBatch(store).option("checkpointLocation", str(tmp_path / "cp"))
        start_query(writer.trigger(availableNow=True)).awaitTermination(120)

    run()
    assert [len(values) for _, values in batches] == [40, 40, 20]
    assert batches[0][1] == [*range(36), *range(90, 94)]
    assert sorted(value for _, values in batches for value in values) == list(range(100))
    committed = admin.list_consumer_group_offsets(f"g-{topic}")
    assert {tp.partition: offset.offset for tp, offset in committed.items() if offset} == {0: 90, 1: 10}
    fill(topic, [100])
    run()
    assert batches[3:] == [(3, [100])]


def test_batches_of_a_stream_are_limited_by_bytes(
    target: Target, admin: Admin, fill: Callable[..., None], topic: str
) -> None:
    admin.create_topics([NewTopic(topic, 2)])
    for partition in (0, 1):
        fill(topic, ["x" * 1000] * 50, partition=partition)
    settings = {"kafka.bootstrap.servers": target.bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest"}
    reader = KavkaStreamReader(source_options({**settings, "maxBytesPerTrigger": "40000"}, streaming=True))
    try:
        end = from_checkpoint(reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit()))
    finally:
        reader.stop()
    assert 30 <= sum(end.values()) <= 40
    assert len(set(end.values())) == 1


def test_a_repeated_first_batch_has_the_same_start_offset(
    spark: Any, target: Target, admin: Admin, fill: Callable[..., None], topic: str, tmp_path: Path
) -> None:
    admin.create_topics([NewTopic(topic, 1)])
    fill(topic, range(5))
    source = stream(spark, target, subscribe=topic)
    batches: list[list[int]] = []

    def store(frame: Any, batch_id: int) -> None:
        values = sorted(int(row.value) for row in frame.collect())
        batches.append(values)
        if len(batches) == 1:
            raise RuntimeError("the first batch fails")

    def run() -> Any:
        return start_query(source.writeStream.foreachBatch(store).option("checkpointLocation", str(tmp_path / "cp")))

    # Spark runs a first batch even if there is nothing to read yet.
    with pytest.raises(Exception, match="the first batch fails"):
        run().awaitTermination(60)
    fill(topic, [5, 6])
    query = run()
    query.processAllAvailable()
    query.stop()
    assert batches == [[], [], [5, 6]]


def test_topics_and_partitions_created_later_are_read_from_their_beginning(
    spark: Any, target: Target, admin: Admin, fill: Callable[..., None], table: Any, topic: str
) -> None:
    admin.create_topics([NewTopic(f"{topic}-a", 1)])
    fill(f"{topic}-a", [1])
    query = table(stream(spark, target, subscribePattern=f"{topic}-.*", startingOffsets="earliest"))
    query.processAllAvailable()
    admin.create_topics([NewTopic(f"{topic}-b", 1)])
    fill(f"{topic}-b", [2])
    admin.create_partitions({f"{topic}-a": 2})
    fill(f"{topic}-a", [3], partition=1)
    wait_until(lambda: len(query.rows()) == 3, timeout=60, what="the later records")
    assert sorted(int(row.value) for row in query.rows()) == [1, 2, 3]


def test_lost_records_are_reported_exactly_or_skipped(
    spark: Any, target: Target, admin: Admin, fill: Callable[..., None], table: Any, topic: str
) -> None:
    admin.create_topics([NewTopic(topic, 1)])
    fill(topic, range(20))
    admin.delete_records({TopicPartition(topic, 0): 8})
    options = {"subscribe": topic, "startingOffsets": f'{{"{topic}":{{"0":3}}}}'}
    with pytest.raises(Exception, match=rf"{topic}-0: offsets 3 to 7 no longer exist, the first is now 8") as raised:
        batch(spark, target, **options).collect()
    assert "Traceback" not in str(raised.value)
    remaining = batch(spark, target, **options, failOnDataLoss="false").collect()
    assert sorted(int(row.value) for row in remaining) == list(range(8, 20))
    beyond = {"subscribe": topic, "endingOffsets": f'{{"{topic}":{{"0":25}}}}', "kafkaConsumer.pollTimeoutMs": "2000"}
    with pytest.raises(Exception, match=rf"{topic}-0: offsets 20 to 24 no longer exist, it now ends at 20"):
        batch(spark, target, **beyond).collect()
    query = table(stream(spark, target, subscribe=topic, startingOffsets="earliest"))
    query.processAllAvailable()
    admin.delete_topics([topic])
    with pytest.raises(Exception, match=f"the cluster has no topic {topic}"):
        query.awaitTermination(60)


def test_a_stream_passes_markers_and_omits_aborted_records_if_configured(
    spark: Any, target: Target, admin: Admin, table: Any, topic: str
) -> None:
    admin.create_topics([NewTopic(topic, 1)])
    with Producer(bootstrap_servers=target.bootstrap_servers, transactional_id=topic) as producer:
        producer.init_transactions()
        for number, commit in ((1, True), (2, False), (3, True)):
            producer.begin_transaction()
            producer.send(topic, str(number)).get(10)
            producer.commit_transaction() if commit else producer.abort_transaction()
        committed = table(
            stream(
                spark,
                target,
                subscribe=topic,
                startingOffsets="earliest",
                **{"kafka.isolation.level": "read_committed"},
            )
        )
        everything = table(stream(spark, target, subscribe=topic, startingOffsets="earliest"))
        everything.processAllAvailable()
        # The markers are written after the coordinator's response.
        wait_until(lambda: len(committed.rows()) >= 2, timeout=60, what="the committed records")
        assert sorted(int(row.value) for row in committed.rows()) == [1, 3]
        assert sorted(int(row.value) for row in everything.rows()) == [1, 2, 3]
        producer.begin_transaction()
        producer.send(topic, "4").get(10)
        everything.processAllAvailable()
        committed.processAllAvailable()
        assert sorted(int(row.value) for row in everything.rows()) == [1, 2, 3, 4]
        assert sorted(int(row.value) for row in committed.rows()) == [1, 3]
        producer.commit_transaction()
        wait_until(lambda: len(committed.rows()) >= 3, timeout=60, what="the committed records")
        assert sorted(int(row.value) for row in committed.rows()) == [1, 3, 4]


def test_a_batch_waits_for_enough_records_but_not_forever(
    spark: Any, target: Target, admin: Admin, fill: Callable[..., None], table: Any, topic: str
) -> None:
    admin.create_topics([NewTopic(topic, 1)])
    fill(topic, range(5))
    waiting = table(
        stream(
            spark, target, subscribe=topic, startingOffsets="earliest", minOffsetsPerTrigger="10", maxTriggerDelay="1h"
        )
    )
    limited = table(
        stream(
            spark, target, subscribe=topic, startingOffsets="earliest", minOffsetsPerTrigger="10", maxTriggerDelay="1s"
        )
    )
    wait_until(lambda: len(limited.rows()) == 5, timeout=60, what="a batch after a second")
    assert waiting.rows() == []
    fill(topic, range(5))
    wait_until(lambda: len(waiting.rows()) == 10, timeout=60, what="a batch of ten records")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "no-such-topic"}, "the cluster has no topic no-such-topic"),
        (
            {"subscribe": "x", "includeHeader": "true"},
            "includeheader is not an option of kavka; the nearest is includeHeaders",
        ),
        ({"subscribe": "x", "kafka.security.protocol": "SASL_SSL"}, "GSSAPI"),
    ],
)
def test_an_invalid_option_is_reported_without_a_traceback(
    spark: Any, target: Target, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception) as raised:
        batch(spark, target, **options, **{"fetchOffset.numRetries": "0"}).collect()
    assert message in str(raised.value)
    assert "Traceback" not in str(raised.value)
