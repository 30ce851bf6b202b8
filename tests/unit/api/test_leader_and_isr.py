"""LeaderAndIsr through the codec: the errors of partitions have another form in each version."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from kavka.api import leader_and_isr
from kavka.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
    LeaderAndIsrTopicState,
)

STORAGE_ERROR = 56


async def fail_all_partitions(request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
    return LeaderAndIsrResponse(
        topics=[
            LeaderAndIsrTopicError(
                topic_id=topic.topic_id,
                partition_errors=[
                    LeaderAndIsrPartitionError(
                        topic_name=topic.topic_name, partition_index=state.partition_index, error_code=STORAGE_ERROR
                    )
                    for state in topic.partition_states
                ],
            )
            for topic in request.topic_states
        ]
    )


@pytest.mark.parametrize("version", range(8))
def test_every_version_reports_the_errors_of_partitions(version: int) -> None:
    states = [LeaderAndIsrPartitionState(topic_name="t", partition_index=index) for index in (0, 1)]
    request = LeaderAndIsrRequest(ungrouped_partition_states=states)
    if version >= 2:
        request = LeaderAndIsrRequest(topic_states=[LeaderAndIsrTopicState(topic_name="t", partition_states=states)])
    decoded, _ = LeaderAndIsrRequest.decode(request.to_bytes(version), 0, version)
    services = SimpleNamespace(controller_requests=SimpleNamespace(leader_and_isr=fail_all_partitions))
    ctx: Any = SimpleNamespace(broker=services, version=version)
    handled = asyncio.run(leader_and_isr.handle(ctx, decoded))
    response, _ = LeaderAndIsrResponse.decode(handled.to_bytes(version), 0, version)
    errors = response.topics[0].partition_errors if version >= 5 else response.partition_errors
    assert [(error.partition_index, error.error_code) for error in errors] == [(0, STORAGE_ERROR), (1, STORAGE_ERROR)]
    assert version >= 5 or [error.topic_name for error in errors] == ["t", "t"]
