"""A throttled connection is not read for its throttle time, and the response carries it."""

from __future__ import annotations

import asyncio

import pytest

from kavka.api import registry
from kavka.common.metrics import Registry
from kavka.network import throttling as throttling_module
from kavka.network.throttling import Charge, Throttling, TimedCoroutine, charge_for
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.fetch import FetchRequest, FetchResponse
from kavka.protocol.messages.produce import ProduceRequest, ProduceResponse
from kavka.security.quotas import ClientQuota, ClientQuotas, Meter, QuotaEntity
from kavka.security.rates import Window
from tests.support.logs import FakeClock
from tests.unit.network.harness import World, frame, in_world

APIS = registry.load()
PRODUCE, FETCH = APIS[int(ApiKey.PRODUCE)], APIS[int(ApiKey.FETCH)]


def quota(**meters: float) -> ClientQuota:
    bounds = {name: Meter(Window(), bound) for name, bound in meters.items()}
    return ClientQuota(bounds.get("produce"), bounds.get("fetch"), bounds.get("request"), None)


def throttling() -> Throttling:
    return Throttling(Registry())


def test_a_produce_is_charged_with_its_size_and_its_time() -> None:
    charge = charge_for(quota(produce=100, request=1), PRODUCE, ProduceRequest(acks=1), 9, 2000)
    assert charge is not None
    charge.seconds = 0.05
    response = ProduceResponse()
    assert throttling().throttle_ms(PRODUCE, charge, response, 0) == 10_000
    assert response.throttle_time_ms == 10_000
    charge = charge_for(quota(produce=1e9, request=1), PRODUCE, ProduceRequest(acks=1), 9, 2000)
    assert charge is not None
    charge.seconds = 0.2
    assert throttling().throttle_ms(PRODUCE, charge, response, 0) == 10_000


def test_the_time_of_a_produce_without_acknowledgement_does_not_throttle() -> None:
    charge = Charge(quota(produce=1e9, request=1), 2000, 10.0)
    assert throttling().throttle_ms(PRODUCE, charge, None, 0) == 0
    assert throttling().throttle_ms(PRODUCE, Charge(quota(produce=100), 2000), None, 0) == 10_000


def test_the_longer_of_the_throttle_times_applies() -> None:
    response = FetchResponse(throttle_time_ms=500)
    assert throttling().throttle_ms(FETCH, Charge(quota(request=1), seconds=0.2), response, 0) == 10_000
    assert response.throttle_time_ms == 10_000
    response = FetchResponse(throttle_time_ms=500)
    assert throttling().throttle_ms(FETCH, Charge(quota(request=1000), seconds=0.2), response, 0) == 500


def test_followers_and_brokers_are_exempt() -> None:
    follower = FetchRequest(replica_id=2)
    assert charge_for(quota(request=1), FETCH, follower, 11, 100) is None
    assert charge_for(quota(request=1), FETCH, FetchRequest(replica_id=-1), 11, 100) is not None
    for key in (ApiKey.LEADER_AND_ISR, ApiKey.ALTER_PARTITION, ApiKey.WRITE_TXN_MARKERS):
        assert charge_for(quota(request=1), APIS[int(key)], object(), 0, 100) is None


def test_the_time_of_each_step_of_a_coroutine_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    charge = Charge(quota(request=1))
    clock = FakeClock()
    may_continue = asyncio.Event()
    monkeypatch.setattr(throttling_module, "perf_counter", clock.monotonic)

    async def work() -> str:
        clock.advance(20)
        await may_continue.wait()
        clock.advance(20)
        return "done"

    async def scenario() -> None:
        task = asyncio.get_running_loop().create_task(TimedCoroutine(work(), charge))
        await asyncio.sleep(0)
        clock.advance(100)
        may_continue.set()
        assert await task == "done"

    asyncio.run(scenario())
    assert charge.seconds == pytest.approx(0.04, abs=1e-5)


def test_the_error_of_a_timed_coroutine_is_raised() -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError

    async def scenario() -> None:
        task = asyncio.get_running_loop().create_task(TimedCoroutine(fail(), Charge(quota())))
        with pytest.raises(KeyError):
            await task

    asyncio.run(scenario())


def use_quota(world: World, **bounds: float) -> ClientQuotas:
    quotas = ClientQuotas(Window(2, 100))
    quotas.set(QuotaEntity(None, ""), bounds)
    world.server.quotas = quotas
    return quotas


def test_a_throttled_connection_is_not_read_and_resumes() -> None:
    async def body(world: World) -> None:
        # Every request takes more time than 0.000001 %. The pause is at most one sample, 0.1 s.
        use_quota(world, request_percentage=0.000001)
        peer = world.connect()
        started_at = asyncio.get_running_loop().time()
        await peer.send(frame("a"), frame("b"), frame("c"))
        assert await peer.responses(1) == ["a"]
        # The other requests wait, in the buffer and in the kernel.
        assert world.api.handled == ["a"]
        assert await peer.responses(2) == ["b", "c"]
        assert asyncio.get_running_loop().time() - started_at > 0.15

    in_world(body)


def test_a_throttled_connection_can_be_closed() -> None:
    async def body(world: World) -> None:
        use_quota(world, request_percentage=0.000001)
        peer = world.connect()
        await peer.send(frame("a"))
        assert await peer.responses(1) == ["a"]
        peer.connection.close()
        await asyncio.sleep(0.15)
        assert peer.connection.closed
        assert peer.connection not in world.server.connections

    in_world(body)


def test_the_throttle_time_of_a_handler_pauses_its_connection() -> None:
    async def body(world: World) -> None:
        peer = world.connect()
        await peer.send(frame("task:x"), frame("next"))
        await world.until(lambda: "x" in world.api.futures)
        world.api.respond("x", throttle_time_ms=100)
        await peer.responses(1)
        started_at = asyncio.get_running_loop().time()
        assert await peer.responses(1) == ["next"]
        assert asyncio.get_running_loop().time() - started_at > 0.09

    in_world(body)


def test_clients_without_a_bound_are_not_charged() -> None:
    async def body(world: World) -> None:
        quotas = ClientQuotas()
        quotas.set(QuotaEntity(None, "someone else"), {"request_percentage": 0.000001})
        world.server.quotas = quotas
        peer = world.connect()
        await peer.send(*(frame(str(n)) for n in range(5)))
        assert await peer.responses(5) == [str(n) for n in range(5)]
        assert not quotas.meters()

    in_world(body)
