"""Retries after transient errors: `errors.retry.timeout` and `errors.retry.delay.max.ms`."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from kavka.pipeline.connect.errors import ConnectError, RetriableError

logger = logging.getLogger(__name__)

T = TypeVar("T")
_FIRST = 0.3


class Stopped(ConnectError):
    """The task was stopped while it waited."""


def is_retriable(error: BaseException) -> bool:
    """Also true for the exception that Spark raises for a RetriableError in one of its tasks."""
    return isinstance(error, RetriableError) or f"{RetriableError.__name__}:" in str(error)


class Retries:
    """Calls operations of a task again after transient errors, until `stop` is set."""

    def __init__(self, timeout_ms: int, max_delay_ms: int, stop: threading.Event) -> None:
        self._timeout = timeout_ms / 1000
        self._max_delay = max_delay_ms / 1000
        self._stop = stop

    def call(self, what: str, work: Callable[[], T]) -> T:
        """The result of `work`, called again after each RetriableError until the timeout. The delay
        starts at 0.3 s and doubles up to the maximum, which has jitter, as in Kafka Connect."""
        deadline = None if self._timeout < 0 else time.monotonic() + self._timeout
        attempt = 0
        while True:
            try:
                return work()
            except Exception as error:
                if not is_retriable(error):
                    raise
                attempt += 1
                pause = min(_FIRST * 2 ** (attempt - 1), self._max_delay)
                if pause >= self._max_delay > 0:
                    pause *= random.uniform(0.8, 1.0)
                if deadline is not None and time.monotonic() + pause > deadline:
                    if attempt == 1:
                        raise
                    raise ConnectError(f"Exceeded errors.retry.timeout after {attempt} attempts: {error}") from error
                logger.warning("%s: attempt %d failed, next attempt in %.1f s: %s", what, attempt, pause, error)
                if self._stop.wait(pause):
                    raise Stopped("stopped while waiting for the next attempt") from error
