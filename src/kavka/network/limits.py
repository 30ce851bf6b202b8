"""[pure] Limits on open connections, in total and per address, and on the connection rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

WINDOW_S = 1.0


class ConnectionLimits:
    """Owns the counts of open connections. Above the total limit or the rate, new connections stay
    in the backlog. Above the limit of an address, connections are refused. Changed limits apply to
    new connections only.
    """

    def __init__(
        self, max_connections: int, max_per_ip: int, overrides: Mapping[str, int], max_rate: int = 0x7FFFFFFF
    ) -> None:
        self.change(max_connections, max_per_ip, overrides, max_rate)
        self._by_ip: Counter[str] = Counter()
        self._window_end = 0.0
        self._in_window = 0
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

    def pause(self, now: float) -> float:
        """Seconds until the rate allows the next connection."""
        if now >= self._window_end:
            self._window_end = now + WINDOW_S
            self._in_window = 0
        return 0.0 if self._in_window < self._max_rate else self._window_end - now

    def admit(self, address: str) -> bool:
        self._in_window += 1
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
