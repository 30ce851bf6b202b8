"""Limits on attempts to log in.

An attempt is counted when it begins, before the password is hashed. A successful attempt is removed
from the counters. Checking and counting are one step on the event loop, so that parallel attempts
cannot all pass.

There are three limits. `address` is the IPv4 address or the IPv6 network of the client.

- Back-off, per account and address: a wait of 1 s after the first attempt. Every further attempt
  doubles the wait, up to 60 s.
- Bucket of an address, for all accounts: MAX_BURST attempts at once, then one attempt every
  REFILL_INTERVAL_S.
- Bucket of an account, for all addresses: the same numbers. Addresses where the account has logged
  in before are exempt, so that an attacker cannot lock a user out.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from kavka.common.web import network_of

MIN_WAIT_S, MAX_WAIT_S = 1.0, 60.0
BACK_OFF_RESET_S = 600.0
"""A back-off is reset after this long without an attempt."""
MAX_BURST = 30
REFILL_INTERVAL_S = 3.0
MAX_ENTRIES = 10_000
"""The maximum number of entries per table. The least recently used entry is dropped."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TooManyAttempts(Exception):
    """A limit was reached. The next attempt is allowed after `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"too many attempts to log in: wait {max(1.0, seconds):.0f} s")
        self.seconds = seconds


class Bounded(OrderedDict[K, V], Generic[K, V]):
    """A mapping of at most MAX_ENTRIES, the least recently used first."""

    def put(self, key: K, value: V) -> None:
        self[key] = value
        self.move_to_end(key)
        if len(self) > MAX_ENTRIES:
            self.popitem(last=False)


def _wait(failures: int) -> float:
    return min(MAX_WAIT_S, MIN_WAIT_S * 2.0 ** min(failures, 10))


@dataclass(slots=True)
class BackOff:
    """The attempts of an account from an address since the last success, and the monotonic time
    when the back-off ends."""

    failures: int
    ends_at: float


@dataclass(slots=True)
class Bucket:
    """The number of attempts that remained at the time `refilled_at`."""

    remaining: float
    refilled_at: float

    def refill(self, now: float) -> None:
        self.remaining = min(MAX_BURST, self.remaining + (now - self.refilled_at) / REFILL_INTERVAL_S)
        self.refilled_at = now


class Attempts:
    """Owns the counters of login attempts. Only the event loop may call it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._back_offs: Bounded[tuple[str, str], BackOff] = Bounded()
        self._buckets: Bounded[tuple[str, str], Bucket] = Bounded()
        self._successful_logins: Bounded[tuple[str, str], None] = Bounded()
        """Pairs (account, address) with a successful login."""

    def begin(self, account: str, address: str) -> None:
        """Count an attempt. Raises TooManyAttempts, and counts nothing, if a limit is reached. The
        caller limits the length of `account`, and passes "" for an invalid name."""
        now = self._clock()
        network = network_of(address)
        pair = account, network
        back_off = self._back_offs.get(pair)
        if back_off is not None and now < back_off.ends_at:
            raise TooManyAttempts(back_off.ends_at - now)
        keys = self._bucket_keys(pair)
        buckets = [self._buckets.get(key) or Bucket(MAX_BURST, now) for key in keys]
        for bucket in buckets:
            bucket.refill(now)
            if bucket.remaining < 1:
                raise TooManyAttempts((1 - bucket.remaining) * REFILL_INTERVAL_S)
        for key, bucket in zip(keys, buckets, strict=True):
            bucket.remaining -= 1
            self._buckets.put(key, bucket)
        failures = 0 if back_off is None or now > back_off.ends_at + BACK_OFF_RESET_S else back_off.failures
        self._back_offs.put(pair, BackOff(failures + 1, now + _wait(failures)))

    def record_failure(self, account: str, address: str) -> None:
        """Start the back-off again: the check of the password may have taken longer."""
        pair = account, network_of(address)
        back_off = self._back_offs.get(pair)
        if back_off is not None:
            self._back_offs.put(pair, BackOff(back_off.failures, self._clock() + _wait(back_off.failures - 1)))

    def record_success(self, account: str, address: str) -> None:
        """Remove the attempt and the earlier failures of the account from this address."""
        pair = account, network_of(address)
        self.cancel(account, address)
        self._back_offs.pop(pair, None)
        self._successful_logins.put(pair, None)

    def cancel(self, account: str, address: str) -> None:
        """Remove an attempt without an outcome from the buckets. The back-off remains."""
        for key in self._bucket_keys((account, network_of(address))):
            bucket = self._buckets.get(key)
            if bucket is not None:
                bucket.remaining = min(MAX_BURST, bucket.remaining + 1)

    def _bucket_keys(self, pair: tuple[str, str]) -> list[tuple[str, str]]:
        account, network = pair
        if not account or pair in self._successful_logins:
            return [("address", network)]
        return [("address", network), ("account", account)]
