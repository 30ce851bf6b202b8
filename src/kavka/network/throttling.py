"""The cost of a request for its client, and the resulting throttle time.

There is a `Charge` only for a client with a bound. A Produce request is charged with its size, and
every request with the event loop's time. The handler of Fetch (`api/fetch.py`) charges the fetched
bytes, because the response to a throttled fetch has no records. The handlers of topics charge
changes of partitions. They set `throttle_time_ms` in the response.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from kavka.api import registry
from kavka.api.fetch import is_from_follower
from kavka.common.metrics import Counter, Registry
from kavka.protocol.api_keys import ApiKey
from kavka.security.quotas import ClientQuota

_PRODUCE = int(ApiKey.PRODUCE)
_FETCH = int(ApiKey.FETCH)
# Requests between brokers are not throttled: the cluster would wait for its clients' quotas.
_EXEMPT = registry.INTER_BROKER_APIS | {ApiKey.WRITE_TXN_MARKERS}

# Kafka's names of its quota types. CONNECTION is the allowance of a single connection.
PRODUCE, FETCH, REQUEST, MUTATION, CONNECTION = "Produce", "Fetch", "Request", "ControllerMutation", "Connection"
_TYPES_BY_API = {
    _FETCH: FETCH,
    int(ApiKey.CREATE_TOPICS): MUTATION,
    int(ApiKey.DELETE_TOPICS): MUTATION,
    int(ApiKey.CREATE_PARTITIONS): MUTATION,
    int(ApiKey.METADATA): CONNECTION,
    int(ApiKey.INIT_PRODUCER_ID): CONNECTION,
}


@dataclass(slots=True, eq=False)
class Charge:
    """The cost of one request for its client."""

    quota: ClientQuota
    produced_bytes: int = 0
    seconds: float = 0.0


def charge_for(quota: ClientQuota, api: registry.Api, request: Any, version: int, size: int) -> Charge | None:
    """Return the charge of a request, or None if the request is exempt from quotas."""
    if api.key in _EXEMPT or (api.key == _FETCH and is_from_follower(request, version)):
        return None
    return Charge(quota, size if api.key == _PRODUCE else 0)


class Throttling:
    """Computes throttle times, and counts them for /metrics."""

    def __init__(self, metrics: Registry) -> None:
        responses = metrics.counter("kavka_throttled_responses_total", "Throttled requests", ("quota_type",))
        seconds = metrics.counter("kavka_throttle_seconds_total", "Sum of throttle times", ("quota_type",))
        types = (PRODUCE, FETCH, REQUEST, MUTATION, CONNECTION)
        self._counters: dict[str, tuple[Counter, Counter]] = {
            quota_type: (responses.labels(quota_type), seconds.labels(quota_type)) for quota_type in types
        }

    def throttle_ms(self, api: registry.Api, charge: Charge | None, response: Any, now_ms: int) -> int:
        """Record the charge. Returns the maximum of the throttle times, which is also set in the
        response. `response` is None for a Produce with acks=0."""
        longest: int = getattr(response, "throttle_time_ms", 0)
        quota_type = _TYPES_BY_API.get(api.key, REQUEST)
        if charge is not None:
            quota = charge.quota
            if charge.produced_bytes and quota.produce is not None:
                longest, quota_type = quota.produce.record(charge.produced_bytes, now_ms), PRODUCE
            if quota.request is not None:
                # In percent of the event loop's time.
                throttle_ms = quota.request.record(charge.seconds * 100, now_ms)
                # Kafka does not throttle a Produce with acks=0 for its time.
                if throttle_ms > longest and response is not None:
                    longest, quota_type = throttle_ms, REQUEST
            if longest and hasattr(response, "throttle_time_ms"):
                response.throttle_time_ms = longest
        if longest:
            responses, seconds = self._counters[quota_type]
            responses.value += 1
            seconds.value += longest / 1000
        return longest


class TimedCoroutine(Coroutine[Any, Any, Any]):
    """A handler's coroutine that adds the event loop's time of each step to the charge."""

    __slots__ = ("_charge", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], charge: Charge) -> None:
        self._coroutine = coroutine
        self._charge = charge

    def send(self, value: Any) -> Any:
        started_at = perf_counter()
        try:
            return self._coroutine.send(value)
        finally:
            self._charge.seconds += perf_counter() - started_at

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()
