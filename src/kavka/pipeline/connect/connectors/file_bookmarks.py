"""[files only] The position in a growing file, and the search for its next lines.

A bookmark is a position in bytes, the file's inode, and a checksum of its first bytes, at most
1024 and none beyond the position. They identify the file:

- same name, same inode, same first bytes, and at least as long: the file has grown or is unchanged.
- same name, different file: the file was rotated. The old file is found by its inode in the same
  folder and read to its end first, including an incomplete last line. Then the new file is read
  from its beginning.
- same inode, but shorter or with other first bytes: the file was truncated and rewritten. It is
  read from its beginning.
- different inode with the same first bytes, and the old file does not exist: a program such as an
  editor wrote the file again. Reading continues at the position.

Otherwise a line is read only when it is complete.
"""

from __future__ import annotations

import logging
import os
import stat
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 1024
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class Bookmark:
    """A position in a file. `begin` is the start of the batch that ended at `position`. `head` is
    the length and checksum of the first bytes. A bookmark without an inode and a head, whose
    position a user set, matches every file of that name."""

    position: int
    begin: int = 0
    inode: int | None = None
    head: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"position": self.position, "begin": self.begin, "inode": self.inode, "head": self.head}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Bookmark:
        """Raises ValueError if the data is invalid."""
        position = data.get("position")
        if not isinstance(position, int) or isinstance(position, bool) or position < 0:
            raise ValueError(f"position must be a number of bytes, not {position!r}")
        inode, head = data.get("inode"), data.get("head") or ""
        if (inode is not None and not isinstance(inode, int)) or not isinstance(head, str):
            raise ValueError("inode must be a number and head a string")
        begin = data.get("begin")
        return cls(position, begin if isinstance(begin, int) else position, inode, head)


def find_next(path: Path, bookmark: Bookmark | None, max_bytes: int, followed: Iterable[Path] = ()) -> Bookmark | None:
    """Returns the end of the next batch of lines, of about `max_bytes`; None if there are no new
    lines. `followed` are files that are read independently, even if they had this name before."""
    if bookmark is None:
        return _lines(path, 0, max_bytes)
    current_path = locate(path, bookmark)
    if current_path == path:
        return _lines(path, bookmark.position, max_bytes)
    if current_path is not None and current_path not in set(followed):
        remaining = _lines(current_path, bookmark.position, max_bytes, is_complete=path.exists())
        if remaining is not None:
            return remaining
    elif current_path is None and path.exists():
        logger.warning("%s was truncated or replaced and is read from its beginning", path)
    return _lines(path, 0, max_bytes)


def locate(path: Path, bookmark: Bookmark) -> Path | None:
    """Returns the current path of the file that the bookmark refers to; None if it does not
    exist."""
    if _is_file(path, bookmark, bookmark.inode):
        return path
    renamed = _find_renamed(path, bookmark)
    if renamed is not None:
        return renamed
    return path if _is_file(path, bookmark, None) else None


def is_here(path: Path, bookmark: Bookmark) -> bool:
    """Whether the file at this path is the bookmark's file, even if the bookmark has another
    name."""
    return bookmark.inode is not None and _is_file(path, bookmark, bookmark.inode)


def _find_renamed(path: Path, bookmark: Bookmark) -> Path | None:
    """Returns the path of the bookmark's file under another name in the same folder, or None."""
    if bookmark.inode is None:
        return None
    try:
        with os.scandir(path.parent) as entries:
            candidates = [
                Path(entry.path) for entry in entries if entry.inode() == bookmark.inode and entry.path != str(path)
            ]
    except OSError:
        return None
    return next((candidate for candidate in candidates if _is_file(candidate, bookmark, bookmark.inode)), None)


def _is_file(path: Path, bookmark: Bookmark, inode: int | None) -> bool:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or (inode is not None and status.st_ino != inode):
                return False
            length = bookmark.head.partition(":")[0]
            head = _head(file.fileno(), int(length) if length.isdigit() else MAX_HEAD_BYTES) if bookmark.head else ""
            return status.st_size >= bookmark.position and head == bookmark.head
    except OSError:
        return False


def _head(descriptor: int, length: int) -> str:
    return f"{length}:{zlib.crc32(os.pread(descriptor, length, 0)):08x}"


def _lines(path: Path, begin: int, max_bytes: int, is_complete: bool = False) -> Bookmark | None:
    """Returns the end of the last complete line within `max_bytes`, or of the first line if that
    line is longer. Returns None if there is no complete line. `is_complete` means that the file
    does not grow, so that text after the last line end is also a line."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return None
            size, descriptor = status.st_size, file.fileno()
            limit = min(size, begin + max_bytes)
            end = _last_end(descriptor, begin, limit)
            if end is None and limit < size:
                end = _first_end(descriptor, limit, size)
            if is_complete and size > begin and (end is None or limit == size):
                end = size
            if end is None:
                return None
            return Bookmark(end, begin, status.st_ino, _head(descriptor, min(end, MAX_HEAD_BYTES)))
    except FileNotFoundError:
        return None


def _last_end(descriptor: int, begin: int, limit: int) -> int | None:
    position = limit
    while position > begin:
        start = max(begin, position - _CHUNK_BYTES)
        index = os.pread(descriptor, position - start, start).rfind(b"\n")
        if index >= 0:
            return start + index + 1
        position = start
    return None


def _first_end(descriptor: int, begin: int, size: int) -> int | None:
    position = begin
    while position < size and (chunk := os.pread(descriptor, _CHUNK_BYTES, position)):
        index = chunk.find(b"\n")
        if index >= 0:
            return position + index + 1
        position += len(chunk)
    return None
