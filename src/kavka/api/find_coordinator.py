"""FindCoordinator (key 10): the broker that coordinates a group or a transactional id.

v0     groups only
v1     key_type: 0 group, 1 transaction; error_message and throttle_time_ms in the response
v3     flexible
v4     many keys
v5     TRANSACTION_ABORTABLE
v6     share groups, which this broker does not support

The first request for a coordinator creates its internal topic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kavka.api import authorization
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.coordinator.internal_topic import InternalTopic
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from kavka.security.acls import Operation, ResourceType

GROUP = 0
TRANSACTION = 1
NO_NODE = -1


def _on_error(request: FindCoordinatorRequest, version: int, error: KafkaError) -> FindCoordinatorResponse:
    return _respond(request, version, lambda key: _error_result(key, error))


@handles(ApiKey.FIND_COORDINATOR, versions=(0, 6), on_error=_on_error)
def handle(ctx: RequestContext, request: FindCoordinatorRequest) -> Any:
    topic = _topic_of(ctx, request.key_type if ctx.version > 0 else GROUP)
    keys = request.coordinator_keys if ctx.version >= 4 else [request.key]
    resource_type = ResourceType.GROUP if topic is ctx.broker.groups.topic else ResourceType.TRANSACTIONAL_ID
    denied = authorization.denied(ctx, Operation.DESCRIBE, resource_type, keys)

    def find(key: str) -> Coordinator:
        if key in denied:
            return _error_result(key, authorization.failure(resource_type))
        return _find(ctx, topic, key)

    if not topic.exists and len(denied) < len(set(keys)):
        return _create_and_respond(ctx, request, topic, find)
    return _respond(request, ctx.version, find)


def _topic_of(ctx: RequestContext, key_type: int) -> InternalTopic:
    if key_type == GROUP:
        return ctx.broker.groups.topic
    if key_type == TRANSACTION:
        return ctx.broker.transactions.topic
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown coordinator type {key_type}.")


async def _create_and_respond(
    ctx: RequestContext, request: FindCoordinatorRequest, topic: InternalTopic, find: Callable[[str], Coordinator]
) -> FindCoordinatorResponse:
    await topic.ensure()
    return _respond(request, ctx.version, find)


def _respond(
    request: FindCoordinatorRequest, version: int, find: Callable[[str], Coordinator]
) -> FindCoordinatorResponse:
    if version >= 4:
        return FindCoordinatorResponse(coordinators=[find(key) for key in request.coordinator_keys])
    coordinator = find(request.key)
    return FindCoordinatorResponse(
        error_code=coordinator.error_code,
        # Kafka's text for success, up to v3. Some clients compare it.
        error_message=coordinator.error_message if coordinator.error_code else "NONE",
        node_id=coordinator.node_id,
        host=coordinator.host,
        port=coordinator.port,
    )


def _find(ctx: RequestContext, topic: InternalTopic, key: str) -> Coordinator:
    leader = topic.leader_of(key)
    endpoint = None if leader is None else ctx.broker.metadata_cache.endpoint(leader, ctx.listener)
    if leader is None or endpoint is None:
        return _error_result(key, KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    return Coordinator(key=key, node_id=leader, host=endpoint.host, port=endpoint.port)


def _error_result(key: str, error: KafkaError) -> Coordinator:
    return Coordinator(
        key=key, node_id=NO_NODE, host="", port=-1, error_code=int(error.code), error_message=error.message
    )
