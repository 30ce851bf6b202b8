"""[pure] How many connections may be open: in all, per address, and for how long they may be idle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


class ConnectionLimits:
    """Counts connections. A full broker lets new ones wait in the backlog; a full address is turned away."""

    def __init__(self, max_connections: int, max_per_ip: int, overrides: Mapping[str, int]) -> None:
        self._max = max_connections
        self._max_per_ip = max_per_ip
        self._overrides = dict(overrides)
        self._by_ip: Counter[str] = Counter()
        self.count = 0

    @property
    def full(self) -> bool:
        return self.count >= self._max

    def admit(self, address: str) -> bool:
        if self._by_ip[address] >= self._overrides.get(address, self._max_per_ip):
            return False
        self._by_ip[address] += 1
        self.count += 1
        return True

    def release(self, address: str) -> None:
        self.count -= 1
        self._by_ip[address] -= 1
        if self._by_ip[address] <= 0:
            del self._by_ip[address]

    def change(self, max_connections: int, max_per_ip: int, overrides: Mapping[str, int]) -> None:
        """Takes effect for connections to come; those that are open stay."""
        self._max = max_connections
        self._max_per_ip = max_per_ip
        self._overrides = dict(overrides)
