"""Opening all logs of all data directories when the broker starts."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
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

METADATA_TOPIC = "__cluster_metadata"
"""KRaft's own log: found in directories that such a broker has used, never loaded."""
_QUIET = frozenset({"lost+found", "remote-log-index-cache"})

Progress = Callable[[int, int, Sequence[str]], None]
"""Called about every second while logs are being opened: how many are done, how many there are, names of those under
way."""


@dataclass(slots=True)
class Found:
    """What a directory holds, by the names of its folders."""

    log_dir: LogDir
    clean: bool
    logs: dict[TopicPartition, Path] = field(default_factory=dict)
    futures: dict[TopicPartition, tuple[Path, str]] = field(default_factory=dict)
    deletes: dict[Path, PartitionDir] = field(default_factory=dict)
    strangers: list[Path] = field(default_factory=list)
    recovery_points: dict[TopicPartition, int] = field(default_factory=dict)
    start_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    high_watermarks: dict[TopicPartition, int] = field(default_factory=dict)


@dataclass(slots=True)
class Opened:
    """One folder's log, or why it could not be opened. `unique` is that of a `-future` folder."""

    log_dir: LogDir
    partition: TopicPartition
    path: Path
    unique: str
    log: Log | None = None
    error: Exception | None = None


def scan(log_dir: LogDir) -> Found:
    """What is in a directory, and how it was left. Raises OSError."""
    found = Found(log_dir, log_dir.take_clean_shutdown())
    with os.scandir(log_dir.path) as entries:
        folders = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    for name in folders:
        path = log_dir.path / name
        parsed = parse_dir_name(name)
        if parsed is None or parsed.partition.topic == METADATA_TOPIC:
            if name not in _QUIET:
                found.strangers.append(path)
        elif parsed.kind == LOG:
            found.logs[parsed.partition] = path
        elif parsed.kind == DELETE:
            found.deletes[path] = parsed
        elif parsed.kind == FUTURE:
            found.futures[parsed.partition] = (path, parsed.unique)
        else:
            found.strangers.append(path)
    points = _offsets(log_dir.recovery_points, "all its logs are recovered from their start")
    if points is None:
        found.clean = False
    found.recovery_points = points or {}
    found.start_offsets = _offsets(log_dir.start_offsets, "logs start where their first segment does") or {}
    found.high_watermarks = _offsets(log_dir.high_watermarks, "high watermarks start at the start of each log") or {}
    return found


def _offsets(checkpoint: OffsetCheckpoint, consequence: str) -> dict[TopicPartition, int] | None:
    try:
        return checkpoint.read()
    except CheckpointError as error:
        logger.warning("%s: %s", error, consequence)
        return None


def complete_moves(found: Sequence[Found]) -> None:
    """Ends moves between directories that a crash has cut between their two renames: the log is already named for
    deletion in one directory, and complete under the same unique name as a `-future` in another."""
    gone = {(parsed.partition, parsed.unique) for one in found for parsed in one.deletes.values()}
    present = {partition for one in found for partition in one.logs}
    for one in found:
        for partition, (path, unique) in list(one.futures.items()):
            if partition not in present and (partition, unique) in gone:
                target = one.log_dir.path / str(partition)
                try:
                    os.rename(path, target)
                except OSError as error:
                    one.log_dir.fail(error)
                    continue
                logger.info("%s had been moved to %s: taken over", partition, one.log_dir.path)
                one.logs[partition] = target
                del one.futures[partition]


def check_duplicates(found: Sequence[Found]) -> None:
    """Raises LogDirError when a partition has a log in two directories."""
    places: dict[TopicPartition, Path] = {}
    for one in found:
        for partition, path in one.logs.items():
            if partition in places:
                raise LogDirError(
                    f"partition {partition} has two logs, {places[partition]} and {path}; move one of them away"
                )
            places[partition] = path


def open_logs(
    found: Sequence[Found],
    config_for: Callable[[str], LogConfig],
    clock: Clock,
    *,
    threads_per_dir: int,
    producer_id_expiration_ms: int,
    progress: Progress | None = None,
) -> list[Opened]:
    """Opens every log that was found, `threads_per_dir` at a time in each directory that was not left cleanly. Blocks.

    After a clean stop there is little to wait for, and threads would only be in each other's way. A directory that
    fails while its logs are opened goes offline; what was opened of it is given up.
    """

    def open_one(task: Opened, one: Found) -> Opened:
        if not task.log_dir.online:
            return task
        partition = task.partition
        under_way.append(task.path.name)
        try:
            task.log = Log.open(
                task.path,
                partition,
                config_for(partition.topic),
                clock,
                recovery_point=one.recovery_points.get(partition, 0),
                start_offset=one.start_offsets.get(partition, 0),
                clean_shutdown=one.clean,
                producer_id_expiration_ms=producer_id_expiration_ms,
            )
        except (OSError, KafkaError) as error:
            task.error = error
            if is_dir_failure(error):
                task.log_dir.fail(error)
        finally:
            under_way.remove(task.path.name)
        return task

    under_way: list[str] = []
    tasks: list[tuple[Opened, Found]] = []
    for one in found:
        tasks += [(Opened(one.log_dir, tp, path, ""), one) for tp, path in one.logs.items()]
        tasks += [(Opened(one.log_dir, tp, path, unique), one) for tp, (path, unique) in one.futures.items()]
    pools = {
        one.log_dir.path: ThreadPoolExecutor(1 if one.clean else max(1, threads_per_dir), "recover") for one in found
    }
    try:
        pending: set[Future[Opened]] = {pools[one.log_dir.path].submit(open_one, task, one) for task, one in tasks}
        opened: list[Opened] = []
        while pending:
            done, pending = wait(pending, timeout=1.0)
            opened += [future.result() for future in done]
            if pending and progress is not None:
                progress(len(opened), len(tasks), list(under_way))
    finally:
        for pool in pools.values():
            pool.shutdown(wait=True, cancel_futures=True)
    return opened
