"""[files only] How far a growing file was read, and where the next lines of it are.

A place in a file is a position, what the file's inode was, and a checksum of its first bytes, at most 1024 and none
beyond the position. By these it is known again:

- the same name, the same inode, the same first bytes, and at least as long: it has grown, or not.
- the same name and another file: it was rotated. The old one is looked for by its inode among the files beside it, and
  read to its end first, with a last line that has no end; then the new one is read from its beginning.
- the same inode, but shorter or with other first bytes: it was cut and written anew, and is read from its beginning.
- another inode with the same first bytes, and the old one is nowhere: somebody wrote the file again, as editors do. It
  is read on where it was.

A line counts when its end is there: what follows the last one is left for later.
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

log = logging.getLogger(__name__)

HEAD = 1024
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Place:
    """`begin` is where the batch began that ended at `position`. Without an inode and a head (a user has set the
    position) every file of that name is the right one."""

    position: int
    begin: int = 0
    inode: int | None = None
    head: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"position": self.position, "begin": self.begin, "inode": self.inode, "head": self.head}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Place:
        """ValueError where it is none."""
        position = found.get("position")
        if not isinstance(position, int) or isinstance(position, bool) or position < 0:
            raise ValueError(f"position must be a number of bytes, not {position!r}")
        inode, head = found.get("inode"), found.get("head") or ""
        if (inode is not None and not isinstance(inode, int)) or not isinstance(head, str):
            raise ValueError("inode must be a number and head a text")
        begin = found.get("begin")
        return cls(position, begin if isinstance(begin, int) else position, inode, head)


def look(path: Path, place: Place | None, most: int, followed: Iterable[Path] = ()) -> Place | None:
    """Where the next batch of lines of the file ends, of about `most` bytes; None if there is nothing new. `followed`
    are files that are read in their own right, whatever they were called before."""
    if place is None:
        return _lines(path, 0, most)
    where = locate(path, place)
    if where == path:
        return _lines(path, place.position, most)
    if where is not None and where not in set(followed):
        rest = _lines(where, place.position, most, to_the_end=path.exists())
        if rest is not None:
            return rest
    elif where is None and path.exists():
        log.warning("%s was cut or replaced: it is read from its beginning", path)
    return _lines(path, 0, most)


def locate(path: Path, place: Place) -> Path | None:
    """Where the file is now that the place is in; None if it is gone."""
    if _is(path, place, place.inode):
        return path
    beside = _beside(path, place)
    if beside is not None:
        return beside
    return path if _is(path, place, None) else None


def is_here(path: Path, place: Place) -> bool:
    """Whether the file by this name is the one that the place is in, whatever it was called."""
    return place.inode is not None and _is(path, place, place.inode)


def _beside(path: Path, place: Place) -> Path | None:
    if place.inode is None:
        return None
    try:
        with os.scandir(path.parent) as entries:
            found = [Path(entry.path) for entry in entries if entry.inode() == place.inode and entry.path != str(path)]
    except OSError:
        return None
    return next((one for one in found if _is(one, place, place.inode)), None)


def _is(path: Path, place: Place, inode: int | None) -> bool:
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or (inode is not None and found.st_ino != inode):
                return False
            head = _head(file.fileno(), place.head) if place.head else ""
            return found.st_size >= place.position and head == place.head
    except OSError:
        return False


def _head(descriptor: int, like: str = "", position: int = HEAD) -> str:
    length = int(like.partition(":")[0]) if like.partition(":")[0].isdigit() else min(position, HEAD)
    return f"{length}:{zlib.crc32(os.pread(descriptor, length, 0)):08x}"


def _lines(path: Path, begin: int, most: int, to_the_end: bool = False) -> Place | None:
    """The end of the last whole line within `most` bytes, or of the first line where that is longer. `to_the_end`: what
    follows the last line's end is a line, too."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                return None
            size, descriptor = found.st_size, file.fileno()
            limit = min(size, begin + most)
            end = _last_end(descriptor, begin, limit)
            if end is None and limit < size:
                end = _first_end(descriptor, limit, size)
            if to_the_end and size > begin and (end is None or limit == size):
                end = size
            if end is None:
                return None
            return Place(end, begin, found.st_ino, _head(descriptor, position=end))
    except FileNotFoundError:
        return None


def _last_end(descriptor: int, begin: int, limit: int) -> int | None:
    at = limit
    while at > begin:
        start = max(begin, at - _CHUNK)
        found = os.pread(descriptor, at - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        at = start
    return None


def _first_end(descriptor: int, begin: int, size: int) -> int | None:
    at = begin
    while at < size:
        chunk = os.pread(descriptor, _CHUNK, at)
        found = chunk.find(b"\n")
        if found >= 0:
            return at + found + 1
        if not chunk:
            break
        at += len(chunk)
    return None
