"""The source: `spark.read` and `spark.readStream` with `format("kavka")`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kavka import Admin, NewTopic, Producer
from tests.support.spark import start as start_query
from tests.support.targets import Target

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]


@pytest.fixture
def admin(target: Target) -> Any:
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        yield admin


@pytest.fixture
def fill(target: Target) -> Any:
    """Write records with the given values to one partition of a topic."""
    with Producer(bootstrap_servers=target.bootstrap_servers) as producer:

        def fill(topic: str, values: Any, partition: int = 0, **more: Any) -> None:
            for value in values:
                producer.send(topic, value=str(value).encode(), partition=partition, **more)
            producer.flush(30)

        yield fill


@pytest.fixture
def table(spark: Any) -> Any:
    """Run a streaming query into a table in memory; its rows are what the test looks at."""
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


def test_a_stream_brings_every_record_with_all_its_columns(
    spark: Any, target: Target, admin: Admin, fill: Callable[..., None], table: Any, topic: str
) -> None:
    admin.create_topics([NewTopic(topic, 2)])
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
