"""The cleaner of the log manager: the order of logs, checkpoints, truncation and failures."""

from __future__ import annotations

import errno
import os
import threading
import time
import uuid
from dataclasses import replace

import pytest

from kavka.records.compression import GZIP
from kavka.storage.cleaner import CleanerSettings
from kavka.storage.settings import StorageSettings
from tests.support.jobs import run_now
from tests.support.logs import append, build, contents
from tests.unit.storage.managers import (
    COMPACTED,
    CONFIG,
    A,
    B,
    C,
    job,
    make_dirty,
    records,
)


def test_compacted_logs_are_cleaned_one_after_another_and_checkpointed(managers):
    managers.config = COMPACTED
    manager = managers.start()
    for partition in (A, B):
        make_dirty(manager.get_or_create(partition))
    run_now(job(manager, "cleaner"))
    for partition in (A, B):
        assert [offset for offset, *_ in contents(manager.get(partition))] == [4, 5, 6]
    text = (managers.root / "one" / "cleaner-offset-checkpoint").read_text()
    assert text == "0\n2\na 0 6\nb 0 6\n"
    managers.crash(manager)
    restarted = managers.start()
    assert restarted.cleaner.clean_offsets == {A: 6, B: 6}
    assert run_now(job(restarted, "cleaner")) == 0


def test_an_uncleanable_log_does_not_stop_the_cleaning_of_others(managers, caplog):
    managers.config = COMPACTED
    manager = managers.start()
    for partition in (A, B, C):
        make_dirty(manager.get_or_create(partition), rounds=3 if partition is A else 2)
    with open(manager.get(A).segments[0].file.path, "r+b") as file:
        file.seek(65)
        file.write(b"\xff\xff\xff")
    run_now(job(manager, "cleaner"))
    assert set(manager.cleaner.uncleanable) == {A}
    assert manager.cleaner.clean_offsets == {B: 6, C: 6}
    assert "Cannot clean a-0" in caplog.text
    assert manager.get(A) is not None and not managers.failed


@pytest.mark.parametrize("magic", [1, 2])
def test_a_log_with_a_batch_above_the_decompression_limit_is_uncleanable(managers, caplog, monkeypatch, magic):
    monkeypatch.setattr("kavka.storage.compaction.unpacked_limit", lambda batch: 1000)
    managers.config = COMPACTED
    manager = managers.start()
    log = manager.get_or_create(A)
    append(log, records(b"a", b"b"))
    log.append_as_follower(build([(b"a", bytes(1001))], magic=magic, codec=GZIP, base_offset=2))
    log.set_high_watermark(log.end_offset)
    make_dirty(log)
    make_dirty(manager.get_or_create(B))
    expected = contents(log)
    run_now(job(manager, "cleaner"))
    assert set(manager.cleaner.uncleanable) == {A}
    assert manager.cleaner.clean_offsets == {B: 6}
    assert contents(log) == expected
    message = "Cannot clean a-0, ignoring it until the next start: cannot clean the batch at offset 2: "
    assert f"{message}the decompressed records exceed 1000 bytes" in caplog.text
    assert not managers.failed


def test_logs_with_both_policies_are_cleaned_and_expire(managers):
    managers.config = replace(COMPACTED, cleanup_policy=("compact", "delete"), retention_ms=5000)
    manager = managers.start()
    log = manager.get_or_create(A)
    make_dirty(log)
    run_now(job(manager, "cleaner"))
    assert [offset for offset, *_ in contents(log)] == [4, 5, 6]
    managers.clock.advance(6000)
    append(log, records(b"new"))
    run_now(job(manager, "retention"))
    assert log.start_offset == 6


def test_retention_skips_a_log_that_is_being_cleaned(managers):
    managers.config = replace(COMPACTED, cleanup_policy=("compact", "delete"), retention_ms=5000)
    manager = managers.start()
    log = manager.get_or_create(A)
    make_dirty(log)
    cleaner = job(manager, "cleaner")
    assert cleaner.prepare()
    managers.clock.advance(6000)
    run_now(job(manager, "retention"))
    assert log.start_offset == 0
    cleaner.run()
    cleaner.finish(None)
    run_now(cleaner)
    run_now(job(manager, "retention"))
    assert log.start_offset == 7


def test_truncation_lowers_the_clean_offset(managers):
    managers.config = COMPACTED
    manager = managers.start()
    log = manager.get_or_create(A)
    make_dirty(log)
    run_now(job(manager, "cleaner"))
    manager.truncate_to(A, 5)
    assert manager.cleaner.clean_offsets == {A: 5}
    manager.truncate_fully_and_start_at(A, 100)
    assert manager.cleaner.clean_offsets == {} and log.end_offset == 100


