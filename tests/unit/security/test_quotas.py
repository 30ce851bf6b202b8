from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kavka.security.quotas import (
    CLIENT_QUOTAS,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    MAX_METERS,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    ClientQuota,
    ClientQuotas,
    ConnectionQuota,
    Meter,
    QuotaEntity,
    parse_bounds,
)
from kavka.security.rates import Rate, Window, throttle_ms

# Highest precedence first, as in Kafka.
PRECEDENCE = [
    QuotaEntity("alice", "app"),
    QuotaEntity("alice", ""),
    QuotaEntity("alice"),
    QuotaEntity("", "app"),
    QuotaEntity("", ""),
    QuotaEntity(""),
    QuotaEntity(None, "app"),
    QuotaEntity(None, ""),
]


def produce_bound(quota: ClientQuota | None) -> float | None:
    return None if quota is None or quota.produce is None else quota.produce.bound


def resolve(quotas: ClientQuotas, user: str = "alice", client_id: str = "app") -> ClientQuota:
    quota = quotas.resolve(user, client_id, 0)
    assert quota is not None
    return quota


def test_the_most_specific_quota_applies() -> None:
    quotas = ClientQuotas()
    assert quotas.resolve("alice", "app", 0) is None
    for rank, entity in reversed(list(enumerate(PRECEDENCE, 1))):
        quotas.set(entity, {PRODUCER_BYTE_RATE: rank})
        assert produce_bound(quotas.resolve("alice", "app", 0)) == rank
    for rank, entity in enumerate(PRECEDENCE, 1):
        assert produce_bound(quotas.resolve("alice", "app", 0)) == rank
        quotas.set(entity, {})
    assert quotas.resolve("alice", "app", 0) is None
    assert not quotas.has_bounds


@pytest.mark.parametrize(("higher", "lower"), list(itertools.combinations(PRECEDENCE, 2)))
def test_precedence_is_resolved_for_each_key(higher: QuotaEntity, lower: QuotaEntity) -> None:
    quotas = ClientQuotas()
    quotas.set(lower, {PRODUCER_BYTE_RATE: 1, CONSUMER_BYTE_RATE: 1})
    quotas.set(higher, {PRODUCER_BYTE_RATE: 2})
    quota = resolve(quotas)
    assert quota.produce is not None and quota.produce.bound == 2
    assert quota.fetch is not None and quota.fetch.bound == 1
    assert quota.request is None and quota.mutation is None


def test_quotas_of_others_do_not_apply() -> None:
    quotas = ClientQuotas()
    for entity in (QuotaEntity("bob"), QuotaEntity("bob", "app"), QuotaEntity("alice", "other"), QuotaEntity("", "x")):
        quotas.set(entity, {PRODUCER_BYTE_RATE: 1})
    assert quotas.resolve("alice", "app", 0) is None


def test_clients_share_the_quota_of_a_user_but_not_a_default() -> None:
    quotas = ClientQuotas()
    quotas.set(QuotaEntity("alice"), {PRODUCER_BYTE_RATE: 100})
    quotas.set(QuotaEntity(""), {PRODUCER_BYTE_RATE: 100})
    quotas.set(QuotaEntity(None, ""), {CONSUMER_BYTE_RATE: 100})
    assert resolve(quotas, "alice", "a").produce is resolve(quotas, "alice", "b").produce
    assert resolve(quotas, "bob", "a").produce is resolve(quotas, "bob", "b").produce
    assert resolve(quotas, "bob", "a").produce is not resolve(quotas, "carol", "a").produce
    assert resolve(quotas, "alice", "a").fetch is not resolve(quotas, "alice", "b").fetch
    assert resolve(quotas, "alice", "a").fetch is resolve(quotas, "bob", "a").fetch


def test_a_changed_bound_applies_to_what_was_measured() -> None:
    quotas = ClientQuotas()
    connection = ConnectionQuota()
    quotas.set(QuotaEntity(None, "app"), {PRODUCER_BYTE_RATE: 100})

    def meter() -> Any:
        quota = connection.resolve(quotas, "User:alice", "app", lambda: 0)
        assert quota is not None
        return quota.produce

    assert meter().record(2000, 0) == 10_000
    quotas.set(QuotaEntity(None, "app"), {PRODUCER_BYTE_RATE: 200})
    assert meter().record(0, 0) == 0
    quotas.set(QuotaEntity(None, "app"), {PRODUCER_BYTE_RATE: 0})
    assert meter().record(0, 0) > 10**9
    quotas.set(QuotaEntity(None, "app"), {})
    assert connection.resolve(quotas, "User:alice", "app", lambda: 0) is None


def test_a_connection_looks_its_quota_up_again_only_after_a_change() -> None:
    quotas = ClientQuotas()
    quotas.set(QuotaEntity(None, "a"), {PRODUCER_BYTE_RATE: 1})
    connection = ConnectionQuota()
    lookups: list[int] = []

    def now_ms() -> int:
        lookups.append(1)
        return 0

    for client_id, user, count in (("a", "x", 1), ("a", "x", 1), ("b", "x", 2), ("a", "x", 3), ("a", "y", 4)):
        quota = connection.resolve(quotas, f"User:{user}", client_id, now_ms)
        assert (quota is None) == (client_id == "b")
        assert len(lookups) == count
    assert connection.resolve(quotas, "User:y", None, now_ms) is None


