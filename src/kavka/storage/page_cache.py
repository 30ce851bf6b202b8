"""Checks whether a slice of a file is in the page cache. The loop thread sends only slices that
are; a worker thread reads all others into the page cache first.

`preadv` with RWF_NOWAIT reads a byte only if it is in the page cache. Kernels read ahead in windows
of 128 KB, so one probe per window and one at the end give a good estimate. A wrong estimate makes a
send slow, but never sends wrong data.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kavka.storage.file_slice import FileSlice

_PROBE_INTERVAL_BYTES = 128 * 1024
_CHUNK_BYTES = 256 * 1024
_probe = [bytearray(1)]
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


def is_resident(slice: FileSlice) -> bool:
    """Whether a slice is probably in the page cache. Returns True if the file system does not
    support RWF_NOWAIT. Only the loop thread may call it, because all calls share a buffer."""
    if not _NOWAIT:
        return True
    fd, position, end = slice.fd, slice.position, slice.position + len(slice)
    try:
        while position < end:
            os.preadv(fd, _probe, position, _NOWAIT)
            position += _PROBE_INTERVAL_BYTES
        os.preadv(fd, _probe, end - 1, _NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def warm(slice: FileSlice) -> None:
    """Read a slice into the page cache, and start readahead of as many bytes after the slice. Only
    a worker thread may call it, because it blocks. Raises FileClosed if the segment was deleted in
    the meantime."""
    position, end = slice.position, slice.position + len(slice)
    scratch = [bytearray(_CHUNK_BYTES)]
    with slice.file.in_use() as fd:
        os.posix_fadvise(fd, position, 2 * (end - position), os.POSIX_FADV_WILLNEED)
        while position < end:
            count = os.preadv(fd, scratch, position)
            if count <= 0:
                return
            position += count
