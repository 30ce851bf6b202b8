"""The quota `controller_mutation_rate` of one request that creates or deletes partitions."""

from __future__ import annotations

from kavka.api.context import RequestContext
from kavka.common.errors import ErrorCode, KafkaError


class MutationQuota:
    """Records the partitions that a request changes. From `strict_from` on, a change beyond the
    quota is refused; requests of older versions are only throttled."""

    def __init__(self, ctx: RequestContext, strict_from: int) -> None:
        client = ctx.quota.client if ctx.quota is not None else None
        self._meter = None if client is None else client.mutation
        self._broker = ctx.broker
        self._is_strict = ctx.version >= strict_from
        self._throttled_until_ms = 0

    def record(self, partitions: int) -> None:
        """Record a change before it is made. Raises THROTTLING_QUOTA_EXCEEDED."""
        meter = self._meter
        if meter is None:
            return
        now_ms = self._broker.now_ms()
        if self._is_strict:
            throttle_ms = meter.exceeded_ms(now_ms)
            if throttle_ms:
                self._throttled_until_ms = now_ms + throttle_ms
                raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded.")
            meter.record(partitions, now_ms)
        elif throttle_ms := meter.record(partitions, now_ms):
            self._throttled_until_ms = now_ms + throttle_ms

    @property
    def throttle_ms(self) -> int:
        """The throttle time of the response."""
        return max(0, self._throttled_until_ms - self._broker.now_ms()) if self._throttled_until_ms else 0
