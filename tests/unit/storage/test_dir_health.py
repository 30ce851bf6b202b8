"""Failures of data directories."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

import pytest

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.storage.log import Log
from kavka.storage.log_dir import LogDirError
from tests.support.jobs import run_now
from tests.support.logs import append
from tests.unit.storage.managers import (
    CONFIG,
    A,
    B,
    C,
    break_dir,
    job,
    records,
)


def test_a_failed_directory_takes_only_its_own_partitions_offline(managers, monkeypatch):
    managers.config = replace(CONFIG, flush_ms=0)
    manager = managers.start("one", "two")
    for partition in (A, B, C):
        append(manager.get_or_create(partition), records(b"k"))
    break_dir(monkeypatch, "one")
    run_now(job(manager, "flush"))
    assert managers.failed == [("one", [A, C])]
    assert manager.get(A) is None and manager.is_offline(A)
    assert manager.get(B).end_offset == 1 and not manager.is_offline(B)
    append(manager.get(B), records(b"k"))
    run_now(job(manager, "flush"))
    assert manager.get(B).flushed_offset == 2
    with pytest.raises(KafkaError) as caught:
        manager.get_or_create(A)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(KafkaError):
        manager.get_or_create(TopicPartition("unknown", 0), is_new=False)
    new_log = manager.get_or_create(TopicPartition("new", 0))
    assert new_log.dir.parent.name == "two"
    for other_job in manager.jobs():
        run_now(other_job)
    assert [(info.online, len(info.replicas)) for info in manager.describe()] == [(False, 0), (True, 2)]
    manager.shutdown()
    assert (managers.root / "two" / ".kafka_cleanshutdown").exists()
    assert not (managers.root / "one" / ".kafka_cleanshutdown").exists()


def test_a_flush_on_a_full_disk_fails_the_directory(managers, monkeypatch):
    managers.config = replace(CONFIG, flush_ms=0)
    manager = managers.start("one", "two")
    append(manager.get_or_create(A), records(b"k"))
    break_dir(monkeypatch, "one", errno.ENOSPC)
    run_now(job(manager, "flush"))
    assert managers.failed == [("one", [A])]


def test_the_cause_of_an_append_error_decides_on_a_directory_failure(managers):
    manager = managers.start("one", "two")
    log = manager.get_or_create(A)

    def wrapped(code: int) -> KafkaError:
        error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        error.__cause__ = OSError(code, os.strerror(code))
        return error

    assert not manager.report_failure(log, wrapped(errno.ENOSPC))
    assert not manager.report_failure(log, KafkaError(ErrorCode.CORRUPT_MESSAGE))
    assert manager.get(A) is log
    assert manager.report_failure(log, wrapped(errno.EIO))
    assert manager.get(A) is None and managers.failed == [("one", [A])]
    assert manager.report_failure(log, wrapped(errno.EIO)) and len(managers.failed) == 1


def test_a_missing_file_at_a_previous_path_of_the_log_is_no_directory_failure(managers):
    manager = managers.start("one", "two")
    log = manager.get_or_create(A)
    error_elsewhere = FileNotFoundError(errno.ENOENT, "No such file or directory", str(managers.root / "two" / "a-0"))
    assert manager.report_failure(log, error_elsewhere) and not managers.failed
    error_in_log = FileNotFoundError(errno.ENOENT, "No such file or directory", str(log.dir / "x.log"))
    assert manager.report_failure(log, error_in_log) and managers.failed == [("one", [A])]


def test_an_unusable_directory_at_the_start_is_offline_and_others_are_used(managers):
    (managers.root / "one").write_text("a file, not a folder")
    manager = managers.start("one", "two")
    assert [d.path.name for d in manager.online_dirs] == ["two"]
    assert manager.get_or_create(A).dir.parent.name == "two"


def test_no_usable_directory_gives_a_clear_error(managers):
    (managers.root / "one").write_text("a file, not a folder")
    with pytest.raises(LogDirError, match="one"):
        managers.start("one")


def test_a_directory_that_fails_while_it_is_loaded_does_not_affect_others(managers, monkeypatch):
    manager = managers.start("one", "two")
    manager.get_or_create(A)
    manager.get_or_create(B)
    manager.shutdown()
    real = Log.open

    def failing(path, *args, **options):
        if path.parent.name == "one":
            raise OSError(errno.EIO, "Input/output error")
        return real(path, *args, **options)

    monkeypatch.setattr(Log, "open", failing)
    restarted = managers.start("one", "two")
    assert restarted.is_offline(A) and restarted.get(B) is not None
    assert [d.path.name for d in restarted.online_dirs] == ["two"]