def test_time_beyond_the_request_quota_pauses_for_at_most_a_sample() -> None:
    quotas = ClientQuotas(Window(11, 1000))
    quotas.set(QuotaEntity(None, "a"), {REQUEST_PERCENTAGE: 1})
    meter = resolve(quotas, client_id="a").request
    assert meter is not None
    assert meter.record(5 * 100, 0) == 1000


def test_mutations_use_a_token_bucket() -> None:
    quotas = ClientQuotas(mutation_window=Window(2, 1000))
    quotas.set(QuotaEntity(None, "a"), {CONTROLLER_MUTATION_RATE: 2})
    meter = resolve(quotas, client_id="a").mutation
    assert meter is not None
    assert meter.record(3, 0) == 0
    assert meter.record(3, 0) == 1000
    assert meter.exceeded_ms(500) == 500
    assert meter.exceeded_ms(1000) == 0


def test_meters_of_idle_clients_are_removed() -> None:
    quotas = ClientQuotas()
    quotas.set(QuotaEntity(None, ""), {PRODUCER_BYTE_RATE: 100, CONTROLLER_MUTATION_RATE: 1})
    quota = resolve(quotas)
    assert quota.produce is not None and quota.mutation is not None
    quota.produce.record(10, 1000)
    quota.mutation.record(5, 1000)
    version = quotas.version
    quotas.expire(2000)
    assert len(quotas.meters()) == 2
    assert quotas.version == version
    quotas.expire(20_000)
    assert not quotas.meters()
    assert quotas.version > version


def test_meters_of_many_clients_are_bounded() -> None:
    quotas = ClientQuotas()
    quotas.set(QuotaEntity(None, ""), {PRODUCER_BYTE_RATE: 100, CONSUMER_BYTE_RATE: 100})
    for n in range(3 * MAX_METERS):
        quota = quotas.resolve("ANONYMOUS", f"client-{n}", 0)
        assert quota is not None and quota.produce is not None and quota.fetch is not None
        quota.produce.record(1, 0)
        quota.fetch.record(1, 0)
        assert n % 1000 or len(quotas.meters()) <= MAX_METERS + 1


def test_topics_of_a_connection_beyond_the_rate_are_refused() -> None:
    connection = ConnectionQuota()
    assert connection.take_topics(90, 10, 0) == (90, 0)
    assert connection.take_topics(30, 10, 0) == (10, 1000)
    assert connection.take_topics(5, 10, 500) == (5, 0)
    assert connection.take_topics(2, 10, 500) == (0, 200)


def test_producer_ids_of_a_connection_beyond_the_rate_are_throttled() -> None:
    connection = ConnectionQuota()
    assert [connection.take_producer_id(1, 0) for _ in range(12)] == [*[0] * 10, 1000, 2000]
    assert connection.take_producer_id(1, 3000) == 0


def test_only_valid_quotas_are_parsed() -> None:
    values = {"producer_byte_rate": "10", "request_percentage": "1.0E7", "SCRAM-SHA-256": "salt=", "foo": "1"}
    assert parse_bounds(CLIENT_QUOTAS, values) == ({"producer_byte_rate": 10.0, "request_percentage": 1e7}, [])
    bounds, errors = parse_bounds(CLIENT_QUOTAS, {"producer_byte_rate": "ten", "consumer_byte_rate": "1"})
    assert bounds == {"consumer_byte_rate": 1.0}
    assert len(errors) == 1


@given(
    st.integers(1, 4),
    st.lists(
        st.tuples(
            st.sampled_from(("record", "record free", "withdraw", "measure", "bound")),
            st.integers(0, 400),
            st.one_of(st.integers(0, 30), st.integers(0, 1000)),
        ),
        max_size=60,
    ),
)
def test_a_meter_equals_one_that_computes_every_rate(samples: int, events: list[tuple[str, int, int]]) -> None:
    window = Window(samples, 100)
    meter, rate = Meter(window, 100.0), Rate()
    now_ms = 0
    for kind, number, elapsed_ms in events:
        now_ms += elapsed_ms
        if kind == "record free" and meter.record_free(number, now_ms):
            rate.record(number, now_ms, window)
            assert rate.measure(now_ms, window)[0] <= meter.bound
        elif kind in ("record", "record free"):
            rate.record(number, now_ms, window)
            measured, window_ms = rate.measure(now_ms, window)
            assert meter.record(number, now_ms) == throttle_ms(measured, meter.bound, window_ms)
            assert meter.throttled_ms == throttle_ms(measured, meter.bound, window_ms)
        elif kind == "withdraw":
            rate.record(-number, now_ms, window)
            meter.withdraw(number, now_ms)
        elif kind == "measure":
            assert meter.measure(now_ms) == rate.measure(now_ms, window)[0]
            assert meter.is_idle(now_ms) == rate.is_idle(now_ms, window)
        else:
            meter.bound = float(number)


def test_few_bytes_need_no_rate() -> None:
    meter = Meter(Window(), 100.0)
    assert not meter.record_free(1, 0)
    assert meter.record(400, 0) == 0
    assert meter.record_free(600, 999)
    assert not meter.record_free(1, 999)
    assert not meter.record_free(0, 1000)
    assert meter.record(99, 999) == 0
    assert meter.record(2, 999) == 11
