"""Closing all logs of a data directory when the broker stops."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from kavka.storage.log import Log

logger = logging.getLogger(__name__)

_THREADS = 8
"""At least: closing a log is waiting for the disk, and file systems make many fsyncs at once into few."""


def close_all(logs: Sequence[Log], threads: int) -> bool:
    """Closes the logs of a directory; False when one could not be closed as it should."""

    def close(log: Log) -> bool:
        try:
            log.close()
        except Exception as error:
            logger.error("%s could not be closed cleanly: %s", log.topic_partition, error)
            return False
        return True

    with ThreadPoolExecutor(max(_THREADS, threads), "close") as pool:
        return all(list(pool.map(close, logs)))
