"""A topic is deleted and created again between two batches of a stream. The tests call the readers
as Spark does, with the offsets of its checkpoint, without starting Spark."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from kavka import Admin, NewTopic, Producer, TopicPartition
from kavka.client.admin.types import TopicDescription, TopicPartitionInfo
from kavka.common.errors import KafkaError
from kavka.jobs import offsets_between
from kavka.pipeline.mirror.settings import flows_of
from kavka.pipeline.mirror.source import MirrorStreamReader
from kavka.pipeline.spark.offsets import ids_of, recreated
from kavka.pipeline.spark.options import source_options
from kavka.pipeline.spark.source import KavkaStreamReader, OffsetRange
from tests.support.processes import wait_until
from tests.support.targets import Target

pytestmark = pytest.mark.records

ALL = ReadAllAvailable()


@pytest.fixture
def admin(target: Target) -> Iterator[Admin]:
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        yield admin


class Stream:
    """A query that is restarted for each batch. `end` is the offset in its checkpoint."""

    def __init__(self, make: Callable[[], KavkaStreamReader]) -> None:
        self._make = make
        self.end: dict[str, Any] | None = None

    def batch(self, limit: ReadLimit | None = None) -> list[tuple[int, int]]:
        """The offset ranges of the next batch, planned by a new run of the query."""
        reader = self._make()
        try:
            start = _stored(reader.initialOffset() if self.end is None else self.end)
            self.end = _stored(reader.latestOffset(start, limit or reader.getDefaultReadLimit()))
            planned = reader.partitions(start, self.end)
            assert planned == [] or self.end != start
            again = self._make()
            try:
                # After a crash Spark plans the same batch again. The tasks must be the same.
                assert _ranges(again.partitions(start, self.end)) == _ranges(planned)
            finally:
                again.stop()
            return _ranges(planned)
        finally:
            reader.stop()

    def commit(self) -> None:
        """Commits the last batch: a new run passes its end to `latestOffset`."""
        reader = self._make()
        assert self.end is not None
        reader.latestOffset(self.end, ALL)
        reader.stop()


def _stored(offset: dict[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(offset))
    return document


def _ranges(planned: Any) -> list[tuple[int, int]]:
    assert all(isinstance(range_, OffsetRange) for range_ in planned)
    return [(range_.offsets.start, range_.offsets.end) for range_ in planned]


def source(target: Target, topic: str, **options: str) -> Stream:
    settings = {"kafka.bootstrap.servers": target.bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest"}
    return Stream(lambda: KavkaStreamReader(source_options({**settings, **options}, streaming=True)))


def mirror(target: Target, topic: str) -> Stream:
    """A mirror whose source and target are the same cluster."""
    servers = target.bootstrap_servers
    file = {"clusters": "A, B", "A.bootstrap.servers": servers, "B.bootstrap.servers": servers, "A->B.enabled": "true"}
    file |= {"topics": topic, "heartbeats.replication.enabled": "false"}
    (flow,) = [flow for flow in flows_of(file) if flow.enabled]
    return Stream(lambda: MirrorStreamReader(flow))


def fill(target: Target, topic: str, count: int) -> None:
    with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number)


def recreate(target: Target, admin: Admin, topic: str, count: int) -> None:
    admin.delete_topics([topic])

    def try_create() -> bool:
        try:
            admin.create_topics([NewTopic(topic, 1)])
        except KafkaError:
            return False
        return True

    wait_until(try_create, timeout=60, what=f"{topic} to be created again")
    fill(target, topic, count)


def test_a_mirror_starts_at_the_beginning_of_a_recreated_topic(
    target: Target, admin: Admin, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    admin.create_topics([NewTopic(topic, 1), NewTopic(f"A.{topic}", 1)])
    fill(target, topic, 5)
    stream = mirror(target, topic)
    assert stream.batch() == [(0, 5)]
    recreate(target, admin, topic, 8)
    with caplog.at_level(logging.WARNING):
        assert stream.batch() == [(0, 8)]
    assert f"topic {topic} was deleted and created again" in caplog.text
    assert stream.batch() == []
    fill(target, topic, 2)
    assert stream.batch() == [(8, 10)]


def test_a_mirror_does_not_commit_offsets_of_the_deleted_topic(target: Target, admin: Admin, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1), NewTopic(f"A.{topic}", 1)])
    fill(target, topic, 5)
    stream = mirror(target, topic)
    stream.batch()
    stream.commit()
    tp = TopicPartition(topic, 0)
    committed = admin.list_consumer_group_offsets("kavka-mirror-A->B", [tp])[tp]
    assert committed is not None and committed.offset == 5
    recreate(target, admin, topic, 8)
    stream.commit()
    # The committed offset was deleted with the topic. Otherwise a start without a checkpoint would
    # skip records.
    committed = admin.list_consumer_group_offsets("kavka-mirror-A->B", [tp])[tp]
    assert committed is None or committed.offset < 0


def test_a_stream_reports_a_recreated_topic_or_starts_again(target: Target, admin: Admin, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1)])
    fill(target, topic, 5)
    strict, lenient = source(target, topic), source(target, topic, failOnDataLoss="false", maxOffsetsPerTrigger="6")
    assert strict.batch() == lenient.batch() == [(0, 5)]
    for count in (8, 3, 3):
        recreate(target, admin, topic, count)
        with pytest.raises(Exception, match=f"topic {topic} was deleted and created again"):
            strict.batch()
        assert lenient.batch() == [(0, min(count, 6))]
        lenient.batch()


def test_topic_ids_are_added_to_a_checkpoint_of_an_earlier_version(target: Target, admin: Admin, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1)])
    fill(target, topic, 5)
    stream = source(target, topic)
    stream.end = {topic: {"0": 3}}
    assert stream.batch() == [(3, 5)]
    stream.end = {topic: {"0": 5}}
    assert stream.batch() == []
    recreate(target, admin, topic, 8)
    with pytest.raises(Exception, match=f"topic {topic} was deleted and created again"):
        stream.batch()


def test_a_batch_waits_for_enough_records_of_the_new_topic(target: Target, admin: Admin, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1)])
    fill(target, topic, 5)
    stream = source(target, topic, failOnDataLoss="false", minOffsetsPerTrigger="5", maxTriggerDelay="10m")
    assert stream.batch() == [(0, 5)]
    recreate(target, admin, topic, 3)
    assert stream.batch() == []
    fill(target, topic, 4)
    assert stream.batch() == [(0, 7)]


def test_progress_does_not_mistake_topic_ids_for_topics(target: Target, admin: Admin, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1)])
    fill(target, topic, 5)
    stream = source(target, topic)
    stream.batch()
    assert offsets_between(None, json.dumps(stream.end)) == {(topic, 0): 5}


def described(epochs: list[int], topic_id: int = 0) -> dict[str, Any]:
    partitions = tuple(TopicPartitionInfo(number, None, epoch, (), ()) for number, epoch in enumerate(epochs))
    return dict(ids_of([TopicDescription("t", UUID(int=topic_id), False, partitions)]))


def test_without_ids_a_lower_leader_epoch_indicates_a_recreated_topic() -> None:
    assert recreated(described([3, 5]), described([3, 4])) == {"t"}
    assert not recreated(described([3, 5]), described([4, 5, 0]))
    # An upgraded cluster, or a cluster without topic ids.
    assert not recreated(described([3]), described([0], 7))
    assert not recreated(described([3], 7), described([0]))
    assert recreated(described([3], 7), described([3], 8)) == {"t"}
    assert not recreated({}, described([3])) and not recreated(described([3]), {})
