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
_MIN_DELAY = 0.3


class TaskStopped(ConnectError):
    """The task was stopped while it waited for a retry."""


def is_retriable(error: BaseException) -> bool:
    """Whether the error is a RetriableError, or Spark's exception for one in a Spark task."""
    return isinstance(error, RetriableError) or f"{RetriableError.__name__}:" in str(error)


class Retries:
    """Calls operations of a task again after transient errors, until `stop` is set."""

    def __init__(self, timeout_ms: int, max_delay_ms: int, stop: threading.Event) -> None:
        self._timeout = timeout_ms / 1000
        self._max_delay = max_delay_ms / 1000
        self._stop = stop

    def call(self, operation: str, work: Callable[[], T]) -> T:
        """Returns the result of `work`, which is called again after each transient error until the
        timeout. The delay starts at 0.3 s and doubles up to the maximum, which has jitter, as in
        Kafka Connect. `operation` names the work in log lines."""
        deadline = None if self._timeout < 0 else time.monotonic() + self._timeout
        attempt = 0
        while True:
            try:
                return work()
            except Exception as error:
                if not is_retriable(error):
                    raise
                attempt += 1
                pause = min(_MIN_DELAY * 2 ** (attempt - 1), self._max_delay)
                if pause >= self._max_delay > 0:
                    pause *= random.uniform(0.8, 1.0)
                if deadline is not None and time.monotonic() + pause > deadline:
                    if attempt == 1:
                        raise
                    raise ConnectError(f"Exceeded errors.retry.timeout after {attempt} attempts: {error}") from error
                logger.warning("%s failed (attempt %d), next attempt in %.1f s: %s", operation, attempt, pause, error)
                if self._stop.wait(pause):
                    raise TaskStopped("stopped while waiting for the next attempt") from error
