"""UpdateFeatures (key 57): set the level of features for the whole cluster.

v0     allow_downgrade
v1     upgrade_type instead of it; validate_only
v2     no results of single features: all updates are done, or none, and the error is that of the request

Only the controller answers; others say NOT_CONTROLLER. The answer waits until this broker offers the new levels; the
others hear of them by their watches, at about the same time.
"""

from __future__ import annotations

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

WITHOUT_RESULTS = 2


@handles(ApiKey.UPDATE_FEATURES, versions=(0, 2))
async def handle(ctx: RequestContext, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    broker, asked = ctx.broker, request.feature_updates
    if not asked:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "No feature is named.")
    errors, epoch = await broker.controller.update_features(
        [_update(each, ctx.version) for each in asked],
        validate_only=ctx.version >= 1 and request.validate_only,
        all_or_none=ctx.version >= WITHOUT_RESULTS,
    )
    if epoch != NOT_WRITTEN:
        known = await broker.controller.wait_until(lambda: broker.features.epoch >= epoch, request.timeout_ms / 1000)
        if not known:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "The levels are set, but not offered by this broker yet.")
    if ctx.version >= WITHOUT_RESULTS:
        refusal = next((error for error in errors if error is not None), None)
        if refusal is not None:
            raise refusal
        return UpdateFeaturesResponse(error_message=None)
    return UpdateFeaturesResponse(
        error_message=None,
        results=[
            UpdatableFeatureResult(
                feature=each.feature,
                error_code=int(ErrorCode.NONE if error is None else error.code),
                error_message=None if error is None else error.message,
            )
            for each, error in zip(asked, errors, strict=True)
        ],
    )


def _update(asked: FeatureUpdateKey, version: int) -> FeatureUpdate:
    kind = asked.upgrade_type
    if version == 0:
        kind = SAFE_DOWNGRADE if asked.allow_downgrade else UPGRADE
    return FeatureUpdate(asked.feature, asked.max_version_level, kind)
