"""DescribeProducers (key 61, v0): the producers of a partition, with their open transactions."""

from __future__ import annotations

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


def _on_error(request: DescribeProducersRequest, version: int, error: KafkaError) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[
                    PartitionResponse(partition_index=index, error_code=int(error.code), error_message=error.message)
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


@handles(ApiKey.DESCRIBE_PRODUCERS, versions=(0, 0), on_error=_on_error)
def handle(ctx: RequestContext, request: DescribeProducersRequest) -> DescribeProducersResponse:
    response = DescribeProducersResponse()
    for topic in request.topics:
        results = []
        for index in topic.partition_indexes:
            result = PartitionResponse(partition_index=index)
            try:
                # Followers serve it too, to find hanging transactions on one broker.
                log = ctx.broker.replica_manager.replica(topic.name, index).log
                assert log is not None
                result.active_producers = [
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
            except KafkaError as error:
                result.error_code = int(error.code)
                result.error_message = error.message
            results.append(result)
        response.topics.append(TopicResponse(name=topic.name, partitions=results))
    return response
