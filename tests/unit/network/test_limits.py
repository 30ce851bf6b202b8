from __future__ import annotations

import socket
from types import SimpleNamespace

from kavka.broker.settings import Settings
from kavka.network.limits import Bounds, ConnectionLimits, LimitSettings, Refusal
from kavka.network.listener_security import ListenerSecurity
from kavka.network.server import limit_settings
from kavka.security.principal import SecurityProtocol
from kavka.security.quotas import DEFAULT, MAX_METERS
from kavka.security.rates import Window
from tests.unit.network.harness import World, in_world

L = "PLAINTEXT"
TOO_MANY = Refusal("max.connections.per.ip")


def test_an_address_has_at_most_its_limit_of_connections():
    limits = ConnectionLimits(LimitSettings(max_per_ip=2, per_ip_overrides={"10.0.0.9": 1}))
    assert not limits.admit(L, "10.0.0.1", 0)
    assert not limits.admit(L, "10.0.0.1", 0)
    assert limits.admit(L, "10.0.0.1", 0) == TOO_MANY
    assert not limits.admit(L, "10.0.0.9", 0)
    assert limits.admit(L, "10.0.0.9", 0) == TOO_MANY
    limits.release(L, "10.0.0.1")
    assert not limits.admit(L, "10.0.0.1", 0)


def test_a_full_broker_is_full_until_a_connection_closes():
    limits = ConnectionLimits(LimitSettings(Bounds(2)))
    limits.admit(L, "a", 0)
    limits.admit(L, "b", 0)
    assert limits.is_full(L)
    limits.release(L, "a")
    assert not limits.is_full(L)
    assert limits.count == 1


def test_a_listener_has_its_own_limit():
    limits = ConnectionLimits(LimitSettings(Bounds(3), {"EXTERNAL": Bounds(1)}))
    limits.admit("EXTERNAL", "a", 0)
    assert limits.is_full("EXTERNAL")
    assert not limits.is_full("INTERNAL")
    limits.release("EXTERNAL", "a")
    assert not limits.is_full("EXTERNAL")


def test_the_listener_between_brokers_exceeds_the_limit_of_the_broker():
    limits = ConnectionLimits(LimitSettings(Bounds(1, 1), protected_listener="INTERNAL"))
    limits.admit("EXTERNAL", "a", 0)
    assert limits.is_full("EXTERNAL")
    assert not limits.is_full("INTERNAL")
    for _ in range(100):
        assert limits.rate_delay("INTERNAL", 0) == 0
        limits.admit("INTERNAL", "b", 0)
    assert limits.is_exceeded


def test_the_rate_limits_new_connections_over_the_window():
    limits = ConnectionLimits(LimitSettings(Bounds(max_rate=2)), Window(2, 1000))
    for _ in range(2):
        assert limits.rate_delay(L, 10_000) == 0
        limits.admit(L, "a", 10_000)
    assert limits.rate_delay(L, 10_000) == 0
    limits.admit(L, "a", 10_000)
    # Three connections in one second: (3 - 2) / 2 of the second, as in Kafka.
    assert limits.rate_delay(L, 10_000) == 0.5
    assert limits.rate_delay(L, 13_000) == 0


def test_a_listener_has_its_own_rate():
    limits = ConnectionLimits(LimitSettings(listeners={"EXTERNAL": Bounds(max_rate=1)}), Window(2, 1000))
    for _ in range(4):
        limits.admit("EXTERNAL", "a", 0)
    assert limits.rate_delay("EXTERNAL", 0) == 1  # at most one sample
    assert limits.rate_delay("INTERNAL", 0) == 0


def test_an_address_has_at_most_its_rate_of_new_connections():
    limits = ConnectionLimits(LimitSettings(), Window(2, 1000))
    limits.set_ip_rate(DEFAULT, 2)
    limits.set_ip_rate("b", 100)
    assert [limits.admit(L, "a", 0) for _ in range(2)] == [None, None]
    refusal = limits.admit(L, "a", 0)
    assert refusal == Refusal("connection_creation_rate", 0.5)
    # A refused connection does not count.
    assert limits.admit(L, "a", 0) == refusal
    assert not any(limits.admit(L, "b", 0) for _ in range(50))
    assert not limits.admit(L, "a", 3000)
    limits.set_ip_rate(DEFAULT, None)
    assert not any(limits.admit(L, "a", 3000) for _ in range(50))


def test_rates_of_many_addresses_are_bounded():
    limits = ConnectionLimits(LimitSettings())
    limits.set_ip_rate(DEFAULT, 2)
    for n in range(MAX_METERS + 100):
        limits.admit(L, f"10.{n}", n // 100)
        limits.release(L, f"10.{n}")
    assert len(limits._ip_meters) == MAX_METERS
    limits.expire(20_000)
    assert not limits._ip_meters
    assert not limits._by_ip


def test_changed_limits_apply_to_new_connections():
    limits = ConnectionLimits(LimitSettings(Bounds(2), max_per_ip=1))
    limits.admit(L, "a", 0)
    limits.change(LimitSettings(Bounds(1)))
    assert limits.is_full(L)
    limits.change(LimitSettings(Bounds(10), max_per_ip=2, per_ip_overrides={"b": 0}))
    assert not limits.is_full(L)
    assert not limits.admit(L, "a", 0)
    assert limits.admit(L, "a", 0) == TOO_MANY
    assert limits.admit(L, "b", 0) == TOO_MANY
    assert limits.count == 2


def test_a_refused_address_leaves_no_count():
    limits = ConnectionLimits(LimitSettings(max_per_ip=0))
    for n in range(100):
        assert limits.admit(L, f"10.0.0.{n}", 0)
    assert not limits._by_ip


def test_limits_of_a_listener_are_configured_with_its_prefix():
    settings = Settings(
        {
            "listeners": "INTERNAL://localhost:1,EXTERNAL://localhost:2",
            "listener.security.protocol.map": "INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT",
            "inter.broker.listener.name": "INTERNAL",
            "max.connections": "10",
            "listener.name.external.max.connections": "5",
            "listener.name.external.max.connection.creation.rate": "3",
        }
    )
    limits = limit_settings(settings)
    assert limits.broker == Bounds(10)
    assert limits.listeners == {"EXTERNAL": Bounds(5, 3)}
    assert limits.protected_listener == "INTERNAL"
    settings.set_dynamic(broker={"listener.name.external.max.connections": "6"})
    assert limit_settings(settings).listeners == {"EXTERNAL": Bounds(6, 3)}


def test_a_broker_connection_closes_another_one_of_a_full_broker():
    listeners = (SimpleNamespace(name="PLAINTEXT"), SimpleNamespace(name="INTERNAL"))

    async def body(world: World) -> None:
        first, second = world.connect(), world.connect()
        second.connection.last_active += 1
        server_side, client_side = socket.socketpair()
        with client_side:
            assert not world.server.limits.is_full("INTERNAL")
            world.server.limits.admit("INTERNAL", "broker", 0)
            internal = ListenerSecurity("INTERNAL", SecurityProtocol.PLAINTEXT)
            world.server._on_connection(internal, server_side, "broker")
            assert first.connection.closed
            assert not second.connection.closed
            assert len(world.server.connections) == 2
            for connection in list(world.server.connections):
                connection.close()

    in_world(body, listeners=listeners, inter_broker_listener="INTERNAL", max_connections=2)
