"""The source of a flow that another process has claimed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kavka.common.types import TopicPartition
from kavka.pipeline.mirror.flow import Flow
from kavka.pipeline.mirror.source import MirrorCluster, MirrorRange, MirrorStreamReader
from kavka.pipeline.spark.fencing import Claim, Fenced
from kavka.pipeline.spark.offsets import to_checkpoint

SERVERS = {"bootstrap.servers": "x:1"}
FLOW = Flow("A", "B", SERVERS, SERVERS, SERVERS, SERVERS)
CLAIM = Claim("kavka-mirror-A-B-g-driver", 7, 1)
OFFSETS = to_checkpoint({TopicPartition("orders", 0): 5})


class Target:
    """Replaces the admin client of the target: the last claim has the epoch `epoch`."""

    def __init__(self) -> None:
        self.epoch = 1

    def describe_transactions(self, names: list[str], timeout: float) -> Any:
        return {name: SimpleNamespace(producer_id=7, producer_epoch=self.epoch) for name in names}

    def close(self) -> None:
        pass


class Source:
    def __init__(self) -> None:
        self.commits: list[Any] = []

    def alter_consumer_group_offsets(self, group: str, offsets: Any, timeout: float) -> None:
        self.commits.append((group, {tp: offset.offset for tp, offset in offsets.items()}))

    def close(self) -> None:
        pass


@pytest.fixture
def reader() -> MirrorStreamReader:
    reader = MirrorStreamReader(FLOW, CLAIM.to_text())
    cluster = MirrorCluster(reader._options, FLOW)
    cluster._target, cluster._connected = Target(), Source()  # type: ignore[assignment]
    reader._cluster = cluster
    return reader


def test_a_fenced_source_commits_nothing_and_begins_no_batch(reader: MirrorStreamReader) -> None:
    cluster: Any = reader.cluster
    reader._commit_group(OFFSETS)
    assert cluster._connected.commits == [("kavka-mirror-A->B", {TopicPartition("orders", 0): 5})]
    cluster._target.epoch = 2
    with pytest.raises(Fenced):
        reader._commit_group(to_checkpoint({TopicPartition("orders", 0): 6}))
    with pytest.raises(Fenced):
        reader._check_claim(is_new_batch=True)
    assert len(cluster._connected.commits) == 1


def test_a_flow_without_a_group_makes_no_claim() -> None:
    reader = MirrorStreamReader(FLOW)
    reader._cluster = MirrorCluster(reader._options, FLOW)
    reader._check_claim(is_new_batch=True)


def test_tasks_receive_the_names_of_topics_in_the_target(
    reader: MirrorStreamReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MirrorCluster, "earliest", lambda self, partitions: dict.fromkeys(partitions, 0))
    ranges = reader.partitions(OFFSETS, to_checkpoint({TopicPartition("orders", 0): 8}))
    assert [(part.remote, part.offsets.start) for part in ranges if isinstance(part, MirrorRange)] == [("A.orders", 5)]
    (batch,) = MirrorStreamReader(FLOW).read(ranges[0])
    assert batch.to_pylist()[0]["topic"] == "A.orders"
