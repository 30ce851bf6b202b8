"""Kafka's offset checkpoints: one offset per partition of a data directory, in a small file replaced as a whole.

The file is text, as Kafka writes it:

    0                      the format's version
    2                      how many lines follow
    orders 0 1234          topic, partition, offset
    orders 1 99

Every data directory has four of them; `leader-epoch-checkpoint` (leader_epochs.py) has the same form with two columns.
They are written as `<name>.tmp`, fsynced, renamed over the old one, and the
directory is fsynced: a crash leaves the old file or the new one, never a mixture (and maybe a `.tmp`, which the next
write replaces).
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
    """A checkpoint file that cannot be understood; `str()` names the file and the line."""


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    lines = [f"{VERSION}\n{len(offsets)}\n"]
    lines += [f"{topic} {partition} {offset}\n" for (topic, partition), offset in offsets.items()]
    return "".join(lines).encode()


def decode_offsets(data: bytes, name: str) -> dict[TopicPartition, int]:
    """Raises CheckpointError. A file of no bytes is one of no entries: Kafka creates such files."""
    offsets: dict[TopicPartition, int] = {}
    for topic, partition, offset in decode_entries(data, name, 3) if data else ():
        offsets[TopicPartition(topic, _number(partition, _MAX_INT, name))] = _number(offset, _MAX_LONG, name)
    return offsets


def decode_epochs(data: bytes, name: str) -> list[tuple[int, int]]:
    """(epoch, start offset) of a `leader-epoch-checkpoint`. Raises CheckpointError, also for a file of no bytes."""
    epochs = [
        (_number(epoch, _MAX_INT, name), _number(start, _MAX_LONG, name))
        for epoch, start in decode_entries(data, name, 2)
    ]
    if any(epoch < 0 or start < 0 for epoch, start in epochs):
        raise CheckpointError(f"checkpoint file {name} has negative numbers")
    return epochs


def decode_entries(data: bytes, name: str, columns: int) -> list[list[str]]:
    """The lines after version and count, each as its columns. Raises CheckpointError."""
    try:
        lines = data.decode("ascii").splitlines()
    except UnicodeDecodeError:
        raise CheckpointError(f"checkpoint file {name} is not text") from None
    if not lines:
        raise CheckpointError(f"checkpoint file {name} is empty")
    if lines[0].strip() != str(VERSION):
        raise CheckpointError(f"checkpoint file {name} has version {lines[0][:20]!r}, expected {VERSION}")
    if len(lines) < 2 or not _COUNT.fullmatch(lines[1].strip()):
        raise CheckpointError(f"checkpoint file {name} does not say in its second line how many entries it has")
    expected = int(lines[1].strip())
    entries = [line.split() for line in lines[2:] if line.strip()]
    if len(entries) != expected:
        raise CheckpointError(f"checkpoint file {name} should have {expected} entries but has {len(entries)}")
    for entry in entries:
        if len(entry) != columns:
            raise CheckpointError(f"checkpoint file {name} has a malformed line: {' '.join(entry)[:300]!r}")
    return entries


def _number(text: str, largest: int, name: str) -> int:
    if not _NUMBER.fullmatch(text) or int(text) > largest:
        raise CheckpointError(f"checkpoint file {name} has {text[:30]!r} where a number should be")
    return int(text)


class OffsetCheckpoint:
    """One checkpoint file. It holds no state: who reads and writes it is up to the owner of the directory."""

    __slots__ = ("_writing", "path")

    def __init__(self, directory: str | os.PathLike[str], name: str) -> None:
        self.path = Path(directory, name)
        self._writing = Lock()

    def read(self) -> dict[TopicPartition, int]:
        """CheckpointError when the file is corrupt, OSError when it cannot be read; no file is a file of no entries."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return {}
        return decode_offsets(data, str(self.path))

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Blocks for two fsyncs: runs in a worker thread, with a mapping that nobody changes meanwhile."""
        with self._writing:
            atomic_write(self.path, encode_offsets(offsets))
