"""Use of segment files by several threads: the last user closes a file, and an access to a closed
file is no disk failure."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kavka.common.types import TopicPartition
from kavka.storage import page_cache
from kavka.storage.file_slice import FileClosed, LogFile
from kavka.storage.jobs import Job
from kavka.storage.log import Log
from kavka.storage.log_config import LogConfig
from kavka.storage.log_dir import is_dir_failure
from kavka.storage.log_manager import LogManager
from kavka.storage.page_cache import warm
from tests.support.logs import FakeClock, append, contents

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
CONFIG = LogConfig(segment_bytes=300, flush_ms=1)


@pytest.fixture
def manager(tmp_path):
    failed: list[str] = []
    manager = LogManager(
        [tmp_path / "one", tmp_path / "two"],
        lambda topic: CONFIG,
        clock=FakeClock(),
        on_dir_failure=lambda log_dir, partitions: failed.append(log_dir.path.name),
    )
    manager.open_dirs()
    manager.load()
    yield manager
    manager.abandon()
    assert not failed


def job(manager: LogManager, name: str) -> Job:
    return {job.name: job for job in manager.jobs()}[name]


def create_filled_log(manager: LogManager, partition: TopicPartition = A, count: int = 20) -> Log:
    log = manager.get_or_create(partition)
    for n in range(count):
        append(log, [(b"k%d" % n, b"v" * 50)])
    assert len(log.segments) > 3
    return log


# --- one file


def test_the_last_user_of_a_closed_file_closes_its_descriptor(tmp_path):
    file = LogFile.create(str(tmp_path / "x.log"))
    file.append([b"abc"], 3)
    first, second = file.acquire(), file.acquire()
    file.close()
    assert first == second and os.pread(first, 3, 0) == b"abc"
    file.release()
    assert os.pread(first, 3, 0) == b"abc"
    file.release()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(first)


@pytest.mark.parametrize("access", [LogFile.acquire, lambda file: file.fd, lambda file: file.read(0, 1)])
def test_an_access_to_a_closed_file_raises_file_closed(tmp_path, access):
    path = tmp_path / "x.log"
    file = LogFile.create(str(path))
    file.close()
    path.write_bytes(b"the file of another segment")
    with pytest.raises(FileClosed) as raised:
        access(file)
    assert not is_dir_failure(raised.value)
    assert not isinstance(raised.value, OSError)


def test_an_error_caused_by_a_closed_file_is_no_disk_failure():
    try:
        try:
            raise OSError(errno.EIO, "earlier")
        except OSError:
            raise FileClosed("x") from None
    except FileClosed as error:
        assert not is_dir_failure(error)


def test_readers_never_read_another_file_after_a_close(tmp_path):
    """Another file reuses the number of the descriptor at once. No reader may read that file."""
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"F" * 10)
    wrong_reads: list[bytes] = []
    for n in range(200):
        path = tmp_path / f"{n}.log"
        file = LogFile.create(str(path))
        file.append([b"o" * 10], 10)
        start = threading.Barrier(3)

        def read(file: LogFile = file, start: threading.Barrier = start) -> None:
            start.wait()
            try:
                for _ in range(20):
                    if (data := file.read(0, 10)) != b"o" * 10:
                        wrong_reads.append(data)
            except FileClosed:
                pass

        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        start.wait()
        file.close()
        foreign_fds = [os.open(foreign, os.O_RDONLY) for _ in range(3)]
        for thread in threads:
            thread.join()
        for fd in foreign_fds:
            os.close(fd)
        os.unlink(path)
    assert not wrong_reads


# --- during a flush


def empty(manager: LogManager) -> None:
    manager.truncate_fully_and_start_at(A, 5)


def shorten(manager: LogManager) -> None:
    manager.truncate_to(A, 1)


def delete(manager: LogManager) -> None:
    manager.delete(A)
    manager.clock.advance(CONFIG.file_delete_delay_ms + 1)
    deletion = job(manager, "delete-files")
    assert deletion.prepare()
    deletion.run()
    deletion.finish(None)


@pytest.mark.parametrize("change", [empty, shorten, delete])
def test_a_flush_completes_after_its_segments_are_deleted(manager, change):
    create_filled_log(manager)
    manager.clock.advance(10)
    flush = job(manager, "flush")
    assert flush.prepare()
    change(manager)
    # The files of this log reuse the closed descriptor numbers.
    other = create_filled_log(manager, B)
    flush.run()
    flush.finish(None)
    assert manager.online_dirs == manager.dirs
    if change is not delete:
        assert manager.get(A).flushed_offset <= manager.get(A).end_offset
    assert other.end_offset == 20


def test_a_cancelled_flush_leaves_no_file_open(manager):
    log = create_filled_log(manager)
    flush = log.prepare_flush()
    manager.truncate_fully_and_start_at(A, 0)
    assert removed_but_open(log)
    flush.cancel()
    assert not removed_but_open(log)


def removed_but_open(log: Log) -> list[str]:
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [link for link in links if link.startswith(str(log.dir)) and link.endswith("(deleted)")]


# --- during a read


@pytest.mark.parametrize("change", [empty, shorten, delete])
def test_a_warm_up_read_completes_after_its_segment_is_deleted(manager, monkeypatch, change):
    log = create_filled_log(manager)
    piece = log.read(10, 10_000, limit=log.end_offset, min_one_batch=True).slice
    inode = os.fstat(piece.fd).st_ino
    reading, may_read = threading.Event(), threading.Event()
    inodes: list[int] = []

    class Slow:
        """The `os` module for page_cache.py, with reads that wait for `may_read`."""

        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

        def preadv(self, fd: int, *args: object) -> int:
            reading.set()
            assert may_read.wait(60)
            inodes.append(os.fstat(fd).st_ino)
            return os.preadv(fd, *args)

    monkeypatch.setattr(page_cache, "os", Slow())
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(warm, piece)
        assert reading.wait(60)
        change(manager)
        create_filled_log(manager, B)
        may_read.set()
        future.result(60)
    assert set(inodes) == {inode}
    with pytest.raises(FileClosed):
        warm(piece)
    with pytest.raises(FileClosed):
        piece.read()


# --- during a move


@pytest.mark.parametrize("change", [empty, shorten])
def test_a_truncation_during_a_copy_fails_neither_the_move_nor_a_directory(manager, change):
    log = create_filled_log(manager)
    target = next(log_dir for log_dir in manager.dirs if log_dir is not manager.dir_of(log))
    manager.move(A, target.path)
    moves = job(manager, "move-logs")
    assert moves.prepare()
    change(manager)
    create_filled_log(manager, B)
    raised = None
    try:
        moves.run()
    except Exception as error:
        raised = error
    moves.finish(raised)
    assert manager.online_dirs == manager.dirs
    append(manager.get(A), [(b"last", b"record")])
    for _ in range(100):
        if not moves.prepare():
            break
        moves.run()
        moves.finish(None)
    assert manager.dir_of(manager.get(A)) is target
    assert contents(manager.get(A))[-1][1:] == (b"last", b"record")


def test_an_unreadable_source_takes_its_own_directory_offline(tmp_path, monkeypatch):
    failed: list[str] = []
    manager = LogManager(
        [tmp_path / "one", tmp_path / "two"],
        lambda topic: CONFIG,
        clock=FakeClock(),
        on_dir_failure=lambda log_dir, partitions: failed.append(log_dir.path.name),
    )
    manager.open_dirs()
    manager.load()
    log = create_filled_log(manager)
    source = manager.dir_of(log)
    manager.move(A, next(log_dir for log_dir in manager.dirs if log_dir is not source).path)
    moves = job(manager, "move-logs")
    assert moves.prepare()

    def broken(file: LogFile, position: int, size: int) -> bytes:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(LogFile, "read", broken)
        with pytest.raises(Exception, match="broken") as raised:
            moves.run()
    moves.finish(raised.value)
    assert failed == [source.path.name]
    manager.abandon()


# --- during a cleaning


def test_a_truncation_and_new_records_abort_a_cleaning_and_the_log_stays_cleanable(manager):
    log = manager.get_or_create(A, LogConfig(cleanup_policy=("compact",), segment_bytes=2000))
    for n in range(40):
        append(log, [(b"k%d" % (n % 3), b"v" * 100)])
    cleaning = job(manager, "cleaner")
    assert cleaning.prepare()
    # Append batches of another size, so that a previous position is within a batch.
    manager.truncate_to(A, 1)
    while log.end_offset < 80:
        append(log, [(b"other", b"w" * 333)])
    raised = None
    try:
        cleaning.run()
    except Exception as error:
        raised = error
    cleaning.finish(raised)
    assert not manager.cleaner.uncleanable
    assert manager.online_dirs == manager.dirs
