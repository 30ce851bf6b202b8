"""DescribeCluster, DescribeTopicPartitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kavka.common.errors import ErrorCode
from kavka.controller.topics import NewTopic
from kavka.protocol.messages.describe_cluster import DescribeClusterRequest
from kavka.protocol.messages.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest, TopicRequest
from tests.unit.api.support import Client, with_client


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_described(tmp_path: Path, version: int) -> None:
    async def body(client: Client) -> None:
        response = await client.send(DescribeClusterRequest(include_cluster_authorized_operations=True), version)
        assert (response.error_code, response.cluster_id, response.controller_id) == (0, client.broker.cluster_id, 0)
        assert [(b.broker_id, b.host, b.port) for b in response.brokers] == [
            (0, "localhost", 9092),
            (1, "localhost", 9093),
        ]
        assert response.cluster_authorized_operations == 8096

    with_client(tmp_path, body, brokers=(0, 1))


def test_a_broker_is_not_a_controller_endpoint(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        for endpoint_type, code in ((2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (7, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)):
            response = await client.send(DescribeClusterRequest(endpoint_type=endpoint_type), 1)
            assert response.error_code == code and response.error_message

    with_client(tmp_path, body)


def test_partitions_are_described_a_page_at_a_time(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        topics = [NewTopic("b", 3, 1), NewTopic("a", 2, 1), NewTopic("c", 1, 1)]
        await client.broker.topics.create_topics(topics, timeout_ms=5000)

        async def page(names: list[str], limit: int, cursor: Any = None) -> tuple[list[Any], Any]:
            request = DescribeTopicPartitionsRequest(
                topics=[TopicRequest(name=name) for name in names], response_partition_limit=limit, cursor=cursor
            )
            response = await client.send(request, 0)
            # Java's admin client fails on null lists here.
            described = [partition for topic in response.topics for partition in topic.partitions]
            assert all((p.eligible_leader_replicas, p.last_known_elr) == ([], []) for p in described)
            pages = [(t.name, [p.partition_index for p in t.partitions]) for t in response.topics]
            return pages, response.next_cursor

        everything = [("a", [0, 1]), ("b", [0, 1, 2]), ("c", [0])]
        assert await page([], 100) == (everything, None)
        assert await page(["b", "a"], 100) == (everything[:2], None)
        for limit in (1, 2, 3, 4, 5):
            seen: list[tuple[str, int]] = []
            cursor = None
            while True:
                names, cursor = await page([], limit, cursor)
                assert sum(len(indexes) for _, indexes in names) <= limit
                seen += [(name, index) for name, indexes in names for index in indexes]
                if cursor is None:
                    break
            assert seen == [(name, index) for name, indexes in everything for index in indexes]
        assert await page([], 2) == (everything[:1], Cursor(topic_name="b", partition_index=0))
        deleted = Cursor(topic_name="aa", partition_index=5)
        assert await page([], 100, deleted) == (everything[1:], None)
        client.broker.settings["max.request.partition.size.limit"] = 2
        assert await page([], 100) == (everything[:1], Cursor(topic_name="b", partition_index=0))

    with_client(tmp_path, body)


def test_topics_that_cannot_be_described_have_errors(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="missing"), TopicRequest(name="a/b")])
        response = await client.send(request, 0)
        assert [(t.name, t.error_code) for t in response.topics] == [
            ("a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
            ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        request.cursor = Cursor(topic_name="a", partition_index=-1)
        response = await client.send(request, 0)
        assert {t.error_code for t in response.topics} == {ErrorCode.INVALID_REQUEST}

    with_client(tmp_path, body)
