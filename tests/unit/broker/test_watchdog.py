"""The watchdog of the event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import pytest

from kavka.broker.watchdog import MAX_LAG_S, Watchdog
from kavka.common.metrics import Registry


def block_the_loop(seconds: float) -> None:
    time.sleep(seconds)


def test_a_blocked_loop_is_measured_and_its_stack_logged(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Registry()

    async def scenario() -> None:
        watchdog = Watchdog(metrics)
        watchdog.start()
        await asyncio.sleep(0.1)
        block_the_loop(20 * MAX_LAG_S)
        await asyncio.sleep(0.1)
        watchdog.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    warnings = [record.getMessage() for record in caplog.records if "block_the_loop" in record.getMessage()]
    assert len(warnings) == 1
    assert "The event loop has not responded for" in warnings[0]
    lag = metrics.histogram("kavka_event_loop_lag_seconds", "").labels()
    assert lag.sum >= 19 * MAX_LAG_S
    assert lag.count >= 2
    assert not any(thread.name == "kavka-watchdog" for thread in threading.enumerate())
