"""Rejection of Produce requests to the internal topics.

Only the coordinators write to `__consumer_offsets` and `__transaction_state`, and they append to
the partitions directly. A Produce request to an internal topic is rejected, because a forged commit
or transaction would be loaded as a real one after the next failover. As in Kafka, one client id is
exempt.
"""

from __future__ import annotations

from kavka.api.context import RequestContext
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.topics import is_internal

ADMIN_CLIENT_ID = "__admin_client"


def may_produce(ctx: RequestContext, topic: str) -> bool:
    return not is_internal(topic) or ctx.client_id == ADMIN_CLIENT_ID


def rejection(ctx: RequestContext, topic: str, index: int) -> KafkaError:
    """Return the error for a partition that the client may not produce to:
    UNKNOWN_TOPIC_OR_PARTITION if the partition does not exist, otherwise
    INVALID_TOPIC_EXCEPTION."""
    try:
        ctx.broker.replica_manager.leader(topic, index)
    except KafkaError as error:
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return error
    return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Clients cannot produce to the internal topic {topic}.")
