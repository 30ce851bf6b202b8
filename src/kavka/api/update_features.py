"""UpdateFeatures (key 57): sets the feature levels of the whole cluster.

v0     allow_downgrade
v1     upgrade_type instead; validate_only
v2     no results per feature: all updates succeed, or none

Only the controller serves this request; other brokers return NOT_CONTROLLER. The response waits
until the new levels are active on this broker. Other brokers apply them when their watches fire.
"""

from __future__ import annotations

from kavka.api.authorization import cluster
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.controller.features import NOT_WRITTEN, SAFE_DOWNGRADE, UPGRADE, FeatureUpdate
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from kavka.security.acls import Operation

MIN_ALL_OR_NONE_VERSION = 2


@handles(ApiKey.UPDATE_FEATURES, versions=(0, 2), needs=cluster(Operation.ALTER))
async def handle(ctx: RequestContext, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    broker, updates = ctx.broker, request.feature_updates
    if not updates:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The request has no feature updates.")
    errors, epoch = await broker.controller.update_features(
        [_feature_update(update, ctx.version) for update in updates],
        validate_only=ctx.version >= 1 and request.validate_only,
        all_or_none=ctx.version >= MIN_ALL_OR_NONE_VERSION,
    )
    if epoch != NOT_WRITTEN:
        is_applied = await broker.controller.wait_until(
            lambda: broker.features.epoch >= epoch, request.timeout_ms / 1000
        )
        if not is_applied:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, "The feature levels are set, but they are not active on this broker yet."
            )
    if ctx.version >= MIN_ALL_OR_NONE_VERSION:
        first_error = next((error for error in errors if error is not None), None)
        if first_error is not None:
            raise first_error
        return UpdateFeaturesResponse(error_message=None)
    return UpdateFeaturesResponse(
        error_message=None,
        results=[
            UpdatableFeatureResult(
                feature=update.feature,
                error_code=int(ErrorCode.NONE if error is None else error.code),
                error_message=None if error is None else error.message,
            )
            for update, error in zip(updates, errors, strict=True)
        ],
    )


def _feature_update(update: FeatureUpdateKey, version: int) -> FeatureUpdate:
    upgrade_type = update.upgrade_type
    if version == 0:
        upgrade_type = SAFE_DOWNGRADE if update.allow_downgrade else UPGRADE
    return FeatureUpdate(update.feature, update.max_version_level, upgrade_type)
