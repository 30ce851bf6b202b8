"""Features that need the support of all brokers of a cluster.

A broker writes its supported levels into its registration. The finalized level of a feature is the
highest level that every registered broker supports. So one broker without support disables the
feature. An administrator can set a lower level for the cluster, stored in /feature
(`controller/features.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from kavka.metadata.paths import BrokerRegistration

TRANSACTION_VERSION = "transaction.version"
"""Level 1: flexible records in the transaction log. Level 2: every end of a transaction bumps the
producer epoch (KIP-890)."""
GROUP_VERSION = "group.version"
"""Level 1: the consumer protocol (KIP-848), in which the coordinator assigns partitions."""


class LevelRange(NamedTuple):
    """The supported levels of a feature, both ends included."""

    lowest: int
    highest: int


SUPPORTED: Mapping[str, LevelRange] = {TRANSACTION_VERSION: LevelRange(0, 2), GROUP_VERSION: LevelRange(0, 1)}


def common_levels(supported: Mapping[str, LevelRange], brokers: Collection[BrokerRegistration]) -> dict[str, int]:
    """Return for each feature the highest level that all brokers support, or 0 if a broker does not
    support the feature."""
    return {
        name: min([levels.highest, *(broker.features.get(name, {}).get("max_version", 0) for broker in brokers)])
        for name, levels in supported.items()
    }


def finalized_levels(
    supported: Mapping[str, LevelRange], brokers: Collection[BrokerRegistration], limits: Mapping[str, int]
) -> dict[str, int]:
    """Return the finalized level of each enabled feature. `limits` are the levels that an
    administrator has set, which the finalized levels do not exceed."""
    common = common_levels(supported, brokers)
    levels = {name: min(level, limits.get(name, level)) for name, level in common.items()}
    return {name: level for name, level in levels.items() if level > 0}


class Features:
    """Owns the finalized features. `epoch` is the zxid of the last change of the brokers or of
    /feature, and is the same on all brokers. Clients use the levels with the highest epoch. The
    functions in `on_change` are called after every change."""

    def __init__(self, supported: Mapping[str, LevelRange] = SUPPORTED) -> None:
        self.supported = dict(supported)
        self.epoch = -1
        self.finalized: dict[str, int] = {}
        self.on_change: list[Callable[[], Any]] = []

    def registration(self) -> dict[str, dict[str, int]]:
        """Return the supported levels in the format of the broker's registration."""
        return {
            name: {"min_version": levels.lowest, "max_version": levels.highest}
            for name, levels in self.supported.items()
        }

    def set_brokers(
        self, brokers: Collection[BrokerRegistration], epoch: int, limits: Mapping[str, int] | None = None
    ) -> None:
        """Compute the finalized levels after a change of the brokers or of /feature, and call
        `on_change`."""
        self.finalized = finalized_levels(self.supported, brokers, limits or {})
        self.epoch = epoch
        for callback in self.on_change:
            callback()

    def level(self, name: str) -> int:
        """Return the finalized level of a feature, or 0 if the feature is disabled."""
        return self.finalized.get(name, 0)
