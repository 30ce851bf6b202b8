"""Logs for tests: a clock turned by hand, appending records, and reading back what is on disk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from kavka.common.types import TopicPartition
from kavka.records.batch import Batch, batches
from kavka.records.builder import BatchBuilder
from kavka.records.control import end_marker
from kavka.records.reader import read_records
from kavka.records.record import Record
from kavka.storage.log import Log
from kavka.storage.log_append import AppendOrigin
from kavka.storage.log_config import LogConfig

TP = TopicPartition("orders", 0)
START_MS = 1_700_000_000_000


class FakeClock:
    """Stands still until it is moved."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.ms = now_ms

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000

    def advance(self, ms: int) -> None:
        self.ms += ms


KeyValue = tuple[bytes | None, bytes | None]


def build(records: Sequence[KeyValue], timestamp: int = START_MS, **options: object) -> bytearray:
    builder = BatchBuilder(**options)  # type: ignore[arg-type]
    for key, value in records:
        builder.append(Record(timestamp=timestamp, key=key, value=value))
    return bytearray(builder.build())


def append(log: Log, records: Sequence[KeyValue], *, epoch: int = 0, replicated: bool = True, **options: object) -> int:
    """One batch; returns its first offset. `replicated`: all of it is below the high watermark afterwards."""
    options.setdefault("timestamp", log.clock.now_ms())
    info = log.stage_as_leader(memoryview(build(records, **options)), epoch)  # type: ignore[arg-type]
    log.write_staged()
    if replicated:
        log.set_high_watermark(log.end_offset)
    return info.first_offset


def append_marker(log: Log, producer_id: int, *, commit: bool, producer_epoch: int = 0) -> int:
    data = end_marker(commit, producer_id, producer_epoch, 0, log.clock.now_ms())
    info = log.stage_as_leader(memoryview(bytearray(data)), 0, origin=AppendOrigin.COORDINATOR)
    log.write_staged()
    log.set_high_watermark(log.end_offset)
    return info.first_offset


def open_log(path: Path, config: LogConfig | None = None, clock: FakeClock | None = None, **options: object) -> Log:
    path.parent.mkdir(parents=True, exist_ok=True)
    return Log.open(path, TP, config or LogConfig(), clock or FakeClock(), **options)  # type: ignore[arg-type]


def stored_batches(log: Log) -> list[Batch]:
    """All batches of all segments, as they are in the files."""
    found: list[Batch] = []
    for segment in log.segments:
        found += batches(segment.file.read(0, segment.size))
    return found


def stored_records(log: Log) -> list[Record]:
    found: list[Record] = []
    for segment in log.segments:
        found += read_records(segment.file.read(0, segment.size))
    return found


def contents(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in stored_records(log)]


def latest(records: Iterable[tuple[int, bytes | None, bytes | None]]) -> dict[bytes, tuple[int, bytes | None]]:
    """What a reader from the start ends up with."""
    state: dict[bytes, tuple[int, bytes | None]] = {}
    for offset, key, value in records:
        assert key is not None
        state[key] = (offset, value)
    return state
