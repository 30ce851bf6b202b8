from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from kavka.client.types import OffsetAndMetadata
from kavka.common.types import TopicPartition
from kavka.pipeline.spark.errors import PipelineError
from kavka.pipeline.spark.offsets import DONE_BY_JOB
from kavka.pipeline.spark.options import source_options
from kavka.pipeline.spark.source import KavkaStreamReader
from kavka.pipeline.streams.plan import make_plan
from kavka.pipeline.streams.routed_source import RoutedReader
from kavka.pipeline.streams.settings import settings_of
from kavka.pipeline.streams.sources import _starting, check_partitions, check_reset, policies_of, set_by_others
from kavka.streams import StreamsBuilder, StreamsException, Topology

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


class Group:
    """In place of an admin: what a group has committed, and topics of two partitions from offset 10
    to 50, where the first open transaction begins at 40."""

    def __init__(self, committed: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        self._committed = committed

    def list_consumer_group_offsets(self, group: str, *, timeout: float) -> Mapping[TopicPartition, Any]:
        assert group == "app"
        return self._committed

    def describe_topics(self, names: Iterable[str]) -> dict[str, Any]:
        partitions = [SimpleNamespace(partition=number) for number in (0, 1)]
        return {name: SimpleNamespace(name=name, partitions=partitions) for name in names}

    def list_offsets(
        self, specs: Mapping[TopicPartition, Any], *, isolation_level: str = "read_uncommitted", timeout: float = 0
    ) -> dict[TopicPartition, Any]:
        end = 40 if isolation_level == "read_committed" else 50
        return {tp: SimpleNamespace(offset=10 if spec.timestamp == -2 else end) for tp, spec in specs.items()}


def topology() -> Topology:
    builder = StreamsBuilder()
    builder.stream("a").repartition().to("out")
    builder.global_table("b")
    return builder.build()


def begin(committed: Mapping[TopicPartition, OffsetAndMetadata | None], **config: Any) -> dict[TopicPartition, int]:
    settings = settings_of({"application.id": "app", "bootstrap.servers": "x:1", **config})
    admin: Any = Group(committed)
    return set_by_others(admin, topology(), settings)


def test_an_application_begins_where_others_have_set_its_group_and_not_where_it_was_itself() -> None:
    assert begin({A0: OffsetAndMetadata(20), A1: OffsetAndMetadata(30, DONE_BY_JOB)}) == {A0: 20}
    assert begin({A0: OffsetAndMetadata(20, "of Kafka Streams"), A1: None}) == {A0: 20}
    assert begin({}) == {}


def test_offsets_outside_the_log_are_ignored() -> None:
    assert begin({A0: OffsetAndMetadata(9), A1: OffsetAndMetadata(51)}) == {}
    assert begin({A0: OffsetAndMetadata(10), A1: OffsetAndMetadata(50)}) == {A0: 10, A1: 50}


def test_read_committed_starts_no_later_than_the_first_open_transaction() -> None:
    exactly = {"processing.guarantee": "exactly_once_v2"}
    assert begin({A0: OffsetAndMetadata(50), A1: OffsetAndMetadata(20)}, **exactly) == {A0: 40, A1: 20}
    assert begin({A0: OffsetAndMetadata(51)}, **exactly) == {}


def test_global_tables_and_the_applications_own_topics_do_not_begin_by_the_group() -> None:
    own = next(iter(topology().internal_topics))
    others = {B0: 20, TopicPartition(f"app-{own}", 0): 20, TopicPartition("elsewhere", 0): 20}
    assert begin({tp: OffsetAndMetadata(at) for tp, at in others.items()}) == {}


def test_partitions_that_are_not_set_begin_as_their_topics_do() -> None:
    policies = {"a": "earliest", "b": "latest"}
    assert _starting({"a": 2}, policies, {}) == "earliest"
    assert _starting({"a": 2}, policies, {B0: 7}) == "earliest"
    assert json.loads(_starting({"a": 2}, policies, {A1: 7})) == {"a": {"0": -2, "1": 7}}
    assert json.loads(_starting({"a": 1, "b": 1}, policies, {B0: 7})) == {"a": {"0": -2}, "b": {"0": 7}}


class Cluster:
    """In place of the source's: the topic a with one partition, which ends at 5, and the offsets
    that are committed for the group."""

    def __init__(self) -> None:
        self.commits: list[Any] = []
        self.topic_ids = {"a": "id"}
        self.admin = SimpleNamespace(alter_consumer_group_offsets=self._commit)

    def _commit(self, group: str, offsets: Any, *, timeout: float) -> None:
        self.commits.append(offsets)

    def partitions(self) -> list[TopicPartition]:
        return [A0]

    def resolve(self, *_: Any) -> dict[TopicPartition, int]:
        return {A0: 2}

    def ends(self, *, missing_is_empty: bool) -> dict[TopicPartition, int]:
        return {A0: 5}


def test_a_job_commits_offsets_only_after_its_first_batch() -> None:
    options = {"kafka.bootstrap.servers": "x:1", "subscribe": "a", "groupIdCommit": "g"}
    reader = KavkaStreamReader(source_options(options, streaming=True))
    cluster: Any = Cluster()
    reader._cluster = cluster
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    ids = {"a": "id"}
    assert end == {"a": {"0": 5}, "$topicIds": ids, "$initial": {"a": {"0": 2}, "$topicIds": ids}}
    reader.partitions(start, end)
    assert cluster.commits == []
    reader.latestOffset(end, ReadAllAvailable())
    assert cluster.commits == [{A0: OffsetAndMetadata(5, DONE_BY_JOB)}]


def test_without_a_reset_policy_the_group_must_have_every_partition() -> None:
    policies = {"a": "none", "b": "earliest"}
    check_reset({"a": 2, "b": 1}, policies, {A0: 1, A1: 2})
    with pytest.raises(StreamsException, match=r"input topic a \(partition 1\) and no valid reset policy"):
        check_reset({"a": 2, "b": 1}, policies, {A0: 1})


def test_global_tables_are_read_from_the_beginning() -> None:
    settings = settings_of({"application.id": "app", "bootstrap.servers": "x:1", "auto.offset.reset": "none"})
    assert policies_of(topology(), settings) == {
        "a": "none", "b": "earliest", f"app-{next(iter(topology().internal_topics))}": "latest",
    }  # fmt: skip


def test_topics_of_a_stateful_application_must_keep_their_partitions() -> None:
    settings = settings_of({"application.id": "app", "bootstrap.servers": "x:1"})
    check_partitions({"a": 2, "b": 1}, [A0, A1, B0], {"a", "b"}, settings)
    check_partitions({"a": 4, "b": 1}, [A0, A1, B0], {"b"}, settings)
    check_partitions({"a": 4}, [], {"a"}, settings)
    with pytest.raises(
        StreamsException, match=r"the topic a had 2 partitions and has 4.* --application-id app --input"
    ):
        check_partitions({"a": 4, "b": 1}, [A0, A1, B0], {"a", "b"}, settings)


def test_the_source_of_tasks_refuses_new_partitions_and_that_of_global_tables_follows() -> None:
    job: Any = SimpleNamespace(
        settings=settings_of({"application.id": "app", "bootstrap.servers": "x:1"}),
        plan=make_plan(topology(), {"a": 1, "b": 1}),
        due_path=None,
    )
    options = source_options({"kafka.bootstrap.servers": "x:1", "subscribe": "a,b"}, streaming=True)
    reader = RoutedReader(options, job)
    cluster: Any = SimpleNamespace(earliest=lambda tps: dict.fromkeys(tps, 0))
    reader._cluster = cluster
    b1 = TopicPartition("b", 1)
    assert reader._with_new_partitions({B0: 3}, {A0: 1, B0: 4, b1: 2}) == {B0: 3, A0: 0, b1: 0}
    with pytest.raises(PipelineError, match="the topic a had 1 partitions and has 2"):
        reader._with_new_partitions({A0: 1, B0: 3}, {A0: 1, A1: 1, B0: 3})