def test_checkpoints_are_lowered_by_a_truncation(managers):
    manager = managers.start()
    log = manager.get_or_create(A)
    for _ in range(10):
        append(log, records(b"k"))
    log.set_high_watermark(10)
    log.flush()
    names = ("checkpoint-recovery-points", "checkpoint-high-watermarks")
    for name in names:
        run_now(job(manager, name))
    log_dir = manager.dir_of(log)
    assert (log_dir.recovery_points.read(), log_dir.high_watermarks.read()) == ({A: 10}, {A: 10})
    # The log is truncated while a checkpoint with older offsets is being written.
    append(log, records(b"k"))
    log.flush()
    writing = job(manager, names[0])
    assert writing.prepare()
    manager.truncate_to(A, 4)
    assert (log_dir.recovery_points.read(), log_dir.high_watermarks.read()) == ({A: 4}, {A: 4})
    append(log, records(b"k"))
    writing.run()
    assert writing.finish(None)
    assert writing.prepare()
    writing.run()
    assert not writing.finish(None)
    assert log_dir.recovery_points.read() == {A: 4}
    # A truncation past all checkpoints writes nothing.
    modified_ns = log_dir.recovery_points.path.stat().st_mtime_ns
    manager.truncate_to(A, 4)
    assert log_dir.recovery_points.path.stat().st_mtime_ns == modified_ns


def test_checkpoints_of_a_deleted_log_do_not_apply_to_the_next_log_of_that_name(managers):
    manager = managers.start()
    deleted_log = manager.get_or_create(A, topic_id=uuid.uuid4())
    append(deleted_log, records(b"a", b"b", b"c", b"d", b"e"))
    deleted_log.set_high_watermark(5)
    deleted_log.delete_records_before(4)
    deleted_log.flush()
    for name in ("checkpoint-recovery-points", "checkpoint-start-offsets", "checkpoint-high-watermarks"):
        run_now(job(manager, name))
    manager.delete(A)
    new_log = manager.get_or_create(A, topic_id=uuid.uuid4())
    append(new_log, records(b"x", b"y"))
    managers.crash(manager)
    log = managers.start().get(A)
    assert (log.start_offset, log.end_offset, log.high_watermark) == (0, 2, 0)
    assert [key for _, key, _ in contents(log)] == [b"x", b"y"]
    assert log.flushed_offset == 0


def test_a_partition_deleted_during_its_cleaning_is_removed(managers):
    managers.config = COMPACTED
    manager = managers.start()
    make_dirty(manager.get_or_create(A))
    cleaner = job(manager, "cleaner")
    assert cleaner.prepare()
    cleaner.run()
    manager.delete(A)
    cleaner.finish(None)
    assert run_now(cleaner) == 0 and manager.cleaner.current is None and not manager.cleaner.uncleanable


def test_a_failed_swap_takes_the_directory_offline_and_the_next_start_completes_it(managers, monkeypatch):
    managers.config = COMPACTED
    manager = managers.start("one", "two")
    make_dirty(manager.get_or_create(A))
    make_dirty(manager.get_or_create(B))
    real = os.rename
    renames = []

    def rename(source, target, **options):
        if "/one/" in os.fspath(source):
            renames.append(source)
            if len(renames) > 5:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(source, target, **options)

    monkeypatch.setattr(os, "rename", rename)
    run_now(job(manager, "cleaner"))
    monkeypatch.undo()
    assert managers.failed == [("one", [A])]
    assert manager.cleaner.clean_offsets == {B: 6}
    managers.crash(manager)
    restarted = managers.start("one", "two")
    assert [offset for offset, *_ in contents(restarted.get(A))] == [4, 5, 6]


def test_the_cleaner_respects_its_rate(managers):
    managers.config = COMPACTED
    settings = StorageSettings(cleaner=CleanerSettings(io_max_bytes_per_second=4000.0))
    manager = managers.start(settings=settings)
    make_dirty(manager.get_or_create(A))
    size = manager.get(A).segments[0].size
    started = time.monotonic()
    run_now(job(manager, "cleaner"))
    cleaned = manager.get(A).segments[0].size
    # The log is read twice and written once, except for the last few bytes.
    assert time.monotonic() - started > (2 * size + cleaned) / 4000 * 0.9


def test_a_partition_deleted_during_a_flush_fails_no_directory(managers):
    managers.config = replace(CONFIG, flush_ms=0)
    manager = managers.start("one", "two")
    append(manager.get_or_create(A), records(b"k"))
    flush = job(manager, "flush")
    assert flush.prepare()
    manager.delete(A)
    error = None
    try:
        flush.run()
    except OSError as failure:
        error = failure
    flush.finish(error)
    assert not managers.failed and manager.online_dirs == manager.dirs


def test_a_stopped_cleaner_leaves_the_log_unchanged(managers):
    managers.config = COMPACTED
    settings = StorageSettings(cleaner=CleanerSettings(io_max_bytes_per_second=100.0))
    manager = managers.start(settings=settings)
    log = manager.get_or_create(A)
    make_dirty(log)
    cleaner = job(manager, "cleaner")
    assert cleaner.prepare()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            cleaner.run()
        except BaseException as error:
            errors.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    manager.stop_jobs()
    worker.join(2)
    assert not worker.is_alive() and errors
    assert not cleaner.finish(errors[0])
    assert [offset for offset, *_ in contents(log)] == list(range(7))
    assert not cleaner.prepare()
