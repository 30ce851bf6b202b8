"""AlterReplicaLogDirs (key 34): moves partitions between the log directories of this broker.

v2     flexible

The response reports that the move has started. DescribeLogDirs lists a future replica until the
move completes. If this broker has no replica of the partition yet, the directory is stored for a
later replica and the error is REPLICA_NOT_AVAILABLE, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator

from kavka.api.authorization import cluster
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.turns import over_turns
from kavka.common.types import TopicPartition
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from kavka.security.acls import Operation


def _on_error(request: AlterReplicaLogDirsRequest, version: int, error: KafkaError) -> AlterReplicaLogDirsResponse:
    topics: dict[str, AlterReplicaLogDirTopicResult] = {}
    for _, partition in _requested_moves(request):
        _add_result(topics, partition, error.code)
    return AlterReplicaLogDirsResponse(results=list(topics.values()))


@handles(ApiKey.ALTER_REPLICA_LOG_DIRS, versions=(0, 2), on_error=_on_error, needs=cluster(Operation.ALTER))
async def handle(ctx: RequestContext, request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
    topics: dict[str, AlterReplicaLogDirTopicResult] = {}
    async for path, partition in over_turns(_requested_moves(request)):
        _add_result(topics, partition, _move(ctx, partition, path))
    return AlterReplicaLogDirsResponse(results=list(topics.values()))


def _requested_moves(request: AlterReplicaLogDirsRequest) -> Iterator[tuple[str, TopicPartition]]:
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                yield directory.path, TopicPartition(topic.name, index)


def _add_result(topics: dict[str, AlterReplicaLogDirTopicResult], partition: TopicPartition, code: ErrorCode) -> None:
    topic = topics.get(partition.topic)
    if topic is None:
        topic = topics[partition.topic] = AlterReplicaLogDirTopicResult(topic_name=partition.topic)
    topic.partitions.append(
        AlterReplicaLogDirPartitionResult(partition_index=partition.partition, error_code=int(code))
    )


def _move(ctx: RequestContext, partition: TopicPartition, path: str) -> ErrorCode:
    broker = ctx.broker
    try:
        broker.log_manager.move(partition, path)
    except KafkaError as error:
        return error.code
    if partition in broker.replica_manager.partitions:
        return ErrorCode.NONE
    if broker.metadata_cache.partition_state(*partition) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.REPLICA_NOT_AVAILABLE
