"""LeaderAndIsr (key 4): the controller sends the leader and ISR of partitions.

v1     is_new
v2     broker_epoch, partitions by topic
v3     adding_replicas and removing_replicas
v4     flexible
v5     topic ids and type (incremental or full)
v6     leader_recovery_state
v7     is_kraft_controller
"""

from __future__ import annotations

from typing import Any

from kavka.api.authorization import cluster
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse, LeaderAndIsrTopicState
from kavka.security.acls import Operation

# The first versions with partitions grouped by topic, and with topic ids.
MIN_BY_TOPIC_VERSION = 2
MIN_TOPIC_IDS_VERSION = 5


@handles(ApiKey.LEADER_AND_ISR, versions=(0, 7), needs=cluster(Operation.CLUSTER_ACTION))
async def handle(ctx: RequestContext, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
    if ctx.version < MIN_BY_TOPIC_VERSION:
        by_topic: dict[str, list[Any]] = {}
        for state in request.ungrouped_partition_states:
            by_topic.setdefault(state.topic_name, []).append(state)
        request.topic_states = [
            LeaderAndIsrTopicState(topic_name=name, partition_states=states) for name, states in by_topic.items()
        ]
    response = await ctx.broker.controller_requests.leader_and_isr(request)
    if ctx.version < MIN_TOPIC_IDS_VERSION:
        response.partition_errors = [error for topic in response.topics for error in topic.partition_errors]
        response.topics = []
    return response
