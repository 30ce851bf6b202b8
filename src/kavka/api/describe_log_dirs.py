"""DescribeLogDirs (key 35): the log directories of this broker, and what is in them.

v2  flexible
v3  a top-level error code
v4  total_bytes and usable_bytes of the volume
v5  is_cordoned (no directory here ever is)
"""

from __future__ import annotations

from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


@handles(ApiKey.DESCRIBE_LOG_DIRS, versions=(0, 5))
def handle(ctx: RequestContext, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    wanted: set[tuple[str, int]] | None = None
    if request.topics is not None:
        wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    response = DescribeLogDirsResponse()
    for found in ctx.broker.log_manager.describe():
        result = DescribeLogDirsResult(log_dir=found.path)
        response.results.append(result)
        if not found.online:
            result.error_code = int(ErrorCode.KAFKA_STORAGE_ERROR)
            continue
        result.total_bytes, result.usable_bytes = found.total_bytes, found.usable_bytes
        topics: dict[str, DescribeLogDirsTopic] = {}
        for replica in found.replicas:
            if wanted is not None and replica.partition not in wanted:
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
