"""[pure] Rates over sampled windows and token buckets, with the numbers of Kafka's metrics.

Times are in milliseconds. The caller passes the clock's time and the bound, so that one object
serves a bound that changes.
"""

from __future__ import annotations

from math import floor
from typing import NamedTuple

# throttle_time_ms is an int32.
MAX_THROTTLE_MS = 0x7FFFFFFF


class Window(NamedTuple):
    """The samples over which a rate is measured, for example 11 samples of one second."""

    samples: int = 11
    sample_ms: int = 1000

    @property
    def total_ms(self) -> int:
        return self.samples * self.sample_ms


class Rate:
    """The sum of recorded values per second, over `Window.samples` samples.

    There is one sample more than the window has, so that the oldest sample is complete when it
    leaves the window. A sample without an event in the window is reset to start now. The time since
    the start of the oldest sample is at least all samples but one: a burst after a quiet time is
    allowed.
    """

    __slots__ = ("_current", "_oldest", "_sample_ends_at", "_samples", "_scan_at", "_total")

    def __init__(self) -> None:
        # Each sample is [start, time of the last event, sum].
        self._samples: list[list[float]] = []
        self._current = 0
        # The sum and the oldest start of the samples are valid until a sample expires.
        self._total = 0.0
        self._oldest = 0.0
        self._scan_at = 0.0
        # Until this time no sample ends and none expires.
        self._sample_ends_at = 0.0

    def record_within(self, limit: float, value: float, now_ms: int) -> bool:
        """Record a value, unless the sum of the samples would exceed `limit` or a sample ends or
        expires now. Returns whether the value was recorded.

        The window of `measure` has at least the length of all samples but one, so a sum within what
        the bound permits in that time is not throttled: no rate needs to be computed.
        """
        if now_ms >= self._sample_ends_at:
            return False
        total = self._total + value
        if total > limit:
            return False
        sample = self._samples[self._current]
        sample[1] = now_ms
        sample[2] += value
        self._total = total
        return True

    def record(self, value: float, now_ms: int, window: Window) -> None:
        samples = self._samples
        sample = samples[self._current] if samples else self._new_sample(now_ms)
        if now_ms - sample[0] >= window.sample_ms:
            self._current = (self._current + 1) % (window.samples + 1)
            if self._current < len(samples):
                sample = samples[self._current]
                sample[0], sample[2] = now_ms, 0.0
                self._scan_at = self._sample_ends_at = 0.0
            else:
                sample = self._new_sample(now_ms)
        sample[1] = now_ms
        sample[2] += value
        self._total += value

    def _new_sample(self, now_ms: int) -> list[float]:
        sample = [now_ms, now_ms, 0.0]
        self._samples.append(sample)
        self._scan_at = self._sample_ends_at = 0.0
        return sample

    def measure(self, now_ms: int, window: Window) -> tuple[float, float]:
        """Return the rate per second, and the milliseconds over which it was measured."""
        if now_ms >= self._scan_at:
            self._scan(now_ms, window)
        elapsed = now_ms - self._oldest
        missing_samples = window.samples - 1 - elapsed // window.sample_ms
        if missing_samples > 0:
            elapsed += missing_samples * window.sample_ms
        elapsed = max(elapsed, 1)
        return self._total * 1000 / elapsed, elapsed

    def _scan(self, now_ms: int, window: Window) -> None:
        """Reset the expired samples, and compute the sum, the oldest start and the next expiry."""
        expired_at = now_ms - window.total_ms
        total, oldest, earliest_event = 0.0, float(now_ms), float(now_ms)
        for sample in self._samples:
            if sample[1] <= expired_at:
                sample[0] = sample[1] = now_ms
                sample[2] = 0.0
            total += sample[2]
            oldest = min(oldest, sample[0])
            earliest_event = min(earliest_event, sample[1])
        self._total, self._oldest = total, oldest
        self._scan_at = earliest_event + window.total_ms
        if self._samples:
            self._sample_ends_at = min(self._scan_at, self._samples[self._current][0] + window.sample_ms)

    def is_idle(self, now_ms: int, window: Window) -> bool:
        """Whether all events left the window, so that the object equals a new one."""
        expired_at = now_ms - window.total_ms
        return all(sample[1] <= expired_at for sample in self._samples)


class TokenBucket:
    """Tokens that refill with the bound's rate, up to the bound times the window. It starts full. A
    record may take more tokens than there are; the bucket is then negative."""

    __slots__ = ("_tokens", "_updated_ms")

    def __init__(self) -> None:
        self._tokens: float | None = None
        self._updated_ms = 0

    def record(self, value: float, now_ms: int, rate: float, window: Window) -> None:
        self._tokens = min(_burst(rate, window), self.measure(now_ms, rate, window) - value)

    def measure(self, now_ms: int, rate: float, window: Window) -> float:
        """Return the tokens in the bucket after the refill."""
        burst = _burst(rate, window)
        if self._tokens is None:
            self._tokens = burst
        else:
            self._tokens = min(burst, self._tokens + rate * (now_ms - self._updated_ms) / 1000)
        self._updated_ms = now_ms
        return self._tokens


def _burst(rate: float, window: Window) -> float:
    return rate * window.total_ms / 1000


def throttle_ms(rate: float, bound: float, window_ms: float, limit_ms: int = MAX_THROTTLE_MS) -> int:
    """Return how long to pause so that `rate`, measured over `window_ms`, falls to `bound`."""
    if rate <= bound:
        return 0
    if bound <= 0:
        return limit_ms
    return min(limit_ms, floor((rate - bound) / bound * window_ms + 0.5))


def refill_ms(tokens: float, rate: float) -> int:
    """Return the time until a bucket with `tokens`, if they are negative, is at 0 again."""
    if tokens >= 0:
        return 0
    return MAX_THROTTLE_MS if rate <= 0 else min(MAX_THROTTLE_MS, floor(-tokens * 1000 / rate + 0.5))
