"""Timestamp extractors: the four of Kafka, by their class names, and those of users.

An extractor is a function `(record, partition_time)`, or an object with `extract(record,
partition_time)`, that returns the time of a record in ms. A record whose time is negative is
skipped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from kavka.client import classes
from kavka.common.config import ConfigError
from kavka.pipeline.streams.errors import StreamsException

logger = logging.getLogger(__name__)

Extractor = Callable[[Any, int], int]

_NAMES = {
    name: f"{__name__}:{name}"
    for name in (
        "FailOnInvalidTimestamp",
        "LogAndSkipOnInvalidTimestamp",
        "UsePartitionTimeOnInvalidTimestamp",
        "WallclockTimestampExtractor",
    )
}


class FailOnInvalidTimestamp:
    """The default."""

    def extract(self, record: Any, partition_time: int) -> int:
        if record.timestamp < 0:
            raise StreamsException(
                f"Input record has invalid (negative) timestamp {record.timestamp}: use another timestamp extractor, "
                "for example LogAndSkipOnInvalidTimestamp (default.timestamp.extractor)"
            )
        return int(record.timestamp)


class LogAndSkipOnInvalidTimestamp:
    def extract(self, record: Any, partition_time: int) -> int:
        if record.timestamp < 0:
            logger.warning("Input record will be dropped because it has an invalid (negative) timestamp")
        return int(record.timestamp)


class UsePartitionTimeOnInvalidTimestamp:
    def extract(self, record: Any, partition_time: int) -> int:
        if record.timestamp >= 0:
            return int(record.timestamp)
        if partition_time < 0:
            raise StreamsException("Could not infer new timestamp for input record: partition time is unknown")
        return partition_time


class WallclockTimestampExtractor:
    def extract(self, record: Any, partition_time: int) -> int:
        return time.time_ns() // 1_000_000


def extractor_of(setting: Any, name: str) -> Extractor | None:
    """The function of an extractor, which is a function, an object, a class or its name. None for
    the default."""
    if setting is None:
        return None
    try:
        extractor = classes.make(name, setting, _NAMES, "a timestamp extractor", {})
    except ConfigError as error:
        raise StreamsException(str(error)) from None
    if isinstance(extractor, FailOnInvalidTimestamp):
        return None
    extract = getattr(extractor, "extract", extractor)
    if not callable(extract):
        raise StreamsException(f"{name}: {setting!r} has no extract(record, partition_time)")
    return extract  # type: ignore[no-any-return]
