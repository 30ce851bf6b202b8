from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kavka.storage.log import Log
from kavka.storage.log_config import LogConfig
from tests.support.logs import TP, FakeClock
from tests.unit.storage.managers import Managers

Opener = Callable[..., Log]


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of many logs in which only the process crashes, never the machine."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def open_log(tmp_path: Path, clock: FakeClock) -> Iterator[Opener]:
    """Opens the log in the same folder, with topic settings as keyword arguments. All logs are
    closed after the test."""
    logs: list[Log] = []

    def opener(*, clean: bool = True, recovery_point: int = 0, start_offset: int = 0, **config: object) -> Log:
        log = Log.open(
            tmp_path / str(TP),
            TP,
            LogConfig(**config),  # type: ignore[arg-type]
            clock,
            clean_shutdown=clean,
            recovery_point=recovery_point,
            start_offset=start_offset,
        )
        logs.append(log)
        return log

    yield opener
    for log in logs:
        log.abandon()


@pytest.fixture
def managers(tmp_path: Path) -> Iterator[Managers]:
    managers = Managers(tmp_path)
    yield managers
    managers.close()
