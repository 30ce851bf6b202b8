"""Logs failed records that had no callback and whose futures the program never read."""

from __future__ import annotations

import logging
from collections import deque
from time import monotonic

from kavka.client.errors import Purged

logger = logging.getLogger(__name__)

INTERVAL = 10.0
"""Seconds between two log lines of one producer."""


class FailureLog:
    """Counts unreported failures per partition. Only the loop may call it.

    `unreported` has (topic, partition, error, record count) of batches. The finalizer of a batch
    appends to it. It must not log, since it may run in any thread and under any lock.

    Records that `purge()` removed are skipped, since the program requested their removal, and
    records of transactions, since the commit raises their error.
    """

    def __init__(self, unreported: deque[tuple[str, int, BaseException, int]], transactional: bool) -> None:
        self._unreported = unreported
        self._transactional = transactional
        self._counts: dict[tuple[str, int], int] = {}
        self._errors: dict[tuple[str, int], BaseException] = {}
        self._next_line = 0.0

    def report(self, final: bool = False) -> None:
        """Log failures, unless the last line is younger than `INTERVAL` and `final` is not set."""
        self._collect()
        if not self._counts or (not final and monotonic() < self._next_line):
            return
        self._next_line = monotonic() + INTERVAL
        worst = max(self._counts, key=self._counts.__getitem__)
        topic, partition = worst
        count = self._counts.pop(worst)
        other_failures = (
            f"; {sum(self._counts.values())} of {len(self._counts)} other partitions" if self._counts else ""
        )
        logger.warning(
            "%d records of %s were not stored%s: %s (they had no callback, and the program did not read their futures)",
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
