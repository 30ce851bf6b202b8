"""AlterReplicaLogDirs (key 34): moves partitions between the log directories of this broker.

v2     flexible

The response reports that the move has started. DescribeLogDirs lists a future replica until the
move completes. If this broker has no replica of the partition yet, the directory is stored for a
later replica and the error is REPLICA_NOT_AVAILABLE, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable

from kavka.api.authorization import cluster
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
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
    return _respond(request, lambda partition, path: error.code)


@handles(ApiKey.ALTER_REPLICA_LOG_DIRS, versions=(0, 2), on_error=_on_error, needs=cluster(Operation.ALTER))
def handle(ctx: RequestContext, request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
    return _respond(request, lambda partition, path: _move(ctx, partition, path))


def _respond(
    request: AlterReplicaLogDirsRequest, move: Callable[[TopicPartition, str], ErrorCode]
) -> AlterReplicaLogDirsResponse:
    topics: dict[str, AlterReplicaLogDirTopicResult] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            result = topics.setdefault(topic.name, AlterReplicaLogDirTopicResult(topic_name=topic.name))
            for index in topic.partitions:
                code = move(TopicPartition(topic.name, index), directory.path)
                result.partitions.append(AlterReplicaLogDirPartitionResult(partition_index=index, error_code=int(code)))
    return AlterReplicaLogDirsResponse(results=list(topics.values()))


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
