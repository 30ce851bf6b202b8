"""Every failure of a handler becomes a response of the requested version with the error code."""

from __future__ import annotations

from typing import Any

import pytest

from kavka.api import registry
from kavka.api.produce import ConnectionMustClose
from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from kavka.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kavka.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from kavka.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kavka.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kavka.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kavka.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

ERROR = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "a bug")
APIS = registry.load()


def round_trip(message: Any, version: int) -> Any:
    pieces: list[bytes] = []
    message.encode(pieces, version)
    return type(message).decode(memoryview(b"".join(pieces)), 0, version)[0]


@pytest.mark.parametrize(
    ("api", "version"),
    [(api, version) for api in APIS.values() for version in range(api.min_version, api.max_version + 1)],
    ids=lambda value: value.name if isinstance(value, registry.Api) else f"v{value}",
)
def test_every_version_of_every_request_has_an_error_response(api, version):
    """The request is empty."""
    request = api.request_class()
    if api.name == "Produce":
        request.acks = 1
    response = round_trip(api.on_error(request, version, ERROR), version)
    assert getattr(response, "error_code", None) in (None, 0, -1)


def codes(value: Any) -> list[int]:
    """All error codes in a message, top down."""
    error_codes = []
    if hasattr(value, "__slots__"):
        for name in value.__slots__:
            field = getattr(value, name)
            if name == "error_code":
                error_codes.append(field)
            error_codes += codes(field)
    elif isinstance(value, list):
        for item in value:
            error_codes += codes(item)
    return error_codes


REQUESTS = [
    ProduceRequest(
        acks=1,
        topic_data=[
            TopicProduceData(name="t", partition_data=[PartitionProduceData(index=n, records=b"") for n in (0, 1)])
        ],
    ),
    FetchRequest(topics=[FetchTopic(topic="t", partitions=[FetchPartition(partition=n) for n in (0, 1)])]),
    ListOffsetsRequest(
        topics=[ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=n) for n in (0, 1)])]
    ),
    DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=n) for n in (0, 1)])]
    ),
    OffsetForLeaderEpochRequest(
        topics=[OffsetForLeaderTopic(topic="t", partitions=[OffsetForLeaderPartition(partition=n) for n in (0, 1)])]
    ),
    DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0, 1])]),
    AlterReplicaLogDirsRequest(
        dirs=[AlterReplicaLogDir(path="/a", topics=[AlterReplicaLogDirTopic(name="t", partitions=[0, 1])])]
    ),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_without_a_top_level_code_every_partition_has_the_error(request_):
    api = APIS[request_.API_KEY]
    for version in range(api.min_version, api.max_version + 1):
        response = round_trip(api.on_error(request_, version, ERROR), version)
        partitions = 0 if api.name == "Fetch" and version >= 13 else 2
        top_level = 1 if api.name == "Fetch" and version >= 7 else 0
        assert [code for code in codes(response) if code].count(-1) == partitions + top_level, version


def test_a_failed_produce_without_acks_closes_the_connection():
    with pytest.raises(ConnectionMustClose):
        APIS[0].on_error(ProduceRequest(acks=0), 9, ERROR)
