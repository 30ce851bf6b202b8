"""Kafka's offset checkpoint files, with one offset per partition of a data directory.

A checkpoint file is text, as in Kafka:

    0                      version of the format
    2                      number of lines that follow
    orders 0 1234          topic, partition, offset
    orders 1 99

Every data directory has four of these files. `leader-epoch-checkpoint` (leader_epochs.py) has the
same format with two columns. A write replaces the whole file (`files.atomic_write`): a crash leaves
the previous or the new contents, and perhaps a `.tmp` file, which the next write replaces.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from threading import Lock

from kavka.common.types import TopicPartition
from kavka.storage.files import atomic_write

RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"

VERSION = 0

_COUNT = re.compile(r"[0-9]{1,10}")
_NUMBER = re.compile(r"-1|[0-9]{1,19}")
_MAX_INT = 2**31 - 1
_MAX_LONG = 2**63 - 1


class CheckpointError(Exception):
    """A malformed checkpoint file. The message contains the path of the file."""


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    lines = [f"{VERSION}\n{len(offsets)}\n"]
    lines += [f"{topic} {partition} {offset}\n" for (topic, partition), offset in offsets.items()]
    return "".join(lines).encode()


def decode_offsets(data: bytes, path: str) -> dict[TopicPartition, int]:
    """Return the offset of each partition. An empty file has no entries: Kafka creates such files.
    Raises CheckpointError. `path` appears in error messages."""
    offsets: dict[TopicPartition, int] = {}
    for topic, partition, offset in decode_entries(data, path, 3) if data else ():
        offsets[TopicPartition(topic, _number(partition, _MAX_INT, path))] = _number(offset, _MAX_LONG, path)
    return offsets


def decode_epochs(data: bytes, path: str) -> list[tuple[int, int]]:
    """Return the (epoch, start offset) pairs of a `leader-epoch-checkpoint`. Raises CheckpointError
    for a malformed or empty file."""
    epochs = [
        (_number(epoch, _MAX_INT, path), _number(start, _MAX_LONG, path))
        for epoch, start in decode_entries(data, path, 2)
    ]
    if any(epoch < 0 or start < 0 for epoch, start in epochs):
        raise CheckpointError(f"checkpoint file {path} has negative numbers")
    return epochs


def decode_entries(data: bytes, path: str, columns: int) -> list[list[str]]:
    """Return the columns of each line after the version and the count. Raises CheckpointError."""
    try:
        lines = data.decode("ascii").splitlines()
    except UnicodeDecodeError:
        raise CheckpointError(f"checkpoint file {path} is not text") from None
    if not lines:
        raise CheckpointError(f"checkpoint file {path} is empty")
    if lines[0].strip() != str(VERSION):
        raise CheckpointError(f"checkpoint file {path} has version {lines[0][:20]!r}, expected {VERSION}")
    if len(lines) < 2 or not _COUNT.fullmatch(lines[1].strip()):
        raise CheckpointError(f"checkpoint file {path} does not have the number of entries in its second line")
    expected = int(lines[1].strip())
    entries = [line.split() for line in lines[2:] if line.strip()]
    if len(entries) != expected:
        raise CheckpointError(f"checkpoint file {path} should have {expected} entries but has {len(entries)}")
    for entry in entries:
        if len(entry) != columns:
            raise CheckpointError(f"checkpoint file {path} has a malformed line: {' '.join(entry)[:300]!r}")
    return entries


def _number(text: str, maximum: int, path: str) -> int:
    if not _NUMBER.fullmatch(text) or int(text) > maximum:
        raise CheckpointError(f"checkpoint file {path} has {text[:30]!r} instead of a number")
    return int(text)


class OffsetCheckpoint:
    """One checkpoint file. The contents are not cached. A lock serializes the writes. Any thread
    may call the methods."""

    __slots__ = ("_writing", "path")

    def __init__(self, directory: str | os.PathLike[str], name: str) -> None:
        self.path = Path(directory, name)
        self._writing = Lock()

    def read(self) -> dict[TopicPartition, int]:
        """Return the offset of each partition. A missing file has no entries. Raises
        CheckpointError if the file is malformed, and OSError if it cannot be read."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return {}
        return decode_offsets(data, str(self.path))

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace the file. Blocks for two fsyncs. The caller must not change `offsets` in the
        meantime. Raises OSError."""
        with self._writing:
            atomic_write(self.path, encode_offsets(offsets))
