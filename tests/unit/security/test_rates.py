"""The numbers of rates and token buckets equal those of Kafka 3.9.1, which
tests/support/java/QuotaProbe.java prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kavka.security.rates import MAX_THROTTLE_MS, Rate, TokenBucket, Window, refill_ms, throttle_ms

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "quotas-3.9.1.json").read_text())
BOUND = 10.0


@pytest.mark.parametrize("name", GOLDEN)
def test_numbers_equal_kafkas(name: str) -> None:
    kind, samples, sample_ms, _ = name.split()
    window = Window(int(samples), int(sample_ms))
    rate, bucket = Rate(), TokenBucket()
    for now_ms, value, expected, expected_window in GOLDEN[name]:
        if kind == "rate":
            rate.record(value, now_ms, window)
            measured, window_ms = rate.measure(now_ms, window)
            assert window_ms == expected_window
            assert measured == pytest.approx(expected)
        else:
            bucket.record(value, now_ms, BOUND, window)
            assert bucket.measure(now_ms, BOUND, window) == pytest.approx(expected)


def test_throttle_time_brings_the_rate_to_the_bound() -> None:
    window = Window()
    rate = Rate()
    rate.record(2000, 0, window)
    measured, window_ms = rate.measure(0, window)
    assert (measured, window_ms) == (200, 10_000)
    assert throttle_ms(measured, 100, window_ms) == 10_000
    assert throttle_ms(measured, 100, window_ms, 1000) == 1000
    assert throttle_ms(measured, 200, window_ms) == 0
    # After the pause of 10 s, the rate over the window is the bound.
    assert rate.measure(10_000, window)[0] == pytest.approx(200)
    assert throttle_ms(1, 0, window_ms) == MAX_THROTTLE_MS


def test_a_rate_without_events_in_the_window_is_idle() -> None:
    window, rate = Window(), Rate()
    assert rate.is_idle(0, window)
    rate.record(1, 500, window)
    assert not rate.is_idle(11_499, window)
    assert rate.is_idle(11_500, window)


def test_a_negative_bucket_refills_at_its_rate() -> None:
    window, bucket = Window(2, 1000), TokenBucket()
    bucket.record(25, 0, 10, window)
    tokens = bucket.measure(0, 10, window)
    assert tokens == -5
    assert refill_ms(tokens, 10) == 500
    assert bucket.measure(500, 10, window) == 0
    assert bucket.measure(60_000, 10, window) == 20
    assert refill_ms(-1, 0) == MAX_THROTTLE_MS
