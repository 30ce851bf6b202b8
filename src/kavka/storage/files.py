"""The file names of a log, and helpers that write and fsync files."""

from __future__ import annotations

import contextlib
import os

from kavka.common.errors import ErrorCode, KafkaError

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"

# A file of a removed segment. It is deleted after `file.delete.delay.ms` or when the log is opened.
DELETED_SUFFIX = ".deleted"
# A file that the cleaner is writing. It is deleted when the log is opened.
CLEANED_SUFFIX = ".cleaned"
# A complete cleaned file. When the log is opened, it replaces the files that it was created from.
SWAP_SUFFIX = ".swap"

SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


# File systems combine the fsyncs of many files if they run concurrently: 16 threads create folders
# 20 times as fast as one.
CONCURRENT_FSYNCS = 16


SMALL_FILE_BYTES = 4096


def file_name(offset: int, suffix: str) -> str:
    """Return the offset, zero-padded to 20 digits so that names sort by offset, and the suffix."""
    return f"{offset:020d}{suffix}"


def offset_of(name: str) -> int | None:
    """Return the offset in the name of a file, or None."""
    digits = name.split(".", 1)[0]
    if len(digits) != 20 or not digits.isascii() or not digits.isdigit():
        return None
    offset = int(digits)
    return offset if offset < 2**63 else None


def fsync_dir(path: str | os.PathLike[str]) -> None:
    """fsync a folder, so that created, renamed and removed names survive a crash of the machine."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_file(path: str) -> bytes:
    """Return the contents of a small file. Opening thousands of logs reads several files of each,
    and `open` takes three times as long. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(fd, SMALL_FILE_BYTES)
        if len(data) == SMALL_FILE_BYTES:
            pieces = [data]
            while data := os.read(fd, SMALL_FILE_BYTES):
                pieces.append(data)
            data = b"".join(pieces)
        return data
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | memoryview, position: int) -> None:
    """Write all bytes at `position`, with several system calls if necessary. Raises OSError."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, position)
        position += written
        view = view[written:]


def atomic_write(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace a small file: write `.tmp`, fsync it, rename it over the file, fsync the folder. A
    crash leaves the previous or the new contents. Blocks. Raises OSError."""
    target = os.fspath(path)
    temporary = target + ".tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        try:
            write_all(fd, data, 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, target)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    fsync_dir(os.path.dirname(target) or ".")


def remove_if_exists(path: str | os.PathLike[str]) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def sync_file(path: str | os.PathLike[str]) -> None:
    """fsync the file at `path`. A missing file is ignored."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def storage_error(message: str) -> KafkaError:
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message)
