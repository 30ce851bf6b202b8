"""ElectLeaders (key 43): elects the preferred leaders, or any live replicas as leaders of
leaderless partitions.

v1     election_type (before: preferred); a top-level error
v2     flexible

The response waits until this broker's metadata contains the new leaders, or until the request times
out. The response to a request for all partitions (null) contains only the partitions that needed an
election.
"""

from __future__ import annotations

from kavka.api.authorization import cluster
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.turns import over_turns
from kavka.common.types import TopicPartition
from kavka.controller.elections import PREFERRED
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from kavka.security.acls import Operation


def _requested_partitions(request: ElectLeadersRequest) -> list[TopicPartition] | None:
    if request.topic_partitions is None:
        return None
    return [TopicPartition(t.topic, p) for t in request.topic_partitions for p in t.partitions]


def _on_error(request: ElectLeadersRequest, version: int, error: KafkaError) -> ElectLeadersResponse:
    # Version 0 has no top-level error code.
    topics: dict[str, ReplicaElectionResult] = {}
    for tp in dict.fromkeys(_requested_partitions(request) or []):
        _add_result(topics, tp, error)
    response = ElectLeadersResponse(replica_election_results=list(topics.values()))
    if version >= 1:
        response.error_code = int(error.code)
    return response


@handles(ApiKey.ELECT_LEADERS, versions=(0, 2), on_error=_on_error, needs=cluster(Operation.ALTER))
async def handle(ctx: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    controller, cache = ctx.broker.controller, ctx.broker.metadata_cache
    requested_partitions = _requested_partitions(request)
    results = await controller.elect_leaders(
        request.election_type if ctx.version >= 1 else PREFERRED, requested_partitions
    )

    def is_in_metadata(tp: TopicPartition, leader: int) -> bool:
        state = cache.partition_state(*tp)
        return state is not None and state.leader == leader

    elected = {tp: leader for tp, leader in results.items() if isinstance(leader, int)}
    if request.timeout_ms > 0:
        await controller.wait_until(
            lambda: all(is_in_metadata(tp, leader) for tp, leader in elected.items()), request.timeout_ms / 1000
        )
    for tp, leader in elected.items():
        if not is_in_metadata(tp, leader):
            results[tp] = KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"Broker {leader} is not the leader yet.")
    if requested_partitions is None:
        results = {tp: result for tp, result in results.items() if not _is_not_needed(result)}
    topics: dict[str, ReplicaElectionResult] = {}
    async for tp, result in over_turns(results.items()):
        _add_result(topics, tp, result)
    return ElectLeadersResponse(replica_election_results=list(topics.values()))


def _is_not_needed(result: int | KafkaError) -> bool:
    return isinstance(result, KafkaError) and result.code is ErrorCode.ELECTION_NOT_NEEDED


def _add_result(topics: dict[str, ReplicaElectionResult], tp: TopicPartition, result: int | KafkaError) -> None:
    partition = PartitionResult(partition_id=tp.partition)
    if isinstance(result, KafkaError):
        partition.error_code, partition.error_message = int(result.code), result.message
    topics.setdefault(tp.topic, ReplicaElectionResult(topic=tp.topic)).partition_result.append(partition)
