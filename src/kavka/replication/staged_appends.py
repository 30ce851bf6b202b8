"""The appends of one turn of the event loop, written together.

    stage   `Partition.stage` assigns offsets. Nothing is on disk, and no reader sees the records.
    add     The handler registers the append together with the partition's result.
    write   One writev writes all appends of a log, before any response of the turn is encoded.

Staged records are views of a receive buffer. So a connection calls `write` before it receives into
the buffer again, and before it encodes a response.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kavka.common.errors import ErrorCode, KafkaError
from kavka.storage.log_append import AppendInfo, AppendOrigin

if TYPE_CHECKING:
    from kavka.replication.partition import Partition

logger = logging.getLogger(__name__)

# Writes an error into a partition's result.
SetError = Callable[[Any, KafkaError], None]


class StagedAppends:
    """Owns the appends that are staged and not written. No other object writes them.

    Every broker has one instance. Connections, handlers and coordinators call it, on the loop
    thread. A failed write restores the log to its state before the first append of the turn. The
    registered results get an error, and the failure is reported to the log manager.
    """

    __slots__ = ("_staged",)

    def __init__(self) -> None:
        self._staged: list[tuple[Partition, Any, SetError]] = []

    @property
    def is_empty(self) -> bool:
        return not self._staged

    def add(self, partition: Partition, result: Any, set_error: SetError) -> None:
        """Register a staged append for the next `write`. If the write fails, `write` calls
        `set_error(result, error)`."""
        self._staged.append((partition, result, set_error))

    def append(self, partition: Partition, batch: bytearray) -> AppendInfo:
        """Stage a batch that this broker has created, and write it now together with all staged
        appends of the partition. Returns the offsets of the batch. The caller must then call
        `Partition.advance` or, after a KafkaError, `Partition.report_storage_failure`."""
        info = partition.stage(memoryview(batch), -1, None, AppendOrigin.COORDINATOR)
        partition.write_staged()
        return info

    def write(self) -> None:
        """Write all registered appends, then advance the high watermarks of their partitions."""
        staged = self._staged
        if not staged:
            return
        # Every log must release its views of the receive buffer, even if the write to another log
        # fails.
        self._staged = []
        partitions = dict.fromkeys(entry[0] for entry in staged) if len(staged) > 1 else (staged[0][0],)
        failures: dict[Partition, KafkaError] | None = None
        for partition in partitions:
            try:
                partition.write_staged()
            except Exception as error:
                if failures is None:
                    failures = {}
                failures[partition] = _write_error(partition, error)
        if failures:
            for partition, result, set_error in staged:
                failure = failures.get(partition)
                if failure is not None:
                    set_error(result, failure)
                    partition.metrics.failed_produces.value += 1
            for partition, failure in failures.items():
                partition.report_storage_failure(failure)
        for partition in partitions:
            if not failures or partition not in failures:
                try:
                    partition.advance()
                except Exception:
                    logger.exception(
                        "Cannot advance the high watermark of %s after an append", partition.topic_partition
                    )


def _write_error(partition: Partition, error: Exception) -> KafkaError:
    if isinstance(error, KafkaError):
        return error
    logger.error("Cannot write to the log of %s", partition.topic_partition, exc_info=error)
    if partition.log is not None:
        partition.log.roll_back()
    failure = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"The write to {partition.topic_partition} failed.")
    failure.__cause__ = error
    return failure
