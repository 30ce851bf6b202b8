"""Clusters without topic ids (Kafka before 2.8): leader epochs show whether a topic was
recreated."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from kavka.client.admin.types import ListedOffset, OffsetSpec
from kavka.common.types import TopicPartition
from kavka.pipeline.spark.cluster import SourceCluster
from kavka.pipeline.spark.offsets import TopicIds, recreated
from kavka.pipeline.spark.options import source_options
from kavka.pipeline.spark.source import KavkaStreamReader

T0 = TopicPartition("t", 0)
OPTIONS = {"kafka.bootstrap.servers": "nowhere:9092", "subscribe": "t", "failOnDataLoss": "false"}
START = {"t": {"0": 5}, "$topicIds": {"t": {"0": 3}}}


class OldCluster(SourceCluster):
    """A cluster without topic ids. `epochs` are the leader epochs of the partition in the metadata
    of a broker and at the leader."""

    def __init__(self, epochs: tuple[int, int | None]) -> None:
        super().__init__(source_options(OPTIONS, streaming=True))
        self.topic_ids: TopicIds = {"t": {"0": epochs[0]}}
        self._epoch = epochs[1]

    def ends(self, *, missing_is_empty: bool = False) -> dict[TopicPartition, int]:
        return {T0: 8}

    def earliest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def _list(self, specs: Any) -> dict[TopicPartition, ListedOffset]:
        assert set(specs.values()) == {OffsetSpec.latest()}
        return {tp: ListedOffset(8, -1, self._epoch) for tp in specs}


@pytest.mark.parametrize(
    ("epochs", "begin"),
    [
        ((0, 0), 0),
        # The metadata of the broker is older than the last election.
        ((2, 3), 5),
        ((2, 4), 5),
        # The leader, or the broker that returned the metadata, does not support leader epochs.
        ((2, None), 5),
        ((-1, 3), 5),
        ((-1, None), 5),
    ],
)
def test_the_leader_confirms_that_a_topic_was_recreated(epochs: tuple[int, int | None], begin: int) -> None:
    reader = KavkaStreamReader(source_options(OPTIONS, streaming=True))
    reader._cluster = OldCluster(epochs)
    end = reader.latestOffset(START, ReadAllAvailable())
    assert [(partition.offsets.start, partition.offsets.end) for partition in reader.partitions(START, end)] == [
        (begin, 8)
    ]


def test_metadata_without_an_epoch_is_ignored() -> None:
    assert recreated({"t": {"0": 3}}, {"t": {"0": -1}}) == set()
    assert recreated({"t": {"0": 3}}, {"t": {"0": 2}}) == {"t"}
