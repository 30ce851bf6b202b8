"""Which data directory a new log gets."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from uuid import UUID

from kavka.common.types import TopicPartition
from kavka.storage.files import fsync_dir, storage_error
from kavka.storage.log_dir import LogDir
from kavka.storage.partition_metadata import FILE_NAME, write_topic_id


class LogPlacement:
    """The directories of logs that do not exist yet.

    A new log gets the directory that AlterReplicaLogDirs requested for it, else the online
    directory with the fewest partitions. `reserve` chooses the directory before the log is created,
    so that its folder can be created in a worker thread. Only the loop thread may call it.
    """

    def __init__(self) -> None:
        self._requested: dict[TopicPartition, LogDir] = {}
        self._reserved: dict[TopicPartition, LogDir] = {}

    def request(self, partition: TopicPartition, log_dir: LogDir) -> None:
        self._requested[partition] = log_dir

    def is_reserved(self, partition: TopicPartition) -> bool:
        return partition in self._reserved

    def reserve(self, partition: TopicPartition, counts: dict[LogDir, int]) -> LogDir:
        """Choose the directory of a log that is about to be created, and count it."""
        log_dir = self._reserved[partition] = self._choose(partition, counts)
        counts[log_dir] += 1
        return log_dir

    def take(self, partition: TopicPartition, counts: dict[LogDir, int]) -> LogDir:
        """The directory of a log that is created now."""
        return self._reserved.pop(partition, None) or self._choose(partition, counts)

    def _choose(self, partition: TopicPartition, counts: dict[LogDir, int]) -> LogDir:
        requested = self._requested.get(partition)
        if requested is not None and requested in counts:
            return requested
        if not counts:
            raise storage_error("All log directories are offline.")
        return min(counts, key=counts.__getitem__)

    def counts(self, online_dirs: Iterable[LogDir], homes: Iterable[LogDir]) -> dict[LogDir, int]:
        """The number of partitions of each online directory: those of `homes`, and those
        reserved."""
        counts = {log_dir: 0 for log_dir in online_dirs}
        for home in (*homes, *self._reserved.values()):
            if home in counts:
                counts[home] += 1
        return counts

    def forget(self, partition: TopicPartition) -> None:
        """The log was created or deleted: its request is done."""
        self._requested.pop(partition, None)

    def drop_dir(self, log_dir: LogDir) -> None:
        """The directory failed. Reservations stay: creating such a log reports the failure."""
        self._requested = {partition: home for partition, home in self._requested.items() if home is not log_dir}


def create_folders(folders: Sequence[tuple[str, UUID]]) -> None:
    """Create folders of new partitions with their `partition.metadata`. Blocks until they survive a
    crash of the machine. Raises OSError.

    A crash before that may leave folders without `partition.metadata`: these are empty logs.
    """
    for path, topic_id in folders:
        # Never the log directory itself: a missing one has failed and must not come back empty.
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
        if not os.path.exists(os.path.join(path, FILE_NAME)):
            write_topic_id(path, topic_id)
    for parent in dict.fromkeys(os.path.dirname(path) for path, _ in folders):
        fsync_dir(parent)
