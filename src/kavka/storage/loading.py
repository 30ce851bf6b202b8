"""Opens all logs of all data directories when the broker starts, and closes them when it stops."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from kavka.common.clock import Clock
from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition
from kavka.storage.checkpoint import CheckpointError, OffsetCheckpoint
from kavka.storage.log import Log
from kavka.storage.log_config import LogConfig
from kavka.storage.log_dir import LogDir, LogDirError, is_dir_failure
from kavka.storage.partition_dir import DELETE, FUTURE, LOG, PartitionDir, parse_dir_name

logger = logging.getLogger(__name__)

# The metadata log of KRaft, in directories that a KRaft broker has used. It is never loaded.
METADATA_TOPIC = "__cluster_metadata"
# Closing a log waits for fsyncs, and file systems combine concurrent fsyncs.
_MIN_CLOSE_THREADS = 8
_SILENTLY_IGNORED = frozenset({"lost+found", "remote-log-index-cache"})

Progress = Callable[[int, int, Sequence[str]], None]
"""Called about every second while logs are opened, with the number of opened logs, the number of
all logs, and the names of the folders in progress."""


@dataclass(slots=True)
class DirContents:
    """The contents of a data directory: its folders by the suffix of their names, and its
    checkpoints. `is_clean` is True if the last shutdown was clean."""

    log_dir: LogDir
    is_clean: bool
    logs: dict[TopicPartition, Path] = field(default_factory=dict)
    futures: dict[TopicPartition, tuple[Path, str]] = field(default_factory=dict)
    deletes: dict[Path, PartitionDir] = field(default_factory=dict)
    ignored: list[Path] = field(default_factory=list)
    recovery_points: dict[TopicPartition, int] = field(default_factory=dict)
    start_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    high_watermarks: dict[TopicPartition, int] = field(default_factory=dict)


@dataclass(slots=True)
class LoadedFolder:
    """The log of one folder, or the error that prevented opening the log. `unique_id` is the unique
    id in the name of a `-future` folder, else empty."""

    log_dir: LogDir
    partition: TopicPartition
    path: Path
    unique_id: str
    log: Log | None = None
    error: Exception | None = None


def scan(log_dir: LogDir) -> DirContents:
    """Read the names of the folders and the checkpoints of a directory, and remove its clean
    shutdown file. Raises OSError."""
    contents = DirContents(log_dir, log_dir.take_clean_shutdown())
    with os.scandir(log_dir.path) as entries:
        folders = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    for name in folders:
        path = log_dir.path / name
        parsed = parse_dir_name(name)
        if parsed is None or parsed.partition.topic == METADATA_TOPIC:
            if name not in _SILENTLY_IGNORED:
                contents.ignored.append(path)
        elif parsed.suffix == LOG:
            contents.logs[parsed.partition] = path
        elif parsed.suffix == DELETE:
            contents.deletes[path] = parsed
        elif parsed.suffix == FUTURE:
            contents.futures[parsed.partition] = (path, parsed.unique_id)
        else:
            contents.ignored.append(path)
    recovery_points = _offsets(log_dir.recovery_points, "recovering all its logs from their start")
    if recovery_points is None:
        contents.is_clean = False
    contents.recovery_points = recovery_points or {}
    contents.start_offsets = _offsets(log_dir.start_offsets, "logs start at their first segment") or {}
    contents.high_watermarks = _offsets(log_dir.high_watermarks, "high watermarks start at the start of each log") or {}
    return contents


def _offsets(checkpoint: OffsetCheckpoint, consequence: str) -> dict[TopicPartition, int] | None:
    """Return the offsets in a checkpoint. If it is malformed, log the error with its consequence
    and return None."""
    try:
        return checkpoint.read()
    except CheckpointError as error:
        logger.warning("%s: %s", error, consequence)
        return None


def complete_moves(dirs: Sequence[DirContents]) -> None:
    """Complete moves between directories that a crash interrupted between their two renames: the
    old folder is already renamed to `-delete`, and another directory has a complete `-future`
    folder with the same unique id. A directory whose rename fails goes offline."""
    deleted = {(parsed.partition, parsed.unique_id) for contents in dirs for parsed in contents.deletes.values()}
    present = {partition for contents in dirs for partition in contents.logs}
    for contents in dirs:
        for partition, (path, unique_id) in list(contents.futures.items()):
            if partition not in present and (partition, unique_id) in deleted:
                target = contents.log_dir.path / str(partition)
                try:
                    os.rename(path, target)
                except OSError as error:
                    contents.log_dir.fail(error)
                    continue
                logger.info("Completed the move of %s to %s", partition, contents.log_dir.path)
                contents.logs[partition] = target
                del contents.futures[partition]


def check_duplicates(dirs: Sequence[DirContents]) -> None:
    """Raise LogDirError if two directories have a log of the same partition."""
    paths: dict[TopicPartition, Path] = {}
    for contents in dirs:
        for partition, path in contents.logs.items():
            if partition in paths:
                raise LogDirError(
                    f"partition {partition} has two logs, {paths[partition]} and {path}; move one of them away"
                )
            paths[partition] = path


def open_logs(
    dirs: Sequence[DirContents],
    config_for: Callable[[str], LogConfig],
    clock: Clock,
    *,
    threads_per_dir: int,
    producer_id_expiration_ms: int,
    progress: Progress | None = None,
) -> list[LoadedFolder]:
    """Open all logs, with `threads_per_dir` threads for each directory that needs recovery. Blocks.
    Returns a LoadedFolder for each log, with the log or the error.

    After a clean shutdown one thread per directory opens the logs, because opening a log then needs
    little I/O. A directory that fails while its logs are opened goes offline. If `progress` raises,
    no other log is opened.
    """
    opened: list[LoadedFolder] = []
    in_progress: list[str] = []
    is_cancelled = False

    def open_folders(contents: DirContents, folders: Iterator[LoadedFolder]) -> None:
        # The threads of a directory share the iterator.
        for folder in folders:
            if is_cancelled:
                return
            if folder.log_dir.online:
                in_progress.append(folder.path.name)
                _open_folder(folder, contents, config_for(folder.partition.topic), clock, producer_id_expiration_ms)
                in_progress.remove(folder.path.name)
            opened.append(folder)

    count = 0
    pools: list[ThreadPoolExecutor] = []
    pending: set[Future[None]] = set()
    try:
        for contents in dirs:
            log_dir = contents.log_dir
            folders = [LoadedFolder(log_dir, tp, path, "") for tp, path in contents.logs.items()]
            folders += [LoadedFolder(log_dir, tp, *future) for tp, future in contents.futures.items()]
            count += len(folders)
            threads = 1 if contents.is_clean else max(1, threads_per_dir)
            pools.append(ThreadPoolExecutor(threads, "recover"))
            remaining = iter(folders)
            pending |= {pools[-1].submit(open_folders, contents, remaining) for _ in range(threads)}
        while pending:
            completed, pending = wait(pending, timeout=1.0)
            for future in completed:
                future.result()
            if pending and progress is not None:
                progress(len(opened), count, list(in_progress))
    finally:
        is_cancelled = True
        for pool in pools:
            pool.shutdown(wait=True)
    return opened


def _open_folder(
    folder: LoadedFolder, contents: DirContents, config: LogConfig, clock: Clock, producer_id_expiration_ms: int
) -> None:
    """Set the log of the folder, or its error."""
    try:
        folder.log = Log.open(
            folder.path,
            folder.partition,
            config,
            clock,
            recovery_point=contents.recovery_points.get(folder.partition, 0),
            start_offset=contents.start_offsets.get(folder.partition, 0),
            clean_shutdown=contents.is_clean,
            producer_id_expiration_ms=producer_id_expiration_ms,
        )
    except (OSError, KafkaError) as error:
        folder.error = error
        if is_dir_failure(error):
            folder.log_dir.fail(error)


def close_logs(logs: Sequence[Log], threads: int) -> bool:
    """Close the logs of a directory. Returns whether all logs were closed cleanly."""

    def close(log: Log) -> bool:
        try:
            log.close()
        except Exception as error:
            logger.error("Cannot close the log of %s cleanly: %s", log.topic_partition, error)
            return False
        return True

    with ThreadPoolExecutor(max(_MIN_CLOSE_THREADS, threads), "close") as pool:
        return all(list(pool.map(close, logs)))
