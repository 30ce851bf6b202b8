"""The logs of a partition's replicas, read from their files: each must hold the same bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from kavka.records.batch import batches
from kavka.records.reader import batch_records, read_records
from tests.chaos.checker import MANY, Read
from tests.chaos.history import Violation


def partition_folders(log_dirs: Sequence[Path], topic: str) -> dict[int, Path]:
    folders: dict[int, Path] = {}
    for folder in log_dirs:
        for path in folder.glob(f"{topic}-[0-9]*"):
            number = path.name.removeprefix(f"{topic}-")
            if number.isdigit():
                folders[int(number)] = path
    return folders


def log_bytes(folder: Path) -> bytes:
    """All segments in order. Segment boundaries may differ between replicas, their contents may
    not."""
    return b"".join(path.read_bytes() for path in sorted(folder.glob("[0-9]*.log")))


def end_offset(log: bytes) -> int:
    end = 0
    for batch in batches(log):
        end = batch.last_offset + 1
    return end


def compare(name: str, logs: Mapping[int, bytes]) -> list[Violation]:
    """The logs of one partition by broker: same batches, bit for bit, from the first to the
    last."""
    if len(set(logs.values())) <= 1:
        return []
    split = {broker: list(_batches(log)) for broker, log in logs.items()}
    (first, ours), *others = split.items()
    differences = []
    for broker, theirs in others:
        for mine, other in zip(ours, theirs, strict=False):
            if mine != other:
                differences.append(f"brokers {first} and {broker} have {_about(mine)} and {_about(other)}")
                break
        else:
            if len(ours) != len(theirs):
                ends = [end_offset(b"".join(each)) for each in (ours, theirs)]
                differences.append(f"brokers {first} and {broker} end at {ends[0]} and {ends[1]}")
    if not differences:
        sizes = {broker: len(log) for broker, log in logs.items()}
        differences.append(f"there is something after the last batch: sizes {sizes}")
    return [Violation("replicas", f"{name}: {text}") for text in differences[:MANY]]


def records(log: bytes) -> list[Read]:
    return [(record.offset, record.value) for record in read_records(log)]


def resent(log: bytes, first: int = 0) -> set[int]:
    """Offsets of records that a producer sent again under a new epoch, although they were stored.

    librdkafka does so: it takes NOT_LEADER_OR_FOLLOWER for "not stored", although the former leader
    may have replicated the batch. When it then bumps its epoch after a sequence gap in any
    partition, no broker can distinguish the retry from a new record. Only records from offset
    `first` on are checked."""
    seen: dict[bytes, tuple[int, int]] = {}
    offsets: set[int] = set()
    for batch in batches(log):
        if batch.last_offset < first:
            continue
        for record in batch_records(batch):
            whose = (batch.producer_id, batch.producer_epoch)
            if seen.setdefault(record.value or b"", whose) != whose:
                offsets.add(record.offset)
    return offsets


def _batches(log: bytes) -> Iterator[bytes]:
    for batch in batches(log):
        yield log[batch.start : batch.end]


def _about(data: bytes) -> str:
    batch = next(iter(batches(data)))
    return f"{len(data)} bytes at {batch.base_offset}..{batch.last_offset} of leader epoch {batch.leader_epoch}"
