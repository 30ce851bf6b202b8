"""Features that need the support of all brokers of a cluster.

A broker writes its supported levels into its registration. The finalized level of a feature is the
highest level that every registered broker supports, so one broker without support disables it. An
administrator can set a lower level for the cluster, stored in /feature (`controller/features.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from kavka.metadata.paths import BrokerRegistration

TRANSACTION_VERSION = "transaction.version"
"""1: flexible records in the transaction log; 2: every end of a transaction bumps the producer
epoch."""
GROUP_VERSION = "group.version"
"""1: groups of the consumer protocol, whose partitions the coordinator assigns."""


class Levels(NamedTuple):
    """The supported levels of a feature, both ends included."""

    lowest: int
    highest: int


SUPPORTED: Mapping[str, Levels] = {TRANSACTION_VERSION: Levels(0, 2), GROUP_VERSION: Levels(0, 1)}


def common_levels(supported: Mapping[str, Levels], brokers: Collection[BrokerRegistration]) -> dict[str, int]:
    """The highest level of each feature that all brokers support; 0 for a feature that a broker
    does not support."""
    return {
        name: min([levels.highest, *(broker.features.get(name, {}).get("max_version", 0) for broker in brokers)])
        for name, levels in supported.items()
    }


def finalized_levels(
    supported: Mapping[str, Levels], brokers: Collection[BrokerRegistration], limits: Mapping[str, int]
) -> dict[str, int]:
    """The finalized levels under the administrator's `limits`, without disabled features."""
    common = common_levels(supported, brokers)
    levels = {name: min(level, limits.get(name, level)) for name, level in common.items()}
    return {name: level for name, level in levels.items() if level > 0}


class Features:
    """Owns the finalized features. `epoch` is the zxid of the last change of the brokers or of
    /feature, and is the same on all brokers. Clients use the levels with the highest epoch. The
    functions in `on_change` are called after every change."""

    def __init__(self, supported: Mapping[str, Levels] = SUPPORTED) -> None:
        self.supported = dict(supported)
        self.epoch = -1
        self.finalized: dict[str, int] = {}
        self.on_change: list[Callable[[], Any]] = []

    def registered(self) -> dict[str, dict[str, int]]:
        """The supported levels as the broker's registration contains them."""
        return {
            name: {"min_version": levels.lowest, "max_version": levels.highest}
            for name, levels in self.supported.items()
        }

    def set_brokers(
        self, brokers: Collection[BrokerRegistration], epoch: int, limits: Mapping[str, int] | None = None
    ) -> None:
        self.finalized = finalized_levels(self.supported, brokers, limits or {})
        self.epoch = epoch
        for callback in self.on_change:
            callback()

    def level(self, name: str) -> int:
        """The finalized level, 0 if the feature is disabled."""
        return self.finalized.get(name, 0)
