"""Read the logs of a partition's replicas from their files. All logs must have the same bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from kavka.records.batch import batches
from kavka.records.reader import batch_records, read_records
from tests.chaos.checker import MAX_LISTED, Read
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
    """Return all segments in order. The boundaries of segments may differ between replicas."""
    return b"".join(path.read_bytes() for path in sorted(folder.glob("[0-9]*.log")))


def end_offset(log: bytes) -> int:
    end = 0
    for batch in batches(log):
        end = batch.last_offset + 1
    return end


def compare(name: str, logs: Mapping[int, bytes]) -> list[Violation]:
    """Compare the logs of one partition, by broker. All batches must be identical."""
    if len(set(logs.values())) <= 1:
        return []
    split = {broker: list(_batches(log)) for broker, log in logs.items()}
    (first, first_batches), *other_replicas = split.items()
    differences = []
    for broker, broker_batches in other_replicas:
        for first_batch, batch in zip(first_batches, broker_batches, strict=False):
            if first_batch != batch:
                differences.append(f"brokers {first} and {broker} have {_describe(first_batch)} and {_describe(batch)}")
                break
        else:
            if len(first_batches) != len(broker_batches):
                ends = [end_offset(b"".join(replica)) for replica in (first_batches, broker_batches)]
                differences.append(f"brokers {first} and {broker} end at {ends[0]} and {ends[1]}")
    if not differences:
        sizes = {broker: len(log) for broker, log in logs.items()}
        differences.append(f"a log has bytes after the last batch: sizes {sizes}")
    return [Violation("replicas", f"{name}: {text}") for text in differences[:MAX_LISTED]]


def records(log: bytes) -> list[Read]:
    return [(record.offset, record.value) for record in read_records(log)]


def resent(log: bytes, first: int = 0) -> set[int]:
    """Return the offsets of records that a producer sent again in a new epoch, although they were
    stored.

    librdkafka treats NOT_LEADER_OR_FOLLOWER as "not stored", although the previous leader may have
    replicated the batch. If it then bumps its epoch after a sequence gap in any partition, no
    broker can distinguish the retry from a new record. Only records from offset `first` on are
    checked.
    """
    producers: dict[bytes, tuple[int, int]] = {}
    offsets: set[int] = set()
    for batch in batches(log):
        if batch.last_offset < first:
            continue
        for record in batch_records(batch):
            producer = (batch.producer_id, batch.producer_epoch)
            if producers.setdefault(record.value or b"", producer) != producer:
                offsets.add(record.offset)
    return offsets


def _batches(log: bytes) -> Iterator[bytes]:
    for batch in batches(log):
        yield log[batch.start : batch.end]


def _describe(data: bytes) -> str:
    batch = next(iter(batches(data)))
    return f"{len(data)} bytes at {batch.base_offset}..{batch.last_offset} of leader epoch {batch.leader_epoch}"
