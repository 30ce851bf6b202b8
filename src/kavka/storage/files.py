"""File names of a log, and writing small files so that a crash leaves the old or the new one, never a half."""

from __future__ import annotations

import contextlib
import os

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"

DELETED_SUFFIX = ".deleted"
"""Out of the log, waiting for `file.delete.delay.ms`; removed on open."""
CLEANED_SUFFIX = ".cleaned"
"""The cleaner is still writing it; removed on open."""
SWAP_SUFFIX = ".swap"
"""Whole, and about to take the place of the segments it was made from; put in place on open."""

SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


def file_name(offset: int, suffix: str) -> str:
    """Twenty digits, so that names sort as offsets do."""
    return f"{offset:020d}{suffix}"


def offset_of(name: str) -> int | None:
    """The offset that a file is named by; None for a name that is not of this form, or of no offset that there is."""
    digits = name.split(".", 1)[0]
    if len(digits) != 20 or not digits.isascii() or not digits.isdigit():
        return None
    offset = int(digits)
    return offset if offset < 2**63 else None


def fsync_dir(path: str | os.PathLike[str]) -> None:
    """Makes created, renamed and removed names of a folder survive a crash of the machine."""
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
    """Replace a small file as a whole: write beside it (`.tmp`), fsync, rename over it, fsync the folder. Blocks."""
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
    """fsync a file by name; one that is gone meanwhile needs none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
