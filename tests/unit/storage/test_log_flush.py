"""Flushing: the synced files, their order, and appends in the meantime."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from kavka.storage import leader_epochs
from kavka.storage.log import Log
from kavka.storage.log_dir import is_dir_failure
from tests.support.logs import START_MS, build
from tests.unit.storage.conftest import Opener


class Synced:
    """Records the names of synced files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.threads: set[int] = set()
        monkeypatch.setattr(os, "fsync", self.record)
        monkeypatch.setattr(os, "fdatasync", self.record)

    def record(self, fd: int) -> None:
        self.names.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        self.threads.add(threading.get_ident())


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> Synced:
    return Synced(monkeypatch)


def append(log: Log, count: int = 1) -> None:
    for _ in range(count):
        log.stage_as_leader(memoryview(build([(b"k", b"v" * 20)], START_MS + log.end_offset)), 0)
    log.write_staged()


def test_a_flush_of_new_files_syncs_the_log_then_the_folder(open_log: Opener, synced: Synced) -> None:
    log = open_log()
    append(log, 3)
    assert (log.flushed_offset, log.unflushed_messages) == (0, 3)
    synced.names.clear()
    log.flush()
    assert synced.names == ["leader-epoch-checkpoint.tmp", "orders-0", "00000000000000000000.log", "orders-0"]
    assert (log.flushed_offset, log.unflushed_messages) == (3, 0)


def test_the_folder_is_synced_only_after_files_were_created(open_log: Opener, synced: Synced) -> None:
    log = open_log()
    append(log)
    log.flush()
    append(log)
    synced.names.clear()
    log.flush()
    assert "orders-0" not in synced.names
    assert "00000000000000000000.log" in synced.names


def test_nothing_is_synced_without_appends(open_log: Opener, synced: Synced) -> None:
    log = open_log()
    append(log)
    log.flush()
    synced.names.clear()
    log.flush()
    assert synced.names == []


def test_an_inactive_segment_is_synced_with_its_indexes_and_the_snapshot_at_its_end(
    open_log: Opener, synced: Synced
) -> None:
    log = open_log(index_interval_bytes=0)
    append(log, 3)
    log.roll()
    append(log, 2)
    synced.names.clear()
    log.flush()
    first = "0" * 20
    assert set(synced.names) == {
        f"{first}.log",
        f"{first}.index",
        f"{first}.timeindex",
        f"{3:020d}.snapshot",
        f"{3:020d}.log",
        "leader-epoch-checkpoint.tmp",
        "orders-0",
    }


def test_the_epochs_are_on_disk_before_the_recovery_point_passes_their_batches(
    open_log: Opener, synced: Synced
) -> None:
    log = open_log()
    append(log, 3)
    log.start_epoch(4)
    assert not (log.dir / "leader-epoch-checkpoint").exists()
    job = log.prepare_flush()
    job.run()
    assert (log.dir / "leader-epoch-checkpoint").read_text() == "0\n2\n0 0\n4 3\n"
    assert log.flushed_offset == 0
    job.complete()
    assert log.flushed_offset == 3


def test_a_full_disk_for_epochs_fails_the_flush_but_not_the_directory(
    open_log: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    append(log, 3)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(leader_epochs, "atomic_write", full)
        with pytest.raises(OSError, match="No space") as raised:
            log.flush()
    assert not is_dir_failure(raised.value)
    assert log.flushed_offset == 0
    log.flush()
    assert log.flushed_offset == 3


def test_appends_continue_while_a_flush_runs_in_another_thread(open_log: Opener, synced: Synced) -> None:
    log = open_log()
    append(log, 2)
    job = log.prepare_flush()
    append(log, 2)
    log.roll()
    append(log, 1)
    worker = threading.Thread(target=job.run)
    worker.start()
    worker.join()
    assert log.flushed_offset == 0
    job.complete()
    assert log.flushed_offset == 2
    assert threading.get_ident() not in synced.threads or len(synced.threads) > 1
    log.flush()
    assert log.flushed_offset == 5


def test_staged_batches_are_not_flushed(open_log: Opener, synced: Synced) -> None:
    log = open_log()
    append(log, 2)
    log.stage_as_leader(memoryview(build([(b"k", b"v")], START_MS)), 0)
    log.flush()
    assert log.flushed_offset == 2
    log.write_staged()


def test_a_flush_up_to_an_offset_does_not_sync_later_segments(open_log: Opener, synced: Synced) -> None:
    log = open_log()
    append(log, 2)
    log.roll()
    append(log, 2)
    synced.names.clear()
    log.flush(2)
    assert log.flushed_offset == 2
    assert f"{2:020d}.log" not in synced.names


def test_a_truncation_during_a_flush_lowers_its_recovery_point(open_log: Opener, synced: Synced) -> None:
    log = open_log()
    append(log, 5)
    job = log.prepare_flush()
    job.run()
    log.truncate_to(2)
    append(log, 4)
    job.complete()
    assert log.flushed_offset == 2


def test_a_failed_flush_does_not_move_the_recovery_point(open_log: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log()
    append(log, 2)

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", broken)
        with pytest.raises(OSError, match="Input/output"):
            log.flush()
    assert log.flushed_offset == 0


def test_a_clean_shutdown_flushes_all_files(open_log: Opener, synced: Synced) -> None:
    log = open_log(index_interval_bytes=0)
    append(log, 3)
    synced.names.clear()
    log.close()
    first = "0" * 20
    names = {f"{first}.log", f"{first}.index", f"{first}.timeindex", f"{3:020d}.snapshot", "orders-0"}
    assert names | {"leader-epoch-checkpoint.tmp"} <= set(synced.names)
    assert log.flushed_offset == 3
