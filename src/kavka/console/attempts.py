"""Limits on attempts to log in.

An attempt is counted when it begins, before the password is hashed, and uncounted when it succeeds.
Checking and counting are one step on the event loop, so that parallel attempts cannot all pass.

| limit | of | attempts | |---|---|---| | back-off | an account from an address | a wait of 1 s
after the first, doubled by each, up to 60 s | | address | all accounts from an address | BURST at
once, then one each REFILL_S | | account | an account from all addresses | the same; addresses where
the account has logged in before are exempt |

The exemption keeps an attacker from locking a user out.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from kavka.common.web import network_of

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
FORGET_S = 600.0
"""A back-off is reset after this long without an attempt."""
BURST = 30
REFILL_S = 3.0
MAX_ENTRIES = 10_000
"""Per table; the least recently used entry is dropped."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TooSoon(Exception):
    """Too many attempts; `seconds` to wait."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"too many attempts to log in: wait {max(1.0, seconds):.0f} s")
        self.seconds = seconds


class Bounded(OrderedDict[K, V], Generic[K, V]):
    """A mapping of at most MAX_ENTRIES."""

    def touch(self, key: K, value: V) -> None:
        self[key] = value
        self.move_to_end(key)
        if len(self) > MAX_ENTRIES:
            self.popitem(last=False)


@dataclass(slots=True)
class BackOff:
    """The failures of an account from an address, and the end of its back-off."""

    failures: int
    until: float


@dataclass(slots=True)
class Bucket:
    """The number of attempts that are left at the time `at`."""

    left: float
    at: float

    def refill(self, now: float) -> None:
        self.left = min(BURST, self.left + (now - self.at) / REFILL_S)
        self.at = now


class Attempts:
    """Owns the counters of login attempts. Only the event loop may call it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._back_offs: Bounded[tuple[str, str], BackOff] = Bounded()
        self._buckets: Bounded[tuple[str, str], Bucket] = Bounded()
        self._proven: Bounded[tuple[str, str], None] = Bounded()
        """Pairs (account, address) with a successful login."""

    def begin(self, account: str, address: str) -> None:
        """Count an attempt. Raises TooSoon, and counts nothing, if the limit is reached. The caller
        bounds the length of `account`, and passes "" for an invalid name."""
        now = self._clock()
        network = network_of(address)
        pair = account, network
        back_off = self._back_offs.get(pair)
        if back_off is not None and now < back_off.until:
            raise TooSoon(back_off.until - now)
        keys = self._keys(pair)
        buckets = [self._buckets.get(key) or Bucket(BURST, now) for key in keys]
        for bucket in buckets:
            bucket.refill(now)
            if bucket.left < 1:
                raise TooSoon((1 - bucket.left) * REFILL_S)
        for key, bucket in zip(keys, buckets, strict=True):
            bucket.left -= 1
            self._buckets.touch(key, bucket)
        failures = 0 if back_off is None or now > back_off.until + FORGET_S else back_off.failures
        wait = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(failures, 10))
        self._back_offs.touch(pair, BackOff(failures + 1, now + wait))

    def succeeded(self, account: str, address: str) -> None:
        """The attempt succeeded: reset it and the failures before it."""
        pair = account, network_of(address)
        self.cancelled(account, address)
        self._back_offs.pop(pair, None)
        self._proven.touch(pair, None)

    def cancelled(self, account: str, address: str) -> None:
        """The attempt has no outcome: do not count it."""
        for key in self._keys((account, network_of(address))):
            bucket = self._buckets.get(key)
            if bucket is not None:
                bucket.left = min(BURST, bucket.left + 1)

    def _keys(self, pair: tuple[str, str]) -> list[tuple[str, str]]:
        account, network = pair
        if not account or pair in self._proven:
            return [("address", network)]
        return [("address", network), ("account", account)]
