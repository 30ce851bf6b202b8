"""The actions on topics that lose messages: they need the typed name, and change only what they
say."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from kavka.client.admin.types import ElectionType
from kavka.common.types import TopicPartition
from kavka.console.errors import Refused
from kavka.console.pages import topic as pages
from kavka.console.registry import OPERATIONS


class FakeAdmin:
    def __init__(self) -> None:
        self.calls: list[Any] = []

    async def elect_leaders(self, election: ElectionType, partitions: list[TopicPartition]) -> dict[Any, None]:
        self.calls.append((election, partitions))
        return dict.fromkeys(partitions)

    async def delete_records(self, offsets: dict[TopicPartition, int]) -> None:
        self.calls.append(offsets)


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Any:
    partitions = [SimpleNamespace(id=0, offline=False), SimpleNamespace(id=1, offline=True)]
    topic = SimpleNamespace(name="t", id="x", partitions=partitions)

    async def fresh_topic(cluster: Any, name: str) -> Any:
        return topic

    monkeypatch.setattr(pages, "fresh_topic", fresh_topic)
    cluster = SimpleNamespace(name="default", mark_stale=lambda: None, topic=topic)
    return SimpleNamespace(cluster=cluster, admin=FakeAdmin(), require=lambda *_: None)


def call(name: str, context: Any, **inputs: Any) -> Any:
    operation = OPERATIONS[name]
    return asyncio.run(operation.function(context, **operation.arguments({"topic": "t"}, inputs)))


def test_an_unclean_election_is_for_partitions_without_a_leader(context):
    with pytest.raises(Refused, match="type 't'"):
        call("elect_unclean", context, confirm="x")
    with pytest.raises(Refused, match="has changed"):
        call("elect_unclean", context, confirm="t", seen="old")
    assert call("elect_unclean", context, confirm="t").message == "1 leader was elected"
    assert context.admin.calls == [(ElectionType.UNCLEAN, [TopicPartition("t", 1)])]
    context.cluster.topic.partitions.pop()
    with pytest.raises(Refused, match="every partition has a leader"):
        call("elect_unclean", context, confirm="t")
    assert len(context.admin.calls) == 1


def test_records_are_deleted_in_one_partition_before_an_offset(context):
    for inputs in ({"confirm": "x"}, {"partition": 7}, {"before": -1}, {"seen": "old"}):
        with pytest.raises(Refused):
            call("delete_records", context, **{"partition": 0, "before": 5, "confirm": "t", **inputs})
    assert context.admin.calls == []
    call("delete_records", context, partition=0, before=5, confirm="t")
    assert context.admin.calls == [{TopicPartition("t", 0): 5}]
