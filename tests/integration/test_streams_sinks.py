"""The partition counts that partitioners of sinks receive, with a broker and without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from kavka import Admin, NewPartitions, NewTopic
from kavka.pipeline.streams import sink_partitions
from kavka.pipeline.streams.plan import make_plan
from kavka.pipeline.streams.routing import stateless_step
from kavka.pipeline.streams.settings import settings_of
from kavka.pipeline.streams.workers import Job
from kavka.streams import Produced, StreamsBuilder, StreamsException
from tests.support.processes import wait_until
from tests.support.targets import Target

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


@pytest.fixture
def admin(target: Target) -> Iterator[Admin]:
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        yield admin


@pytest.fixture(autouse=True)
def no_producer_left() -> Iterator[None]:
    yield
    sink_partitions._close_all()
    sink_partitions._of_process.clear()


def job(target: Target, chosen: Any, **settings: Any) -> Job:
    builder = StreamsBuilder()
    builder.stream("in").to(
        chosen, Produced().with_stream_partitioner(lambda topic, key, value, count: int(value) % count)
    )
    topology = builder.build()
    settings_found = settings_of(
        {"application.id": "app", "bootstrap.servers": target.bootstrap_servers, "max.block.ms": "2000", **settings}
    )
    return Job(topology, settings_found, make_plan(topology, {"in": 1}), {}, "run", False, "id", None)


def partitions(job: Job, key: str, values: range) -> list[int]:
    rows = [
        {
            "key": key.encode(),
            "value": str(value).encode(),
            "topic": "in",
            "partition": 0,
            "offset": value,
            "timestamp": 1,
        }
        for value in values
    ]
    (sent,) = stateless_step(job)(iter([pa.RecordBatch.from_pylist(rows, schema=SCHEMA)]))
    partitions: list[int] = sent.column("partition").to_pylist()
    return partitions


def test_a_partitioner_receives_the_partition_count_of_a_dynamic_topic(
    target: Target, admin: Admin, topic: str
) -> None:
    admin.create_topics([NewTopic(topic, 3), NewTopic(f"{topic}-2", 2)])
    by_key = job(target, lambda key, value, record: key)
    assert partitions(by_key, topic, range(5)) == [0, 1, 2, 0, 1]
    assert partitions(by_key, f"{topic}-2", range(5)) == [0, 1, 0, 1, 0]


def test_added_partitions_are_used_after_metadata_max_age(target: Target, admin: Admin, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1)])
    fixed = job(target, topic, **{"metadata.max.age.ms": "1"})
    assert partitions(fixed, "k", range(2)) == [0, 0]
    admin.create_partitions({topic: NewPartitions(2)})
    wait_until(lambda: partitions(fixed, "k", range(2)) == [0, 1], timeout=30, what="the new partition")


def test_an_invalid_topic_is_an_error_with_its_name(target: Target) -> None:
    with pytest.raises(StreamsException, match=r"Could not get partition information for topic no/topic"):
        partitions(job(target, lambda key, value, record: key), "no/topic", range(1))
