"""Checks whether a slice of a file is in the page cache. The loop thread only sends slices that
are; a worker thread reads others first.

`preadv` with RWF_NOWAIT reads a byte only where that needs no disk. Kernels read ahead in windows
of 128 KB, so one probe per window and one at the end give a good estimate. A wrong estimate costs a
slow send, never wrong data.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kavka.storage.file_slice import FileSlice

_PROBE_STEP = 128 * 1024
_CHUNK = 256 * 1024
_probe = [bytearray(1)]
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


def is_resident(piece: FileSlice) -> bool:
    """Only the loop thread may call it, because of a shared buffer. Slices on file systems without
    RWF_NOWAIT count as resident."""
    if not _NOWAIT:
        return True
    fd, position, end = piece.fd, piece.position, piece.position + len(piece)
    try:
        while position < end:
            os.preadv(fd, _probe, position, _NOWAIT)
            position += _PROBE_STEP
        os.preadv(fd, _probe, end - 1, _NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def warm(piece: FileSlice) -> None:
    """In a worker thread: read the slice into the page cache, and start readahead of as many bytes
    after it. Raises FileClosed if the segment was deleted in the meantime."""
    position, end = piece.position, piece.position + len(piece)
    scratch = [bytearray(_CHUNK)]
    with piece.file.in_use() as fd:
        os.posix_fadvise(fd, position, 2 * (end - position), os.POSIX_FADV_WILLNEED)
        while position < end:
            read = os.preadv(fd, scratch, position)
            if read <= 0:
                return
            position += read
