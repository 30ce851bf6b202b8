from __future__ import annotations

from kavka.network.limits import ConnectionLimits


def test_an_address_may_not_have_more_connections_than_its_own_limit_says():
    limits = ConnectionLimits(100, 2, {"10.0.0.9": 1})
    assert limits.admit("10.0.0.1")
    assert limits.admit("10.0.0.1")
    assert not limits.admit("10.0.0.1")
    assert limits.admit("10.0.0.9")
    assert not limits.admit("10.0.0.9")
    limits.release("10.0.0.1")
    assert limits.admit("10.0.0.1")


def test_a_full_broker_is_full_until_somebody_leaves():
    limits = ConnectionLimits(2, 10, {})
    assert limits.admit("a")
    assert limits.admit("b")
    assert limits.full
    limits.release("a")
    assert not limits.full
    assert limits.count == 1
