"""ConsumerGroupHeartbeat (key 68): a member of a consumer group joins, reconciles or leaves.

v0  the first stable version, of Kafka 4.0; the coordinator creates the member id
v1  the member creates its id; subscribed_topic_regex
"""

from __future__ import annotations

from typing import Any

from kavka.api import authorization
from kavka.api.authorization import group
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.metadata.features import GROUP_VERSION
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kavka.security.acls import Operation, ResourceType

_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_FETCH_SIZE)


def _on_error(
    request: ConsumerGroupHeartbeatRequest, version: int, error: KafkaError
) -> ConsumerGroupHeartbeatResponse:
    # Members do not expect errors about the size of records.
    code = ErrorCode.UNKNOWN_SERVER_ERROR if error.code in _TOO_LARGE else error.code
    return ConsumerGroupHeartbeatResponse(error_code=int(code), error_message=error.message)


@handles(ApiKey.CONSUMER_GROUP_HEARTBEAT, versions=(0, 1), on_error=_on_error, needs=group(Operation.READ))
def handle(ctx: RequestContext, request: ConsumerGroupHeartbeatRequest) -> Any:
    if ctx.broker.features.level(GROUP_VERSION) < 1:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION, "Not all brokers of the cluster support the consumer group protocol."
        )
    if authorization.denied(ctx, Operation.DESCRIBE, ResourceType.TOPIC, request.subscribed_topic_names or ()):
        raise authorization.failure(ResourceType.TOPIC)

    def visible(topics: frozenset[str]) -> frozenset[str]:
        return topics - authorization.denied(ctx, Operation.DESCRIBE, ResourceType.TOPIC, topics, log_denied=False)

    return ctx.broker.groups.consumer_heartbeat(
        request,
        ctx.version,
        ctx.client_id or "",
        f"/{ctx.client_host}",
        None if ctx.authorizer is None else visible,
    )
