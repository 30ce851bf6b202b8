"""Which log directories of a broker are online, and which partitions are unavailable."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from kavka.common.types import TopicPartition
from kavka.storage.files import storage_error
from kavka.storage.log import Log
from kavka.storage.log_dir import LogDir, LogDirError, check_dir_ids, is_dir_failure, os_error, write_dir_ids

logger = logging.getLogger(__name__)


class DirHealth:
    """The state of the log directories, and the partitions that are unavailable because of it.

    A directory that fails (`is_dir_failure`) is offline until the next start, and so are its
    partitions. A full disk is not a directory failure: only the requests that write fail. A
    partition whose folder cannot be opened is unreadable, but its directory stays online.

    After a failure, `release(dir)` closes the logs of the directory and returns their partitions,
    then `on_failure(dir, partitions)` is called. After the broker has opened its logs, only the
    loop thread may call the methods.
    """

    def __init__(
        self,
        dirs: Sequence[LogDir],
        release: Callable[[LogDir], list[TopicPartition]],
        on_failure: Callable[[LogDir, list[TopicPartition]], None] | None,
    ) -> None:
        self._dirs = dirs
        self._release = release
        self._on_failure = on_failure
        self._offline: dict[TopicPartition, LogDir] = {}
        self._unreadable: dict[TopicPartition, tuple[Path, str]] = {}

    # --- start

    def open(self) -> None:
        """Create and lock the directories. Blocks. Raises LogDirError if another broker has locked
        a directory, or if no directory can be used."""
        for log_dir in self._dirs:
            try:
                log_dir.prepare()
                log_dir.lock()
            except OSError as error:
                self.fail_at_start(log_dir, error)
            except LogDirError:
                self.unlock()
                raise
        if not self.online_dirs:
            reasons = "; ".join(f"{log_dir.path}: {log_dir.failure}" for log_dir in self._dirs)
            self.unlock()
            raise LogDirError(f"no log directory can be used: {reasons}")

    def check_ids(self, broker_id: int | None, cluster_id: str | None) -> tuple[int | None, str | None]:
        """Return the broker id and the cluster id from `meta.properties`, or the arguments if no
        file has them. Raises LogDirError if an id differs from its argument or between files."""
        for log_dir in self.online_dirs:
            try:
                log_dir.read_meta()
            except OSError as error:
                self.fail_at_start(log_dir, error)
        return check_dir_ids(self.online_dirs, broker_id, cluster_id)

    def write_ids(self, broker_id: int, cluster_id: str) -> None:
        """Write the `meta.properties` files that are missing or incomplete."""
        for log_dir in self.online_dirs:
            try:
                write_dir_ids([log_dir], broker_id, cluster_id)
            except OSError as error:
                self.fail_at_start(log_dir, error)

    def fail_at_start(self, log_dir: LogDir, error: OSError) -> None:
        """Take a directory offline before its logs are open."""
        log_dir.fail(error)
        logger.error("Cannot use log directory %s, which is now offline: %s", log_dir.path, error)

    def unlock(self) -> None:
        for log_dir in self._dirs:
            log_dir.unlock()

    # --- state

    @property
    def online_dirs(self) -> list[LogDir]:
        return [log_dir for log_dir in self._dirs if log_dir.online]

    @property
    def all_online(self) -> bool:
        """Whether all directories are online."""
        return all(log_dir.online for log_dir in self._dirs)

    def is_in_failed_dir(self, partition: TopicPartition) -> bool:
        """Whether the log of the partition was in a directory when the directory failed."""
        return partition in self._offline

    def is_offline(self, partition: TopicPartition) -> bool:
        """Whether the log of the partition is in a failed directory, or unreadable."""
        return partition in self._offline or partition in self._unreadable

    def check_available(self, partition: TopicPartition, is_new: bool) -> None:
        """Raise KAFKA_STORAGE_ERROR if the log of the partition may exist but is unavailable. If
        `is_new`, this broker never had a log of the partition."""
        if partition in self._unreadable:
            raise storage_error(f"Cannot open the log of {partition}: {self._unreadable[partition][1]}.")
        if partition in self._offline or (not is_new and not self.all_online):
            raise storage_error(f"The log of {partition} may be in a log directory that is offline.")

    # --- changes

    def set_offline(self, partition: TopicPartition, log_dir: LogDir) -> None:
        self._offline[partition] = log_dir

    def set_unreadable(self, partition: TopicPartition, path: Path, reason: str) -> None:
        self._unreadable[partition] = (path, reason)

    def pop_unreadable(self, partition: TopicPartition) -> Path | None:
        """Remove a partition that is being deleted. Returns the folder of the partition if it is
        unreadable, else None."""
        entry = self._unreadable.pop(partition, None)
        return None if entry is None else entry[0]

    def report(self, log_dir: LogDir, error: BaseException | None, action: str) -> None:
        """Handle the error of `action` in a directory. Take the directory offline if the error is a
        directory failure, else log the error."""
        if is_dir_failure(error):
            assert error is not None
            self.fail(log_dir, error)
        else:
            logger.warning("Action %s failed in log directory %s: %s", action, log_dir.path, error)

    def report_for_log(self, log: Log, log_dir: LogDir, error: BaseException) -> None:
        """Take the directory of a log offline after a directory failure. Ignores an error for a
        path that is no longer the path of the log."""
        cause = os_error(error)
        if isinstance(cause, FileNotFoundError) and cause.filename is not None:
            # A worker thread may use the previous path of a log whose folder was renamed in the
            # meantime. The disk has not failed.
            path = os.fsdecode(cause.filename)
            if path != str(log.dir) and not path.startswith(f"{log.dir}{os.sep}"):
                return
        self.fail(log_dir, error)

    def fail(self, log_dir: LogDir, error: BaseException) -> None:
        """Take a directory and its partitions offline. Has no effect if the directory is already
        offline."""
        if not log_dir.fail(error):
            return
        logger.error("Log directory %s has failed and is now offline: %s", log_dir.path, error)
        partitions = self._release(log_dir)
        for partition in partitions:
            self._offline[partition] = log_dir
        log_dir.unlock()
        if self._on_failure is not None:
            self._on_failure(log_dir, partitions)
