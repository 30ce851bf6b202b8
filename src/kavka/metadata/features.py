"""Features that all brokers of a cluster must have before any of them offers them.

A broker writes the levels that it can serve into its registration. A feature is offered (finalized) at the highest
level that every registered broker has: so a broker that does not know it keeps it off while it is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kavka.metadata.paths import BrokerRegistration

TRANSACTION_VERSION = "transaction.version"
"""1: the coordinator's log in its flexible format; 2: every end of a transaction raises the producer's epoch."""
GROUP_VERSION = "group.version"
"""1: groups whose partitions are assigned by the coordinator."""


class Levels(NamedTuple):
    lowest: int
    highest: int


SUPPORTED: Mapping[str, Levels] = {TRANSACTION_VERSION: Levels(0, 2), GROUP_VERSION: Levels(0, 1)}


class Features:
    """`epoch` goes up with every change of the brokers and is the same on all of them (a zxid): clients take the
    levels that come with the highest one."""

    def __init__(self, supported: Mapping[str, Levels] = SUPPORTED) -> None:
        self.supported = dict(supported)
        self.epoch = -1
        self.finalized: dict[str, int] = {}

    def registered(self) -> dict[str, dict[str, int]]:
        """What the broker's registration says of them."""
        return {
            name: {"min_version": levels.lowest, "max_version": levels.highest}
            for name, levels in self.supported.items()
        }

    def set_brokers(self, brokers: Iterable[BrokerRegistration], epoch: int) -> None:
        everyone = [broker.features for broker in brokers]
        found = {
            name: min([levels.highest, *(features.get(name, {}).get("max_version", 0) for features in everyone)])
            for name, levels in self.supported.items()
        }
        self.finalized = {name: level for name, level in found.items() if level > 0}
        self.epoch = epoch

    def level(self, name: str) -> int:
        """0 where it is not offered."""
        return self.finalized.get(name, 0)
