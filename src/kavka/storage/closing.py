"""Closing all logs of a data directory at shutdown."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from kavka.storage.log import Log

logger = logging.getLogger(__name__)

_THREADS = 8
"""The minimum number of threads: closing waits for the disk, and file systems combine concurrent
fsyncs."""


def close_all(logs: Sequence[Log], threads: int) -> bool:
    """Close the logs of a directory. False if one could not be closed cleanly."""

    def close(log: Log) -> bool:
        try:
            log.close()
        except Exception as error:
            logger.error("%s could not be closed cleanly: %s", log.topic_partition, error)
            return False
        return True

    with ThreadPoolExecutor(max(_THREADS, threads), "close") as pool:
        return all(list(pool.map(close, logs)))
