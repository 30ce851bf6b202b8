"""[pure] Limits on open connections, in total and per address, and on the connection rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

WINDOW_S = 1.0


class ConnectionLimits:
    """Owns the counts of open connections. At the total limit or the maximum rate, new connections
    stay in the backlog. At the limit of an address, its connections are refused. Changed limits
    apply to new connections only.
    """

    def __init__(
        self, max_connections: int, max_per_ip: int, overrides: Mapping[str, int], max_rate: int = 0x7FFFFFFF
    ) -> None:
        self.change(max_connections, max_per_ip, overrides, max_rate)
        self._by_ip: Counter[str] = Counter()
        self._window_end = 0.0
        self._window_count = 0
        self.count = 0

    def change(
        self, max_connections: int, max_per_ip: int, overrides: Mapping[str, int], max_rate: int = 0x7FFFFFFF
    ) -> None:
        self._max = max_connections
        self._max_per_ip = max_per_ip
        self._overrides = dict(overrides)
        self._max_rate = max_rate

    @property
    def is_full(self) -> bool:
        return self.count >= self._max

    def rate_delay(self, now: float) -> float:
        """Return the seconds until the rate allows the next connection. Starts a new window if the
        current window has ended."""
        if now >= self._window_end:
            self._window_end = now + WINDOW_S
            self._window_count = 0
        return 0.0 if self._window_count < self._max_rate else self._window_end - now

    def admit(self, address: str) -> bool:
        """Count a new connection. Returns False if the address is at its limit."""
        self._window_count += 1
        if self._by_ip[address] >= self._overrides.get(address, self._max_per_ip):
            if not self._by_ip[address]:
                del self._by_ip[address]
            return False
        self._by_ip[address] += 1
        self.count += 1
        return True

    def release(self, address: str) -> None:
        self.count -= 1
        self._by_ip[address] -= 1
        if self._by_ip[address] <= 0:
            del self._by_ip[address]
