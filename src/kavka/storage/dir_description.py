"""The description of data directories for DescribeLogDirs."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from kavka.common.types import TopicPartition
from kavka.storage.log_dir import LogDir


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """One replica in a directory. `is_future` is True for the future log of a move."""

    partition: TopicPartition
    size: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class DirInfo:
    """One directory. `total_bytes` and `usable_bytes` are -1 if they are unknown."""

    path: str
    online: bool
    total_bytes: int
    usable_bytes: int
    replicas: list[ReplicaInfo]


def describe_dir(
    log_dir: LogDir, replicas: list[ReplicaInfo], on_failure: Callable[[LogDir, OSError, str], None]
) -> DirInfo:
    """Describe a directory. `on_failure` is called if the free space cannot be read, and may take
    the directory offline."""
    total = usable = -1
    if log_dir.online:
        try:
            stat = os.statvfs(log_dir.path)
            total, usable = stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize
        except OSError as error:
            on_failure(log_dir, error, "read-free-space")
    return DirInfo(str(log_dir.path), log_dir.online, total, usable, replicas)
