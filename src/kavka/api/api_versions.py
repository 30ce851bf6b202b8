"""ApiVersions (key 18): the APIs that this broker serves.

v0-v2  keys with their versions; v1 adds throttle_time_ms
v3     flexible; software name and version of the client; features in the response
v4     features with minimum version 0 are included

The response to an unsupported version is a v0 response with UNSUPPORTED_VERSION and the list of
APIs, so that the client can retry. `network/connection.py` sends it, because the request cannot be
decoded.
"""

from __future__ import annotations

import re

from kavka.api import registry
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.metadata.features import Features
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

# A valid name or version of client software, as in Kafka.
SOFTWARE_TEXT = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def supported_apis(in_cluster: bool) -> ApiVersionsResponse:
    """Return a response with the APIs of a broker in a cluster, or of a single node."""
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=key, min_version=api.min_version, max_version=api.max_version)
            for key, api in sorted(registry.served_apis(in_cluster).items())
        ]
    )


@handles(ApiKey.API_VERSIONS, versions=(0, 4))
def handle(ctx: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    if ctx.version >= 3 and not (
        SOFTWARE_TEXT.fullmatch(request.client_software_name)
        and SOFTWARE_TEXT.fullmatch(request.client_software_version)
    ):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    response = supported_apis(ctx.broker.in_cluster)
    if ctx.version >= 3:
        _add_features(response, ctx.broker.features, ctx.version)
    return response


def _add_features(response: ApiVersionsResponse, features: Features, version: int) -> None:
    response.supported_features = [
        SupportedFeatureKey(name=name, min_version=levels.lowest, max_version=levels.highest)
        for name, levels in features.supported.items()
        if levels.lowest > 0 or version >= 4
    ]
    response.finalized_features_epoch = features.epoch
    response.finalized_features = [
        FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
        for name, level in features.finalized.items()
    ]
