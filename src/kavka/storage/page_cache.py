"""Is a piece of a file in memory? The loop sends only what is; a worker thread fetches the rest first.

`preadv` with RWF_NOWAIT reads a byte only if that needs no disk. Kernels read ahead in windows of 128 KB, so one probe
in each window and one at the end is a good guess: wrong guesses cost a slow send, never wrong data.
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
    """Only on the loop thread (one shared byte of scratch). File systems that cannot tell count as resident."""
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
    """In a worker thread: read the piece into the page cache, and ask the kernel for as much again behind it.
    FileClosed where the segment was deleted meanwhile."""
    position, end = piece.position, piece.position + len(piece)
    scratch = [bytearray(_CHUNK)]
    with piece.file.in_use() as fd:
        os.posix_fadvise(fd, position, 2 * (end - position), os.POSIX_FADV_WILLNEED)
        while position < end:
            read = os.preadv(fd, scratch, position)
            if read <= 0:
                return
            position += read
