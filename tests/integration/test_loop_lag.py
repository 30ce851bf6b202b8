"""Requests of tens of thousands of elements do not hold the event loop: the CPU time of its longest
turn stays within 50 ms. test_amplification.py has requests that no normal client sends."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest

from kavka.api import registry
from kavka.protocol.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from kavka.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kavka.protocol.messages.delete_topics import DeleteTopicsRequest
from kavka.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from kavka.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from kavka.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.support import wire
from tests.support.watched_broker import MAX_TURN_S, WatchedBroker
from tests.support.wire import PRODUCE, Wire

TOPIC, PARTITIONS = "many.partitions", 500
UNINDEXED = "unindexed"
FIND_COORDINATOR, INVALID_COMMIT_OFFSET_SIZE = 10, 28
APIS = registry.served_apis(in_cluster=False)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedBroker]:
    with WatchedBroker(tmp_path_factory.mktemp("loop-lag")) as broker:
        assert wire.create_topic(broker.address, TOPIC, PARTITIONS) == 0
        assert wire.create_topic(broker.address, UNINDEXED, index_interval_bytes="1000000000", retention_ms="-1") == 0
        yield broker
        assert broker.stop() == 0


def call(connection: Wire, request: Any, version: int) -> Any:
    """Send a request and return its decoded response."""
    api = APIS[request.API_KEY]
    pieces: list[Any] = []
    request.encode(pieces, version)
    is_flexible = version >= api.flexible_from
    header = struct.pack(">hhi", api.key, version, 0) + wire.string("test") + (b"\0" if is_flexible else b"")
    connection.send(wire.frame(header + b"".join(pieces)))
    body = connection.receive().data[4:]
    module = import_module(type(request).__module__)
    response_class = getattr(module, type(request).__name__.replace("Request", "Response"))
    return response_class.decode(memoryview(body), 1 if is_flexible else 0, version)[0]


def create_topics() -> CreateTopicsRequest:
    """Names that differ from an existing name only in '.' and '_'."""
    names = ["many_partitions", *(f"a.name_{n}" for n in range(40_000))]
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=9) for name in names]
    return CreateTopicsRequest(topics=topics, timeout_ms=10_000)


def delete_topics() -> DeleteTopicsRequest:
    return DeleteTopicsRequest(topic_names=[f"missing-{n}" for n in range(50_000)], timeout_ms=10_000)


def alter_configs() -> AlterConfigsRequest:
    return AlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=2, resource_name=f"missing-{n}", configs=[AlterableConfig(name="retention.ms", value="1")]
            )
            for n in range(40_000)
        ]
    )


def elect_leaders() -> ElectLeadersRequest:
    partitions = TopicPartitions(topic=TOPIC, partitions=list(range(50_000)))
    return ElectLeadersRequest(election_type=0, topic_partitions=[partitions], timeout_ms=10_000)


def describe_log_dirs() -> DescribeLogDirsRequest:
    return DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic=TOPIC, partitions=list(range(90_000)))])


REQUESTS: dict[str, tuple[Callable[[], Any], int, Callable[[Any], int]]] = {
    "CreateTopics of 40,001 topics": (create_topics, 5, lambda response: len(response.topics)),
    "DeleteTopics of 50,000 topics": (delete_topics, 4, lambda response: len(response.responses)),
    "AlterConfigs of 40,000 topics": (alter_configs, 1, lambda response: len(response.responses)),
    "ElectLeaders of 50,000 partitions": (
        elect_leaders,
        2,
        lambda response: len(response.replica_election_results[0].partition_result),
    ),
    "DescribeLogDirs of 90,000 partitions": (
        describe_log_dirs,
        1,
        lambda response: len(response.results[0].topics[0].partitions),
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_large_request_is_divided_over_turns(broker: WatchedBroker, name: str) -> None:
    encode, version, count_results = REQUESTS[name]
    request = encode()
    with Wire(broker.address, 60.0) as connection, broker.measured() as cost:
        response = call(connection, request, version)
    expected = {"CreateTopics": 40_001, "AlterConfigs": 40_000, "DescribeLogDirs": PARTITIONS}
    assert count_results(response) == expected.get(name.partition(" ")[0], 50_000)
    assert cost.turn_s <= MAX_TURN_S, cost


def test_an_offset_commit_that_fits_into_no_batch_is_refused_at_once(broker: WatchedBroker) -> None:
    partitions = [
        OffsetCommitRequestPartition(partition_index=n % PARTITIONS, committed_offset=1, committed_metadata="")
        for n in range(35_000)
    ]
    request = OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=partitions)])
    with Wire(broker.address, 60.0) as connection:
        connection.call(FIND_COORDINATOR, 0, wire.string("g"))  # creates the topic of the offsets
    with Wire(broker.address, 60.0) as connection:
        small = OffsetCommitRequest(
            group_id="g", topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=partitions[:1])]
        )
        while call(connection, small, 7).topics[0].partitions[0].error_code:
            pass
        with broker.measured() as cost:
            response = call(connection, request, 7)
    codes = {partition.error_code for topic in response.topics for partition in topic.partitions}
    assert codes == {INVALID_COMMIT_OFFSET_SIZE}
    assert cost.turn_s <= MAX_TURN_S, cost


def test_a_search_by_time_of_an_unindexed_log_runs_in_a_worker(broker: WatchedBroker) -> None:
    """The log has 60,000 batches and no index entry, so a search reads all their headers."""
    first_batch = wire.batch([b"x"], base_timestamp=1_000, max_timestamp=1_000)
    late_batch = wire.batch([b"y"], base_timestamp=2_000, max_timestamp=2_000)
    with Wire(broker.address, 60.0) as connection:
        for _ in range(60):
            body = wire.produce_request(UNINDEXED, 0, first_batch, version=7)
            connection.send(wire.request(PRODUCE, 7, body, 0) * 1000)
            for _ in range(1000):
                connection.receive()
        body = wire.produce_request(UNINDEXED, 0, late_batch, version=7)
        assert wire.produce_error(connection.call(PRODUCE, 7, body), 7)[0] == 0
        with broker.measured() as cost:
            code, offset = wire.end_offset(connection, UNINDEXED, 0, timestamp=1_500)
    assert (code, offset) == (0, 60_000)
    assert cost.turn_s <= MAX_TURN_S, cost
