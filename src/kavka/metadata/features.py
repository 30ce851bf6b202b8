"""Features that all brokers of a cluster must have before any of them offers them.

A broker writes the levels that it can serve into its registration. A feature is offered (finalized) at the highest
level that every registered broker has: so a broker that does not know it keeps it off while it is there. An
administrator may set a lower one for all, which is kept in /feature (`controller/features.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from kavka.metadata.paths import BrokerRegistration

TRANSACTION_VERSION = "transaction.version"
"""1: the coordinator's log in its flexible format; 2: every end of a transaction raises the producer's epoch."""
GROUP_VERSION = "group.version"
"""1: groups whose partitions are assigned by the coordinator."""


class Levels(NamedTuple):
    lowest: int
    highest: int


SUPPORTED: Mapping[str, Levels] = {TRANSACTION_VERSION: Levels(0, 2), GROUP_VERSION: Levels(0, 1)}


def common_levels(supported: Mapping[str, Levels], brokers: Collection[BrokerRegistration]) -> dict[str, int]:
    """The highest level of each feature that all brokers have; 0 where one does not know it."""
    return {
        name: min([levels.highest, *(broker.features.get(name, {}).get("max_version", 0) for broker in brokers)])
        for name, levels in supported.items()
    }


def offered(
    supported: Mapping[str, Levels], brokers: Collection[BrokerRegistration], limits: Mapping[str, int]
) -> dict[str, int]:
    """What the brokers offer, where `limits` are set; without those that are off."""
    common = common_levels(supported, brokers)
    found = {name: min(level, limits.get(name, level)) for name, level in common.items()}
    return {name: level for name, level in found.items() if level > 0}


class Features:
    """`epoch` goes up with every change of the brokers or of what is set, and is the same on all of them (a zxid):
    clients take the levels that come with the highest one. `on_change` is called after each."""

    def __init__(self, supported: Mapping[str, Levels] = SUPPORTED) -> None:
        self.supported = dict(supported)
        self.epoch = -1
        self.finalized: dict[str, int] = {}
        self.on_change: list[Callable[[], Any]] = []

    def registered(self) -> dict[str, dict[str, int]]:
        """What the broker's registration says of them."""
        return {
            name: {"min_version": levels.lowest, "max_version": levels.highest}
            for name, levels in self.supported.items()
        }

    def set_brokers(
        self, brokers: Collection[BrokerRegistration], epoch: int, limits: Mapping[str, int] | None = None
    ) -> None:
        self.finalized = offered(self.supported, brokers, limits or {})
        self.epoch = epoch
        for changed in self.on_change:
            changed()

    def level(self, name: str) -> int:
        """0 where it is not offered."""
        return self.finalized.get(name, 0)
