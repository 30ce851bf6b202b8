"""The sink: `df.write` and `df.writeStream` with `format("kavka")`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kavka import Admin, NewTopic, Producer
from tests.support.our_consumer import read_all
from tests.support.spark import start
from tests.support.targets import Target

pytestmark = [pytest.mark.java, pytest.mark.timeout(240), pytest.mark.records]


@pytest.fixture
def admin(target: Target) -> Any:
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        yield admin


def fill(target: Target, topic: str, values: Any, partition: int = 0) -> None:
    with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
        for value in values:
            producer.send(topic, value=str(value).encode(), partition=partition)


def values(records: list[Any]) -> list[int]:
    return sorted(int(record.value) for record in records)


def options(target: Target, **settings: object) -> dict[str, object]:
    return {"kafka.bootstrap.servers": target.bootstrap_servers, **settings}


def test_a_batch_writes_every_column(spark: Any, target: Target, admin: Admin, topic: str) -> None:
    other = f"{topic}-other"
    admin.create_topics([NewTopic(topic, 3), NewTopic(other, 1)])
    rows = [
        (topic, "k1", "v1", 2, [("h", bytearray(b"x")), ("empty", None)]),
        (topic, None, "v2", 1, None),
        (other, "k3", None, None, []),
    ]
    headers = "array<struct<key:string,value:binary>>"
    schema = f"topic string, key string, value string, partition int, headers {headers}, more int"
    frame = spark.createDataFrame([(*row, 1) for row in rows], schema)
    frame.write.format("kavka").options(**options(target)).mode("append").save()
    first, second = sorted(read_all(target, topic), key=lambda record: record.value)
    assert (first.key, first.value, first.partition) == (b"k1", b"v1", 2)
    assert first.headers == (("h", b"x"), ("empty", None))
    assert (second.key, second.value, second.partition, second.headers) == (None, b"v2", 1, ())
    (third,) = read_all(target, other)
    assert (third.key, third.value) == (b"k3", None)


@pytest.mark.parametrize("exactly_once", ["false", "true"])
def test_a_stream_writes_each_record_once(
    spark: Any, target: Target, admin: Admin, topic: str, tmp_path: Path, exactly_once: str
) -> None:
    output_topic = f"{topic}-out"
    admin.create_topics([NewTopic(topic, 2), NewTopic(output_topic, 2)])
    fill(target, topic, range(100))
    fill(target, topic, range(100, 150), partition=1)
    source = spark.readStream.format("kavka").options(
        **options(target, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=60)
    )
    query = start(
        source.load()
        .selectExpr("key", "value")
        .writeStream.format("kavka")
        .options(
            **options(target, topic=output_topic, exactlyOnce=exactly_once, checkpointLocation=str(tmp_path / "cp"))
        )
    )
    try:
        query.processAllAvailable()
        assert values(read_all(target, output_topic)) == list(range(150))
        fill(target, topic, range(150, 160))
        query.processAllAvailable()
        assert values(read_all(target, output_topic)) == list(range(160))
        assert query.lastProgress.batchId >= 3
    finally:
        query.stop()
    open_transactions = [
        transaction
        for transaction in admin.list_transactions(states=["Ongoing"])
        if query.id in transaction.transactional_id
    ]
    assert open_transactions == []
