"""Log managers on the same data directories, and helpers for their jobs."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from kavka.common.types import TopicPartition
from kavka.storage.jobs import Job
from kavka.storage.log import Log
from kavka.storage.log_config import LogConfig
from kavka.storage.log_manager import LogManager
from kavka.storage.settings import StorageSettings
from tests.support.jobs import run_now
from tests.support.logs import FakeClock, append

A, B, C = TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("c", 0)
CONFIG = LogConfig(file_delete_delay_ms=1000)
COMPACTED = replace(CONFIG, cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.1)


class Managers:
    """Creates managers on the same directories one after another, and closes all of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = FakeClock()
        self.config = CONFIG
        self.failed: list[tuple[str, list[TopicPartition]]] = []
        self.moved: list[tuple[TopicPartition, Log]] = []
        self._managers: list[LogManager] = []

    def start(self, *dirs: str, settings: StorageSettings | None = None, load: bool = True) -> LogManager:
        manager = LogManager(
            [self.root / name for name in dirs or ("one",)],
            lambda topic: self.config,
            settings,
            self.clock,
            on_dir_failure=lambda log_dir, partitions: self.failed.append((log_dir.path.name, sorted(partitions))),
            on_moved=lambda partition, log: self.moved.append((partition, log)),
        )
        manager.open_dirs()
        self._managers.append(manager)
        if load:
            manager.load()
        return manager

    def crash(self, manager: LogManager) -> None:
        manager.abandon()

    def close(self) -> None:
        for manager in self._managers:
            manager.abandon()


def job(manager: LogManager, name: str) -> Job:
    return {job.name: job for job in manager.jobs()}[name]


def records(*keys: bytes) -> list[tuple[bytes | None, bytes | None]]:
    return [(key, b"v") for key in keys]


def make_dirty(log: Log, *, rounds: int = 2) -> None:
    """Append records that compaction removes, in an inactive segment."""
    for _ in range(rounds):
        append(log, records(b"a", b"b", b"a"))
    log.roll()
    append(log, records(b"z"))


def break_dir(monkeypatch: pytest.MonkeyPatch, name: str, code: int = errno.EIO) -> None:
    """Let every fdatasync in a directory fail."""
    real = os.fdatasync

    def fdatasync(fd: int) -> None:
        if f"/{name}/" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(code, os.strerror(code))
        real(fd)

    monkeypatch.setattr(os, "fdatasync", fdatasync)


def finish_move(manager: LogManager) -> None:
    for _ in range(50):
        if not run_now(job(manager, "move-logs")):
            return
    raise AssertionError("the move does not complete")
