"""The folders of new partitions, many at once, made where waiting for the disk holds nobody up.

A crash in between leaves folders with nothing but `partition.metadata`, or without: logs that are empty.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from uuid import UUID

from kavka.storage.files import fsync_dir
from kavka.storage.partition_metadata import FILE_NAME, write_topic_id


def make_folders(wanted: Sequence[tuple[str, UUID]]) -> None:
    """Blocks until all of them, and whose they are, survive a crash of the machine. Raises OSError."""
    for path, topic_id in wanted:
        # Never the log directory itself: one that is gone has failed, and must not come back empty.
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
        if not os.path.exists(os.path.join(path, FILE_NAME)):
            write_topic_id(path, topic_id)
    for parent in dict.fromkeys(os.path.dirname(path) for path, _ in wanted):
        fsync_dir(parent)
