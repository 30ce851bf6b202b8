"""A log line for failed records whose failure nobody saw: no callback, and the future was not read."""

from __future__ import annotations

import logging
from collections import deque
from time import monotonic

from kavka.client.errors import Purged

log = logging.getLogger(__name__)

INTERVAL = 10.0
"""Seconds between two lines of a producer."""


class FailureLog:
    """On the loop. `unseen` has (topic, partition, error, record count) of batches; their finalizer adds to it, in
    whatever thread and under whatever lock it runs, so it must not log by itself.

    Records that `purge()` removed are left out: the program asked for it. So are those of transactions, whose failure
    the commit raises.
    """

    def __init__(self, unseen: deque[tuple[str, int, BaseException, int]], transactional: bool) -> None:
        self._unseen = unseen
        self._transactional = transactional
        self._counts: dict[tuple[str, int], int] = {}
        self._errors: dict[tuple[str, int], BaseException] = {}
        self._next_line = 0.0

    def report(self, final: bool = False) -> None:
        """Write a line if there is something to say and the last one is long enough ago, or this is the end."""
        self._collect()
        if not self._counts or (not final and monotonic() < self._next_line):
            return
        self._next_line = monotonic() + INTERVAL
        worst = max(self._counts, key=self._counts.__getitem__)
        topic, partition = worst
        count = self._counts.pop(worst)
        others = f"; {sum(self._counts.values())} of {len(self._counts)} other partitions" if self._counts else ""
        log.warning(
            "%d records of %s were not stored%s: %s (without a callback, and nobody read their futures)",
            count,
            topic if partition < 0 else f"{topic}-{partition}",
            others,
            self._errors[worst],
        )
        self._counts.clear()
        self._errors.clear()

    def _collect(self) -> None:
        while self._unseen:
            topic, partition, error, count = self._unseen.popleft()
            if not self._transactional and not isinstance(error, Purged):
                place = topic, partition
                self._counts[place] = self._counts.get(place, 0) + count
                self._errors.setdefault(place, error)
