"""File names of a log, and atomic writes of small files."""

from __future__ import annotations

import contextlib
import os

from kavka.common.errors import ErrorCode, KafkaError

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"

DELETED_SUFFIX = ".deleted"
"""Removed from the log; deleted after `file.delete.delay.ms`, or when the log is opened."""
CLEANED_SUFFIX = ".cleaned"
"""Being written by the cleaner; deleted when the log is opened."""
SWAP_SUFFIX = ".swap"
"""Complete, and about to replace old segments; swapped in when the log is opened."""

SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


def file_name(offset: int, suffix: str) -> str:
    """A name of twenty digits, so that names sort like offsets."""
    return f"{offset:020d}{suffix}"


def offset_of(name: str) -> int | None:
    """The offset in the name of a file, or None."""
    digits = name.split(".", 1)[0]
    if len(digits) != 20 or not digits.isascii() or not digits.isdigit():
        return None
    offset = int(digits)
    return offset if offset < 2**63 else None


def fsync_dir(path: str | os.PathLike[str]) -> None:
    """Make created, renamed and removed names in a folder survive a crash of the machine."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | memoryview, position: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, position)
        position += written
        view = view[written:]


def atomic_write(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace a small file: write `.tmp`, fsync it, rename it over the file, fsync the folder. A
    crash leaves the old or the new file. Blocks."""
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


def remove_if_there(path: str | os.PathLike[str]) -> bool:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def sync_file(path: str | os.PathLike[str]) -> None:
    """fsync a file by name. A missing file is ignored."""
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
