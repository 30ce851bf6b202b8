"""A feature is finalized only while every registered broker supports it."""

from __future__ import annotations

from kavka.metadata.features import GROUP_VERSION, SUPPORTED, TRANSACTION_VERSION, Features, LevelRange
from kavka.metadata.paths import BrokerRegistration


def registration(broker_id: int, features: dict[str, dict[str, int]]) -> BrokerRegistration:
    """A registration that was encoded and decoded."""
    return BrokerRegistration.decode(broker_id, BrokerRegistration(broker_id, (), 0, features=features).encode())


def test_single_broker_finalizes_all_supported_levels() -> None:
    features = Features()
    assert features.level(TRANSACTION_VERSION) == 0, "disabled before the registration"
    features.set_brokers([registration(0, features.registration())], 7)
    assert features.finalized == {name: levels.highest for name, levels in SUPPORTED.items()}
    assert (features.level(TRANSACTION_VERSION), features.level(GROUP_VERSION), features.epoch) == (2, 1, 7)


def test_broker_without_support_disables_features() -> None:
    features = Features()
    own_registration = registration(0, features.registration())
    features.set_brokers([own_registration, registration(1, {})], 8)
    assert features.finalized == {}
    features.set_brokers([own_registration], 9)
    assert features.level(TRANSACTION_VERSION) == 2


def test_highest_common_level_is_finalized() -> None:
    features = Features({"a": LevelRange(0, 3), "b": LevelRange(0, 1)})
    other = registration(1, {"a": {"min_version": 0, "max_version": 2}, "c": {"min_version": 1, "max_version": 5}})
    features.set_brokers([registration(0, features.registration()), other], 1)
    assert features.finalized == {"a": 2}
    newer = registration(1, {"a": {"min_version": 0, "max_version": 9}, "b": {"min_version": 0, "max_version": 9}})
    features.set_brokers([registration(0, features.registration()), newer], 2)
    assert features.finalized == {"a": 3, "b": 1}
