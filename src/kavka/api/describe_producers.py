"""DescribeProducers (key 61, v0): the producers of a partition, with their open transactions."""

from __future__ import annotations

from collections.abc import Callable

from kavka.api import authorization
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import KafkaError
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from kavka.security.acls import Operation, ResourceType


def _on_error(request: DescribeProducersRequest, version: int, error: KafkaError) -> DescribeProducersResponse:
    return _respond(request, lambda topic, index: _error_result(index, error))


@handles(ApiKey.DESCRIBE_PRODUCERS, versions=(0, 0), on_error=_on_error)
def handle(ctx: RequestContext, request: DescribeProducersRequest) -> DescribeProducersResponse:
    denied = authorization.denied(ctx, Operation.READ, ResourceType.TOPIC, (topic.name for topic in request.topics))
    failure = authorization.failure(ResourceType.TOPIC)
    return _respond(
        request,
        lambda topic, index: _error_result(index, failure) if topic in denied else _describe(ctx, topic, index),
    )


def _respond(
    request: DescribeProducersRequest, describe: Callable[[str, int], PartitionResponse]
) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name, partitions=[describe(topic.name, index) for index in topic.partition_indexes]
            )
            for topic in request.topics
        ]
    )


def _describe(ctx: RequestContext, topic: str, index: int) -> PartitionResponse:
    """Return the producers of a replica. Followers respond as well, so that a tool can find hanging
    transactions on a single broker."""
    try:
        log = ctx.broker.replica_manager.replica(topic, index).log
    except KafkaError as error:
        return _error_result(index, error)
    assert log is not None
    producers = [
        ProducerState(
            producer_id=entry.producer_id,
            producer_epoch=entry.epoch,
            last_sequence=entry.last_sequence,
            last_timestamp=entry.last_timestamp,
            coordinator_epoch=entry.coordinator_epoch,
            current_txn_start_offset=entry.txn_first_offset,
        )
        for entry in log.producers()
    ]
    return PartitionResponse(partition_index=index, active_producers=producers)


def _error_result(index: int, error: KafkaError) -> PartitionResponse:
    return PartitionResponse(partition_index=index, error_code=int(error.code), error_message=error.message)
