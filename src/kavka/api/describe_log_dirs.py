"""DescribeLogDirs (key 35): the log directories of this broker and their partitions.

v2  flexible
v3  a top-level error code
v4  total_bytes and usable_bytes of the volume
v5  is_cordoned (always false here)
"""

from __future__ import annotations

from kavka.api.authorization import cluster
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode
from kavka.common.turns import over_turns
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from kavka.security.acls import Operation


@handles(ApiKey.DESCRIBE_LOG_DIRS, versions=(0, 5), needs=cluster(Operation.DESCRIBE))
async def handle(ctx: RequestContext, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    requested_partitions: set[tuple[str, int]] | None = None
    if request.topics is not None:
        keys = ((topic.topic, index) for topic in request.topics for index in topic.partitions)
        requested_partitions = {key async for key in over_turns(keys)}
    response = DescribeLogDirsResponse()
    for log_dir in ctx.broker.log_manager.describe():
        result = DescribeLogDirsResult(log_dir=log_dir.path)
        response.results.append(result)
        if not log_dir.online:
            result.error_code = int(ErrorCode.KAFKA_STORAGE_ERROR)
            continue
        result.total_bytes, result.usable_bytes = log_dir.total_bytes, log_dir.usable_bytes
        topics: dict[str, DescribeLogDirsTopic] = {}
        async for replica in over_turns(log_dir.replicas):
            if requested_partitions is not None and replica.partition not in requested_partitions:
                continue
            name = replica.partition.topic
            topics.setdefault(name, DescribeLogDirsTopic(name=name)).partitions.append(
                DescribeLogDirsPartition(
                    partition_index=replica.partition.partition,
                    partition_size=replica.size,
                    offset_lag=replica.offset_lag,
                    is_future_key=replica.is_future,
                )
            )
        result.topics = list(topics.values())
    return response
