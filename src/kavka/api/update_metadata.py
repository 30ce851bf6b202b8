"""UpdateMetadata (key 6): the controller sends the live brokers and the partition states to
brokers.

v1     a broker has several endpoints
v2     racks
v3     listener names
v4     offline_replicas
v5     broker_epoch, partitions by topic
v6     flexible
v7     topic ids
v8     is_kraft_controller, type
"""

from __future__ import annotations

from typing import Any

from kavka.api.authorization import cluster
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.update_metadata import (
    UpdateMetadataEndpoint,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
    UpdateMetadataTopicState,
)
from kavka.security.acls import Operation

# The first versions with partitions grouped by topic, and with listener names.
MIN_BY_TOPIC_VERSION = 5
MIN_LISTENER_NAMES_VERSION = 3
# The security protocols, by Kafka's number.
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


@handles(ApiKey.UPDATE_METADATA, versions=(0, 8), needs=cluster(Operation.CLUSTER_ACTION))
def handle(ctx: RequestContext, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
    if ctx.version < MIN_BY_TOPIC_VERSION:
        by_topic: dict[str, list[Any]] = {}
        for state in request.ungrouped_partition_states:
            by_topic.setdefault(state.topic_name, []).append(state)
        request.topic_states = [
            UpdateMetadataTopicState(topic_name=name, partition_states=states) for name, states in by_topic.items()
        ]
    if ctx.version < MIN_LISTENER_NAMES_VERSION:
        for broker in request.live_brokers:
            if ctx.version == 0:
                broker.endpoints = [UpdateMetadataEndpoint(host=broker.v0_host, port=broker.v0_port)]
            for endpoint in broker.endpoints:
                endpoint.listener = SECURITY_PROTOCOLS[endpoint.security_protocol]
    return ctx.broker.controller_requests.update_metadata(request)
