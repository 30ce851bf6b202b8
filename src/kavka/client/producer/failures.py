"""Logs failed records that had no callback and whose futures the application never read."""

from __future__ import annotations

import logging
from collections import deque
from time import monotonic

from kavka.client.errors import Purged

logger = logging.getLogger(__name__)

LOG_INTERVAL_S = 10.0
"""Minimum number of seconds between two log messages of one producer."""


class FailureLog:
    """Counts unreported failures per partition. Only the event loop may call it.

    `unreported` has (topic, partition, error, record count) of batches. The finalizer of a batch
    appends to it. The finalizer must not log, because it may run in any thread and under any lock.

    Records that `purge()` removed are not logged, because the application requested their removal.
    Records of transactions are not logged, because the commit raises their error.
    """

    def __init__(self, unreported: deque[tuple[str, int, BaseException, int]], transactional: bool) -> None:
        self._unreported = unreported
        self._transactional = transactional
        self._counts: dict[tuple[str, int], int] = {}
        self._errors: dict[tuple[str, int], BaseException] = {}
        self._next_log = 0.0

    def report(self, final: bool = False) -> None:
        """Log failures, at most once per `LOG_INTERVAL_S` unless `final` is set."""
        self._collect()
        if not self._counts or (not final and monotonic() < self._next_log):
            return
        self._next_log = monotonic() + LOG_INTERVAL_S
        worst = max(self._counts, key=self._counts.__getitem__)
        topic, partition = worst
        count = self._counts.pop(worst)
        other_failures = (
            f"; {sum(self._counts.values())} of {len(self._counts)} other partitions" if self._counts else ""
        )
        logger.warning(
            "%d records of %s were not stored%s: %s "
            "(they had no callback, and the application did not read their futures)",
            count,
            topic if partition < 0 else f"{topic}-{partition}",
            other_failures,
            self._errors[worst],
        )
        self._counts.clear()
        self._errors.clear()

    def _collect(self) -> None:
        while self._unreported:
            topic, partition, error, count = self._unreported.popleft()
            if not self._transactional and not isinstance(error, Purged):
                key = topic, partition
                self._counts[key] = self._counts.get(key, 0) + count
                self._errors.setdefault(key, error)
