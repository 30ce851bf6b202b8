"""Chooses the data directories of new logs, and creates their folders."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

from kavka.common.types import TopicPartition
from kavka.storage.files import CONCURRENT_FSYNCS, fsync_dir, storage_error
from kavka.storage.log_dir import LogDir
from kavka.storage.partition_metadata import FILE_NAME, write_topic_id


class LogPlacement:
    """The directories of logs that do not exist yet.

    A new log is created in the directory that AlterReplicaLogDirs requested for it, else in the
    online directory with the fewest partitions. `reserve` chooses the directory before the log is
    created, so that a worker thread can create the folder of the log. The choices are only in
    memory. Only the loop thread may call the methods.
    """

    def __init__(self) -> None:
        self._requested: dict[TopicPartition, LogDir] = {}
        self._reserved: dict[TopicPartition, LogDir] = {}

    def request(self, partition: TopicPartition, log_dir: LogDir) -> None:
        """Request a directory for a log that does not exist yet."""
        self._requested[partition] = log_dir

    def is_reserved(self, partition: TopicPartition) -> bool:
        return partition in self._reserved

    def reserve(self, partition: TopicPartition, counts: dict[LogDir, int]) -> LogDir:
        """Choose and return the directory of a log that will be created soon, and update `counts`.
        Raises KAFKA_STORAGE_ERROR if no directory is online."""
        log_dir = self._reserved[partition] = self._choose(partition, counts)
        counts[log_dir] += 1
        return log_dir

    def choose(self, partition: TopicPartition, count: Callable[[], dict[LogDir, int]]) -> LogDir:
        """Return the directory of a log that is created now: the reserved directory, or a new
        choice by the result of `count`. Removes the reservation. Raises KAFKA_STORAGE_ERROR if no
        directory is online."""
        return self._reserved.pop(partition, None) or self._choose(partition, count())

    def _choose(self, partition: TopicPartition, counts: dict[LogDir, int]) -> LogDir:
        requested = self._requested.get(partition)
        if requested is not None and requested in counts:
            return requested
        if not counts:
            raise storage_error("All log directories are offline.")
        return min(counts, key=counts.__getitem__)

    def counts(self, online_dirs: Iterable[LogDir], used_dirs: Iterable[LogDir]) -> dict[LogDir, int]:
        """Return the number of partitions in each online directory, including reserved logs.
        `used_dirs` has the directory of each existing log."""
        counts = {log_dir: 0 for log_dir in online_dirs}
        for log_dir in (*used_dirs, *self._reserved.values()):
            if log_dir in counts:
                counts[log_dir] += 1
        return counts

    def forget(self, partition: TopicPartition) -> None:
        """Remove the requested directory of a log that was created or deleted."""
        self._requested.pop(partition, None)

    def drop_dir(self, log_dir: LogDir) -> None:
        """Remove the requests for a failed directory. Its reservations stay, so that creating a
        reserved log fails with KAFKA_STORAGE_ERROR."""
        self._requested = {tp: requested for tp, requested in self._requested.items() if requested is not log_dir}


def create_folders(folders: Sequence[tuple[str, UUID]]) -> None:
    """Create the folders of new partitions with their `partition.metadata`. Blocks until the
    folders are on disk. An earlier crash may leave folders without `partition.metadata`; they are
    loaded as empty logs. Raises OSError."""
    with ThreadPoolExecutor(min(len(folders), CONCURRENT_FSYNCS), "create") as pool:
        for _ in pool.map(_create_folder, folders):
            pass
    for parent in dict.fromkeys(os.path.dirname(path) for path, _ in folders):
        fsync_dir(parent)


def _create_folder(folder: tuple[str, UUID]) -> None:
    path, topic_id = folder
    # A missing log directory is not created: it has failed and must not reappear empty.
    with contextlib.suppress(FileExistsError):
        os.mkdir(path)
    if not os.path.exists(os.path.join(path, FILE_NAME)):
        write_topic_id(path, topic_id)
