from __future__ import annotations

from kavka.network.limits import ConnectionLimits


def test_an_address_has_at_most_its_limit_of_connections():
    limits = ConnectionLimits(100, 2, {"10.0.0.9": 1})
    assert limits.admit("10.0.0.1")
    assert limits.admit("10.0.0.1")
    assert not limits.admit("10.0.0.1")
    assert limits.admit("10.0.0.9")
    assert not limits.admit("10.0.0.9")
    limits.release("10.0.0.1")
    assert limits.admit("10.0.0.1")


def test_a_full_broker_is_full_until_a_connection_closes():
    limits = ConnectionLimits(2, 10, {})
    assert limits.admit("a")
    assert limits.admit("b")
    assert limits.is_full
    limits.release("a")
    assert not limits.is_full
    assert limits.count == 1


def test_the_rate_limits_new_connections_per_second():
    limits = ConnectionLimits(100, 100, {}, max_rate=2)
    assert limits.rate_delay(10.0) == 0
    limits.admit("a")
    limits.admit("b")
    assert limits.rate_delay(10.25) == 0.75
    assert limits.rate_delay(11.0) == 0
    limits.admit("c")
    assert limits.rate_delay(11.5) == 0


def test_changed_limits_apply_to_new_connections():
    limits = ConnectionLimits(2, 1, {})
    limits.admit("a")
    limits.change(1, 2, {"b": 0}, 10)
    assert limits.is_full
    limits.change(10, 2, {"b": 0}, 10)
    assert not limits.is_full
    assert limits.admit("a")
    assert not limits.admit("a")
    assert not limits.admit("b")
    assert limits.count == 2


def test_a_refused_address_leaves_no_count():
    limits = ConnectionLimits(10, 0, {})
    for n in range(100):
        assert not limits.admit(f"10.0.0.{n}")
    assert not limits._by_ip
