"""Trying again what may pass: `errors.retry.timeout` and `errors.retry.delay.max.ms`."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from kavka.pipeline.connect.errors import ConnectError, RetriableError

log = logging.getLogger(__name__)

T = TypeVar("T")
_FIRST = 0.3


class Stopped(ConnectError):
    """The task was told to stop while it waited."""


def may_pass(error: BaseException) -> bool:
    """Also what Spark has wrapped around an error that was raised in one of its tasks."""
    return isinstance(error, RetriableError) or f"{RetriableError.__name__}:" in str(error)


class Retries:
    def __init__(self, timeout_ms: int, most_ms: int, stop: threading.Event) -> None:
        self._timeout = timeout_ms / 1000
        self._most = most_ms / 1000
        self._stop = stop

    def call(self, what: str, work: Callable[[], T]) -> T:
        """The result of `work`, tried again after a RetriableError until the time is over: from 0.3 s on each pause is
        twice the last, with some chance in the longest, as Kafka Connect does."""
        deadline = None if self._timeout < 0 else time.monotonic() + self._timeout
        attempt = 0
        while True:
            try:
                return work()
            except Exception as error:
                if not may_pass(error):
                    raise
                attempt += 1
                pause = min(_FIRST * 2 ** (attempt - 1), self._most)
                if pause >= self._most > 0:
                    pause *= random.uniform(0.8, 1.0)
                if deadline is not None and time.monotonic() + pause > deadline:
                    if attempt == 1:
                        raise
                    raise ConnectError(f"Exceeded errors.retry.timeout after {attempt} attempts: {error}") from error
                log.warning("%s: attempt %d failed, again in %.1f s: %s", what, attempt, pause, error)
                if self._stop.wait(pause):
                    raise Stopped("stopped while it waited to try again") from error
